"""Every partition has its picture: by `fedray check --plot`, and in docs/reference/partitions.md with its command."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from small import run_command

import fedray
from fedray.scenario.sections import CLIENT_KINDS, PARTITION_SPECS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGE = (REFERENCE / "partitions.md").read_text()
COMMANDS = dict(re.findall(r"!\[(\w+)\]\(.*\)\n\n```text\nfedray (check .* --plot \S+)\n```", PAGE))
PNG = b"\x89PNG"


def draw(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The picture of the command of a partition, drawn into a folder."""
    monkeypatch.chdir(ROOT)
    *command, path = shlex.split(COMMANDS[name])
    assert path == f"docs/reference/partitions/{name}.png"
    found = run_command(*command, folder / "picture.png")
    assert found.status == 0, found.err
    return (folder / "picture.png").read_bytes()


def test_the_page_shows_every_partition_and_every_kind_of_clients() -> None:
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == list(PARTITION_SPECS) == list(COMMANDS)
    assert all((REFERENCE / "partitions" / f"{name}.png").read_bytes().startswith(PNG) for name in COMMANDS)
    assert all(f"`{kind}: " in PAGE for kind in CLIENT_KINDS)


def test_a_picture_is_the_same_when_it_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = draw("time", tmp_path, monkeypatch)
    assert image.startswith(PNG)
    assert image == draw("time", tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_partition_is_drawn_by_the_command_on_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "flower":
        pytest.importorskip("flwr_datasets")
    assert draw(name, tmp_path, monkeypatch).startswith(PNG)


def test_the_own_partition_of_the_page_deals_and_reads_its_option() -> None:
    block = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    keys: dict[str, Any] = {"rounds": 0, "runtime": "inline", "report": False, "clients": 4, "model": "linear"}
    keys |= {"method": "fedavg", "data": {"name": "digits", "limit": 90, "partition": {"name": "halves", "part": 3}}}
    exec(compile(block, "block", "exec"), {"__name__": "__main__"})
    study = fedray.run(keys).study
    assert study.shards.label_counts(0).sum() == 30
