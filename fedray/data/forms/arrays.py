"""Arrays and tensors as people have them, as the NumPy arrays that a `Split` holds.

Example:
    >>> as_inputs(as_array([1, 2], "x"), "x").tolist()
    [[1.0], [2.0]]
    >>> as_inputs(np.zeros((5, 8, 9, 3), np.uint8), "x").shape  # images: their channels come first
    (5, 3, 8, 9)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.own_code.user_code import name_type

CHANNELS = (1, 3, 4)  # gray, colors, and colors with transparency
COARSE = 1e-3  # of the targets' standard deviation: the largest rounding error
MOST_FLOAT32 = float(np.finfo(np.float32).max)


def list_classes(thing: Any) -> set[str]:
    """The package and name of a thing's class and of those it derives from, without importing any of them.

    Example:
        >>> "numpy.ndarray" in list_classes(np.zeros(2))
        True
    """
    return {f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}" for kind in type(thing).__mro__}


def is_array(thing: Any) -> bool:
    """Whether a thing holds numbers or labels that `as_array` reads: an array, a tensor, a column of a table."""
    kinds = {"numpy.ndarray", "torch.Tensor", "pandas.Series", "polars.Series", "pyarrow.Array", "pyarrow.ChunkedArray"}
    return bool(list_classes(thing) & {*kinds, "pandas.Index", "datasets.Column", "jaxlib.Array", "tensorflow.Tensor"})


def as_array(values: Any, where: str) -> NDArray[Any]:
    """An array, a tensor, a column of a table or a list as a NumPy array in the byte order of this machine.

    Args:
        values: What the user has.
        where: What messages call it.

    Raises:
        BadInput: It is sparse, masked, ragged or no array at all.
    """
    classes = list_classes(values)
    if isinstance(values, np.ma.MaskedArray):
        raise BadInput(f"{where} is a masked array: give it as .filled(np.nan), and write data.missing")
    if any(name.startswith("scipy.") for name in classes):
        raise BadInput(f"{where} is sparse: give it as .toarray()")
    array: NDArray[Any]
    if "torch.Tensor" in classes:
        plain = values.detach().cpu()
        array = (plain.float() if str(plain.dtype) == "torch.bfloat16" else plain).numpy()
    elif isinstance(values, np.ndarray):
        array = values
    elif classes & {"pandas.DataFrame", "polars.DataFrame", "pandas.Series", "polars.Series", "pandas.Index"}:
        array = values.to_numpy()
    elif isinstance(values, list | tuple) or is_array(values):
        array = _stack(values, where)
    else:
        raise BadInput(f"{where} is {name_type(values)}: give a NumPy array or a torch tensor")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _stack(values: Any, where: str) -> NDArray[Any]:
    """A list of rows, or of values, as one array."""
    try:
        return np.asarray([as_array(v, where) if is_array(v) else v for v in values])
    except ValueError as error:
        raise BadInput(f"{where} has rows of different lengths: give them one shape") from error


def as_inputs(x: NDArray[Any], where: str) -> NDArray[Any]:
    """Inputs as `RawRows` hold them: real numbers, whole numbers of tokens, or images with their channels first.

    They are not yet float32: what is subtracted before is known when all rows are there (`fedray.data.origins`).

    Args:
        x: Inputs `[n]`, `[n, f]`, `[n, L]`, `[n, H, W]`, `[n, C, H, W]` or `[n, H, W, C]`.
        where: What messages call it.

    Raises:
        BadInput: They are no numbers, or numbers that float32 does not hold.
    """
    if x.dtype.kind == "O":
        x = _read_objects(x, where)
    if x.dtype.kind in "US":
        raise BadInput(f"{where} is text: give a tokenizer (data.tokenizer), or numbers")
    if x.dtype.kind not in "iufb":
        raise BadInput(f"{where} is of type {x.dtype}: give numbers")
    if x.ndim == 0:
        raise BadInput(f"{where} is a single number: give a row for each sample")
    if x.ndim == 1:
        x = x[:, None]
        x = x.astype(np.float64) if x.dtype.kind in "iu" else x
    if x.dtype.kind == "b":
        x = x.astype(np.float32)
    if x.dtype.kind in "iu" and x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4:
        x = _order_channels(x)
    if x.dtype.kind == "f" and x.dtype != np.float32:
        _refuse_large(x, where)
        x = x.astype(np.float32 if x.dtype.itemsize < 4 else np.float64, copy=False)
    return x


def as_float32(x: NDArray[Any]) -> NDArray[Any]:
    """Real numbers as float32, unless it does not hold them; whole numbers and all else as they are."""
    if x.dtype.kind != "f" or x.dtype == np.float32 or isinstance(x, np.ma.MaskedArray):
        return x
    with np.errstate(over="ignore"):
        small = x.astype(np.float32)
    return small if np.array_equal(np.isinf(small), np.isinf(x)) else x


def refuse_coarse_targets(parts: Sequence[NDArray[Any]], where: str) -> None:
    """Refuses targets that float32, in which they are kept, rounds by more than a thousandth of their deviation.

    Targets that are the same everywhere may be rounded. Only where the largest could be too large are all looked at.

    Args:
        parts: Targets `[n, q]` or `[n]`; the deviation is that of the part, or of the first one if that is larger.
        where: What messages call them.

    Raises:
        BadInput: Such targets; errors would be measured against other numbers than the user's.

    Example:
        >>> refuse_coarse_targets([np.array([0.5, 1e9])], "data: the targets")
        >>> refuse_coarse_targets([np.array([1e9 + 0.5, 1e9 + 2.0])], "data: the targets")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data: the targets are near 1e+09 with a standard deviation of 0.75, and float32 ...
    """
    for y in parts:
        fine = y.dtype.kind not in "iuf" or (y.dtype.kind == "f" and y.dtype.itemsize <= 4)  # nothing is rounded
        if fine or y.shape[1:] != parts[0].shape[1:] or not y.size or not parts[0].size:
            continue
        first, given = (part.reshape(len(part), -1) for part in (parts[0], y))
        most = np.abs(given).max(axis=0).astype(np.float64)
        with np.errstate(all="ignore"):  # NaN and infinity are refused later
            sd = np.maximum(first.std(axis=0, dtype=np.float64), given.std(axis=0, dtype=np.float64))
        doubtful = (most * 2.0**-24 > COARSE * sd) & (sd > 1e-14 * most) & (most <= MOST_FLOAT32)
        for column in np.flatnonzero(doubtful):
            exact = given[:, column].astype(np.float64)
            rounding = float(np.abs(exact - exact.astype(np.float32)).max())
            if rounding > COARSE * sd[column]:
                raise BadInput(
                    f"{where} are near {most[column]:.3g} with a standard deviation of {sd[column]:.3g}, and float32 "
                    f"rounds them by up to {rounding:.2g}: subtract a constant first"
                )


def _read_objects(x: NDArray[Any], where: str) -> NDArray[Any]:
    """What an array of objects holds: rows as arrays, numbers, or text."""
    if len(x) and x.ndim == 1 and (is_array(x[0]) or isinstance(x[0], list | tuple)):
        return _stack(list(x), where)
    if all(isinstance(value, str) for value in x.ravel().tolist()):
        return x.astype(str)
    try:
        return x.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{where} holds objects that are no numbers ({error}): give numbers") from error


def _order_channels(x: NDArray[Any]) -> NDArray[Any]:
    """Images `[n, C, H, W]`."""
    if x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    elif x.shape[1] not in CHANNELS and x.shape[1] == x.shape[2] > x.shape[3]:
        side, number = x.shape[2:]
        warn_user(
            f"data: images of shape {list(x.shape[1:])} are read as {side} channels of {side} x {number}: where the "
            f"{number} are the channels, give x.transpose(0, 3, 1, 2)",
            FedrayWarning,
        )
    return x


def _refuse_large(x: NDArray[Any], where: str) -> None:
    """Refuses finite numbers that would be infinite as float32."""
    most = float(np.nanmax(np.abs(np.where(np.isfinite(x), x, 0)), initial=0.0)) if x.size else 0.0
    if most > MOST_FLOAT32:
        raise BadInput(f"{where} has numbers beyond what float32 holds ({most:.3g}): scale them down")
