"""Readers of files of a run directory: what is wrong is one line with the file's name."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.core.errors import BadInput, Damaged, FedrayError, show_line
from fedray.files.plain import replace_infinite, write_json

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

# ---------------------------------------------------------------------------------------------------------------------
# JSON files that carry a digest of themselves, so that a flipped bit or a swapped file is noticed.

SEAL = "seal"
REMEDY = "`fedray resume` makes it again"
MOST_BYTES = 10**9  # of a file that is read whole: a forged one may have any size


def seal_entries(entries: Mapping[str, Any]) -> str:
    """SHA-256 of the entries of a JSON object, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def write_sealed(path: Path, entries: Mapping[str, Any]) -> None:
    """Writes a JSON object atomically, with a digest of its entries and of its name; NaN and infinity become null.

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
    write_json(path, {**plain, SEAL: seal_entries({**plain, SEAL: path.name})})


def read_sealed(path: Path, remedy: str = REMEDY) -> dict[str, Any]:
    """Returns a JSON object without its digest; one that was written before there were digests is taken as it is.

    Args:
        path: The file.
        remedy: What the message advises where the file is missing or damaged.

    Raises:
        Damaged: It is missing, is no JSON object, or was changed.
        FedrayError: It cannot be read for another reason, which is named.
    """
    try:
        found = json.loads(read_or_explain(path, remedy).decode())
        if not isinstance(found, dict):
            raise ValueError("no keys in it")
        seal = found.pop(SEAL, None)
        if seal is not None and seal != seal_entries({**found, SEAL: path.name}):
            raise ValueError("its checksum differs")
    except (ValueError, RecursionError) as error:
        raise say_damaged(path, error, remedy) from None
    return found


def read_or_explain(path: Path, remedy: str) -> bytes:
    """Returns the bytes of a file of a run directory, which somebody else may have made.

    Args:
        path: The file.
        remedy: What the message advises where the file is missing or no plain file.

    Raises:
        Damaged: It is missing, is no plain file but a link or a folder, say, or has more than 1 GB.
        BadInput: This user may not read it.
        FedrayError: It cannot be read for another reason, such as a fault of the disk.
    """
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise Damaged(f"{path} cannot be used (it is a link, or no plain file)", remedy)
        if found.st_size > MOST_BYTES:
            raise Damaged(f"{path} cannot be used (it has {found.st_size:,} bytes, more than 1 GB)", remedy)
        return path.read_bytes()
    except OSError as error:
        raise tell_apart(path, error, remedy) from None


def tell_apart(path: Path, error: OSError, remedy: str) -> FedrayError:
    """Returns the error of an unreadable file: `Damaged` if it is missing or no file, else the true cause.

    A path that this user may not read is bad input, and a fault of the disk is none.

    Args:
        path: The file or the directory.
        error: What the system said.
        remedy: What to do where it is missing.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Damaged(f"{path} is missing", remedy)
    if isinstance(error, IsADirectoryError):
        return Damaged(f"{path} is damaged (it is a directory)", remedy)
    if isinstance(error, PermissionError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return BadInput(f"{path} cannot be read ({error.strerror}): it may be whole, make it readable first")
    return FedrayError(f"{path} cannot be read ({error.strerror or error}): it may be whole, check its disk first")


# ---------------------------------------------------------------------------------------------------------------------
# There is one reader for each format: Parquet and NumPy archives. (JSON has its own in `files.sealed`, YAML in
# `scenario.yaml_text`.) None of them runs code.

RESTORE = "restore it, or run again"


def say_damaged(path: Path, why: object, remedy: str = RESTORE) -> Damaged:
    """Returns the error of a file that cannot be what it should be.

    Args:
        path: the file.
        why: what is wrong, in a few words.
        remedy: what to do.
    """
    return Damaged(f"{path} is damaged ({show_line(why, 160)})", remedy)


def read_parquet_files(
    paths: Iterable[Path], wanted: Collection[str] | None = None, remedy: str = RESTORE
) -> list[pa.Table]:
    """Returns the tables of Parquet files.

    Args:
        paths: the files.
        wanted: names of the columns to read, where they are there; None means all.
        remedy: what to do where one is damaged.

    Raises:
        Damaged: a file is missing, or is no such file.
        FedrayError: one cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for path in paths:
        content = read_or_explain(path, remedy)
        try:
            file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, pre_buffer=False)
            names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
            # a thread that still has the bytes when Python ends would abort the process
            tables.append(file.read(columns=names, use_threads=False))
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
            raise say_damaged(path, error, remedy) from None
    return tables


def read_array_archive(path: Path, wanted: Collection[str], remedy: str = RESTORE) -> dict[str, NDArray[Any]]:
    """Arrays of a `.npz` file; nothing in it is unpickled.

    Args:
        path: the file.
        wanted: names of the arrays to read, where they are there.
        remedy: what to do where it is damaged.

    Raises:
        Damaged: it is no such file.
        FedrayError: it cannot be read.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "pictures.npz"
        ...     np.savez(path, agreement=np.eye(2))
        ...     read_array_archive(path, ["agreement"])["agreement"].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    import numpy as np  # the command line answers without it

    content = io.BytesIO(read_or_explain(path, remedy))
    try:
        with np.load(content, allow_pickle=False) as packed:
            return {name: packed[name] for name in wanted if name in packed.files}
    except Exception as error:  # zipfile, its decompressors and NumPy's header raise a dozen kinds
        raise say_damaged(path, str(error) or type(error).__name__, remedy) from None


# ---------------------------------------------------------------------------------------------------------------------
# The list of files that a checkpoint holds: how many bytes each had, and a digest of them. Which there are, and whether
# they are whole.
#
# `rounds.parquet`, `clients.parquet` and `client_scores.parquet` are folders of parts. The list of a checkpoint has
# each part up to its round, and the checkpoint's own state; that of the summary has the files of the run's end. JSON
# files are sealed instead, those with a list too. Run directories of earlier versions have no such list in their
# checkpoints, and are read as they are.

FINAL_FILES = ("drift.parquet", "pictures.npz")  # written at the end of a run
FILES_KEY = "files"  # of a checkpoint's `progress.json` and of the summary: the list
STATE_FILE = "state.safetensors"  # of a checkpoint
TABLES = ("rounds.parquet", "clients.parquet", "client_scores.parquet")
BEST_FOLDER = "best"  # of a run directory: the checkpoint of its best round
FileSums = dict[str, list[Any]]  # path in the run directory -> how many bytes, and 32 hexadecimal digits of BLAKE2b
_PART = re.compile(r"part-(\d{1,18})\.parquet")


def find_checkpoints(folder: Path) -> list[int]:
    """Rounds that have a checkpoint, rising.

    Args:
        folder: `checkpoints` of a run directory.
    """
    found = [path.name[6:] for path in folder.glob("round-[0-9]*") if path.is_dir()]
    return sorted(int(name) for name in found if name.isdecimal())  # not a copy that somebody made


def read_totals(path: Path, remedy: str) -> dict[str, Any]:
    """`progress.json` of a checkpoint, whole and at its place.

    Args:
        path: The folder of the checkpoint.
        remedy: What the message advises.

    Raises:
        Damaged: It is missing or was changed.
        FedrayError: It cannot be read for another reason.
    """
    file = path / "progress.json"
    data = read_or_explain(file, remedy)
    try:
        totals: dict[str, Any] = json.loads(data)
        if totals.pop(SEAL) != seal_entries(totals):
            raise ValueError("its checksum differs")
        if totals["round"] != int(path.name[6:]):
            raise ValueError(f"it is that of round {totals['round']}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise say_damaged(file, error, remedy) from None
    return totals


def read_vouched(out: Path, remedy: str) -> FileSums:
    """Returns the list of the newest checkpoint of a run directory; empty where there is none.

    Raises:
        Damaged: The newest checkpoint is damaged.
        FedrayError: It cannot be read for another reason.
    """
    known = find_checkpoints(out / "checkpoints")
    totals = read_totals(out / "checkpoints" / f"round-{known[-1]:06d}", remedy) if known else {}
    files: FileSums = totals.get(FILES_KEY, {})
    return files


def name_part(round: int) -> str:
    """Returns the file name of the part that ends with a round."""
    return f"part-{round:09d}.parquet"


def list_parts(out: Path, table: str) -> dict[int, Path]:
    """Returns the parts of a table by their rounds, rising; whatever else lies there is left out.

    Args:
        out: The run directory.
        table: One of `TABLES`.
    """
    folder = out / table
    names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 - names alone
    found = [(int(match[1]), folder / name) for name in names if (match := _PART.fullmatch(name))]
    return dict(sorted(found))


def sum_file(path: Path) -> list[Any]:
    """Returns what a list keeps of a file.

    Raises:
        OSError: It is missing or cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return [file.tell(), digest.hexdigest()]


def check_file(path: Path, wanted: list[Any], remedy: str) -> None:
    """Compares a file with what a list has of it.

    Raises:
        Damaged: It is missing or was changed.
        FedrayError: It cannot be read for another reason.
    """
    try:
        found = sum_file(path)
    except OSError as error:
        raise tell_apart(path, error, remedy) from None
    if found != wanted:
        why = "its checksum differs" if found[0] == wanted[0] else f"it has {found[0]} bytes and had {wanted[0]}"
        raise say_damaged(path, why, remedy)


def check_parts(out: Path, table: str) -> list[Path]:
    """The parts of a table in order, after each was compared with its checksum; those after the checkpoint have none.

    Args:
        out: The run directory.
        table: One of `TABLES`.

    Raises:
        Damaged: A part is missing or was changed, or the newest checkpoint is damaged.
        FedrayError: A file cannot be read for another reason.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     out = Path(folder)
        ...     (out / "rounds.parquet").mkdir()
        ...     _ = (out / "rounds.parquet" / "part-000000004.parquet").write_bytes(b"PAR1")
        ...     [path.name for path in check_parts(out, "rounds.parquet")]
        ['part-000000004.parquet']
    """
    vouched = read_vouched(out, f"`fedray resume {out}` goes on from the checkpoint before it")
    check_files(out, {name: sums for name, sums in vouched.items() if name.startswith(f"{table}/")})
    return list(list_parts(out, table).values())


def check_files(out: Path, files: FileSums) -> None:
    """Compares files of a run directory with a list.

    Raises:
        Damaged: A file is missing or was changed.
        FedrayError: A file cannot be read for another reason.
    """
    for name, wanted in files.items():
        check_file(out / name, wanted, f"`fedray resume {out}` makes it again")


def sum_final_files(out: Path) -> FileSums:
    """Returns the list of the files that a run writes at its end, as its summary keeps it."""
    return {name: sum_file(out / name) for name in FINAL_FILES if (out / name).is_file()}


def check_final_file(out: Path, name: str, summary: Mapping[str, Any]) -> None:
    """Compares a file of a finished run with the list of its summary; an older summary has none.

    Args:
        out: The run directory.
        name: One of `FINAL_FILES`.
        summary: What `summary.json` holds; empty where the run is not finished.

    Raises:
        Damaged: It is missing or was changed.
        FedrayError: It cannot be read for another reason.
    """
    check_files(out, {key: sums for key, sums in summary.get(FILES_KEY, {}).items() if key == name})


def sum_parts(out: Path) -> FileSums:
    """Returns the list of all parts that are there, for a run directory whose checkpoints have none yet."""
    return {f"{table}/{path.name}": sum_file(path) for table in TABLES for path in list_parts(out, table).values()}


def has_file(folder: Path, name: str) -> bool:
    """Whether a directory holds a plain file of this name, which may be a link to one.

    Args:
        folder: What a user names as a directory; it may be missing.
        name: Of the file, such as `scenario.yaml`.

    Raises:
        BadInput: This user may not look into the directory.
        FedrayError: The disk has a fault.
    """
    try:
        return stat.S_ISREG((folder / name).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise tell_apart(folder, error, "") from None
