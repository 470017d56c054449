"""Reads the files of a run directory. An error message is one line with the name of the file.

This module also lists the columns of the tables.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput, Damaged, FedrayError, show_line
from fedray.core.types import FloatArray, IntArray
from fedray.files.plain import replace_infinite, write_json

if TYPE_CHECKING:
    import pyarrow as pa


# ---------------------------------------------------------------------------------------------------------------------
# JSON files that hold a digest of their entries, so that a flipped bit or a replaced file is noticed.

SEAL = "seal"
REMEDY = "`fedray resume` makes it again"
MOST_BYTES = 10**9  # largest file that is read into memory, because a forged file may have any size


def seal_entries(entries: Mapping[str, Any], name: str | None = None) -> str:
    """Returns one SHA-256 of the entries of a JSON object together with `name`, the name of its file.

    If `name` is None, the digest depends only on the entries. It is in hexadecimal digits.
    """
    named = entries if name is None else {**entries, SEAL: name}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def write_sealed(path: Path, entries: Mapping[str, Any]) -> None:
    """Writes a JSON object atomically. Adds a digest of entries and file name. NaN and infinity become null.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "summary.json"
        ...     write_sealed(path, {"rounds": 4})
        ...     print(read_sealed(path))
        ...     _ = path.write_text(path.read_text().replace("4,", "5,"))
        ...     print(read_sealed(path))
        Traceback (most recent call last):
        fedray.core.errors.Damaged: ...summary.json is damaged (its checksum differs)...
    """
    plain = json.loads(json.dumps(replace_infinite(dict(entries))))
    write_json(path, {**plain, SEAL: seal_entries(plain, path.name)})


def read_sealed(path: Path, remedy: str = REMEDY) -> dict[str, Any]:
    """Reads a JSON object, checks its digest, and returns all entries except the digest.

    An old file without a digest is accepted.

    Raises:
        Damaged: The file is missing, holds no JSON object, or was changed.
        FedrayError: The file cannot be read for a different reason.
    """
    try:
        found = json.loads(read_or_explain(path, remedy).decode())
        if not isinstance(found, dict):
            raise ValueError("no keys in it")
        seal = found.pop(SEAL, None)  # in checkpoints of earlier versions the digest does not include the file name
        if seal is not None and seal not in (seal_entries(found, path.name), seal_entries(found)):
            raise ValueError("its checksum differs")
    except (ValueError, RecursionError) as error:
        raise make_damaged_error(path, error, remedy) from None
    return found


def read_or_explain(path: Path, remedy: str) -> bytes:
    """Returns the bytes of a file of a run directory. Refuses unusual files, because the directory may be forged.

    `remedy` is the advice in the message.

    Raises:
        Damaged: The file is missing, is a link, a directory or another special file, or has more than 1 GB.
        BadInput: This user may not read the file.
        FedrayError: The file cannot be read for a different reason, such as a fault of the disk.
    """
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(f"{path} cannot be used (it is a link, or no plain file)", remedy)
        if found.st_size > MOST_BYTES:
            raise Damaged(f"{path} cannot be used (it has {found.st_size:,} bytes, more than 1 GB)", remedy)
        return path.read_bytes()
    except OSError as error:
        raise make_unreadable_error(path, error, remedy) from None


def make_unreadable_error(path: Path, error: OSError, remedy: str) -> FedrayError:
    """Returns the error to raise for an unreadable file.

    `Damaged` is for a path that is missing. `BadInput` is for a path that this user may not read. `FedrayError` is for
    any other fault, such as a fault of the disk.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Damaged(f"{path} is missing", remedy)
    if isinstance(error, PermissionError):
        return BadInput(f"{path} cannot be read ({error.strerror}): it may be whole, make it readable first")
    return FedrayError(f"{path} cannot be read ({error.strerror or error}): it may be whole, check its disk first")


# ---------------------------------------------------------------------------------------------------------------------
# The reader of Parquet files.

RESTORE = "restore it, or run again"


def make_damaged_error(path: Path, why: object, remedy: str = RESTORE) -> Damaged:
    """Returns the error to raise for a damaged file."""
    return Damaged(f"{path} is damaged ({show_line(why, 160)})", remedy)


def read_parquet_file(path: Path, wanted: Collection[str] | None = None, remedy: str = RESTORE) -> pa.Table:
    """Returns the table of a Parquet file.

    `wanted` has the names of the columns to read. None means all columns. A column that the file lacks is skipped.

    Raises:
        Damaged: The file is missing, or is no Parquet file.
        FedrayError: The file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = read_or_explain(path, remedy)
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, pre_buffer=False)
        names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
        # a thread that still holds the bytes when Python ends would abort the process
        return file.read(columns=names, use_threads=False)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise make_damaged_error(path, error, remedy) from None


# ---------------------------------------------------------------------------------------------------------------------
# Lists of files. A checkpoint holds a list of files, with the number of bytes and a digest of each. The list tells
# which files a run directory must have, and whether they are undamaged.
#
# `rounds.parquet`, `clients.parquet` and `client_scores.parquet` are folders of parts. The list in a checkpoint names
# each part up to the checkpoint's round, and the checkpoint's file with the state. The list in the summary names the
# files that are written at the end of a run. JSON files hold digests of their own. In run directories of earlier
# versions of fedray the checkpoints have no such list, and their files are read without a check.

FINAL_FILES = ("drift.parquet", "pictures.npz")  # files that are written at the end of a run
FILES_KEY = "files"  # the key of the list in a checkpoint's `progress.json` and in the summary
STATE_FILE = "state.safetensors"  # the file with the state in the folder of a checkpoint
TABLES = ("rounds.parquet", "clients.parquet", "client_scores.parquet")
BEST_FOLDER = "best"  # folder in a run directory with the checkpoint of the best round
FileSums = dict[str, list[Any]]  # path in the run directory -> number of bytes, and 32 hexadecimal digits of BLAKE2b
_PART = re.compile(r"part-(\d{1,18})\.parquet")


def find_checkpoints(folder: Path) -> list[int]:
    """Returns the rounds that have a checkpoint, in ascending order."""
    found = [path.name[6:] for path in folder.glob("round-[0-9]*") if path.is_dir()]
    return sorted(int(name) for name in found if name.isdecimal())  # without copies that a user made


def read_progress(path: Path, remedy: str) -> dict[str, Any]:
    """Reads `progress.json` of a checkpoint, and checks its digest and its round.

    Raises:
        Damaged: The file is missing or was changed.
        FedrayError: The file cannot be read for a different reason.
    """
    file = path / "progress.json"
    totals = read_sealed(file, remedy)
    if totals.get("round") != int(path.name[6:]):
        raise make_damaged_error(file, f"it is that of round {totals.get('round')}", remedy)
    return totals


def read_listed_files(out: Path) -> FileSums:
    """Returns the sizes and digests of files that the newest checkpoint lists. Without a checkpoint, the dict is empty.

    Raises:
        Damaged: The newest checkpoint is damaged.
        FedrayError: The newest checkpoint cannot be read for a different reason.
    """
    known = find_checkpoints(out / "checkpoints")
    remedy = f"`fedray resume {out}` goes on from the checkpoint before it"
    totals = read_progress(out / "checkpoints" / f"round-{known[-1]:06d}", remedy) if known else {}
    files: FileSums = totals.get(FILES_KEY, {})
    return files


def list_parts(out: Path, table: str) -> dict[int, Path]:
    """Returns a dict from the last round of each part of a table to the file of the part, in ascending order.

    A table such as `rounds.parquet` is a folder, and each part is a file with the rows of some rounds.
    """
    folder = out / table
    names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 - only names are needed
    found = [(int(match[1]), folder / name) for name in names if (match := _PART.fullmatch(name))]
    return dict(sorted(found))


def sum_file(path: Path) -> list[Any]:
    """Returns a list of two entries: the number of bytes of a file, and its digest (32 hexadecimal digits of BLAKE2b).

    Raises:
        OSError: The file is missing or cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return [file.tell(), digest.hexdigest()]


def check_file(path: Path, wanted: list[Any], remedy: str) -> None:
    """Checks that a file still has the number of bytes and the digest in `wanted`, a list as `sum_file` returns it.

    Raises:
        Damaged: The file is missing or was changed.
        FedrayError: The file cannot be read for a different reason.
    """
    try:
        about = path.lstat()  # a link or a device is not read
        same = stat.S_ISREG(about.st_mode) and about.st_size == wanted[0]
        found = sum_file(path) if same else [about.st_size, ""]
    except OSError as error:
        raise make_unreadable_error(path, error, remedy) from None
    if found != wanted:
        why = "its checksum differs" if found[0] == wanted[0] else f"it has {found[0]} bytes and had {wanted[0]}"
        raise make_damaged_error(path, why, remedy)


def check_files(out: Path, files: FileSums, begin: str = "") -> None:
    """Checks that files of a run directory still match a list of files.

    `files` is the list in a checkpoint or in the summary. The checkpoint's file with the state is not checked. Only
    files whose names start with `begin` are checked.

    Raises:
        Damaged: A file is missing or was changed.
        FedrayError: A file cannot be read for a different reason.
    """
    for name, wanted in files.items():
        if name.startswith(begin) and name != STATE_FILE:
            check_file(out / name, wanted, f"`fedray resume {out}` makes it again")


def has_file(folder: Path, name: str) -> bool:
    """Returns whether a directory holds a plain file of this name, or a link to a plain file.

    The directory may be missing.

    Raises:
        BadInput: This user may not look into the directory.
        FedrayError: The disk has a fault.
    """
    try:
        return stat.S_ISREG((folder / name).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise make_unreadable_error(folder, error, "") from None


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
        unit: Unit of the values. It is empty if the values have no unit.
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
        "up_bytes": Column("whole", "bytes", "sent so far by all clients, in uploads that arrived in time"),
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
        "up_bytes": Column("whole", "bytes", "size of the upload; 0 if it was not sent or came too late for the round"),
        "down_bytes": Column("whole", "bytes", "received by the client for the job; 0 if the client was never reached"),
        "sim_seconds": Column(
            "number",
            "virtual seconds",
            "duration of the job; in asynchronous training since the start of the client's turn",
        ),
        "status": Column("text", "", "`ok` if the upload was used; otherwise why not: `late`, `dropped`, `failed` ..."),
        "error": Column("text", "", "traceback of a job that failed; empty for other jobs"),
        "start_seconds": Column(
            "number", "virtual seconds", f"time at which the client's turn with all its models started; {_FLYING}"
        ),
        "arrival_seconds": Column(
            "number", "virtual seconds", f"time at which the upload arrived or would have arrived; {_FLYING}"
        ),
        "version": Column("whole", "server steps", f"steps that the model had taken when the turn started; {_FLYING}"),
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
        "answer_bytes": Column("whole", "bytes", "size of the models that predict"),
        "answer_passes": Column("whole", "", "forward passes for a sample"),
        "error": Column("text", "", "why the cell failed; empty for other cells"),
    },
    "partition": {
        **_WORLD,
        "row": Column("whole", "", "index of the sample among the training samples that `data.limit` left, from 0"),
        "client": _CLIENT,
        "split": Column(
            "text",
            "",
            "`train`, `hold_out`, `server` for samples that the server holds instead of the client, or `test` for "
            "those of a client that never trains",
        ),
        "cluster": Column(
            "whole",
            "",
            "true cluster of the client, from 0; the column is absent if no clusters are known, or with "
            "`data.test_clients`",
        ),
        "given_row": Column("whole", "", "index of the sample in the user's data, from 0; may be absent"),
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
    """Makes an Arrow table, with the types that `COLUMNS` has for the columns of the table `name`.

    Columns that are not in `COLUMNS` are float64. NaN becomes an empty cell.

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

    `records` has the types of the columns of kind `record`. These types differ from table to table.
    """
    import pyarrow as pa

    return pa.schema([(key, records.get(key) or arrow_type(one.kind)) for key, one in COLUMNS[name].items()])


# ---------------------------------------------------------------------------------------------------------------------
# Readers of the summary, of the tables of jobs and rounds, and of the arrays for pictures.
#
# All commands read run directories with these functions. So a damaged file gives the same error with the file's name in
# every command.

SUMMARY_FILE = "summary.json"
FAILURE_FILE = "failure.json"  # the error that ended the run; removed when the run goes on
TRACEBACK_FILE = "error.txt"  # the traceback of the user's code for this error


def read_summary(out: Path) -> dict[str, Any]:
    """Returns the content of `summary.json` of a finished run.

    Raises:
        Damaged: The file cannot be read.
    """
    return read_sealed(out / SUMMARY_FILE)


def read_parts(out: Path, name: str) -> pa.Table | None:
    """Returns all parts of a table in a run directory as one table, in the order in which they were written.

    The table is `rounds`, `clients` or `client_scores`. The result is None if the table has no rows. Parts after the
    newest checkpoint have no digest yet, so they are not checked.

    Raises:
        Damaged: A part is missing or was changed, or the newest checkpoint is damaged.
        FedrayError: A file cannot be read for a different reason.
    """
    import pyarrow as pa

    folder = f"{name}.parquet"
    check_files(out, read_listed_files(out), f"{folder}/")
    wanted = JOB_COLUMNS if name == "clients" else None
    tables = [read_parquet_file(path, wanted, REMEDY) for path in list_parts(out, folder).values()]
    tables = [table for table in tables if len(table)]
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks() if tables else None


def read_pictures(path: Path) -> dict[str, NDArray[Any]]:
    """Returns a dict of the arrays in `pictures.npz` that are not empty. Without the file, the dict is empty.

    Unpickles nothing, so no code from the file runs.

    Raises:
        Damaged: The file is no `.npz` file.
        FedrayError: The file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "pictures.npz"
        ...     np.savez(path, agreement=np.eye(2), alpha=np.empty(0))
        ...     print(read_pictures(path)["agreement"].tolist(), len(read_pictures(path)))
        [[1.0, 0.0], [0.0, 1.0]] 1
    """
    if not path.exists():
        return {}
    content = io.BytesIO(read_or_explain(path, REMEDY))
    try:
        with np.load(content, allow_pickle=False) as packed:
            return {name: array for name, array in packed.items() if array.size}
    except Exception as error:  # zipfile, decompressors and NumPy raise a dozen kinds of errors
        raise make_damaged_error(path, str(error) or type(error).__name__, REMEDY) from None


# ---------------------------------------------------------------------------------------------------------------------
# Small tables of numbers that users give as CSV or Parquet, such as the edges of a graph.


def read_number_table(key: str, path: Path, needed: tuple[str, ...], more: tuple[str, ...]) -> dict[str, FloatArray]:
    r"""Returns the columns of a small CSV or Parquet table of numbers. An empty cell is NaN.

    `needed` has the names of the required columns, and `more` has the names of further allowed columns. `key` is the
    scenario's key that names the file, for messages.

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


def read_whole(key: str, path: Path, name: str, column: FloatArray, number: int) -> IntArray:
    """Returns a column of a table of numbers as integers. The arguments `key`, `path` and `name` are for messages.

    Raises:
        BadInput: A value is no whole number from 0 to `number` - 1.
    """
    wrong = column[~((column >= 0) & (column < number) & (column == np.floor(column)))]  # NaN is wrong too
    if len(wrong):
        raise BadInput(
            f"{key} = {path}: column {name} holds {wrong[0]:g}: give whole numbers from 0, ids below clients.number"
        )
    return column.astype(np.int64)
