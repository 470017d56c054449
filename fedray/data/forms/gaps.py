"""Which rows lack an input or a label, and what replaces what is missing.

Example:
    >>> find_gaps(np.array([[1.0, np.nan], [2.0, 3.0]])).tolist()
    [True, False]
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedray.data.spool import read_pieces
from fedray.data.types import Array


def find_gaps(values: Array) -> Array:
    """Which rows have a number that is NaN, or an object that stands for nothing, `[n]`."""
    if values.dtype.kind == "f":
        return _find_rows(values, np.isnan)
    if values.dtype.kind == "O":
        gaps = [value is None or value != value or str(value) == "<NA>" for value in values.ravel().tolist()]
        return np.asarray(np.array(gaps, dtype=bool).reshape(len(values), math.prod(values.shape[1:])).any(axis=1))
    return np.zeros(len(values), bool)


def find_infinite(values: Array) -> Array:
    """Which rows have an infinite number, `[n]`."""
    return _find_rows(values, np.isinf) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def _find_rows(values: Array, wrong: Callable[[Array], Array]) -> Array:
    """Which rows of real numbers have a wrong one, `[n]`."""
    found = [wrong(piece).reshape(len(piece), -1).any(axis=1) for piece in read_pieces(values)]
    return np.concatenate(found) if found else np.zeros(0, bool)


def mean_of_columns(x: Array) -> tuple[Array, Array]:
    """Mean of each input over the rows that have it, `[...]`, and which inputs none has; their mean is 0."""
    total, count = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for piece in read_pieces(x):
        total += np.nansum(piece, axis=0, dtype=np.float64)
        count += (~np.isnan(piece)).sum(axis=0)
    return (total / np.maximum(count, 1)).astype(np.float32), count == 0
