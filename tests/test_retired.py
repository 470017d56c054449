"""Names of parts that were taken out of fedray, so that none of them comes back beside what took its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedray"
RETIRED = {  # what took their place: the names that went
    "a row of `scenario.names.KINDS` for each kind of a user's own object": (
        *("NameKind", "SPECS", "_DECLARED", "_ORIGINS", "KIND_WORDS", "_PLACES", "DEFAULT_NAMES", "_OBJECT_SECTIONS"),
        *("OBJECT_KINDS", "WANTED", "OwnTraining", "OwnKeys", "check_training", "take_training", "take_rules"),
        *("check_objects", "record_training", "require_training", "refuse_training", "_list_own_rules", "_OWN_RULES"),
        *("register_schedule", "register_selection", "find_selection", "find_code", "keep_code", "find_section"),
    ),
}


def find_names(names: tuple[str, ...], folder: Path = PACKAGE) -> list[str]:
    """Where a folder has one of some names, as a word of its own: the file, and the name."""
    word = re.compile(rf"(?<![\w.])(?:{'|'.join(names)})(?!\w)")
    found = ((path, word.search(path.read_text())) for path in sorted(folder.rglob("*.py")))
    return [f"{path.relative_to(folder)}: {match.group()}" for path, match in found if match is not None]


@pytest.mark.parametrize("place", RETIRED)
def test_what_was_retired_does_not_come_back(place: str) -> None:
    assert not find_names(RETIRED[place]), place


def test_a_name_that_came_back_is_found(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("WANTED = {}\nUNWANTED = METHOD_SPECS = {}\n")
    assert find_names(("WANTED", "SPECS"), tmp_path) == ["old.py: WANTED"]
