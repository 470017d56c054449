"""Converts a user's arrays, tensors, tables and labels to the NumPy arrays of a `Split`, and checks them.

A *natural client* is a client named in the data, such as the writer of a text.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput, FedrayWarning, warn_user
from fedray.data.files import read_pieces
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# Checks whether a column of a table holds numbers, text or booleans. The type of the column alone does not tell this.

NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")  # pandas' names for objects that are numbers
PLAIN = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
MARKED = re.compile(r"\s*[+-]?\d[\d.,' ]*")
MARKS = "numbers with commas or other marks: read it with pandas.read_csv(..., thousands=..., decimal=...)"


def is_text(column: Any) -> bool:
    """Returns whether a pandas series holds text or has the type `category`."""
    if column.dtype.name == "category":
        return True
    return column.dtype.kind in "OU" and not holds_truth_values(column)


def holds_truth_values(column: Any) -> bool:
    """Returns whether all values of a column are True, False or missing.

    Example:
        >>> import pandas as pd
        >>> holds_truth_values(pd.Series([True, None])), holds_truth_values(pd.Series([True, "no"]))
        (True, False)
    """
    import pandas as pd

    return bool(pd.api.types.infer_dtype(column, skipna=True) == "boolean")


def holds_words(column: Any) -> bool:
    """Returns whether all values of a column are text, numbers or booleans."""
    return column.dtype.name != "object" or all(isinstance(v, str | int | float | bool) for v in column.dropna())


def unbox(column: Any) -> Any:
    """Converts a pandas series of objects to numbers if all objects are numbers or missing values.

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
    """Returns whether every text of a column is an integer or a number with a decimal point."""
    there = column.dropna()
    return bool(len(there)) and all(isinstance(value, str) and PLAIN.fullmatch(value) for value in there)


def holds_marked_numbers(column: Any) -> bool:
    """Returns whether all texts of a column are numbers, some of them with marks other than a point, as in `1,234`."""
    there = column.dropna()
    if not len(there) or not all(isinstance(value, str) and MARKED.fullmatch(value) for value in there):
        return False
    return not is_number_text(column)


# ---------------------------------------------------------------------------------------------------------------------
# Conversion of arrays and tensors.

CHANNELS = (1, 3, 4)  # gray, colors, and colors with transparency
COARSE = 1e-3  # largest rounding error allowed, as a share of the targets' standard deviation
MOST_FLOAT32 = float(np.finfo(np.float32).max)


def list_classes(thing: Any) -> set[str]:
    """Lists an object's class and all its base classes as `PACKAGE.NAME`. Imports no package.

    Example:
        >>> "numpy.ndarray" in list_classes(np.zeros(2))
        True
    """
    return {f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}" for kind in type(thing).__mro__}


def is_array(thing: Any) -> bool:
    """Returns whether an object is an array, a tensor or a column of a table, which `as_array` can convert."""
    kinds = {"numpy.ndarray", "torch.Tensor", "pandas.Series", "polars.Series", "pyarrow.Array", "pyarrow.ChunkedArray"}
    return bool(list_classes(thing) & {*kinds, "pandas.Index", "datasets.Column", "jaxlib.Array", "tensorflow.Tensor"})


def as_array(values: Any, where: str) -> NDArray[Any]:
    """Converts an array, a tensor, a column of a table or a list to a NumPy array in this machine's byte order.

    Raises:
        BadInput: The values are masked, are lists of different lengths, or are no array at all.
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
    """Converts a list of values, or a list of arrays with the same shape, to one array."""
    try:
        return np.asarray([as_array(v, where) if is_array(v) else v for v in values])
    except ValueError as error:
        raise BadInput(f"{where} has rows of different lengths: give them one shape") from error


def as_inputs(x: NDArray[Any], where: str) -> NDArray[Any]:
    """Converts inputs to floating-point numbers, tokens (integers), or images `[n, C, H, W]`.

    The inputs x are `[n]`, `[n, f]`, `[n, L]`, `[n, H, W]`, `[n, C, H, W]` or `[n, H, W, C]`. `narrow` of
    `fedray.data.types` converts inputs to float32 later, when all samples are known.

    Raises:
        BadInput: The inputs are not numbers, or are too large for float32.

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
    """Converts a floating-point array to float32 if all values fit into float32. Returns other arrays unchanged."""
    if x.dtype.kind != "f" or x.dtype == np.float32 or isinstance(x, np.ma.MaskedArray):
        return x
    with np.errstate(over="ignore"):
        small = x.astype(np.float32)
    return small if np.array_equal(np.isinf(small), np.isinf(x)) else x


def refuse_coarse_targets(parts: Sequence[NDArray[Any]], where: str) -> None:
    """Refuses targets that float32 rounds by more than a thousandth of their standard deviation.

    fedray stores targets in float32, and would compare predictions with the rounded targets. Constant targets may be
    rounded. `parts` has the targets of each part, `[n, q]` or `[n]`. The rounding of a part is compared with the
    standard deviation of this part or of the first part, whichever is larger.

    Raises:
        BadInput: A target would be rounded too much.

    Example:
        >>> refuse_coarse_targets([np.array([0.5, 1e9])], "data: the targets")
        >>> refuse_coarse_targets([np.array([1e9 + 0.5, 1e9 + 2.0])], "data: the targets")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data: the targets are near 1e+09 with a standard deviation of 0.75, and float32 ...
    """
    for y in parts:
        fine = y.dtype.kind not in "iuf" or (y.dtype.kind == "f" and y.dtype.itemsize <= 4)  # float32 rounds nothing
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
    """Converts an array of objects to numbers or text. Objects that are arrays are stacked."""
    if len(x) and x.ndim == 1 and (is_array(x[0]) or isinstance(x[0], list | tuple)):
        return _stack(list(x), where)
    if all(isinstance(value, str) for value in x.ravel().tolist()):
        return x.astype(str)
    try:
        return x.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{where} holds objects that are no numbers ({error}): give numbers") from error


def _order_channels(x: NDArray[Any]) -> NDArray[Any]:
    """Moves the channels of images to the front, `[n, C, H, W]`."""
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
# Samples with missing numbers or labels: finding them, means that replace missing numbers, and the error message.


def is_missing(value: Any) -> bool:
    """Returns whether a value is missing: None, NaN or pandas' NA."""
    return value is None or str(value) == "<NA>" or bool(value != value)


def find_gaps(values: NDArray[Any]) -> NDArray[Any]:
    """Returns for each of n samples whether it has a NaN or a missing object, `[n]` bool.

    Example:
        >>> find_gaps(np.array([[1.0, np.nan], [2.0, 3.0]])).tolist()
        [True, False]
    """
    if values.dtype.kind == "O":
        gaps = [is_missing(value) for value in values.ravel().tolist()]
        return np.asarray(np.array(gaps, dtype=bool).reshape(len(values), math.prod(values.shape[1:])).any(axis=1))
    return find_rows(values, np.isnan)


def find_rows(values: NDArray[Any], wrong: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Returns for each of n samples whether one of its values is wrong, `[n]` bool.

    `wrong` takes an array, and returns an array of the same shape that says which values are wrong. If `values` are not
    floating-point numbers, all entries of the result are False.
    """
    if values.dtype.kind != "f" or not len(values):
        return np.zeros(len(values), bool)
    return np.concatenate([wrong(piece).reshape(len(piece), -1).any(axis=1) for piece in read_pieces(values)])


def mean_of_columns(x: NDArray[Any]) -> NDArray[Any]:
    """Returns the mean of each input column, `[...]` float32. Missing values are left out.

    The mean of a column without values is 0.
    """
    total, count = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for piece in read_pieces(x):
        total += np.nansum(piece, axis=0, dtype=np.float64)
        count += (~np.isnan(piece)).sum(axis=0)
    return (total / np.maximum(count, 1)).astype(np.float32)


def refuse_rows(wrong: NDArray[Any], where: str, what: str, remedy: str, kind: str = "") -> None:
    """Raises an error if there are wrong samples. The message has their number and the index of the first.

    Args:
        wrong: Whether each sample is wrong, `[n]` bool.
        where: Name of the data in the message.
        what: The fault of the wrong samples, such as `no label`.
        remedy: The end of the message.
        kind: Kind of the samples, such as `test `, with a space as its last character. The text is empty if there is
            only one kind.

    Example:
        >>> refuse_rows(np.array([False, True]), "data", "no label", "fill them")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data: 1 of 2 rows have no label (the first is row 1): fill them
    """
    if wrong.any():
        first = f"(the first is row {wrong.argmax()})"
        raise BadInput(f"{where}: {wrong.sum()} of {len(wrong)} {kind}rows have {what} {first}: {remedy}")


# ---------------------------------------------------------------------------------------------------------------------
# Conversion of labels to classes 0 to C - 1 with names, or to targets.
#
# Text, booleans, integers of any type and one-hot labels become classes. Floating-point numbers become targets. Every
# class has a name.

Numbered = tuple[list[NDArray[Any]], tuple[str, ...], tuple[str, ...]]  # (classes of each part, class names, remarks)
FEW_CLASSES = 20  # if there are more different integers, they may be quantities
MOST_RARE = 10  # many different floating-point numbers are no classes if each has at most so many samples on average
MOST_CLASSES = 1000  # more different labels are classes only if their number is at most half the number of samples


class Labels(NamedTuple):
    """The labels or targets of the training part and of the test part.

    Attributes:
        train: Classes `[n]` int64, or q targets for each sample, `[n, q]` float32, of the training samples.
        test: Classes or targets of the test samples, in the same form. None means that there are no test samples.
        names: Names of the classes. For a regression, the tuple is empty.
        remarks: Sentences that tell the user about the conversion.
    """

    train: NDArray[Any]
    test: NDArray[Any] | None
    names: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def read_labels(train: NDArray[Any], test: NDArray[Any] | None, task: str, names: Sequence[str] = ()) -> Labels:
    """Converts labels of any type to classes 0 to C - 1, or to targets.

    Args:
        train: Labels of the training samples, `[n]`, or q labels for each sample, `[n, q]`, of any type. No label may
            be missing.
        test: Labels of the test samples, in the same form. None or an empty array means that there are no test samples.
        task: Kind of the task: `auto`, `classification` or `regression`.
        names: Names of the C classes. If there are names, integer labels must be 0 to C - 1, or 1 to C.

    Raises:
        BadInput: The values cannot be labels.

    Example:
        >>> read_labels(np.array(["cat", "dog", "cat"]), None, "auto")[0].tolist()
        [0, 1, 0]
        >>> found = read_labels(np.array([1, 2, 3]), None, "auto")
        >>> found.train.tolist(), found.names, found.remarks
        ([0, 1, 2], ('1', '2', '3'), ('data: the labels 1, 2, 3 are classes 0 to 2',))
        >>> read_labels(np.array(["0.5", "2"]), None, "auto").train.tolist()  # as the numbers 0.5 and 2
        [[0.5], [2.0]]
    """
    given = ((train, "the labels"), (test, "the test labels"))
    parts = [_as_plain(part, where) for part, where in given if part is not None and len(part)]
    parts, is_text = _read_number_text(parts, task)
    kind = _find_kind(parts, task)
    if kind == "targets":
        refuse_coarse_targets(parts, "data: the targets")
        made = [np.ascontiguousarray(part.reshape(len(part), -1), dtype=np.float32) for part in parts]
        remarks = remark_on_whole_targets(parts[0], task)
        if is_text:
            remarks = ("data: the labels are text of numbers, read as targets of a regression", *remarks)
        return Labels(made[0], made[1] if len(parts) > 1 else None, (), remarks)
    remarks = ()
    if kind == "one-hot":
        parts = [np.asarray(part.argmax(axis=1)) for part in parts]
        names = names or [str(c) for c in range(train.shape[1])]
        remarks = (f"data: the labels are one-hot rows, read as {len(names)} classes",)
    else:
        parts = [part.reshape(len(part)) for part in parts]
    codes, known, said = _number(parts, names)
    said += () if names else remark_on_many_classes(parts[0], task)
    return Labels(codes[0], codes[1] if len(parts) > 1 else None, known, (*remarks, *said))


def _as_plain(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Converts an array of objects to booleans, numbers or text. Returns other arrays unchanged."""
    if values.dtype.kind != "O":
        return values
    kinds = {type(value) for value in values.ravel().tolist()}
    whole, real = (int, np.integer), (int, float, np.integer, np.floating)
    for known, made in ((str, str), ((bool, np.bool_), bool), (whole, np.int64), (real, np.float64)):
        if all(issubclass(kind, known) for kind in kinds):
            return values.astype(made)
    found = ", ".join(sorted(kind.__name__ for kind in kinds))[:100]
    raise BadInput(f"data: {where} hold {found}: give text, whole numbers or real numbers alone")


def _read_number_text(parts: list[NDArray[Any]], task: str) -> tuple[list[NDArray[Any]], bool]:
    """Converts labels to targets if all of them are numbers written as text.

    The labels are converted only if the task is a regression, or if the task is `auto` and a number has a decimal
    point. Otherwise the labels stay text.

    Returns:
        The labels of each part, and whether the user should get a remark about the conversion.
    """
    if task == "classification" or any(part.dtype.kind != "U" for part in parts):
        return parts, False
    values = [str(value) for part in parts for value in part.ravel().tolist()]
    real = task == "regression" or any("." in value for value in values)
    if not real or not all(PLAIN.fullmatch(value) for value in values):
        return parts, False
    return [part.astype(np.float64) for part in parts], task == "auto"


def _find_kind(parts: list[NDArray[Any]], task: str) -> str:
    """Returns the kind of labels: `targets`, `one-hot` or `classes`."""
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
    if first.dtype.kind == "f" and task != "classification":
        return "targets"
    if first.dtype.kind not in "fiubUS":
        raise BadInput(f"data: the labels are of type {first.dtype}: give text, whole numbers or real numbers")
    if any(part.dtype.kind == "f" and (part != np.floor(part)).any() for part in parts):
        raise BadInput("data: the labels are classes, but some are real numbers: write data.task: regression, or round")
    return "classes"


def _is_one_hot(rows: NDArray[Any]) -> bool:
    """Returns whether every label `[q]` has a single 1 and is 0 elsewhere."""
    if rows.dtype.kind not in "iufb":
        return False
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all())


def remark_on_whole_targets(values: NDArray[Any], task: str) -> tuple[str, ...]:
    """Returns a remark if targets are whole numbers that repeat, as classes do. Otherwise returns ().

    Args:
        values: The targets of a regression, `[n]` or `[n, q]`. There is a remark only for floating-point arrays.
        task: Kind of the task as the user wrote it: `auto`, `classification` or `regression`.
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
    """Returns whether labels are integers that are stored as floats because some labels are missing."""
    if values.dtype.kind != "f" or values.ndim != 1:
        return False
    there = values[~np.isnan(values)]
    return 0 < len(there) < len(values) and bool((there == np.floor(there)).all())


def remark_on_many_classes(values: NDArray[Any], task: str) -> tuple[str, ...]:
    """Returns a remark if many different integer labels occur, as in a regression. Otherwise returns ().

    `task` is `auto`, `classification` or `regression`, as the user wrote it.
    """
    different = len(np.unique(values)) if task == "auto" and values.dtype.kind in "iuf" else 0
    if different <= FEW_CLASSES:
        return ()
    return (
        f"data: {different} different whole numbers in {len(values)} rows are read as classes: write data.task: "
        "regression if they are quantities",
    )


def _number(parts: list[NDArray[Any]], names: Sequence[str]) -> Numbered:
    """Converts labels to classes 0 to C - 1. Returns the labels of each part, the names of classes, and remarks."""
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
    """Converts labels to classes by the given names of the classes.

    Text must be one of the names, and integers must begin at 0 or 1.
    """
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


# ---------------------------------------------------------------------------------------------------------------------
# The names of columns. fedray keeps names as text, while names in a pandas table may be numbers or dates.


COLUMNS = ("target", "input", "exclude", "group")  # the options of `adapt` that name columns


def spell_columns(given: Any) -> Any:
    """Converts the name of a column, or a list of names, to text.

    Example:
        >>> spell_columns(3), spell_columns([0, "age"]), spell_columns(None)
        ('3', ['0', 'age'], None)
        >>> refuse_twins(["a", "b", "a"], "the table")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data: the table has two columns a: rename one
    """
    if given is None or isinstance(given, str):
        return given
    return [str(name) for name in given] if isinstance(given, Collection) else str(given)


def refuse_twins(names: Iterable[str], where: str) -> None:
    """Refuses a table in which two columns have the same name.

    Raises:
        BadInput: Two columns have the same name.
    """
    if twice := [name for name, number in Counter(names).items() if number > 1]:
        raise BadInput(f"data: {where} has two columns {twice[0]}: rename one")


# ---------------------------------------------------------------------------------------------------------------------
# Choice of the input columns of a table, and remarks about the other columns.

MANY_ROWS = 20  # in a table with fewer rows, the integers of a column may all differ by chance
INDEX = "columns of the index"  # the key of `attrs` with the columns that were the index of a table in a file of pandas
_INDEX = re.compile(r"|Unnamed: \d+(\.\d+)*|__index_level_\d+__")  # no name, or a name that pandas or pyarrow made
MOST_VALUES = 64  # a text column with more different values is an input only if the user names the column


COLUMN_REMARKS = {  # the remark about each kind of column that `_find_column_kind` returns
    "index": "no input, because it numbers the rows (name it in data.{key})",
    "id": "another whole number in every row (if it is an id, name it in data.exclude)",
    "truth": "truth values, read as 0 and 1",
    "number text": "text of numbers, read as numbers",
    "category": "text, read as categories (0 and 1 for each value)",
    "many": "text of too many different values, no input (name it in data.{key})",
    "marks": "no input, because its numbers have commas or other marks (pandas.read_csv has thousands and decimal)",
    "other": "neither numbers nor text, no input (make numbers or text of it)",
}


def find_inputs(frame: Any, others: Collection[str | None], key: str) -> tuple[list[str], tuple[str, ...]]:
    """Returns the names of the input columns, and remarks. All columns except `others` may be inputs.

    Messages mention `key`, the option of `data` by which the user names the inputs.

    Raises:
        BadInput: No column can be an input.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [31, 45], "city": ["Rome", "Oslo"], "ill": [0, 1]})
        >>> find_inputs(table, ["ill"], "input")
        (['age', 'city'], ('data: text, read as categories (0 and 1 for each value): city',))
    """
    indexes = frame.attrs.get(INDEX, ())
    kinds = {
        column: "index" if column in indexes else _find_column_kind(frame, column, key)
        for column in frame
        if column not in others
    }
    said = []
    for kind, text in COLUMN_REMARKS.items():
        if columns := [column or "without a name" for column, one in kinds.items() if one == kind]:
            said.append(f"data: {text.format(key=key)}: {', '.join(columns)[:200]}")
    inputs = [column for column, kind in kinds.items() if kind in ("number", "id", "number text", "truth", "category")]
    if not inputs:
        table = frame.attrs.get("file", "the table")
        remedy = "; ".join(line.removeprefix("data: ") for line in said) or "add one"
        raise BadInput(f"data: {table} has no column of numbers or categories beside the target: {remedy}")
    return inputs, tuple(said)


def is_category(column: Any) -> bool:
    """Returns whether an input column is a category. Text is a category unless it holds many different numbers."""
    return is_text(column) and not (_has_many(column) and is_number_text(column))


def check_input(frame: Any, column: str, key: str) -> tuple[str, ...]:
    """Checks that an input column named by the user holds numbers, booleans or text.

    Messages mention `key`, the option of `data` by which the user names the column.

    Returns:
        A remark if the column is text in which hardly any value occurs twice. Otherwise an empty tuple.

    Raises:
        BadInput: The column cannot be an input.
    """
    values = frame[column]
    if values.dtype.kind in "iufb" or holds_truth_values(values):
        return ()
    refuse_stray(frame, column, f"data.{key}", "correct it, or leave the column out")
    if not is_text(values) or not holds_words(values):
        raise BadInput(
            f"data.{key}: column {column} is of type {values.dtype}, neither numbers nor text: make numbers of "
            "it, or leave it out"
        )
    if holds_marked_numbers(values):
        raise BadInput(f"data.{key}: column {column} has {MARKS}")
    different = values.nunique() if is_category(values) and _has_many(values) else 0
    if 2 * different <= len(values):
        return ()
    return (f"data: column {column} is text, and makes {different} inputs of {len(values)} rows",)


def refuse_stray(frame: Any, column: str, key: str, remedy: str) -> None:
    """Refuses a column in which at least half of the values, but not all, are numbers.

    Raises:
        BadInput: The column mixes numbers and other values.
    """
    import pandas as pd

    values = frame[column]
    if values.dtype.kind != "O" or values.dtype.name == "category":
        return
    given = values.notna().to_numpy()
    try:
        wrong = given & pd.to_numeric(values, errors="coerce").isna().to_numpy()
    except (TypeError, ValueError):  # bytes and arrays are no numbers
        return
    if 0 < wrong.sum() <= given.sum() / 2 and not holds_marked_numbers(values):
        row = int(wrong.argmax())
        raise BadInput(
            f"{key}: column {column} holds numbers, but {str(values.iloc[row])[:40]!r} in row {row + 1}: {remedy}"
        )


def _find_column_kind(frame: Any, column: str, key: str) -> str:
    """Returns a word for the values of an input column: `number`, `category`, `id` or another word.

    All words except `number` are keys of `COLUMN_REMARKS`, a dict of remarks for the user about such columns.
    """
    values = frame[column]
    if _INDEX.fullmatch(str(column)):
        return "index"
    if values.dtype.kind in "iuf":  # if all integers differ, they may be ids of patients, for example
        there = values.dropna()
        whole = len(there) >= MANY_ROWS and (there.dtype.kind != "f" or (there == np.floor(there)).all())
        return "id" if whole and there.is_unique else "number"
    if holds_truth_values(values):
        return "truth"
    if not is_text(values):
        return "other"
    refuse_stray(frame, column, "data", f"correct it, or name the inputs in data.{key}")
    if not holds_words(values):
        return "other"
    if not _has_many(values):
        return "category"
    return "number text" if is_number_text(values) else "marks" if holds_marked_numbers(values) else "many"


def _has_many(column: Any) -> bool:
    """Returns whether a text column has too many different values, or too few rows for each value, to be a category."""
    return bool(column.nunique() > min(MOST_VALUES, max(2, column.count() // 4)))
