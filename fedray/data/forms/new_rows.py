"""Inputs of rows that a run has not seen, in the form that a user has them, as its data set has its own.

Example:
    >>> import pandas as pd
    >>> from fedray.data.adaptation import adapt
    >>> rows = pd.DataFrame({"age": [31.0, 45.0] * 5, "pulse": [70, 80] * 5, "ill": ["no", "yes"] * 5})
    >>> data = adapt(rows, target="ill")
    >>> read_inputs(data, pd.DataFrame({"pulse": [75], "age": [50]})).tolist()
    [[50.0, 75.0]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.data.cells import is_number_text, is_text
from fedray.data.forms.arrays import as_array, find_rows, refuse_rows
from fedray.data.forms.tables import GAP, TableColumns, as_frame, encode_inputs, is_frame, require_columns
from fedray.data.origins import subtract
from fedray.data.types import Array, Dataset

REMEDY = "fill them, or drop those rows"


def read_inputs(data: Dataset, x: Any) -> Array:
    """Inputs as the data set has them, `[n, *sample]`: less its `origin`, not standardized, gaps filled.

    Args:
        data: What the run was trained on.
        x: An array, a tensor, a list of rows, or a table: its columns are found by name and encoded as in training.
            Columns of the training table that are no inputs, such as its target, are not read.

    Raises:
        BadInput: They are no numbers, numbers are missing, or columns are not those of the training table.
    """
    if is_frame(x):
        return _encode_table(data, as_frame(x))
    values = as_array(x, "x")
    if values.dtype.kind in "UO" and data.kind == "tokens":
        raise BadInput(
            f"x is of type {values.dtype}, but this run was trained on tokens: give them as whole numbers "
            f"[n, {data.train.x.shape[1]}], those of your tokenizer, short texts filled up with 0 at the end"
        )
    if values.dtype.kind not in "iufb":
        raise BadInput(f"x is of type {values.dtype}: give numbers, or a table where the run was trained on one")
    if data.origin is not None and values.shape[1:] == data.input_shape:
        values = subtract(values, data.origin)
    if data.means is not None and values.shape[1:] == data.means.shape and values.dtype.kind == "f":
        values = np.where(np.isnan(values), data.means, values)
    if values.ndim:
        refuse_rows(find_rows(values, lambda x: ~np.isfinite(x)), "x", "inputs that are NaN or infinite", REMEDY)
    if values.dtype.kind == "b" or data.origin is not None:
        return values.astype(np.float32)
    if values.dtype.kind == "u" and values.dtype.itemsize > 1:  # torch does not compute with them
        return values.astype(np.int64)
    return values if values.flags.writeable else values.copy()  # torch warns of others


def _encode_table(data: Dataset, frame: Any) -> Array:
    """Returns the inputs of a table, `[n, f]`, by the names of its columns."""
    known = data.table or dict.fromkeys(data.features)
    if not known:
        raise BadInput("x is a table, but the data of this run name no columns: give an array, such as x.to_numpy()")
    inputs = [name for name, values in known.items() if values != ()]
    require_columns(frame, inputs, "x")
    if unknown := [str(name) for name in frame if name not in known]:
        raise BadInput(f"x has a column {unknown[0]}, which the training table has not: leave it out")
    categories = {name: list(values) for name in inputs if (values := known[name]) is not None}
    for name in inputs:
        _check_column(name, frame[name], categories.get(name), fill=data.means is not None)
    x = encode_inputs(frame, TableColumns([], inputs, categories, False, None, {}), data.origin)
    return x if data.means is None else np.where(np.isnan(x), data.means, x)


def _check_column(name: str, column: Any, values: list[str] | None, *, fill: bool) -> None:
    """Refuses an input with what training had not: missing values, text among numbers, infinity."""
    gaps = column.isna().to_numpy(dtype=bool)
    if not fill if values is None else GAP not in values:
        refuse_rows(gaps, "x", f"no value in column {name}", REMEDY)
    if values is not None or gaps.all():
        return
    if (is_text(column) and not is_number_text(column)) or column.dtype.kind not in "iufbO":
        raise BadInput(f"x: column {name} is of type {column.dtype}, but held numbers in training: give numbers")
    numbers = np.where(gaps, 0.0, column.to_numpy(dtype=np.float64, na_value=np.nan))
    refuse_rows(np.isinf(numbers), "x", f"an infinite value in column {name}", REMEDY)
