"""The files that come with the package: each is listed with its sentence, runs by its name, and can be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.core.errors import BadInput
from fedray.scenario.loader import read_scenario
from fedray.scenario.shipped import copy_shipped, find_scenario_file, list_shipped
from fedray.tuning.sweep import read_sweep

ROOT = Path(__file__).parents[2]
FILES = list_shipped()


def test_every_file_is_listed_once_with_a_sentence_and_its_command() -> None:
    expected = [*(ROOT / "scenarios").rglob("*.yaml"), *(ROOT / "tune").rglob("*.yaml")]
    assert sorted(file.path for file in FILES.values()) == sorted(expected)
    assert all(len(file.what) > 20 and file.what.endswith(".") for file in FILES.values())
    assert {name for name, file in FILES.items() if file.command == "tune"} == {
        n for n in FILES if n.startswith("tune/")
    }
    assert FILES["quickstart"].command == "run" and FILES["papers/fedag_table2"].command == "table"


def test_a_name_is_read_like_its_file() -> None:
    assert read_scenario("quickstart") == read_scenario(ROOT / "scenarios" / "quickstart.yaml")


def test_a_file_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("rounds: 1\n")
    assert read_scenario("quickstart").rounds == 1


def test_an_unknown_name_is_one_line() -> None:
    with pytest.raises(BadInput, match=r"quickstrat: did you mean quickstart\? there is no such file"):
        find_scenario_file("quickstrat")
    with pytest.raises(BadInput, match=r"nope.yaml does not exist: check the path, or see `fedray scenarios`"):
        read_scenario("nope.yaml")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("tune/")])
def test_a_copied_sweep_is_the_same_sweep(name: str, tmp_path: Path) -> None:
    """It names its scenario, which it no longer finds by a relative path."""
    copy = tmp_path / f"{Path(name).name}.yaml"
    copy_shipped(name, copy)
    assert read_sweep(copy) == read_sweep(FILES[name].path)
    with pytest.raises(BadInput, match="is there already"):
        copy_shipped(name, copy)
