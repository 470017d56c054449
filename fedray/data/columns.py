"""Which columns of a table are inputs, which of them are categories, what may be missing, and how its target is read.

Example:
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [31, 45], "smokes": [True, False], "city": ["Rome", "Oslo"], "ill": [0, 1]})
    >>> found = choose_columns(frame, ["ill"], None, None, "auto")
    >>> found.inputs, found.categories
    (['age', 'smokes', 'city'], {'city': ['Oslo', 'Rome']})
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.text import suggest_nearest
from fedray.data.forms.labels import doubt_targets
from fedray.data.row_numbers import is_index, numbers_rows
from fedray.data.types import Array

MOST_VALUES = 64  # of a text column that is an input by itself
MOST_NAMED_VALUES = 1000  # of one that the user names as an input
GAP = "missing"  # the category of what is missing
REMEDY = "write data.missing: mean (text gets a category of its own) or drop (those rows), or fill them"


class TableColumns(NamedTuple):
    """How the columns of a table are read.

    Attributes:
        targets: Columns to predict.
        inputs: Columns of the network's input.
        categories: Of the inputs that are text the values, in the order of their numbers 0 and 1.
        classes: Whether the target is a class.
        group: Column of the natural clients, or None.
        groups: Number of each value of that column.
        remarks: What was done that the user should know, a sentence each.
    """

    targets: list[str]
    inputs: list[str]
    categories: dict[str, list[str]]
    classes: bool
    group: str | None
    groups: dict[Any, int]
    remarks: tuple[str, ...] = ()

    @property
    def used(self) -> list[str]:
        """All columns in which nothing may be missing."""
        return [*self.targets, *self.inputs, *([self.group] if self.group else [])]


def choose_columns(
    frame: Any, targets: list[str], features: list[str] | None, group: str | None, task: str, *, key: str = "input"
) -> TableColumns:
    """Finds the inputs, the classes and the natural clients of a table.

    Args:
        frame: The table: `frame[column]` is a pandas series, and a walk over it names the columns.
        targets: Columns to predict.
        features: The inputs; None means every column of numbers, truth values or categories beside targets and group.
        group: Column of the natural clients, or None.
        task: `auto`, `classification` or `regression`.
        key: The option of `data` that names the inputs, for messages.

    Raises:
        BadInput: A column is missing or named twice, or holds text among numbers.
    """
    if not targets:
        raise BadInput(
            f"data.target is missing: name the column to predict: {', '.join(map(str, frame))[:200]} (beside data= in "
            "Python: data__target=COLUMN)"
        )
    _check_names(targets, features or [], key)
    require_columns(frame, [*targets, *(features or []), *([group] if group else [])])
    remarks: tuple[str, ...] = ()
    if features is None:
        inputs, remarks = _find_inputs(frame, targets, group, key)
    else:
        inputs = features
    for column in features or []:
        _refuse_other(frame, column, key)
    if task != "classification":
        for column in targets:
            _refuse_stray(frame, column, "data.target", "correct it, or write data.task: classification")
    categories = {column: _list_values(frame, column, key) for column in inputs if is_text(frame[column])}
    classes = task == "classification" or (task == "auto" and _is_class(frame, targets))
    if not classes:
        remarks += tuple(one for column in targets for one in doubt_targets(frame[column].dropna().to_numpy(), task))
    groups = {value: i for i, value in enumerate(sorted(frame[group].dropna().unique()))} if group else {}
    return TableColumns(targets, inputs, categories, classes, group, groups, remarks)


def require_columns(frame: Any, columns: list[str], key: str = "data") -> None:
    """Refuses a table that lacks one of some columns; the line has the nearest name, and all that there are.

    Args:
        frame: The table.
        columns: Those that are needed.
        key: Of the scenario, for the message.
    """
    known = [str(name) for name in frame]
    for column in columns:
        if column not in known:
            name = frame.attrs.get("file", "the table")
            remedy = suggest_nearest(str(column), known, "add it, or choose one of them")
            raise BadInput(f"{key}: {name} has no column {column}: {remedy} (its columns: {', '.join(known)[:400]})")


def find_row_gaps(frame: Any, columns: TableColumns, missing: str, key: str) -> Array:
    """The rows that are left out, `[n]`: those with missing values, where these are dropped.

    Args:
        frame: The table.
        columns: How it is read.
        missing: `refuse`, `mean` or `drop`.
        key: Of the scenario, for messages.

    Raises:
        BadInput: Values are missing that may not be; the line names the columns. Or numbers are infinite.
    """
    require_columns(frame, columns.used, key)
    out, found = np.zeros(len(frame), dtype=bool), {}
    for column in columns.used:
        gaps = frame[column].isna().to_numpy(dtype=bool)
        if gaps.any():
            found[column] = int(gaps.sum())
            out |= gaps
    if missing == "mean":
        found = {column: number for column, number in found.items() if column not in columns.inputs}
    if found and missing != "drop":
        _refuse_gaps(found, columns, missing, key)
    for column in (*columns.targets, *columns.inputs):
        values = frame[column]
        if values.dtype.kind == "f" and np.isinf(values.to_numpy(dtype=np.float64, na_value=np.nan)).any():
            raise BadInput(f"{key}: column {column} holds infinity: replace it by a number or drop those rows")
    return out if missing == "drop" else np.zeros(len(frame), dtype=bool)


def is_text(column: Any) -> bool:
    """Whether a pandas series holds text, or categories of anything."""
    if column.dtype.name == "category":
        return True
    return column.dtype.kind in "OU" and not _holds_truth_values(column)


def _refuse_gaps(found: dict[str, int], columns: TableColumns, missing: str, key: str) -> None:
    """Refuses missing values, with the names of the columns."""
    if len(found) == 1:
        said = "".join(f"column {column} has {number} missing values" for column, number in found.items())
    else:
        said = f"columns {', '.join(f'{c} ({number})' for c, number in found.items())[:400]} have missing values"
    if missing == "refuse" and not set(found) - set(columns.inputs):
        raise BadInput(f"{key}: {said}: {REMEDY}")
    raise BadInput(f"{key}: {said}, and a target or a client has no mean: write data.missing: drop (those rows)")


def _find_inputs(frame: Any, targets: list[str], group: str | None, key: str) -> tuple[list[str], tuple[str, ...]]:
    """The columns beside targets and group that are inputs, and a sentence on each kind of the others."""
    free = [column for column in frame if column not in (*targets, group)]
    index = [str(column) or "without a name" for column in free if is_index(str(column))]
    kinds = {column: _find_kind(frame, column, key) for column in free if not is_index(str(column))}
    inputs = [column for column, kind in kinds.items() if kind in ("number", "truth", "category")]
    truths, categories, many, others = (
        [str(column) for column, kind in kinds.items() if kind == wanted]
        for wanted in ("truth", "category", "too many values", "other")
    )
    if not inputs:
        table = frame.attrs.get("file", "the table")
        remedy = f"name {', '.join(many)[:200]} in data.{key}" if many else "add one"
        remedy = f"make numbers or text of {', '.join(others)[:200]}" if others else remedy
        raise BadInput(f"data: {table} has no column of numbers or categories beside the target: {remedy}")
    commas = [str(column) for column in frame if str(column) in {*categories, *many} and _has_commas(frame[column])]
    numbers = [str(column) for column in inputs if kinds[column] == "number" and numbers_rows(frame[column])]
    said = [
        _describe(index, "numbers the rows and is", "number the rows and are", f"no input: name it in data.{key}"),
        _describe(
            numbers, "has", "have", f"another whole number in every row: leave it out by data.{key} if it is an id"
        ),
        _describe(truths, "holds truth values, which are", "hold truth values, which are", "read as 0 and 1"),
        _describe(categories, "is text,", "are text,", "read as categories (0 and 1 for each value)"),
        _describe(many, "is text", "are text", f"of too many different values and no input: name it in data.{key}"),
        _describe(others, "is", "are", "of another type and no input: make numbers or text of it"),
        _describe(commas, "has", "have", "numbers with decimal commas: write points (pandas.read_csv: decimal=',')"),
    ]
    return inputs, tuple(remark for remark in said if remark)


def _find_kind(frame: Any, column: str, key: str) -> str:
    """What a column is as an input: `number`, `truth`, `category`, `too many values` or `other`."""
    values = frame[column]
    if values.dtype.kind in "iuf":
        return "number"
    if _holds_truth_values(values):
        return "truth"
    if not is_text(values):
        return "other"
    _refuse_stray(frame, column, "data", f"correct it, or name the inputs in data.{key}")
    if not _holds_words(values):
        return "other"
    return "too many values" if values.nunique() > min(MOST_VALUES, max(2, values.count() // 4)) else "category"


def _describe(columns: list[str], one: str, several: str, what: str) -> str:
    """A sentence about some columns; empty without any."""
    if not columns:
        return ""
    which = f"column{'s'[: len(columns) > 1]} {', '.join(columns)[:200]}"
    return f"data: {which} {one if len(columns) == 1 else several} {what}"


def _holds_truth_values(column: Any) -> bool:
    """Whether a column holds True and False alone, apart from gaps."""
    if column.dtype.kind == "b":
        return True
    found = column.dropna() if column.dtype.name == "object" else ()
    return len(found) > 0 and all(isinstance(value, bool | np.bool_) for value in found)


def _has_commas(column: Any) -> bool:
    """Whether every value of a text column that is there is a number with a decimal comma, or a whole number."""
    there = column.dropna().astype(str).str.strip()
    return bool(there.str.fullmatch(r"[+-]?\d+(,\d+)?").all() and there.str.contains(",").any())


def _holds_words(column: Any) -> bool:
    """Whether the values of a text column are text or numbers, and no lists, dates or the like."""
    return column.dtype.name != "object" or all(isinstance(v, str | int | float | bool) for v in column.dropna())


def _list_values(frame: Any, column: str, key: str) -> list[str]:
    """The values of a category, and one for what is missing where something is."""
    values = frame[column]
    found = sorted({str(value) for value in values.dropna().unique()})
    if len(found) > MOST_NAMED_VALUES:
        raise BadInput(f"data.{key}: column {column} has {len(found)} texts, {MOST_NAMED_VALUES} at most: leave it out")
    return [*found, GAP] if values.isna().any() and GAP not in found else found


def _check_names(targets: list[str], inputs: list[str], key: str) -> None:
    """Refuses columns that are named twice, or as input and as target."""
    for column in inputs:
        if column in targets:
            raise BadInput(f"data.{key}: {column} is also the target, which every model would copy: leave it out")
    for option, columns in (("target", targets), (key, inputs)):
        if twice := [column for column in columns if columns.count(column) > 1]:
            raise BadInput(f"data.{option}: column {twice[0]} is named twice: name it once")


def _refuse_other(frame: Any, column: str, key: str) -> None:
    """Refuses an input that the user names and that is neither numbers nor truth values nor text."""
    values = frame[column]
    if values.dtype.kind in "iufb" or _holds_truth_values(values):
        return
    _refuse_stray(frame, column, f"data.{key}", "correct it, or leave the column out")
    if not is_text(values) or not _holds_words(values):
        raise BadInput(
            f"data.{key}: column {column} is of type {values.dtype}, neither numbers nor text: make numbers of "
            "it, or leave it out"
        )


def _refuse_stray(frame: Any, column: str, key: str, remedy: str) -> None:
    """Refuses a column in which at least half of the values are numbers, and some are not."""
    import pandas as pd

    values = frame[column]
    if values.dtype.kind != "O" or values.dtype.name == "category":
        return
    given = values.notna().to_numpy()
    wrong = given & pd.to_numeric(values, errors="coerce").isna().to_numpy()
    if 0 < wrong.sum() <= given.sum() / 2:
        row = int(wrong.argmax())
        raise BadInput(
            f"{key}: column {column} holds numbers, but {str(values.iloc[row])[:40]!r} in row {row + 1}: {remedy}"
        )


def _is_class(frame: Any, targets: list[str]) -> bool:
    """Whether the target of `task: auto` is a class."""
    column = frame[targets[0]]
    if len(targets) > 1:
        return False
    if column.dtype.kind == "f":  # whole numbers are of this type where some are missing
        given = column.dropna()
        if len(given) == len(column) or (given != np.floor(given)).any():
            return False
    return column.dtype.kind not in "iuf" or bool(column.nunique() <= 20)
