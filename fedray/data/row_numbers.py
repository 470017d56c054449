"""Columns that number the rows of a table: the index that pandas writes, and identities.

Example:
    >>> [name for name in ("Unnamed: 0", "__index_level_0__", "", "age") if not is_index(name)]
    ['age']
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

MANY_ROWS = 20  # below which the whole numbers of all rows may differ by chance
_INDEX = re.compile(r"|Unnamed: \d+(\.\d+)*|__index_level_\d+__")  # no name, and what pandas and pyarrow make of it


def is_index(name: str) -> bool:
    """Whether a column has the name of an index that pandas wrote into a file or a table of Arrow."""
    return _INDEX.fullmatch(name) is not None


def numbers_rows(column: Any) -> bool:
    """Whether a pandas series of numbers has a whole number of its own in every row, as one that names patients."""
    values = column.dropna()
    if len(values) < MANY_ROWS or (values.dtype.kind == "f" and (values != np.floor(values)).any()):
        return False
    return bool(values.is_unique)
