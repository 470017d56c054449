r"""Small tables of numbers that users give as CSV or Parquet, such as the edges of a graph.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "edges.csv"
    ...     _ = path.write_text("a,b\n0,1\n1,2\n")
    ...     read_number_table("graph.edges", path, ("a", "b"), ())["b"].tolist()
    [1.0, 2.0]
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray


def read_number_table(key: str, path: Path, needed: tuple[str, ...], more: tuple[str, ...]) -> dict[str, FloatArray]:
    """The columns of a small table of numbers, CSV or Parquet; an empty cell is NaN.

    Args:
        key: Of the scenario, for messages.
        path: The file.
        needed: Columns that must be there.
        more: Columns that may be there.

    Returns:
        Columns `[n]` by name.

    Raises:
        BadInput: The file cannot be read, lacks a column, has an unknown one, or has no rows.
    """
    import warnings

    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row with more cells than the header has
            frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, index_col=False)
        table = {str(name): frame[name].to_numpy(dtype=np.float64) for name in frame}
    except (OSError, ValueError, TypeError, pd.errors.ParserWarning) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(f"{key} = {path}: it cannot be read ({reason}): correct it") from None
    unknown, missing = set(table) - {*needed, *more}, [name for name in needed if name not in table]
    if missing or unknown:
        what = f"has the unknown column {min(unknown)}" if unknown else f"has no column {missing[0]}"
        *names, last = (*needed, *more)
        raise BadInput(f"{key} = {path}: it {what}: its columns are {', '.join(names)} and {last}")
    if not len(frame):
        raise BadInput(f"{key} = {path}: it has no rows: fill it, or leave {key} out")
    return table
