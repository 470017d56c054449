"""Checks of a user's own data set: data that would train, but mean something else than the user thinks, are refused.

Example:
    >>> import numpy as np
    >>> from fedray.data.types import classification
    >>> train = Split(np.zeros((500, 3), np.float32), np.zeros(490, np.int64))
    >>> check_dataset(classification("mine", train, train.take(np.arange(9)), ("no", "yes")))
    Traceback (most recent call last):
    fedray.core.errors.BadInput: data mine: train has 500 inputs, but 490 labels: give one for each input
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.data.forms.arrays import refuse_coarse_targets
from fedray.data.forms.rows import tell_test_scale
from fedray.data.types import Array, Dataset, Split
from fedray.own_code.user_code import name_type

MOST_FLOAT32 = float(np.finfo(np.float32).max)
CHANNELS = (1, 3, 4)  # gray, colors, and colors with transparency


def check_dataset(data: Dataset) -> Dataset:
    """The data set, whose labels are int64 from here on.

    Raises:
        BadInput: its rows, labels, images or scales are not what `Dataset` describes.
    """
    _check_fields(data)
    parts = [("test", data.test)] if data.population else [("train", data.train), ("test", data.test)]
    for part, split in parts:
        where = f"data {data.name}: {part}"
        _check_split(where, split, data.classes)
        _check_inputs(where, split.x)
        if data.classes:
            _check_labels(where, split.y, data.classes)
        else:
            _check_targets(where, split.y)
    if not data.classes:
        refuse_coarse_targets([split.y for _, split in parts], f"data {data.name}: the targets")
    _check_parts(data)
    _check_scales(data)
    _check_folds(data)
    for remark in tell_test_scale(data.kind, data.train.x, data.test.x, data.features):
        if remark not in data.remarks:  # else it is said already
            warn_user(remark, FedrayWarning)
    if data.classes and any(split.y.dtype != np.int64 for split in (data.train, data.test)):
        train, test = (split._replace(y=split.y.astype(np.int64)) for split in (data.train, data.test))
        return data._replace(train=train, test=test)
    return data


def _check_fields(data: Dataset) -> None:
    """What a data set says about itself."""
    if not isinstance(data.name, str) or not data.name:
        raise BadInput(f"data: name = {data.name!r}: give the data set a name")
    where = f"data {data.name}"
    if isinstance(data.classes, bool) or not isinstance(data.classes, int | np.integer) or data.classes < 0:
        raise BadInput(f"{where}: classes = {data.classes!r}: give their number, or 0 for a regression")
    if not isinstance(data.class_names, tuple | list) or not all(isinstance(name, str) for name in data.class_names):
        raise BadInput(f"{where}: class_names = {data.class_names!r}: give a tuple of text")
    if not isinstance(data.columns, Mapping):
        raise BadInput(f"{where}: columns is {name_type(data.columns)}: give a dict of arrays")
    if not isinstance(data.folds, tuple | list):
        raise BadInput(f"{where}: folds is {name_type(data.folds)}: give a tuple of pairs of rows")
    if data.noise is not None and not (isinstance(data.noise, int | float) and np.isfinite(data.noise)):
        raise BadInput(f"{where}: noise = {data.noise!r}: give a variance, or None")


def _check_split(where: str, split: Any, classes: int) -> None:
    """Arrays of numbers: as many labels and groups as inputs."""
    if not isinstance(split, Split):
        raise BadInput(f"{where} is {name_type(split)}: give a fedray.data.Split of inputs and labels")
    named = (("inputs", split.x), ("labels" if classes else "targets", split.y), ("groups", split.group))
    for what, values in named:
        if values is None and what == "groups":
            continue
        if not isinstance(values, np.ndarray) or isinstance(values, np.ma.MaskedArray):
            raise BadInput(f"{where} has {what} that are {name_type(values)}: give a NumPy array")
        if not values.dtype.isnative:
            raise BadInput(
                f"{where} has {what} of type {values.dtype}, in the byte order of other machines: give them as "
                f"{values.dtype.newbyteorder('=')}"
            )
        if values.ndim == 0 or (what == "groups" and values.ndim != 1):
            raise BadInput(f"{where} has {what} of shape {list(values.shape)}: give one for each sample")
        if len(values) != len(split.x):
            raise BadInput(f"{where} has {len(split.x)} inputs, but {len(values)} {what}: give one for each input")
    if split.group is not None and split.group.dtype.kind not in "iu":
        raise BadInput(f"{where} has groups of type {split.group.dtype}: number the clients, as np.unique does")


def _check_inputs(where: str, x: Array) -> None:
    """Images with their channels first, tokens in rows, and finite numbers."""
    shape = " x ".join(map(str, x.shape[1:]))
    if x.dtype.kind not in "iufb":
        raise BadInput(f"{where} has inputs of type {x.dtype}: give numbers")
    if x.ndim < 2:
        raise BadInput(f"{where} has inputs of {x.ndim} dimension: give a row for each sample, x[:, None]")
    if x.ndim == 4 and x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        raise BadInput(
            f"{where} has images of {shape}, channels last: give them first, x.transpose(0, 3, 1, 2), as "
            f"{x.shape[3]} x {x.shape[1]} x {x.shape[2]}"
        )
    if x.ndim == 3 and x.dtype.kind in "iu":
        raise BadInput(f"{where} has inputs of {shape} whole numbers, which are no tokens: give images as x[:, None]")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        wrong = find_wrong_rows(x)
        raise BadInput(f"{where} has inputs that are NaN or infinite{wrong}: fill them, or drop those rows")
    if x.dtype.kind == "f" and x.dtype.itemsize > 4 and len(x) and np.abs(x).max() > MOST_FLOAT32:
        raise BadInput(f"{where} has inputs beyond what float32 holds ({np.abs(x).max():.3g}): scale them down")


def find_wrong_rows(values: Array) -> str:
    """Where the first number is that is not finite, in brackets.

    Args:
        values: Numbers `[n, ...]`, of which one is not.
    """
    rows = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    return f" ({len(rows)} rows, the first is row {rows[0]})"


def _check_labels(where: str, y: Array, classes: int) -> None:
    """Labels 0 to C - 1, one for each row."""
    if y.ndim != 1 or y.dtype not in (np.int32, np.int64):
        raise BadInput(f"{where} has labels of type {y.dtype} and shape {list(y.shape)}: give int64, [n]")
    if len(y) and (y.min() < 0 or y.max() >= classes):
        wrong = int(y.min() if y.min() < 0 else y.max())
        raise BadInput(f"{where} has the label {wrong}, but {classes} classes: labels are 0 to {classes - 1}")


def _check_targets(where: str, y: Array) -> None:
    """Finite targets `[n, q]`."""
    if y.ndim != 2 or y.dtype.kind != "f":
        raise BadInput(f"{where} has targets of type {y.dtype} and shape {list(y.shape)}: give float32, [n, q]")
    if not np.isfinite(y).all():
        raise BadInput(f"{where} has targets that are NaN or infinite{find_wrong_rows(y)}: drop those rows")
    if len(y) and np.abs(y).max() > MOST_FLOAT32:
        raise BadInput(f"{where} has targets beyond what float32 holds ({np.abs(y).max():.3g}): scale them down")


def _check_parts(data: Dataset) -> None:
    """What training and test rows, columns and class names say about each other."""
    train, test, where = data.train, data.test, f"data {data.name}"
    if train.x.shape[1:] != test.x.shape[1:]:
        one, other = (" x ".join(map(str, x.shape[1:])) for x in (train.x, test.x))
        raise BadInput(f"{where}: inputs of train are {one}, but those of test are {other}: give them one shape")
    if train.x.dtype.kind != test.x.dtype.kind:
        raise BadInput(
            f"{where}: inputs of train are {train.x.dtype}, but those of test are {test.x.dtype}: give them one type"
        )
    if not data.population and not len(train.y):
        raise BadInput(f"{where}: train has no rows: give some")
    if not data.folds and not len(test.y):
        remedy = "give some, or data=(x, y), of which a fifth is kept for it"
        raise BadInput(f"{where}: test has no rows, so nothing can be scored: {remedy}")
    if len(data.class_names) != data.classes:
        raise BadInput(f"{where}: {data.classes} classes, but {len(data.class_names)} class names: name each class")
    for name, values in data.columns.items():
        if len(values) != len(train.y):
            raise BadInput(
                f"{where}: column {name} has {len(values)} values, but train {len(train.y)} rows: give one each"
            )


def _check_scales(data: Dataset) -> None:
    """Means and standard deviations that inputs and targets are standardized by."""
    shapes = {"shift": data.input_shape, "scale": data.input_shape}
    shapes |= {"y_shift": (data.outputs,), "y_scale": (data.outputs,)} if not data.classes else {}
    for name, shape in shapes.items():
        values, where = getattr(data, name), f"data {data.name}: {name}"
        if not isinstance(values, np.ndarray):
            raise BadInput(f"{where} is {name_type(values)}: give a float32 array, or make the data with fedray.data")
        fits = values.dtype.kind == "f" and values.ndim and len(values) in {1, max(1, len(data.folds))}
        if not fits or not _fits_sample(values.shape[1:], shape):
            raise BadInput(
                f"{where} has shape {list(values.shape)} and type {values.dtype}: give float32, "
                f"[1, {', '.join(map(str, shape))}]"
            )
        if not np.isfinite(values).all():
            raise BadInput(f"{where} is NaN or infinite: look for NaN, infinite or huge inputs")
        if name.endswith("scale") and not (values > 0).all():
            raise BadInput(f"{where} has numbers that are 0 or less: give 1 for a constant column")


def _fits_sample(inner: tuple[int, ...], sample: tuple[int, ...]) -> bool:
    """Whether numbers of a shape are one for each number of a sample, or for several of them."""
    try:
        return np.broadcast_shapes(inner, sample) == tuple(sample)
    except ValueError:
        return False


def _check_folds(data: Dataset) -> None:
    """Training and test rows of each fold, as indices of the training rows."""
    for number, fold in enumerate(data.folds):
        where = f"data {data.name}: fold {number}"
        if not isinstance(fold, tuple | list) or len(fold) != 2:
            raise BadInput(f"{where} is {name_type(fold)}: give a pair, training rows and test rows")
        for part, rows in zip(("training", "test"), fold, strict=True):
            if not isinstance(rows, np.ndarray) or rows.ndim != 1 or rows.dtype.kind not in "iu":
                raise BadInput(f"{where} has {part} rows that are {name_type(rows)}: give an array of indices, [n]")
            if not len(rows):
                raise BadInput(f"{where} has no {part} rows: give some")
            if rows.min() < 0 or rows.max() >= len(data.train.y):
                wrong = int(rows.min() if rows.min() < 0 else rows.max())
                raise BadInput(f"{where} has the {part} row {wrong}, but train has {len(data.train.y)} rows")
