"""What people type in the place of a key, a scenario or a command: one line with what is meant."""

from __future__ import annotations

import pytest
from small import run_command

LINES = [
    (
        ("run", "quickstart", "--rounds", "2"),
        "--rounds is no option: keys of a scenario have no dashes: write rounds=VALUE",
    ),
    (("check", "--batch-size", "5", "quickstart"), "--batch-size is no option: .* write local.batch_size=VALUE"),
    (("run", "quickstart", "--nonsense"), "No such option '--nonsense'.*: see `fedray run --help`"),
    (
        ("resume", "runs/one", "rounds=60"),
        r"argument \(rounds=60\): a run keeps its keys, and --rounds N makes it longer",
    ),
    (("tune", "sweep.yaml", "rounds=2"), r"argument \(rounds=2\): write it below overrides in the sweep file"),
    (("compare", "runs/one", "runs/two"), "No such command 'compare': use `fedray report RUN RUN --out FILE`"),
    (("run", "mine.py"), "mine.py is Python code and no scenario: name a scenario, and give --import mine.py"),
    (("run", "t.csv"), "t.csv is a table and no scenario: .* data.name=table data.path=t.csv data.target=COLUMN"),
]


@pytest.mark.parametrize(("arguments", "line"), LINES)
def test_a_key_with_dashes_or_a_file_of_another_kind_had_another_remedy(arguments: tuple[str, ...], line: str) -> None:
    """It proposed --out, or told what is wrong with a table as YAML."""
    told = run_command(*arguments)
    assert told.status == 2 and told.err.count("\n") == 1
    with pytest.raises(AssertionError, match=line):
        raise AssertionError(told.err)
