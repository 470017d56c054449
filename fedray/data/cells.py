"""What the cells of a table's column hold where its type does not say it: numbers, numbers as text, lists, pictures.

Example:
    >>> import pandas as pd
    >>> unbox(pd.Series([1, 2.5, None], dtype=object)).dtype
    dtype('float64')
    >>> explain_marks(pd.Series(["1,234,567", "12,000"]), "data: column a")
    "data: column a has numbers with commas between thousands: leave them out (pandas.read_csv: thousands=',')"
    >>> name_cells(pd.Series([[1, 2], [3]]))
    'lists'
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")  # what pandas calls objects that are numbers
PLAIN = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
MARKED = re.compile(r"\s*[+-]?[\d.,' ]+\s*")
BETWEEN = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}


class Marks(NamedTuple):
    """The marks of a number as text.

    Attributes:
        thousands: Between thousands; empty: none.
        decimal: Before the decimals.
    """

    thousands: str
    decimal: str

    @property
    def what(self) -> str:
        """What they are called."""
        return f"{BETWEEN[self.thousands]} between thousands" if self.thousands else "decimal commas"

    @property
    def options(self) -> str:
        """What `pandas.read_csv` has to know of them."""
        thousands = [f"thousands={self.thousands!r}"] if self.thousands else []
        return ", ".join(thousands + [f"decimal={self.decimal!r}"] * (self.decimal != "."))


def _compile(marks: Marks) -> re.Pattern[str]:
    """Returns what matches a number with these marks."""
    groups = rf"[1-9]\d{{0,2}}({re.escape(marks.thousands)}\d{{3}})+|" if marks.thousands else ""
    return re.compile(rf"[+-]?({groups}\d+)({re.escape(marks.decimal)}\d+)?")


KNOWN = [Marks(*pair) for pair in ((",", "."), ("", ","), (".", ","), (" ", "."), (" ", ","), ("'", "."), ("'", ","))]
PATTERNS = {marks: _compile(marks) for marks in KNOWN}


def is_text(column: Any) -> bool:
    """Whether a pandas series holds text, or categories of anything."""
    if column.dtype.name == "category":
        return True
    return column.dtype.kind in "OU" and not holds_truth_values(column)


def holds_truth_values(column: Any) -> bool:
    """Whether a column holds True and False alone, apart from gaps."""
    if column.dtype.kind == "b":
        return True
    found = column.dropna() if column.dtype.name == "object" else ()
    return len(found) > 0 and all(isinstance(value, bool | np.bool_) for value in found)


def holds_words(column: Any) -> bool:
    """Whether the values of a column are text or numbers, and no lists, dates or the like."""
    return column.dtype.name != "object" or all(isinstance(v, str | int | float | bool) for v in column.dropna())


def unbox(column: Any) -> Any:
    """Turns a pandas series of objects into numbers, if all of them are numbers or gaps."""
    import pandas as pd

    if column.dtype != object or pd.api.types.infer_dtype(column, skipna=True) not in NUMBERS:
        return column
    return pd.to_numeric(column, errors="coerce")


def name_cells(column: Any) -> str:
    """What the cells of an object column are called that are neither text nor numbers; the first one says it."""
    there = column.dropna()
    cell = there.iloc[0] if len(there) else None
    if isinstance(cell, bytes) or (isinstance(cell, dict) and "bytes" in cell):
        return "encoded pictures"
    if type(cell).__module__.startswith("PIL"):
        return "pictures"
    return "lists" if isinstance(cell, list | tuple) or type(cell).__name__ == "ndarray" else "objects"


def is_number_text(column: Any) -> bool:
    """Whether a column is text of which each value is a number, with a point or a whole one."""
    there = column.dropna()
    return bool(len(there)) and all(isinstance(value, str) and PLAIN.fullmatch(value) for value in there)


def find_marks(column: Any) -> list[Marks]:
    """Finds the marks with which all values of a text column are numbers; empty if they are not, or have points alone.

    There are two where the values do not say which one is meant: 60,928 is 60928 or 60.928.
    """
    given = column.dropna()
    if not len(given) or not MARKED.fullmatch(str(given.iloc[0])):  # most columns are words
        return []
    there = [value.strip() for value in given if isinstance(value, str)]
    if len(there) < len(given) or all(PLAIN.fullmatch(value) for value in there):
        return []
    fits = [marks for marks, number in PATTERNS.items() if all(number.fullmatch(value) for value in there)]
    return fits[:2] if fits[:2] == KNOWN[:2] else fits[:1]


def explain_marks(column: Any, where: str) -> str:
    """Returns the line about text whose values are all numbers with other marks than a point; empty where they are not.

    Args:
        column: A pandas series.
        where: What messages call it.
    """
    found = find_marks(column)
    if not found:
        return ""
    if len(found) == 2:
        one = next(value for value in column.dropna() if "," in value).strip()
        told = f"reads {one} as {one.replace(',', '')}, and {found[1].options} as {one.replace(',', '.')}"
        return f"{where} has numbers with commas: pandas.read_csv(..., {found[0].options}) {told}: choose one of them"
    remedy = "leave them out" if found[0].thousands else "write points"
    return f"{where} has numbers with {found[0].what}: {remedy} (pandas.read_csv: {found[0].options})"
