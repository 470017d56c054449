"""What is to be predicted, in the forms that people have: numbers of classes 0 to C - 1 with their names, or targets.

Text, truth values, whole numbers of any kind and one-hot rows are classes; real numbers are targets, also of
one dimension. A name is kept for each class.

Example:
    >>> read_labels(np.array(["cat", "dog", "cat"]), None, "auto")[0].tolist()
    [0, 1, 0]
    >>> found = read_labels(np.array([1, 2, 3]), None, "auto")
    >>> found.train.tolist(), found.names, found.remarks
    ([0, 1, 2], ('1', '2', '3'), ('data: the labels 1, 2, 3 are classes 0 to 2',))
    >>> read_labels(np.array([0.5, 0.25]), None, "auto").train.tolist()
    [[0.5], [0.25]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput
from fedray.data.cells import PLAIN
from fedray.data.forms.arrays import refuse_coarse_targets

Numbered = tuple[list[NDArray[Any]], tuple[str, ...], tuple[str, ...]]  # each part's classes, their names, remarks
FEW_CLASSES = 20  # beyond which whole numbers may be quantities
MOST_RARE = 10  # rows a value, up to which real numbers that are whole are no classes
MOST_CLASSES = 1000  # of whole numbers, beyond which they are classes only if most of them occur twice


class Labels(NamedTuple):
    """Labels of both parts.

    Attributes:
        train: Classes `[n]` int64, or targets `[n, q]` float32.
        test: The same of the test rows; None without any.
        names: Of the classes; empty for a regression.
        remarks: What was done that the user should know, a sentence each.
    """

    train: NDArray[Any]
    test: NDArray[Any] | None
    names: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def read_labels(train: NDArray[Any], test: NDArray[Any] | None, task: str, names: Sequence[str] = ()) -> Labels:
    """Labels as training needs them.

    Args:
        train: Labels of the training rows, `[n]` or `[n, q]`, of any type, without gaps.
        test: The same of the test rows; None without any.
        task: `auto`, `classification` or `regression`.
        names: Of the classes, where they are known; whole numbers are then 0 to C - 1, or 1 to C.

    Raises:
        BadInput: They are no labels; one line with the remedy.
    """
    given = ((train, "the labels"), (test, "the test labels"))
    parts = [_as_plain(part, where) for part, where in given if part is not None and len(part)]
    if not parts:
        raise BadInput("data: there are no labels: give one for each row")
    parts, is_text = _read_number_text(parts, task)
    kind = _find_kind(parts, task)
    if kind == "targets":
        refuse_coarse_targets(parts, "data: the targets")
        made = [_as_targets(part) for part in parts]
        remarks = doubt_targets(parts[0], task)
        if is_text:
            remarks = ("data: the labels are text of numbers, read as targets of a regression", *remarks)
        return Labels(made[0], made[1] if test is not None else None, (), remarks)
    remarks = ()
    if kind == "one-hot":
        parts = [np.asarray(part.argmax(axis=1)) for part in parts]
        names = names or [str(c) for c in range(train.shape[1])]
        remarks = (f"data: the labels are one-hot rows, read as {len(names)} classes",)
    else:
        parts = [part.reshape(len(part)) for part in parts]
    codes, known, said = _number(parts, names)
    said += () if names else doubt_classes(parts[0], task)
    return Labels(codes[0], codes[1] if test is not None else None, known, (*remarks, *said))


def _as_plain(values: NDArray[Any], where: str) -> NDArray[Any]:
    """An array of truth values, numbers or text; objects become what they hold."""
    if values.dtype.kind != "O":
        return values
    kinds = {type(value) for value in values.ravel().tolist()}
    if kinds <= {str}:
        return values.astype(str)
    if kinds <= {bool, np.bool_}:
        return values.astype(bool)
    if all(issubclass(kind, int | np.integer) for kind in kinds):
        return values.astype(np.int64)
    if all(issubclass(kind, int | float | np.integer | np.floating) for kind in kinds):
        return values.astype(np.float64)
    found = ", ".join(sorted(kind.__name__ for kind in kinds))[:100]
    raise BadInput(f"data: {where} hold {found}: give text, whole numbers or real numbers alone")


def _read_number_text(parts: list[NDArray[Any]], task: str) -> tuple[list[NDArray[Any]], bool]:
    """Text of numbers as numbers, where these are targets or not all whole; and whether that has to be said."""
    if task == "classification" or any(part.dtype.kind != "U" or part.ndim != 1 for part in parts):
        return parts, False
    values = [str(value) for part in parts for value in part.tolist()]
    real = task == "regression" or any("." in value for value in values)
    if not real or not all(PLAIN.fullmatch(value) for value in values):
        return parts, False
    return [part.astype(np.float64) for part in parts], task == "auto"


def _find_kind(parts: list[NDArray[Any]], task: str) -> str:
    """What labels are: `targets`, `one-hot` or `classes`."""
    first, shape = parts[0], list(parts[0].shape)
    if first.ndim > 2 or any(part.shape[1:] != first.shape[1:] for part in parts):
        other = "" if first.ndim > 2 else f", those of the test rows {list(parts[-1].shape)}"
        raise BadInput(f"data: the labels have shape {shape}{other}: give one for each row, [n] or [n, q]")
    if task == "regression":
        if first.dtype.kind not in "iufb":
            raise BadInput("data: the targets are text, so data.task must be classification")
        return "targets"
    wide = first.ndim == 2 and first.shape[1] > 1
    if wide and all(_is_one_hot(part) for part in parts):
        return "one-hot"
    if wide:
        if task == "classification" or first.dtype.kind not in "f":
            raise BadInput(
                f"data: the labels have shape {shape} and are no one-hot rows: several labels or targets of a row are "
                "not simulated: give one column"
            )
        return "targets"
    if first.dtype.kind == "f":
        if task != "classification":
            return "targets"
        for part in parts:
            if (part != np.floor(part)).any():
                raise BadInput("data.task = classification, but the labels are real numbers: leave it at auto")
    elif first.dtype.kind not in "iubUS":
        raise BadInput(f"data: the labels are of type {first.dtype}: give text, whole numbers or real numbers")
    for part in parts[1:]:
        _compare_classes(first, part)
    return "classes"


def _compare_classes(first: NDArray[Any], other: NDArray[Any]) -> None:
    """Refuses labels of the test rows that are something else than those of the training rows."""
    if other.dtype.kind == "f" and (other != np.floor(other)).any():
        raise BadInput(
            "data: the labels are whole numbers, which are classes, and those of the test rows real numbers: give the "
            "same in both, or write data.task: regression"
        )
    is_text = [part.dtype.kind in "US" for part in (first, other)]
    if is_text[0] != is_text[1] and not np.isin(first.astype(str), other.astype(str)).any():
        raise BadInput(
            "data: the labels are text in the training or the test rows and numbers in the others, without a class in "
            "common: give the same in both"
        )


def _is_one_hot(rows: NDArray[Any]) -> bool:
    """Whether every row is 0 but for a single 1."""
    if rows.dtype.kind not in "iufb":
        return False
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all())


def _as_targets(part: NDArray[Any]) -> NDArray[Any]:
    """Targets `[n, q]` float32; one-dimensional ones are a column."""
    return np.ascontiguousarray(part.reshape(len(part), -1), dtype=np.float32)


def doubt_targets(values: NDArray[Any], task: str) -> tuple[str, ...]:
    """A word about real numbers that may be meant as classes: a sentence, or nothing.

    Args:
        values: The targets of a regression, `[n]` or `[n, q]`; other types than real numbers are no doubt.
        task: `auto`, `classification` or `regression`, as the user wrote it.
    """
    if task != "auto" or values.dtype.kind != "f" or not len(values) or values.reshape(len(values), -1).shape[1] > 1:
        return ()
    different = np.unique(values)
    if len(different) > FEW_CLASSES and len(values) <= MOST_RARE * len(different):
        return ()
    if not np.isfinite(different).all() or (different != np.floor(different)).any():
        return ()
    return (
        f"data: the labels are real numbers with {len(different)} different values, read as targets of a regression: "
        "write data.task: classification if they are classes",
    )


def is_whole_with_gaps(values: NDArray[Any]) -> bool:
    """Whether labels are whole numbers of which some are missing, which makes real numbers of them."""
    if values.dtype.kind != "f" or values.ndim != 1:
        return False
    there = values[~np.isnan(values)]
    return 0 < len(there) < len(values) and bool((there == np.floor(there)).all())


def doubt_classes(values: NDArray[Any], task: str) -> tuple[str, ...]:
    """A word about many whole numbers, which may be meant as targets: a sentence, or nothing.

    Args:
        values: The labels of a classification, `[n]`.
        task: `auto`, `classification` or `regression`, as the user wrote it.
    """
    different = len(np.unique(values)) if task == "auto" and values.dtype.kind in "iuf" else 0
    if different <= FEW_CLASSES:
        return ()
    return (
        f"data: {different} different whole numbers in {len(values)} rows are read as classes: write data.task: "
        "regression if they are quantities",
    )


def _number(parts: list[NDArray[Any]], names: Sequence[str]) -> Numbered:
    """Classes 0 to C - 1 of each part, the names, and what is said of them."""
    if parts[0].dtype.kind == "f":
        parts = [part.astype(np.int64) for part in parts]
    different = np.unique(np.concatenate([np.unique(part) for part in parts]))
    is_number = parts[0].dtype.kind in "iu"
    known = [str(value) for value in different.tolist()]
    if len(different) > MOST_CLASSES and len(different) > len(parts[0]) / 2:
        what = "whole numbers" if is_number else "texts"
        remedy = "write data.task: regression" if is_number else "choose another target"
        raise BadInput(f"data: the labels are {len(different)} different {what} in {len(parts[0])} rows: {remedy}")
    if names:
        return _match(parts, different, tuple(map(str, names)))
    if is_number and different[0] == 0 and different[-1] == len(different) - 1:
        return [part.astype(np.int64) for part in parts], tuple(known), ()
    codes = [np.searchsorted(different, part).astype(np.int64) for part in parts]
    if not is_number:
        return codes, tuple(known), ()
    said = ", ".join(known) if len(known) <= 5 else f"{known[0]}, {known[1]}, ..., {known[-1]}"
    return codes, tuple(known), (f"data: the labels {said} are classes 0 to {len(known) - 1}",)


def _match(parts: list[NDArray[Any]], different: NDArray[Any], names: tuple[str, ...]) -> Numbered:
    """Classes of labels whose names are known: text is one of them, whole numbers begin at 0 or at 1."""
    if parts[0].dtype.kind not in "iub":
        place = {name: code for code, name in enumerate(names)}
        if unknown := [str(value) for value in different.tolist() if str(value) not in place]:
            raise BadInput(f"data: the label {unknown[0]!r} is none of the classes {', '.join(names)[:200]}: name it")
        table = np.array([place[str(value)] for value in different.tolist()], dtype=np.int64)
        return [table[np.searchsorted(different, part)] for part in parts], names, ()
    low, high = int(different[0]), int(different[-1])
    if low >= 0 and high < len(names):
        return [part.astype(np.int64) for part in parts], names, ()
    if low == 1 and high == len(names):
        said = f"data: the labels 1 to {high} are classes 0 to {high - 1}"
        return [part.astype(np.int64) - 1 for part in parts], names, (said,)
    if low < 0:
        raise BadInput(
            f"data: the label {low} is none of {len(names)} classes (rows without a label?): drop those rows"
        )
    raise BadInput(
        f"data: the label {high}, but {len(names)} classes have names: name the others too, "
        f"or correct labels above {len(names) - 1}"
    )
