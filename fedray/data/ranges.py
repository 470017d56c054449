"""The ranges of inputs, and whether rows lie on another scale than the training rows.

Example:
    >>> train = find_range(np.array([[0.0], [255.0]]))
    >>> tell_scale(train, np.array([[9000.0]]), "the test rows", ("level",))[0][:90]
    'data: the test rows lie far outside the training rows: column level has 9e+03 to 9e+03, an'
    >>> tell_scale(train, np.array([[300.0]]), "the test rows")
    []
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.data.spool import read_pieces

FAR = 10.0  # times the training rows' range, beyond which rows are on another scale
NARROW = 100.0  # parts of it, of which all pictures lie in one where they are on another scale
FEW = 10  # rows, below which those of a table may lie close together


class Range(NamedTuple):
    """The least and the largest value of each column, `[*s]` float64; of images that of each channel, `[C, 1, 1]`.

    Attributes:
        low: NaN where a column has no value.
        high: The same.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]


def find_range(x: NDArray[Any]) -> Range:
    """The range of each column of inputs `[n, *s]`, n above 0; what is missing is NaN and does not count."""
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    bounds: list[NDArray[Any]] = []
    for piece in read_pieces(x):
        each = [reduce(piece, axis=axes, keepdims=True)[0] for reduce in (np.fmin.reduce, np.fmax.reduce)]
        bounds = each if not bounds else [np.fmin(bounds[0], each[0]), np.fmax(bounds[1], each[1])]
    return Range(bounds[0].astype(np.float64), bounds[1].astype(np.float64))


def tell_scale(train: Range, x: NDArray[Any], what: str, names: Sequence[str] = ()) -> list[str]:
    """What is said of rows that lie far outside the training rows, or all in a hundredth of their range.

    So do those of pictures from 0 to 1 where training had 0 to 255.

    Args:
        train: The range of the training rows.
        x: Inputs `[n, *s]` that are no tokens.
        what: They are called.
        names: Of the columns, where they have some.
    """
    if not len(x):
        return []
    found, width = find_range(x), train.high - train.low
    far = (found.high > train.high + FAR * width) | (found.low < train.low - FAR * width)
    far &= width > 0  # of a column that is the same everywhere nothing is known
    if far.any():
        place = tuple(np.argwhere(far)[0])
        which = f"column {names[place[0]] if names else place[0]} has " if x.ndim == 2 else "they have "
        one, other = (f"{part.low[place]:.3g} to {part.high[place]:.3g}" for part in (found, train))
        said = f"{what} lie far outside the training rows: {which}{one}, and {other} in training"
    elif x.ndim == 4 and np.ptp(_ends(found)) < np.ptp(_ends(train)) / NARROW:
        one, other = ("{:.3g} to {:.3g}".format(*_ends(part)) for part in (found, train))
        said = f"{what} all lie in a hundredth of the range of the training rows: {one} of {other}"
    elif len(x) >= FEW and _share(found, train) < 1 / NARROW:
        said = f"{what} all lie in a hundredth of the range of the training rows, in most columns"
    else:
        return []
    return [f"data: {said}: give both on one scale"]


def _share(found: Range, train: Range) -> float:
    """Which part of the training rows' range rows have: the median over the columns that vary; 1 for a lone one."""
    width, whole = found.high - found.low, train.high - train.low
    vary = (width > 0) & (whole > 0)
    return float(np.median(width[vary] / whole[vary])) if vary.sum() > 1 else 1.0


def _ends(found: Range) -> tuple[float, float]:
    """The least and the largest value of all columns."""
    return float(found.low.min()), float(found.high.max())
