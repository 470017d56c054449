"""Checks of a user's own data set: what would train, and mean something else than the user thinks, is refused.

Example:
    >>> import numpy as np
    >>> from fedray.data.types import classification
    >>> train = Split(np.zeros((500, 3), np.float32), np.zeros(490, np.int64))
    >>> check_dataset(classification("mine", train, train.take(np.arange(9)), ("no", "yes")))
    Traceback (most recent call last):
    fedray.core.errors.BadInput: data mine: train has 500 inputs, but 490 labels: give one for each input
"""

from __future__ import annotations

import numpy as np

from fedray.core.errors import BadInput
from fedray.data.types import Array, Dataset, Split

CHANNELS = (1, 3, 4)  # gray, colors, and colors with transparency


def check_dataset(data: Dataset) -> None:
    """Raises `BadInput` for a data set whose rows, labels or images are not what `Split` describes."""
    parts = [("test", data.test)] if data.population else [("train", data.train), ("test", data.test)]
    for part, split in parts:
        where = f"data {data.name}: {part}"
        _check_lengths(where, split, data.classes)
        _check_inputs(where, split.x)
        if data.classes:
            _check_labels(where, split.y, data.classes)
        else:
            _check_targets(where, split.y)
    _check_parts(data)


def _check_lengths(where: str, split: Split, classes: int) -> None:
    """As many labels and groups as inputs."""
    for what, values in (("labels" if classes else "targets", split.y), ("groups", split.group)):
        if values is not None and len(values) != len(split.x):
            raise BadInput(f"{where} has {len(split.x)} inputs, but {len(values)} {what}: give one for each input")


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
        raise BadInput(f"{where} has inputs of {shape} whole numbers, which are no tokens: images are x[:, None]")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise BadInput(f"{where} has inputs that are NaN or infinite: fill them, or drop those rows")


def _check_labels(where: str, y: Array, classes: int) -> None:
    """Labels 0 to C - 1, one for each row."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise BadInput(f"{where} has labels of type {y.dtype} and shape {list(y.shape)}: give whole numbers, [n]")
    if len(y) and (y.min() < 0 or y.max() >= classes):
        wrong = int(y.min() if y.min() < 0 else y.max())
        raise BadInput(f"{where} has the label {wrong}, but {classes} classes: labels are 0 to {classes - 1}")


def _check_targets(where: str, y: Array) -> None:
    """Finite targets `[n, q]`."""
    if y.ndim != 2 or y.dtype.kind != "f":
        raise BadInput(f"{where} has targets of type {y.dtype} and shape {list(y.shape)}: give float32, [n, q]")
    if not np.isfinite(y).all():
        raise BadInput(f"{where} has targets that are NaN or infinite: drop those rows")


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
        raise BadInput(f"{where}: test has no rows, so nothing can be scored: give some")
    if len(data.class_names) != data.classes:
        raise BadInput(f"{where}: {data.classes} classes, but {len(data.class_names)} class names: name each class")
    for name, values in data.columns.items():
        if len(values) != len(train.y):
            raise BadInput(
                f"{where}: column {name} has {len(values)} values, but train {len(train.y)} rows: give one each"
            )
