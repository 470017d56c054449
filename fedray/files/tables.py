"""The columns of every table that fedray writes, and the readers of the tables of a run directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray
from fedray.files import bounded

if TYPE_CHECKING:
    import pyarrow as pa

# ---------------------------------------------------------------------------------------------------------------------
# The columns of every table, with their types and units. All writers of tables take the types from here.
#
# `fedray list columns` and `docs/reference/run_directory.md` print them. The scores in `rounds` are in
# `metrics/scores.py`.

ColumnKind = Literal["whole", "number", "text", "flag", "numbers", "record"]


class Column(NamedTuple):
    """The description of one column of a table.

    Attributes:
        kind: Type of the values: `whole` (int64), `number` (float64), `text`, `flag`, `numbers` (a list of float64), or
            `record` (a struct).
        unit: Unit of the values; empty where they have none.
        text: Meaning of the values, in a few words.
    """

    kind: ColumnKind
    unit: str
    text: str


_WORLD = {
    "replicate": Column("whole", "", "number of the replicate, from 0; its seed is `seed` plus this number"),
    "fold": Column("whole", "", "number of the fold of the data"),
}
_FLYING = "only without rounds (`participation.mode`)"
_ROUND = Column("whole", "", "completed rounds; 0 before the first")
_CLIENT = Column("whole", "", "id of the client, from 0")
_TIER = Column("text", "", "name of the client's tier")
COLUMNS: Mapping[str, Mapping[str, Column]] = {
    "rounds": {
        **_WORLD,
        "round": _ROUND,
        "sim_seconds": Column("number", "virtual seconds", "since the start of the run"),
        "wall_seconds": Column("number", "seconds", "real time since the start, without start-up and report"),
        "up_bytes": Column("whole", "bytes", "sent by all clients so far, and used"),
        "down_bytes": Column("whole", "bytes", "received by all clients so far, for jobs that have ended"),
    },
    "clients": {
        **_WORLD,
        "round": Column("whole", "", "the round of the job, from 1"),
        "client": _CLIENT,
        "tier": _TIER,
        "model": Column("whole", "", "number of the model that the client trained, from 0"),
        "samples": Column("whole", "samples", "training samples of the job"),
        "steps": Column("whole", "steps", "steps of the optimizer; 0 where the job did not count"),
        "loss": Column("number", "unit of the loss", "mean over the steps; empty where nothing was trained"),
        "up_bytes": Column("whole", "bytes", "sent and used; 0 where the job did not count"),
        "down_bytes": Column("whole", "bytes", "received; 0 where the client was never reached"),
        "sim_seconds": Column("number", "virtual seconds", "that the job takes"),
        "status": Column("text", "", "whether the upload was used, and if not, why: ok, late, dropped, failed ..."),
        "error": Column("text", "", "traceback of a job that failed; else empty"),
        "start_seconds": Column("number", "virtual seconds", f"at which the job started; {_FLYING}"),
        "arrival_seconds": Column("number", "virtual seconds", f"at which it arrived; {_FLYING}"),
        "version": Column("whole", "server steps", f"of its model before it started; {_FLYING}"),
        "staleness": Column(
            "whole", "server steps", f"of its model from its start to its use; empty if unused; {_FLYING}"
        ),
    },
    "client_scores": {
        **_WORLD,
        "round": _ROUND,
        "client": _CLIENT,
        "tier": _TIER,
        "samples": Column("whole", "samples", "training samples of the client"),
        "accuracy": Column("number", "share", "of the client's test rows that it is answered right"),
        "hold_out_accuracy": Column("number", "share", "the same on its held-out rows"),
        "rmse": Column("number", "target units", "of what the client is answered on its test rows"),
        "hold_out_rmse": Column("number", "target units", "the same on its held-out rows"),
        "conformal_coverage": Column("number", "share", "of its test rows whose answer is in the set"),
        "conformal_size": Column("number", "labels", "mean size of the sets of its test rows"),
        "conformal_width": Column("number", "target units", "mean width of the intervals of its rows"),
    },
    "drift": {
        **_WORLD,
        "client": _CLIENT,
        "samples": Column("whole", "samples", "training samples of the client"),
        "total": Column("number", "nats, or squared target units", "mean uncertainty of the ensemble on its data"),
        "knowledge": Column("number", "nats, or squared target units", "the part that the models' disagreement makes"),
        "z_total": Column("number", "standard deviations", "z-score of `total` over the clients; empty without data"),
        "z_knowledge": Column("number", "standard deviations", "z-score of `knowledge`: the drift score"),
        "anomaly": Column("flag", "", "whether the drift score is beyond 3"),
    },
    "trials": {
        "number": Column("whole", "", "number of the trial, from 0"),
        "state": Column("text", "", "`complete`, `pruned`, `failed` or `running`"),
        "values": Column("record", "as the objective", "a field for each objective, on held-out rows"),
        "params": Column("record", "as the key", "a field for each key of the space"),
        "run_directory": Column("text", "", "of the training that answered it, relative to the sweep's"),
        "how": Column("text", "", "`trained`, `looked up` or `refused`"),
        "rounds": Column("whole", "rounds", "that were trained for it"),
        "training_seconds": Column("number", "seconds", "wall time of its own training"),
        "seconds_saved": Column("number", "seconds", "wall time of the training that was looked up"),
        "error": Column("text", "", "why it failed; else empty"),
        "standard_errors": Column("record", "as the objective", "of the values, over replicates and folds"),
    },
    "table": {
        "cell": Column("text", "", "name of the cell"),
        "method": Column("text", "", "name of the method"),
        "metric": Column("text", "", "name of the score, as in `summary.json`"),
        "mean": Column("number", "as the score", "over replicates and folds"),
        "sd": Column("number", "as the score", "over replicates and folds; empty for a single one"),
        "n": Column("whole", "", "replicates and folds that have the score"),
        "published": Column("number", "as the score", "the paper's figure; empty where there is none"),
        "rounds": Column("whole", "rounds", "that the cell trained"),
        "up_bytes": Column("whole", "bytes", "sent by all clients of all replicates and folds, and used"),
        "down_bytes": Column("whole", "bytes", "received by all clients of all replicates and folds"),
        "sim_seconds": Column("number", "virtual seconds", "of the slowest replicate and fold"),
        "wall_seconds": Column("number", "seconds", "real time of the rounds"),
        "error": Column("text", "", "why the cell failed; else empty"),
    },
    "partition": {
        **_WORLD,
        "row": Column("whole", "", "of the training rows of the data set, from 0"),
        "client": _CLIENT,
        "split": Column("text", "", "`train`, `hold_out`, or `server` for rows that the server holds in its place"),
        "cluster": Column("whole", "", "true cluster of the client, from 0, where it is known"),
        "given_row": Column("whole", "", "which of the rows that the user gave it is, from 0"),
    },
}


JOB_COLUMNS = tuple(COLUMNS["clients"])
MEMBER_COLUMNS = ("member_accuracy", "member_rmse")


def arrow_type(kind: ColumnKind) -> pa.DataType:
    """Returns the type that a column has in a Parquet file.

    Example:
        >>> arrow_type("numbers")
        ListType(list<item: double>)
    """
    import pyarrow as pa

    kinds = {"whole": pa.int64(), "number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}
    return kinds[kind] if kind in kinds else pa.list_(pa.float64())


def make_table(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """Returns a table whose columns have the types in `COLUMNS`; NaN becomes an empty cell.

    Args:
        name: Name of the table, a key of `COLUMNS`.
        columns: Values by name of the column.

    Raises:
        KeyError: A column is not in `COLUMNS`.

    Example:
        >>> make_table("drift", {"client": [3], "anomaly": [False]}).schema.names
        ['client', 'anomaly']
    """
    import pyarrow as pa

    known = COLUMNS[name]
    arrays = {key: pa.array(values, arrow_type(known[key].kind), from_pandas=True) for key, values in columns.items()}
    return pa.table(arrays)


def table_schema(name: str, **records: pa.DataType) -> pa.Schema:
    """Returns the schema of a table.

    Args:
        name: Name of the table, a key of `COLUMNS`.
        records: Types of the columns of kind `record`, which only the writer of the table knows.
    """
    import pyarrow as pa

    return pa.schema([(key, records.get(key) or arrow_type(one.kind)) for key, one in COLUMNS[name].items()])


# ---------------------------------------------------------------------------------------------------------------------
# The files of a run directory and their readers: summary, tables of jobs and rounds, arrays of pictures.
#
# All commands read run directories with these functions. A file of the wrong kind, or with ids out of range, therefore
# gives the same line with the file's name in every command.

SUMMARY_FILE = "summary.json"
FAILURE_FILE = "failure.json"  # the error that ended the run; removed when the run is resumed
SUMMARY_KEYS = ("method", "rounds", "metrics", "totals", "model_hash")
RESUME = "restore it, or let `fedray resume` make it again"

PICTURES = (
    "confusion", "confusion_average", "calibration", "label_counts", "class_names", "disagreement", "client_scores",
    "client_accuracy", "client_rmse", "client_rmse_equal", "client_losses", "alpha", "predictive", "pit", "coverage",
    "errors", "loss_plane", "loss_plane_points", "loss_plane_extent", "graph_edges", "clusters", "conformal_clients",
    "conformal_alpha", "ood_entropies", "ood_auroc", "stack_folds", "stack_bases", "meta_weights",
)  # fmt: skip


def read_summary(out: Path) -> dict[str, Any]:
    """Returns the content of `summary.json` of a finished run.

    Raises:
        Damaged: The file cannot be read, or a key is missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "summary.json").write_text('{"method": "fedavg", "rounds": 3}')
        ...     read_summary(Path(folder))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.Damaged: ...summary.json is damaged (it has no metrics): ...
    """
    path = out / SUMMARY_FILE
    found = bounded.read_sealed(path, RESUME)
    missing = [key for key in SUMMARY_KEYS if key not in found]
    if missing:
        raise bounded.say_damaged(path, f"it has no {missing[0]}", RESUME)
    return found


def read_parts(out: Path, name: str) -> pa.Table | None:
    """Returns all parts of `rounds`, `clients` or `client_scores` as one table, in the order of writing; None if empty.

    Raises:
        Damaged: A part cannot be read.
    """
    import pyarrow as pa

    folder = out / f"{name}.parquet"
    parts = bounded.check_parts(out, folder.name)
    tables = bounded.read_parquet_files(parts, JOB_COLUMNS if name == "clients" else None, RESUME)
    tables = [table for table in tables if len(table)]
    if not tables:
        return None
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException:
        raise bounded.say_damaged(folder, "a column of its parts differs in its type", RESUME) from None


def read_pictures(path: Path) -> dict[str, NDArray[Any]]:
    """Returns the arrays of `pictures.npz` that are not empty, by name; an empty dict where there is no file.

    Raises:
        Damaged: The file cannot be read.
    """
    found = bounded.read_array_archive(path, PICTURES, RESUME) if path.exists() else {}
    return {name: array for name, array in found.items() if array.size}


# ---------------------------------------------------------------------------------------------------------------------
# Small tables of numbers that users give as CSV or Parquet, such as the edges of a graph.


def read_number_table(key: str, path: Path, needed: tuple[str, ...], more: tuple[str, ...]) -> dict[str, FloatArray]:
    r"""Returns the columns of a small table of numbers, CSV or Parquet; an empty cell is NaN.

    Args:
        key: The scenario key that names the file, for messages.
        path: The file.
        needed: Names of the required columns.
        more: Names of the optional columns.

    Returns:
        The columns by name, `[n]` float64 each.

    Raises:
        BadInput: The file cannot be read, lacks a column, has an unknown one, or has no rows.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "edges.csv"
        ...     _ = path.write_text("a,b\n0,1\n1,2\n")
        ...     read_number_table("graph.edges", path, ("a", "b"), ())["b"].tolist()
        [1.0, 2.0]
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
