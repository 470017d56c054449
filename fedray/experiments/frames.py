"""Tables as pandas DataFrames, and the newest rows of a run as one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fedray.core.errors import FedrayError


def average_last_rows(rounds: pa.Table) -> dict[str, Any]:
    """The rows of the newest evaluated round as one: each number is the mean over replicates and folds.

    Args:
        rounds: `rounds.parquet`.

    Example:
        >>> rows = [{"replicate": r, "fold": 0, "round": t, "accuracy": 0.1 * (r + t)} for r in (0, 1) for t in (0, 4)]
        >>> average_last_rows(pa.Table.from_pylist(rows))
        {'round': 4, 'accuracy': 0.45}
    """
    newest = pc.max(rounds["round"])
    rows = rounds.filter(pc.equal(rounds["round"], newest)).drop_columns(["replicate", "fold"]).to_pylist()
    if len(rows) == 1:
        return {name: value for name, value in rows[0].items() if value is not None}
    found: dict[str, Any] = {"round": newest.as_py()}
    for name in rows[0]:
        values = [row[name] for row in rows if isinstance(row[name], int | float)]
        if name != "round" and values:  # lists, one number a member, have no mean over worlds
            found[name] = sum(values) / len(values)
    return found


def to_frame(table: pa.Table) -> Any:
    """A table as a pandas DataFrame.

    Raises:
        FedrayError: pandas is not installed.
    """
    try:
        import pandas  # noqa: F401 - whether it is there
    except ImportError:
        raise FedrayError("a DataFrame needs pandas: `pip install pandas`, or use the pyarrow table") from None
    return table.to_pandas()
