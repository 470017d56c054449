"""`bench/papers.sh`: each of its commands is one that `fedray table` takes, and no file of the papers is left out."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from fedray.experiments.table import choose_cells
from fedray.scenario.loader import read_cells, read_scenario

ROOT = Path(__file__).parents[2]
RECORD = '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done | tr "\\n" "\\t"\necho\n'


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """The words of each command, by the script's option; a stand-in for `fedray` writes them down."""
    folder = tmp_path_factory.mktemp("papers")
    stand_in = folder / "fedray"
    stand_in.write_text(RECORD)
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    def record(*words: str) -> list[list[str]]:
        script = ["sh", str(ROOT / "bench" / "papers.sh"), *words, "out"]
        lines = subprocess.run(script, env=env, check=True, capture_output=True, text=True).stdout.splitlines()
        return [line.rstrip("\t").split("\t") for line in lines]

    return {"": record(), "--measured": record("--measured"), "--all": record("--all")}


def test_every_command_names_cells_that_its_file_has_and_a_folder_of_its_own(
    commands: dict[str, list[list[str]]],
) -> None:
    for words in commands["--all"]:
        assert words[0] == "table", words
        path, rest = words[1], words[2:]
        wanted = read_scenario(ROOT / path, [word for word in rest if "=" in word])
        patterns = rest[rest.index("--cells") + 1].split(",") if "--cells" in rest else []
        assert choose_cells(read_cells(wanted), patterns), shlex.join(words)
    folders = [words[words.index("--out") + 1] for words in commands["--all"]]
    assert len(set(folders)) == len(folders)


def test_a_longer_option_goes_on_with_the_tables_of_the_shorter_one(commands: dict[str, list[list[str]]]) -> None:
    small, measured, all_of_them = commands.values()
    assert measured[: len(small)] == small and all_of_them[: len(measured)] == measured
    assert len(small) < len(measured) < len(all_of_them)


def test_all_runs_every_file_of_the_papers(commands: dict[str, list[list[str]]]) -> None:
    as_they_are = {Path(words[1]).stem for words in commands["--all"] if not any("=" in word for word in words)}
    assert as_they_are == {path.stem for path in (ROOT / "scenarios" / "papers").glob("*.yaml")}
