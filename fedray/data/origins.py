"""Inputs as float32, without the constant that would take away what tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.data.forms.arrays import as_float32
from fedray.data.spool import LARGE_BYTES, Spool, read_pieces

# ---------------------------------------------------------------------------------------------------------------------
# The ranges of inputs, and whether rows lie on another scale than the training rows.

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
    """Returns the range of each column of inputs `[n, *s]`, n above 0; what is missing is NaN and does not count.

    Example:
        >>> train = find_range(np.array([[0.0], [255.0]]))
        >>> tell_scale(train, np.array([[9000.0]]), "the test rows", ("level",))[0][:90]
        'data: the test rows lie far outside the training rows: column level has 9e+03 to 9e+03, an'
        >>> tell_scale(train, np.array([[300.0]]), "the test rows")
        []
    """
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    bounds: list[NDArray[Any]] = []
    for piece in read_pieces(x):
        each = [reduce(piece, axis=axes, keepdims=True)[0] for reduce in (np.fmin.reduce, np.fmax.reduce)]
        bounds = each if not bounds else [np.fmin(bounds[0], each[0]), np.fmax(bounds[1], each[1])]
    return Range(bounds[0].astype(np.float64), bounds[1].astype(np.float64))


def tell_scale(train: Range, x: NDArray[Any], what: str, names: Sequence[str] = ()) -> list[str]:
    """Returns what is said of rows that lie far outside the training rows, or all in a hundredth of their range.

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


def tell_test_scale(kind: str, train: NDArray[Any], test: NDArray[Any], names: Sequence[str]) -> list[str]:
    """Returns what is said of test inputs on another scale than the training inputs; nothing of tokens.

    Args:
        kind: What the inputs are.
        train: The training inputs; none where they are generated.
        test: The test inputs.
        names: Of the inputs, where they have some.
    """
    if kind == "tokens" or not len(train) or not len(test):
        return []
    return tell_scale(find_range(train), test, f"the test {'pictures' if kind == 'images' else 'rows'}", names)


def _share(found: Range, train: Range) -> float:
    """Which part of the training rows' range rows have: the median over the columns that vary; 1 for a lone one."""
    width, whole = found.high - found.low, train.high - train.low
    vary = (width > 0) & (whole > 0)
    return float(np.median(width[vary] / whole[vary])) if vary.sum() > 1 else 1.0


def _ends(found: Range) -> tuple[float, float]:
    """Returns the least and the largest value of all columns."""
    return float(found.low.min()), float(found.high.max())


# ---------------------------------------------------------------------------------------------------------------------
# float32 has 24 bits: of times near 1.7e12 it keeps every 131,072nd. Where it takes different values of a column for
# one, and they lie far from 0, a constant of the column is subtracted in float64 before they become float32.
# Standardization subtracts the mean anyway, so that networks get what they would get in float64. Elsewhere the
# constant is 0.

Array = NDArray[Any]
Float64 = NDArray[np.float64]
FAR_FROM_ZERO = (
    8.0  # times half of a column's range: from there on its values lie far from 0, and 3 of 24 bits say nothing
)


def narrow(parts: Sequence[Array]) -> tuple[list[Array], Float64 | None]:
    """Returns the inputs of all parts in the type in which networks read them, and what was subtracted from them.

    Args:
        parts: Of the training rows first, `[n, *s]`: tokens, bytes and float32 stay as they are.

    Returns:
        Images of whole numbers as bytes, where the levels of all parts are bytes; all other numbers as float32. And
        the constants `[*s]`, of images one a channel `[C, 1, 1]`; None: they are 0.

    Example:
        >>> one, other = np.zeros((1, 1, 2, 2), np.int64), np.full((1, 1, 2, 2), 256)
        >>> [narrow(parts)[0][0].dtype for parts in ([one], [one, other])]
        [dtype('uint8'), dtype('float32')]
        >>> x = 1.7e12 + np.array([[0.0, 5.0], [100.0, 6.0], [200.0, 7.0]])
        >>> (small,), origin = narrow([x - [0, 1.7e12]])
        >>> small.tolist(), origin.tolist()
        ([[-100.0, 5.0], [0.0, 6.0], [100.0, 7.0]], [1700000000100.0, 0.0])
    """
    whole = [part.dtype.kind in "iu" and part.ndim == 4 for part in parts]
    wide = (part for part, is_whole in zip(parts, whole, strict=True) if is_whole and part.dtype != np.uint8)
    pieces = (piece for part in wide for piece in read_pieces(part) if piece.size)
    levels = np.dtype(np.uint8 if all(piece.min() >= 0 and piece.max() <= 255 for piece in pieces) else np.float32)
    origin, real = find_origin(parts[0]), np.dtype(np.float32)
    kinds = [levels if is_whole else real if part.dtype.kind == "f" else None for part, is_whole in zip(parts, whole)]
    return [part if kind is None else _convert(part, kind, origin) for part, kind in zip(parts, kinds)], origin


def find_origin(x: Array) -> Float64 | None:
    """Returns the constant of each column that is subtracted before the column becomes float32; None where all are 0.

    Args:
        x: Inputs `[n, ...]`; what is missing is NaN. Only real numbers finer than float32, and images of whole numbers,
            have values that float32 takes for one.
    """
    whole_images = x.dtype.kind in "iu" and x.ndim == 4 and x.dtype.itemsize > 2
    if not len(x) or x.ndim < 2 or not (whole_images or (x.dtype.kind == "f" and x.dtype.itemsize > 4)):
        return None
    low, high = find_range(x)
    with np.errstate(all="ignore"):  # NaN: nothing is known of the column; infinity is refused elsewhere
        far = (high > low) & (np.maximum(np.abs(low), np.abs(high)) >= FAR_FROM_ZERO * (high - low) / 2)
        middle = np.where(far, low + (high - low) / 2, 0.0)
    for place in np.argwhere(far):
        column = x[:, place[0]] if x.ndim == 4 else x[(slice(None), *place)]
        values = np.unique(column[np.isfinite(column)])
        if len(np.unique(values.astype(np.float32))) == len(values):
            middle[tuple(place)] = 0.0
    return middle if middle.any() else None


def subtract(x: Array, origin: Float64 | None) -> Array:
    """Inputs less their constants, in float64; as they are where there are none."""
    return x if origin is None else x.astype(np.float64) - origin


def add_back(x: Array, origin: Float64 | None) -> Array:
    """What `subtract` was given, in float64, up to rounding; the inputs as they are where there are no constants."""
    return x if origin is None else x.astype(np.float64) + origin


def _convert(x: Array, kind: np.dtype[Any], origin: Float64 | None) -> Array:
    """Inputs less their constants in another type; rows of a mapped file in pieces."""
    if x.dtype == kind and origin is None:
        return x

    def convert(piece: Array) -> Array:
        piece = subtract(piece, origin)
        return as_float32(piece) if piece.dtype.kind == "f" else piece.astype(kind)

    if x.nbytes < LARGE_BYTES or x.flags.writeable:
        return convert(x)
    spool = Spool()
    for piece in read_pieces(x):
        spool.append(convert(piece))
    return spool.finish()
