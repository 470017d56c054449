"""How the inputs of a table become numbers.

Numbers and truth values are inputs as they are. A category becomes an input of 0 and 1 for each of its values (one-hot,
the values in alphabetical order); these are not standardized. A value unknown to the training table is 0 in all.

Example:
    >>> import pandas as pd
    >>> from fedray.data.columns import choose_columns
    >>> frame = pd.DataFrame({"age": [31, 45], "city": ["Rome", "Oslo"], "ill": [0, 1]})
    >>> found = choose_columns(frame, ["ill"], None, None, "auto")
    >>> encode_inputs(frame, found).tolist()
    [[31.0, 0.0, 1.0], [45.0, 1.0, 0.0]]
    >>> name_inputs(found)
    ('age', 'city=Oslo', 'city=Rome')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedray.data.columns import GAP, TableColumns
from fedray.data.origins import Float64, find_origin
from fedray.data.types import Array


def encode_inputs(frame: Any, columns: TableColumns, origin: Float64 | None = None) -> Array:
    """The inputs of a table, `[n, f]` float32: NaN for a missing number, 0 for every category but the row's own.

    Args:
        frame: The table.
        columns: How it is read.
        origin: What is subtracted in float64 before (`fedray.data.origins`), `[f]`; None: nothing.
    """
    x = np.empty((len(frame), len(name_inputs(columns))), dtype=np.float32)
    place = 0
    for column in columns.inputs:
        values = columns.categories.get(column)
        if values is None:
            x[:, place] = _as_numbers(frame[column]) - (0.0 if origin is None else origin[place])
            place += 1
        else:
            code = _number_values(frame[column], values)
            own = np.flatnonzero(code >= 0)
            x[:, place : place + len(values)] = 0
            x[own, place + code[own]] = 1
            place += len(values)
    return x


def find_table_origin(frame: Any, columns: TableColumns) -> Float64 | None:
    """What has to be subtracted from the inputs of a table before they become float32, `[f]`; None: nothing.

    Args:
        frame: The table of the training rows.
        columns: How it is read.
    """
    numbers = [column for column in columns.inputs if column not in columns.categories]
    found = {column: find_origin(_as_numbers(frame[column])[:, None]) for column in numbers}
    known = [
        np.zeros(len(columns.categories[column])) if column in columns.categories else found[column]
        for column in columns.inputs
    ]
    origin = np.concatenate([np.zeros(1) if part is None else part for part in known])
    return origin if origin.any() else None


def name_inputs(columns: TableColumns) -> tuple[str, ...]:
    """Names of the inputs, `f` of them: the column, or the column and the value of a category."""
    named = [
        [f"{column}={value}" for value in columns.categories[column]] if column in columns.categories else [str(column)]
        for column in columns.inputs
    ]
    return tuple(name for part in named for name in part)


def describe_columns(names: Sequence[str], columns: TableColumns) -> dict[str, tuple[str, ...] | None]:
    """How the columns of a table are read, as `Dataset.table` keeps it.

    Args:
        names: Of all columns.
        columns: How they are read.
    """
    values = {name: columns.categories.get(name) for name in columns.inputs}
    inputs = {str(name): None if found is None else tuple(found) for name, found in values.items()}
    return {**inputs, **{str(name): () for name in names if name not in columns.inputs}}


def _number_values(column: Any, values: list[str]) -> Array:
    """The place of each row's value among the values of a category, `[n]`; -1 for one that is not among them."""
    import pandas as pd

    text = column.astype(object).where(column.notna(), GAP).map(str)
    return np.asarray(pd.Categorical(text, categories=values).codes, dtype=np.int64)


def _as_numbers(column: Any) -> Array:
    """Numbers and truth values as float64, `[n]`; NaN where they are missing."""
    if column.dtype.kind == "O":  # truth values with gaps
        return np.array([np.nan if v is None or v != v else float(v) for v in column], dtype=np.float64)
    found: Array = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return found
