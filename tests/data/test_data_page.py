"""docs/how-to/data.md cannot lie: its blocks run as they stand, one by one, and its table names what there is."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from small import run_command

from fedray.scenario.data import DATA_SPECS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "data.md").read_text()


@pytest.mark.filterwarnings("ignore:data. ")
def test_the_blocks_of_the_page_on_own_data_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```$", PAGE, flags=re.M | re.S)
    assert len(blocks) == 11
    for kind, block in blocks:
        if kind == "python":
            with warnings.catch_warnings():
                exec(compile(block, "docs/how-to/data.md", "exec"), known)
        else:
            done = run_command(*block.split()[1:], "runtime=inline", "report=false")
            assert done.status == 0, done.err
    assert known["run"].summary["rounds"] == 1


def test_the_page_names_the_kinds_of_scenario_files_with_their_keys() -> None:
    for name, keys in re.findall(r"\{name: (table|hf|folder), ([^}]*)\}", PAGE):
        given = set(re.findall(r"(\w+):", keys))
        assert given <= set(DATA_SPECS[name].options), (name, given)
