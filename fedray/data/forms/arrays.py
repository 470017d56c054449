"""Arrays and tensors as people have them, as the NumPy arrays that a `Split` holds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.data.spool import read_pieces
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# What the cells of a table's column hold where its type does not say it: numbers, numbers as text, truth values.

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
    """Turns a pandas series of objects into numbers, if all of them are numbers or gaps.

    Example:
        >>> import pandas as pd
        >>> unbox(pd.Series([1, 2.5, None], dtype=object)).dtype
        dtype('float64')
        >>> holds_marked_numbers(pd.Series(["1,234,567", "12,000"])), holds_marked_numbers(pd.Series(["1.5", "2"]))
        (True, False)
    """
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


# ---------------------------------------------------------------------------------------------------------------------
# Arrays and tensors as people have them, as the NumPy arrays that a `Split` holds.

CHANNELS = (1, 3, 4)  # gray, colors, and colors with transparency
COARSE = 1e-3  # of the targets' standard deviation: the largest rounding error
MOST_FLOAT32 = float(np.finfo(np.float32).max)


def list_classes(thing: Any) -> set[str]:
    """Returns the package and name of a thing's class and of those it derives from, without importing any of them.

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
    """Returns an array, a tensor, a column of a table or a list as a NumPy array in the byte order of this machine.

    Args:
        values: What the user has.
        where: What messages call it.

    Raises:
        BadInput: It is masked, ragged or no array at all.
    """
    classes = list_classes(values)
    if isinstance(values, np.ma.MaskedArray):
        raise BadInput(f"{where} is a masked array: give it as .filled(np.nan), and write data.missing")
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
    """Returns a list of rows, or of values, as one array."""
    try:
        return np.asarray([as_array(v, where) if is_array(v) else v for v in values])
    except ValueError as error:
        raise BadInput(f"{where} has rows of different lengths: give them one shape") from error


def as_inputs(x: NDArray[Any], where: str) -> NDArray[Any]:
    """Inputs as `RawRows` hold them: real numbers, whole numbers of tokens, or images with their channels first.

    They are not yet float32: what is subtracted before is known when all rows are there (`fedray.data.types`).

    Args:
        x: Inputs `[n]`, `[n, f]`, `[n, L]`, `[n, H, W]`, `[n, C, H, W]` or `[n, H, W, C]`.
        where: What messages call it.

    Raises:
        BadInput: They are no numbers, or numbers that float32 does not hold.

    Example:
        >>> as_inputs(as_array([1, 2], "x"), "x").tolist()
        [[1.0], [2.0]]
        >>> as_inputs(np.zeros((5, 8, 9, 3), np.uint8), "x").shape  # images: their channels come first
        (5, 3, 8, 9)
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
        most = float(np.nanmax(np.abs(np.where(np.isfinite(x), x, 0)), initial=0.0)) if x.dtype.itemsize > 4 else 0.0
        if most > MOST_FLOAT32:
            raise BadInput(f"{where} has numbers beyond what float32 holds ({most:.3g}): scale them down")
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
    """Returns what an array of objects holds: rows as arrays, numbers, or text."""
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


# ---------------------------------------------------------------------------------------------------------------------
# Which rows lack a number or a label, what replaces what is missing, and the line about rows that are wrong.


def find_gaps(values: NDArray[Any]) -> NDArray[Any]:
    """Tells which rows have a number that is NaN, or an object that stands for nothing, `[n]`.

    Example:
        >>> find_gaps(np.array([[1.0, np.nan], [2.0, 3.0]])).tolist()
        [True, False]
    """
    if values.dtype.kind == "O":
        gaps = [value is None or value != value or str(value) == "<NA>" for value in values.ravel().tolist()]
        return np.asarray(np.array(gaps, dtype=bool).reshape(len(values), math.prod(values.shape[1:])).any(axis=1))
    return find_rows(values, np.isnan)


def find_rows(values: NDArray[Any], wrong: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Returns which rows have a real number that is wrong, `[n]`; those of other types have none."""
    if values.dtype.kind != "f" or not len(values):
        return np.zeros(len(values), bool)
    return np.concatenate([wrong(piece).reshape(len(piece), -1).any(axis=1) for piece in read_pieces(values)])


def mean_of_columns(x: NDArray[Any]) -> NDArray[Any]:
    """Mean of each input over the rows that have it, `[...]`; 0 of an input that none has."""
    total, count = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for piece in read_pieces(x):
        total += np.nansum(piece, axis=0, dtype=np.float64)
        count += (~np.isnan(piece)).sum(axis=0)
    return (total / np.maximum(count, 1)).astype(np.float32)


def refuse_rows(wrong: NDArray[Any], where: str, what: str, remedy: str, kind: str = "") -> None:
    """Refuses rows that are wrong; the line says how many they are, and which is the first.

    Args:
        wrong: Which ones are, `[n]`.
        where: What messages call the data.
        what: The rows have that is wrong.
        remedy: The end of the message.
        kind: Of rows, where there are several: `test `, with a space behind it.

    Example:
        >>> refuse_rows(np.array([False, True]), "data", "no label", "fill them")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data: 1 of 2 rows have no label (the first is row 1): fill them
    """
    if wrong.any():
        first = f"(the first is row {wrong.argmax()})"
        raise BadInput(f"{where}: {wrong.sum()} of {len(wrong)} {kind}rows have {what} {first}: {remedy}")


# ---------------------------------------------------------------------------------------------------------------------
# What is to be predicted, in the forms that people have: numbers of classes 0 to C - 1 with their names, or targets.
#
# Text, truth values, whole numbers of any kind and one-hot rows are classes; real numbers are targets, also of one
# dimension. A name is kept for each class.

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

    Example:
        >>> read_labels(np.array(["cat", "dog", "cat"]), None, "auto")[0].tolist()
        [0, 1, 0]
        >>> found = read_labels(np.array([1, 2, 3]), None, "auto")
        >>> found.train.tolist(), found.names, found.remarks
        ([0, 1, 2], ('1', '2', '3'), ('data: the labels 1, 2, 3 are classes 0 to 2',))
        >>> read_labels(np.array([0.5, 0.25]), None, "auto").train.tolist()
        [[0.5], [0.25]]
    """
    given = ((train, "the labels"), (test, "the test labels"))
    parts = [_as_plain(part, where) for part, where in given if part is not None and len(part)]
    if not parts:
        raise BadInput("data: there are no labels: give one for each row")
    parts, is_text = _read_number_text(parts, task)
    kind = _find_kind(parts, task)
    if kind == "targets":
        refuse_coarse_targets(parts, "data: the targets")
        made = [np.ascontiguousarray(part.reshape(len(part), -1), dtype=np.float32) for part in parts]
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
    """Returns an array of truth values, numbers or text; objects become what they hold."""
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
    """Returns what labels are: `targets`, `one-hot` or `classes`."""
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
            raise BadInput(f"data: the labels have shape {shape} and are no one-hot rows: give one column")
        return "targets"
    if first.dtype.kind == "f":
        if task != "classification":
            return "targets"
        for part in parts:
            if (part != np.floor(part)).any():
                raise BadInput("data.task = classification, but the labels are real numbers: leave it at auto")
    elif first.dtype.kind not in "iubUS":
        raise BadInput(f"data: the labels are of type {first.dtype}: give text, whole numbers or real numbers")
    if any(part.dtype.kind == "f" and (part != np.floor(part)).any() for part in parts[1:]):
        raise BadInput(
            "data: the labels are whole numbers, which are classes, and those of the test rows real numbers: give the "
            "same in both, or write data.task: regression"
        )
    return "classes"


def _is_one_hot(rows: NDArray[Any]) -> bool:
    """Whether every row is 0 but for a single 1."""
    if rows.dtype.kind not in "iufb":
        return False
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all())


def doubt_targets(values: NDArray[Any], task: str) -> tuple[str, ...]:
    """Returns a word about real numbers that may be meant as classes: a sentence, or nothing.

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
    """Returns a word about many whole numbers, which may be meant as targets: a sentence, or nothing.

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
    raise BadInput(f"data: the labels {low} to {high} are not of {len(names)} classes: give 0 to {len(names) - 1}")
