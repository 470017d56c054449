"""What fedray says is what was approved: one line each; `python tests/wording/approve.py` writes what it says now."""

from difflib import unified_diff
from itertools import pairwise
from pathlib import Path

import pytest
from approve import CHAPTERS, INDENT, answer, far_from_home


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_what_fedray_says_is_what_was_approved(chapter: Path) -> None:
    text = chapter.read_text()
    with far_from_home() as home:
        today = answer(text, home)
    changed = "\n".join(unified_diff(text.splitlines(), today.splitlines(), "approved", "today", lineterm="", n=1))
    assert not changed, changed


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_what_is_refused_is_one_short_line(chapter: Path) -> None:
    """Of printable letters, behind its question, and no traceback."""
    lines = chapter.read_text().splitlines()
    said = [(before, line) for before, line in pairwise(lines) if line.startswith(INDENT)]
    wrong = [line for before, line in said if before.startswith(INDENT) and "Warning: " not in before]
    wrong += [line for _, line in said if len(line) > 700 or not line.isprintable() or "Traceback" in line]
    assert said and not wrong, wrong
