"""Tab in the shell: commands, options, the files that come with fedray, and paths."""

import pytest
from click.shell_completion import ShellComplete

from fedray.cli.commands import commands


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ta",), {"table": "plain"}),
        (("run", "quick"), {"quick": "file", "quickstart": "plain"}),
        (("tune", "tune/qu"), {"tune/qu": "file", "tune/quick": "plain"}),
        (("run", "tune/qu"), {"tune/qu": "file"}),
        (("scenarios", "copy", "tune/qu"), {"tune/qu": "file", "tune/quick": "plain"}),
        (("resume", "ru"), {"ru": "file"}),
        (("plot", "ru"), {"ru": "file"}),
        (("run", "quickstart", "--out", "ru"), {"ru": "file"}),
        (("report", "--o"), {"--out": "plain"}),
        (("list", "cla"), {"classifiers": "plain"}),
    ],
)
def test_tab_offers_what_may_stand_there(words: tuple[str, ...], expected: dict[str, str]) -> None:
    """With the kind of each."""
    found = ShellComplete(commands, {}, "fedray", "_FEDRAY_COMPLETE").get_completions(list(words[:-1]), words[-1])
    assert {item.value: item.type for item in found} == expected
