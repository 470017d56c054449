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
from fedray.data.cells import explain_marks, holds_words, is_number_text, is_text, name_cells
from fedray.data.forms.labels import doubt_classes, doubt_targets, is_whole_with_gaps
from fedray.data.input_columns import check_input, find_inputs, is_category, refuse_stray
from fedray.data.types import Array

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
        inputs, remarks = find_inputs(frame, targets, group, key)
    else:
        inputs = features
    for column in features or []:
        remarks += check_input(frame, column, key)
    for column in targets:
        _refuse_strange(frame, column, "data.target", task)
        if task != "classification":
            refuse_stray(frame, column, "data.target", "correct it, or write data.task: classification")
    if group is not None:
        _refuse_strange(frame, group, "data.group", "classification")
    categories = {column: _list_values(frame, column, key) for column in inputs if is_category(frame[column])}
    classes = task == "classification" or (task == "auto" and len(targets) == 1 and _is_class(frame[targets[0]]))
    for column in targets:
        given = frame[column].dropna().to_numpy()
        remarks += doubt_classes(given, task) if classes else doubt_targets(given, task)
        if not classes and is_text(frame[column]):
            remarks += (f"data: column {column} is text of numbers, read as targets of a regression",)
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
        _refuse_gaps(found, columns, missing, key, f", in row {out.argmax() + 1}" if out.sum() == 1 else "")
    for column in (*columns.targets, *columns.inputs):
        values = frame[column]
        if values.dtype.kind == "f" and np.isinf(values.to_numpy(dtype=np.float64, na_value=np.nan)).any():
            raise BadInput(f"{key}: column {column} holds infinity: replace it by a number or drop those rows")
    return out if missing == "drop" else np.zeros(len(frame), dtype=bool)


def _refuse_gaps(found: dict[str, int], columns: TableColumns, missing: str, key: str, where: str) -> None:
    """Refuses missing values, with the names of the columns, and the row where it is a single one."""
    if len(found) == 1:
        said = "".join(f"column {column} has {number} missing values" for column, number in found.items())
    else:
        said = f"columns {', '.join(f'{c} ({number})' for c, number in found.items())[:400]} have missing values"
    if missing == "refuse" and not set(found) - set(columns.inputs):
        raise BadInput(f"{key}: {said}{where}: {REMEDY}")
    raise BadInput(f"{key}: {said}{where}, and a target or a client has no mean: write data.missing: drop (those rows)")


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


def _is_class(column: Any) -> bool:
    """Whether the target of `task: auto` is a class: text, truth values and whole numbers, also with gaps."""
    if column.dtype.kind == "f":
        return is_whole_with_gaps(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return not (is_text(column) and is_number_text(column) and any("." in value for value in column.dropna()))


def _refuse_strange(frame: Any, column: str, key: str, task: str) -> None:
    """Refuses a target or a column of clients that is neither numbers nor text, or text that is meant as numbers."""
    values = frame[column]
    if values.dtype.kind not in "iufbOU" or not holds_words(values):
        what = name_cells(values) if values.dtype.kind == "O" else f"values of type {values.dtype}"
        raise BadInput(f"{key}: column {column} holds {what}: give a number or a text in each row")
    if task != "classification" and is_text(values) and (said := explain_marks(values, f"{key}: column {column}")):
        raise BadInput(f"{said} (or write data.task: classification)")
