"""What the cells of a table's column hold where its type does not say it: numbers, numbers as text, truth values.

Example:
    >>> import pandas as pd
    >>> unbox(pd.Series([1, 2.5, None], dtype=object)).dtype
    dtype('float64')
    >>> holds_marked_numbers(pd.Series(["1,234,567", "12,000"])), holds_marked_numbers(pd.Series(["1.5", "2"]))
    (True, False)
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")  # what pandas calls objects that are numbers
PLAIN = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
MARKED = re.compile(r"\s*[+-]?\d[\d.,' ]*")
MARKS = "numbers with commas or other marks: read it with pandas.read_csv(..., thousands=..., decimal=...)"


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


def is_number_text(column: Any) -> bool:
    """Whether a column is text of which each value is a number, with a point or a whole one."""
    there = column.dropna()
    return bool(len(there)) and all(isinstance(value, str) and PLAIN.fullmatch(value) for value in there)


def holds_marked_numbers(column: Any) -> bool:
    """Whether all values of a text column are numbers, and some have other marks than a point, such as `1,234`."""
    there = column.dropna()
    if not len(there) or not all(isinstance(value, str) and MARKED.fullmatch(value) for value in there):
        return False
    return not is_number_text(column)
