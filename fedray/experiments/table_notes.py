"""What must be known of the scores of a table before they are compared.

Example:
    >>> rows = {("a", name): {"mean": 0.9, "apart": True} for name in ("accuracy", "personal_accuracy")}
    >>> find_first_score(rows)
    ['personal_accuracy']
    >>> find_first_score({**rows, ("b", "accuracy"): {"mean": 0.8}})
    []
    >>> list_table_notes(rows)
    ['Clients of a answer by themselves: `personal_accuracy` is theirs, and `accuracy` that of a common answer.']
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.report.choices import MARK

CellRows = Mapping[tuple[str, str], Mapping[str, Any]]  # (cell, score) -> row
PERSONAL = ("personal_accuracy", "personal_rmse")  # of the clients' own answers


def find_first_score(rows: CellRows) -> list[str]:
    """The score of the clients' own answers, where clients of a cell use those, and all cells have it.

    Args:
        rows: of the table; `apart` says of a cell that its clients use answers of their own.
    """
    return [name for name in PERSONAL if _list_apart(rows) and not _list_lacking(rows, name)]


def list_table_notes(rows: CellRows) -> list[str]:
    """The lines below a table.

    Args:
        rows: as in `find_first_score`; `chosen` is a line where the test rows chose the round in which a cell ended.
    """
    chosen = list(dict.fromkeys(row["chosen"] for row in rows.values() if row.get("chosen")))
    return [*_tell_answers(rows), *chosen]


def mark_row(text: str, row: Mapping[str, Any] | None, mark: str = MARK) -> str:
    """A score of a cell as text, with a mark where the test rows chose the round in which the cell ended.

    Args:
        text: the score; an empty one has no mark.
        row: of the score; `chosen` says that it was chosen so.
        mark: what is behind it.

    Example:
        >>> mark_row("0.9", {"chosen": "a line"}, "*"), mark_row("0.9", {})
        ('0.9 *', '0.9')
    """
    return f"{text} {mark}" if text and row is not None and row.get("chosen") else text


def _tell_answers(rows: CellRows) -> list[str]:
    """A line where clients of some cells use answers of their own: which score is theirs."""
    apart = _list_apart(rows)
    name = next((name for name in PERSONAL if any((cell, name) in rows for cell in apart)), "")
    if not name:
        return []
    plain, lacking = name.removeprefix("personal_"), ", ".join(_list_lacking(rows, name))
    more = f" Without it: {lacking} (with evaluate.personal=true a run records it)." if lacking else ""
    whose = f"Clients of {', '.join(apart)} answer by themselves"
    return [f"{whose}: `{name}` is theirs, and `{plain}` that of a common answer.{more}"]


def _list_apart(rows: CellRows) -> list[str]:
    """The cells whose clients use answers of their own."""
    return list(dict.fromkeys(cell for (cell, _), row in rows.items() if row.get("apart")))


def _list_lacking(rows: CellRows, name: str) -> list[str]:
    """The cells without a score."""
    return [cell for cell in dict.fromkeys(cell for cell, _ in rows) if (cell, name) not in rows]
