"""Which columns of a table are inputs, and how its target is read.

Example:
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [31, 45], "smokes": [True, False], "city": ["Rome", "Oslo"], "ill": [0, 1]})
    >>> found = choose_columns(frame, ["ill"], None, None, "auto")
    >>> found.inputs, len(found.names)
    (['age', 'smokes'], 2)
    >>> found.remarks[0]
    'data: column city is text and no input: encode it as numbers, or name the inputs in data.features'
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput


class TableColumns(NamedTuple):
    """How the columns of a table are read.

    Attributes:
        targets: Columns to predict.
        inputs: Columns of the network's input.
        names: Values of the one target that are the classes; empty for a regression.
        group: Column of the natural clients, or None.
        groups: Number of each value of that column.
        remarks: What was done that the user should know, a sentence each.
    """

    targets: list[str]
    inputs: list[str]
    names: list[Any]
    group: str | None
    groups: dict[Any, int]
    remarks: tuple[str, ...] = ()


def choose_columns(
    frame: Any, targets: list[str], features: list[str] | None, group: str | None, task: str
) -> TableColumns:
    """Finds the inputs, the classes and the natural clients of a table.

    Args:
        frame: The pandas table.
        targets: Columns to predict.
        features: The inputs; None means every column of numbers or truth values beside targets and group.
        group: Column of the natural clients, or None.
        task: `auto`, `classification` or `regression`.

    Raises:
        BadInput: A column is missing, has gaps, is named twice, or holds text among numbers.
    """
    if not targets:
        raise BadInput("data.target is missing: name the column to predict")
    remarks: tuple[str, ...] = ()
    if features is None:
        inputs, remarks = _find_inputs(frame, targets, group)
    else:
        inputs = features
    _check_names(targets, inputs)
    check_columns(frame, targets, inputs, group)
    if task != "classification":
        for column in targets:
            _refuse_stray(frame, column, "data.target", "correct it, or write data.task: classification")
    classes = task == "classification" or (task == "auto" and _is_class(frame, targets))
    names = sorted(set(frame[targets[0]].unique())) if classes else []
    groups = {value: i for i, value in enumerate(sorted(frame[group].unique()))} if group else {}
    return TableColumns(targets, inputs, names, group, groups, remarks)


def check_columns(frame: Any, targets: list[str], inputs: list[str], group: str | None, key: str = "data") -> None:
    """Refuses columns that the table lacks, columns with gaps, and inputs that are not finite numbers.

    Args:
        frame: The pandas table.
        targets: Columns to predict.
        inputs: Columns of the network's input.
        group: Column of the natural clients, or None.
        key: Of the scenario, for messages.
    """
    for column in (*targets, *inputs, *([group] if group else [])):
        if column not in frame:
            name = frame.attrs.get("file", "the table")
            raise BadInput(f"{key}: {name} has no column {column}: choose from {', '.join(map(str, frame))[:200]}")
        if missing := int(frame[column].isna().sum()):
            raise BadInput(f"{key}: column {column} has {missing} missing values: fill them or drop those rows")
    for column in inputs:
        if frame[column].dtype.kind not in "iufb":
            _refuse_stray(frame, column, "data.features", "correct it, or leave the column out")
            raise BadInput(f"data.features: column {column} is not numeric: encode it as numbers or leave it out")
    for column in (*targets, *inputs):
        if frame[column].dtype.kind == "f" and not np.isfinite(frame[column].to_numpy(dtype=np.float64)).all():
            raise BadInput(f"{key}: column {column} holds infinity: replace it by a number or drop those rows")


def _find_inputs(frame: Any, targets: list[str], group: str | None) -> tuple[list[str], tuple[str, ...]]:
    """The columns of numbers or truth values beside targets and group, and what is said of the others."""
    inputs, truths, texts = [], [], []
    for column in frame:
        if column in (*targets, group):
            continue
        if frame[column].dtype.kind in "iuf":
            inputs.append(column)
        elif _holds_truth_values(frame[column]):
            inputs.append(column)
            truths.append(str(column))
        else:
            remedy = "correct it, or name the inputs in data.features"
            _refuse_stray(frame, column, "data.path", remedy)
            texts.append(str(column))
    if not inputs:
        raise BadInput("data.path: the table has no numeric column beside the target: add one")
    remarks = []
    if texts:
        said = f"column{'s'[: len(texts) > 1]} {', '.join(texts)[:200]} {'are' if len(texts) > 1 else 'is'} text"
        remarks.append(f"data: {said} and no input: encode it as numbers, or name the inputs in data.features")
    if truths:
        said = f"column{'s'[: len(truths) > 1]} {', '.join(truths)[:200]} hold{'s'[: len(truths) == 1]}"
        remarks.append(f"data: {said} truth values, which are read as 0 and 1")
    return inputs, tuple(remarks)


def _holds_truth_values(column: Any) -> bool:
    """Whether a column holds True and False alone, apart from gaps."""
    if column.dtype.kind == "b":
        return True
    return column.dtype.kind == "O" and all(isinstance(value, bool | np.bool_) for value in column.dropna().unique())


def _check_names(targets: list[str], inputs: list[str]) -> None:
    """Refuses columns that are named twice, or as input and as target."""
    for column in inputs:
        if column in targets:
            raise BadInput(f"data.features: {column} is also the target, which every model would copy: leave it out")
    for key, columns in (("target", targets), ("features", inputs)):
        if twice := [column for column in columns if columns.count(column) > 1]:
            raise BadInput(f"data.{key}: column {twice[0]} is named twice: name it once")


def _refuse_stray(frame: Any, column: str, key: str, remedy: str) -> None:
    """Refuses a column in which at least half of the values are numbers, and some are not."""
    import pandas as pd

    values = frame[column]
    if values.dtype.kind != "O":
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
    if len(targets) > 1 or column.dtype.kind == "f":
        return False
    return column.dtype.kind not in "iu" or bool(column.nunique() <= 20)
