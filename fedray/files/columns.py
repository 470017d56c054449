"""The columns of every table, with their units: whoever writes a table takes their types from here.

`fedray list columns` and `docs/reference/run_directory.md` print them. The scores in `rounds` are in
`metrics/catalogue.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

MOST_MODELS, MOST_CLIENTS = 10**6, 10**9  # ids are below them
_COUNT = 2**53
ColumnKind = Literal["whole", "number", "text", "flag", "numbers", "record"]


class Column(NamedTuple):
    """One column.

    Attributes:
        kind: `whole` (int64), `number` (float64), `text`, `flag`, `numbers` (a list of float64), `record` (a struct).
        unit: of its values; empty where they have none.
        text: what it is, in a few words.
        most: of whole numbers, which are 0 to `most`.
        needed: whether it must be there, without empty cells.
    """

    kind: ColumnKind
    unit: str
    text: str
    most: int = _COUNT
    needed: bool = True


_WORLD = {
    "replicate": Column("whole", "", "number of the replicate, from 0; its seed is `seed` plus this number", 10**6),
    "fold": Column("whole", "", "number of the fold of the data", 10**6),
}
_FLYING = "only without rounds (`participation.mode`)"
_ROUND = Column("whole", "", "completed rounds; 0 before the first", 10**8)
_CLIENT = Column("whole", "", "id of the client, from 0", MOST_CLIENTS - 1)
_TIER = Column("text", "", "name of the client's tier")
COLUMNS: Mapping[str, Mapping[str, Column]] = {
    "rounds": {
        **_WORLD,
        "round": _ROUND,
        "sim_seconds": Column("number", "virtual seconds", "since the start of the run"),
        "wall_seconds": Column("number", "seconds", "real time since the start, without start-up and report"),
        "up_bytes": Column("whole", "bytes", "sent by all clients so far, and used", 2**62, needed=False),
        "down_bytes": Column(
            "whole", "bytes", "received by all clients so far, for jobs that have ended", 2**62, needed=False
        ),
    },
    "clients": {
        **_WORLD,
        "round": Column("whole", "", "the round of the job, from 1", 10**8),
        "client": _CLIENT,
        "tier": _TIER,
        "model": Column("whole", "", "number of the model that the client trained, from 0", MOST_MODELS - 1),
        "samples": Column("whole", "samples", "training samples of the job", needed=False),
        "steps": Column("whole", "steps", "steps of the optimizer; 0 where the job did not count", needed=False),
        "loss": Column("number", "unit of the loss", "mean over the steps; empty where nothing was trained"),
        "up_bytes": Column("whole", "bytes", "sent and used; 0 where the job did not count"),
        "down_bytes": Column("whole", "bytes", "received; 0 where the client was never reached"),
        "sim_seconds": Column("number", "virtual seconds", "that the job takes"),
        "status": Column("text", "", "whether the upload was used, and if not, why: ok, late, dropped, failed ..."),
        "error": Column("text", "", "traceback of a job that failed; else empty", needed=False),
        "start_seconds": Column("number", "virtual seconds", f"at which the job started; {_FLYING}", needed=False),
        "arrival_seconds": Column("number", "virtual seconds", f"at which it arrived; {_FLYING}", needed=False),
        "version": Column("whole", "server steps", f"of its model before it started; {_FLYING}", needed=False),
        "staleness": Column(
            "whole", "server steps", f"of its model from its start to its use; empty if unused; {_FLYING}", needed=False
        ),
    },
    "client_scores": {
        **_WORLD,
        "round": _ROUND,
        "client": _CLIENT,
        "tier": _TIER,
        "samples": Column("whole", "samples", "training samples of the client"),
        "accuracy": Column("number", "share", "of the client's test rows that it is answered right", needed=False),
        "hold_out_accuracy": Column("number", "share", "the same on its held-out rows", needed=False),
        "rmse": Column("number", "target units", "of what the client is answered on its test rows", needed=False),
        "hold_out_rmse": Column("number", "target units", "the same on its held-out rows", needed=False),
        "conformal_coverage": Column("number", "share", "of its test rows whose answer is in the set", needed=False),
        "conformal_size": Column("number", "labels", "mean size of the sets of its test rows", needed=False),
        "conformal_width": Column("number", "target units", "mean width of the intervals of its rows", needed=False),
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
        "cluster": Column("whole", "", "true cluster of the client, from 0, where it is known", needed=False),
        "given_row": Column("whole", "", "which of the rows that the user gave it is, from 0", needed=False),
    },
}


def _whole(table: str) -> dict[str, Column]:
    return {name: column for name, column in COLUMNS[table].items() if column.kind == "whole"}


JOB_IDS, ROUND_IDS, CLIENT_SCORE_IDS, DRIFT_IDS = map(_whole, ("clients", "rounds", "client_scores", "drift"))
JOB_COLUMNS = tuple(COLUMNS["clients"])
MEMBER_COLUMNS = ("member_accuracy", "member_rmse")


def arrow_type(kind: ColumnKind) -> pa.DataType:
    """The type that a column has in a Parquet file.

    Example:
        >>> arrow_type("numbers")
        ListType(list<item: double>)
    """
    import pyarrow as pa

    kinds = {"whole": pa.int64(), "number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}
    return kinds[kind] if kind in kinds else pa.list_(pa.float64())


def make_table(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """A table whose columns have the types of the catalogue; NaN is an empty cell.

    Args:
        name: of the table.
        columns: its values by column.

    Raises:
        KeyError: a column is not in the catalogue.

    Example:
        >>> make_table("drift", {"client": [3], "anomaly": [False]}).schema.names
        ['client', 'anomaly']
    """
    import pyarrow as pa

    known = COLUMNS[name]
    arrays = {key: pa.array(values, arrow_type(known[key].kind), from_pandas=True) for key, values in columns.items()}
    return pa.table(arrays)


def table_schema(name: str, **records: pa.DataType) -> pa.Schema:
    """The schema of a table.

    Args:
        name: of the table.
        records: the types of its structs, which are known where it is written.
    """
    import pyarrow as pa

    return pa.schema([(key, records.get(key) or arrow_type(one.kind)) for key, one in COLUMNS[name].items()])
