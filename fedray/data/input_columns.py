"""Choice of the input columns of a table, with remarks on the columns that are left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.data.forms.arrays import (
    MARKS,
    holds_marked_numbers,
    holds_truth_values,
    holds_words,
    is_number_text,
    is_text,
    list_classes,
)
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# The names of columns. fedray keeps names as text; in a pandas table they may be numbers or dates.


COLUMNS = ("target", "input", "group")  # the options of `adapt` that name columns


def spell_columns(given: Any, key: str) -> Any:
    """Returns the name of a column, or a list of names, as text.

    Args:
        given: The names that the user gave: one, several, or None.
        key: Key of the option, for messages.

    Raises:
        BadInput: The user gave a column itself, or another table, instead of a name.

    Example:
        >>> spell_columns(3, "data.target"), spell_columns([0, "age"], "data.input"), spell_columns(None, "data.group")
        ('3', ['0', 'age'], None)
        >>> refuse_twins(["a", "b", "a"], "the table")
        Traceback (most recent call last):
        fedray.core.errors.BadInput: data: the table has two columns a: rename one
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping) or list_classes(given) & {"pandas.Series", "pandas.DataFrame", "polars.Series"}:
        raise BadInput(f"{key} is {name_type(given)}: name a column, or give data=(table, labels)")
    if isinstance(given, Collection):
        return [str(name) for name in given]
    return str(given)


def refuse_twins(names: Iterable[str], where: str) -> None:
    """Refuses a table in which two columns have one name.

    Args:
        names: Names of the columns.
        where: Name of the table in messages.

    Raises:
        BadInput: Two columns have one name; the message gives the first such name.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadInput(f"data: {where} has two columns {name}: rename one")
        seen.add(name)


# ---------------------------------------------------------------------------------------------------------------------
# Columns that number the rows of a table: the index that pandas writes, and identities.

MANY_ROWS = 20  # in fewer rows than this, the whole numbers of a column may all differ by chance
_INDEX = re.compile(r"|Unnamed: \d+(\.\d+)*|__index_level_\d+__")  # no name, or a name that pandas or pyarrow made


# ---------------------------------------------------------------------------------------------------------------------
# Choice of the input columns of a table, with remarks on the other columns.

MOST_VALUES = 64  # a text column with more different values is an input only if the user names it


TOLD = {  # the remark on each kind of column that `_find_kind` returns
    "index": "no input, because it numbers the rows (name it in data.{key})",
    "id": "another whole number in every row (leave it out by data.{key} if it is an id)",
    "truth": "truth values, read as 0 and 1",
    "number text": "text of numbers, read as numbers",
    "category": "text, read as categories (0 and 1 for each value)",
    "many": "text of too many different values, no input (name it in data.{key})",
    "marks": "no input, because its numbers have commas or other marks (pandas.read_csv has thousands and decimal)",
    "other": "neither numbers nor text, no input (make numbers or text of it)",
}


def find_inputs(frame: Any, targets: list[str], group: str | None, key: str) -> tuple[list[str], tuple[str, ...]]:
    """Returns the columns, other than targets and group, that are inputs, and a remark on each kind of column.

    Args:
        frame: The table.
        targets: Names of the columns to predict.
        group: Name of the column of the natural clients, or None.
        key: The option of `data` that names the inputs, for messages.

    Raises:
        BadInput: No column can be an input; the message says how to make one.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [31, 45], "city": ["Rome", "Oslo"], "ill": [0, 1]})
        >>> find_inputs(table, ["ill"], None, "input")
        (['age', 'city'], ('data: text, read as categories (0 and 1 for each value): city',))
    """
    kinds = {column: _find_kind(frame, column, key) for column in frame if column not in (*targets, group)}
    said = []
    for kind, text in TOLD.items():
        if columns := [column or "without a name" for column, one in kinds.items() if one == kind]:
            said.append(f"data: {text.format(key=key)}: {', '.join(columns)[:200]}")
    inputs = [column for column, kind in kinds.items() if kind in ("number", "id", "number text", "truth", "category")]
    if not inputs:
        table = frame.attrs.get("file", "the table")
        remedy = "; ".join(line.removeprefix("data: ") for line in said) or "add one"
        raise BadInput(f"data: {table} has no column of numbers or categories beside the target: {remedy}")
    return inputs, tuple(said)


def is_category(column: Any) -> bool:
    """Returns whether an input is a category: a text column, but not text of numbers with too many different values."""
    return is_text(column) and not (_has_many(column) and is_number_text(column))


def check_input(frame: Any, column: str, key: str) -> tuple[str, ...]:
    """Checks that an input column named by the user holds numbers, truth values or text.

    Returns:
        A remark if the column is text whose values hardly occur twice; otherwise an empty tuple.

    Args:
        frame: The table.
        column: Name of the input column.
        key: The option of `data` that names the column, for messages.

    Raises:
        BadInput: The column cannot be an input; the message says how to convert it.
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
    """Refuses a column in which at least half of the values are numbers, and some are not.

    Args:
        frame: The table.
        column: Name of the column.
        key: The scenario key, for the message.
        remedy: The end of the message.

    Raises:
        BadInput: There is such a column; the message gives the first value that is no number.
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


def _find_kind(frame: Any, column: str, key: str) -> str:
    """Returns the kind of a column as an input: `number`, or a key of `TOLD`."""
    values = frame[column]
    if _INDEX.fullmatch(str(column)):
        return "index"
    if values.dtype.kind in "iuf":  # different whole numbers in all rows may be the ids of patients, for example
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
    """Returns whether a text column has too many different values for a category, or too few rows of each."""
    return bool(column.nunique() > min(MOST_VALUES, max(2, column.count() // 4)))
