"""Lists the columns of every table that fedray writes, and reads the tables of a run directory."""

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
        unit: Unit of the values; empty if the values have no unit.
        text: The meaning of the values, in a few words.
    """

    kind: ColumnKind
    unit: str
    text: str


_WORLD = {
    "replicate": Column("whole", "", "number of the replicate, from 0; its seed is `seed` plus this number"),
    "fold": Column("whole", "", "number of the fold of the data"),
}
_FLYING = "only in asynchronous training (`participation.mode`)"
_ROUND = Column("whole", "", "number of completed rounds; 0 before the first round")
_CLIENT = Column("whole", "", "id of the client, from 0")
_TIER = Column("text", "", "name of the client's tier")
COLUMNS: Mapping[str, Mapping[str, Column]] = {
    "rounds": {
        **_WORLD,
        "round": _ROUND,
        "sim_seconds": Column("number", "virtual seconds", "virtual time since the start of the run"),
        "wall_seconds": Column(
            "number", "seconds", "real time since the start of the run, without start-up and report"
        ),
        "up_bytes": Column("whole", "bytes", "sent so far by all clients, in uploads that the server used"),
        "down_bytes": Column("whole", "bytes", "received so far by all clients, for jobs that have ended"),
    },
    "clients": {
        **_WORLD,
        "round": Column("whole", "", "the round of the job, from 1"),
        "client": _CLIENT,
        "tier": _TIER,
        "model": Column("whole", "", "number of the model that the client trained, from 0"),
        "samples": Column("whole", "samples", "number of training samples of the job"),
        "steps": Column("whole", "steps", "number of optimizer steps; 0 if the upload was not used"),
        "loss": Column("number", "unit of the loss", "mean loss over the steps; empty if the job was not trained"),
        "up_bytes": Column("whole", "bytes", "size of the upload; 0 if the upload was not used"),
        "down_bytes": Column("whole", "bytes", "received by the client for the job; 0 if the client was never reached"),
        "sim_seconds": Column("number", "virtual seconds", "duration of the job"),
        "status": Column("text", "", "`ok` if the upload was used; otherwise why not: `late`, `dropped`, `failed` ..."),
        "error": Column("text", "", "traceback of a job that failed; empty for other jobs"),
        "start_seconds": Column("number", "virtual seconds", f"time at which the job started; {_FLYING}"),
        "arrival_seconds": Column(
            "number", "virtual seconds", f"time at which the upload arrived or would have arrived; {_FLYING}"
        ),
        "version": Column("whole", "server steps", f"steps that the model had taken when the job started; {_FLYING}"),
        "staleness": Column(
            "whole",
            "server steps",
            f"steps that the model took between the job's start and the use of the upload; empty if unused; {_FLYING}",
        ),
    },
    "client_scores": {
        **_WORLD,
        "round": _ROUND,
        "client": _CLIENT,
        "tier": _TIER,
        "samples": Column("whole", "samples", "number of training samples of the client"),
        "accuracy": Column("number", "share", "accuracy on the client's test samples"),
        "hold_out_accuracy": Column("number", "share", "accuracy on the client's held-out samples"),
        "rmse": Column("number", "target units", "root mean squared error on the client's test samples"),
        "hold_out_rmse": Column("number", "target units", "root mean squared error on the client's held-out samples"),
        "conformal_coverage": Column(
            "number", "share", "share of the client's test samples whose true value is in the conformal set"
        ),
        "conformal_size": Column("number", "labels", "mean size of the conformal sets of the client's test samples"),
        "conformal_width": Column(
            "number", "target units", "mean width of the conformal intervals of the client's test samples"
        ),
    },
    "drift": {
        **_WORLD,
        "client": _CLIENT,
        "samples": Column("whole", "samples", "number of training samples of the client"),
        "total": Column(
            "number", "nats, or squared target units", "mean uncertainty of the ensemble on the client's samples"
        ),
        "knowledge": Column(
            "number", "nats, or squared target units", "part of `total` that comes from disagreement of the models"
        ),
        "z_total": Column(
            "number", "standard deviations", "z-score of `total` among all clients; empty for a client without samples"
        ),
        "z_knowledge": Column("number", "standard deviations", "drift score: z-score of `knowledge` among all clients"),
        "anomaly": Column("flag", "", "whether the drift score is above 3 or below -3"),
    },
    "trials": {
        "number": Column("whole", "", "number of the trial, from 0"),
        "state": Column("text", "", "`complete`, `pruned`, `failed` or `running`"),
        "values": Column(
            "record", "as the objective", "value of each objective on held-out samples, one field for each"
        ),
        "params": Column("record", "as the key", "value of each key of the search space, one field for each"),
        "run_directory": Column(
            "text", "", "run directory with the trial's training, relative to the directory of the sweep"
        ),
        "how": Column(
            "text", "", "`trained`, `looked up` (an equal training was found) or `refused` (the scenario is wrong)"
        ),
        "rounds": Column("whole", "rounds", "number of rounds that were trained for the trial"),
        "training_seconds": Column("number", "seconds", "wall time of the trial's own training"),
        "seconds_saved": Column("number", "seconds", "wall time of the earlier training that was looked up"),
        "error": Column("text", "", "why the trial failed; empty for other trials"),
        "standard_errors": Column(
            "record", "as the objective", "standard error of each value, over replicates and folds"
        ),
    },
    "table": {
        "cell": Column("text", "", "name of the cell"),
        "method": Column("text", "", "name of the method"),
        "metric": Column("text", "", "name of the score, as in `summary.json`"),
        "mean": Column("number", "as the score", "mean of the score over replicates and folds"),
        "sd": Column(
            "number", "as the score", "standard deviation over replicates and folds; empty for a single value"
        ),
        "n": Column("whole", "", "number of pairs of replicate and fold that have the score"),
        "published": Column("number", "as the score", "value in the paper; empty if the paper has none"),
        "rounds": Column("whole", "rounds", "number of rounds of the cell"),
        "up_bytes": Column(
            "whole", "bytes", "sent by all clients of all replicates and folds, in uploads that the server used"
        ),
        "down_bytes": Column("whole", "bytes", "received by all clients of all replicates and folds"),
        "sim_seconds": Column("number", "virtual seconds", "virtual time of the slowest pair of replicate and fold"),
        "wall_seconds": Column("number", "seconds", "real time of all rounds"),
        "answer_bytes": Column("whole", "bytes", "models that answer, handed over once"),
        "answer_passes": Column("whole", "", "forward passes for a sample"),
        "error": Column("text", "", "why the cell failed; empty for other cells"),
    },
    "partition": {
        **_WORLD,
        "row": Column("whole", "", "index of the sample among the training samples of the data set, from 0"),
        "client": _CLIENT,
        "split": Column(
            "text",
            "",
            "`train`, `hold_out`, `server` for samples that the server holds instead of the client, or `test` for "
            "those of a client that never trains",
        ),
        "cluster": Column(
            "whole", "", "true cluster of the client, from 0; the column is absent if no clusters are known"
        ),
        "given_row": Column("whole", "", "index of the sample among the samples that the user gave, from 0"),
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
    """Returns a table. A column has its type in `COLUMNS`, or is float64 if it is not there. NaN becomes an empty cell.

    Args:
        name: Name of the table, a key of `COLUMNS`.
        columns: Values by name of the column.

    Example:
        >>> make_table("drift", {"client": [3], "anomaly": [False]}).schema.names
        ['client', 'anomaly']
    """
    import pyarrow as pa

    kinds: dict[str, ColumnKind] = {key: column.kind for key, column in COLUMNS[name].items()}
    return pa.table(
        {
            key: pa.array(values, arrow_type(kinds.get(key, "number")), from_pandas=True)
            for key, values in columns.items()
        }
    )


def table_schema(name: str, **records: pa.DataType) -> pa.Schema:
    """Returns the schema of a table.

    Args:
        name: Name of the table, a key of `COLUMNS`.
        records: Types of the columns of kind `record`, which differ from table to table.
    """
    import pyarrow as pa

    return pa.schema([(key, records.get(key) or arrow_type(one.kind)) for key, one in COLUMNS[name].items()])


# ---------------------------------------------------------------------------------------------------------------------
# Readers of the summary, of the tables of jobs and rounds, and of the arrays for pictures.
#
# All commands read run directories with these functions. So a damaged file gives the same error with the file's name in
# every command.

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
    """Returns all parts of a table in a run directory as one table, in the order in which they were written.

    The table is `rounds`, `clients` or `client_scores`. The result is None if the table has no rows.

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
    """Returns the arrays of `pictures.npz` that are not empty, by name. Without the file, the dict is empty.

    Raises:
        Damaged: The file cannot be read.
    """
    found = bounded.read_array_archive(path, PICTURES, RESUME) if path.exists() else {}
    return {name: array for name, array in found.items() if array.size}


# ---------------------------------------------------------------------------------------------------------------------
# Small tables of numbers that users give as CSV or Parquet, such as the edges of a graph.


def read_number_table(key: str, path: Path, needed: tuple[str, ...], more: tuple[str, ...]) -> dict[str, FloatArray]:
    r"""Returns the columns of a small CSV or Parquet table of numbers. An empty cell is NaN.

    Args:
        key: The scenario key that names the file, for messages.
        path: The file.
        needed: Names of the required columns.
        more: Names of the optional columns.

    Returns:
        The columns by name, `[n]` float64 each.

    Raises:
        BadInput: The file cannot be read, lacks a column, has an unknown column, or has no rows.

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
