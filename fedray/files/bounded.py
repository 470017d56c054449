"""Reads the files of a run directory. Every error is one line with the name of the file.

The readers are bounded: they read no file above 1 GB into memory, and run no code from a file.
"""

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
# JSON files that hold a digest of their entries. So it is noticed if a bit is flipped or a file is replaced.

SEAL = "seal"
REMEDY = "`fedray resume` makes it again"
MOST_BYTES = 10**9  # largest file that is read into memory, because a forged file may have any size


def seal_entries(entries: Mapping[str, Any], name: str | None = None) -> str:
    """Returns the SHA-256 of the entries of a JSON object and of the file's name, in hexadecimal digits."""
    named = entries if name is None else {**entries, SEAL: name}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def write_sealed(path: Path, entries: Mapping[str, Any]) -> None:
    """Writes a JSON object atomically, with a digest of the entries and the file name. NaN and infinity become null.

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
    """Reads a JSON object, checks its digest, and returns the other entries. An old file without a digest is accepted.

    Args:
        path: The file.
        remedy: The advice in the message if the file is missing or damaged.

    Raises:
        Damaged: The file is missing, holds no JSON object, or was changed.
        FedrayError: The file cannot be read for a different reason, which the message names.
    """
    try:
        found = json.loads(read_or_explain(path, remedy).decode())
        if not isinstance(found, dict):
            raise ValueError("no keys in it")
        seal = found.pop(SEAL, None)  # in checkpoints of earlier versions the digest does not include the file name
        if seal is not None and seal not in (seal_entries(found, path.name), seal_entries(found)):
            raise ValueError("its checksum differs")
    except (ValueError, RecursionError) as error:
        raise say_damaged(path, error, remedy) from None
    return found


def read_or_explain(path: Path, remedy: str) -> bytes:
    """Returns the bytes of a file of a run directory. The file need not be trusted.

    Args:
        path: The file.
        remedy: The advice in the message if the file is missing or is no plain file.

    Raises:
        Damaged: The file is missing, is no plain file (a link, for example), or has more than 1 GB.
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
        raise tell_apart(path, error, remedy) from None


def tell_apart(path: Path, error: OSError, remedy: str) -> FedrayError:
    """Returns the error to raise for an unreadable file.

    The error is `Damaged` if the path is missing or is a directory. It is `BadInput` if this user may not read the
    path, and `FedrayError` if the disk has a fault.

    Args:
        path: The file or the directory.
        error: The error of the operating system.
        remedy: The advice in the message if the file is missing.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Damaged(f"{path} is missing", remedy)
    if isinstance(error, IsADirectoryError):
        return Damaged(f"{path} is damaged (it is a directory)", remedy)
    if isinstance(error, PermissionError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return BadInput(f"{path} cannot be read ({error.strerror}): it may be whole, make it readable first")
    return FedrayError(f"{path} cannot be read ({error.strerror or error}): it may be whole, check its disk first")


# ---------------------------------------------------------------------------------------------------------------------
# Readers of Parquet files and NumPy archives. They run no code from a file.

RESTORE = "restore it, or run again"


def say_damaged(path: Path, why: object, remedy: str = RESTORE) -> Damaged:
    """Returns the error to raise for a damaged file.

    Args:
        path: The file.
        why: What is wrong with the file, in a few words.
        remedy: The advice in the message.
    """
    return Damaged(f"{path} is damaged ({show_line(why, 160)})", remedy)


def read_parquet_files(
    paths: Iterable[Path], wanted: Collection[str] | None = None, remedy: str = RESTORE
) -> list[pa.Table]:
    """Returns the table of each Parquet file.

    Args:
        paths: The files.
        wanted: Names of the columns to read; None means all columns. A column that a file lacks is skipped.
        remedy: The advice in the message if a file is damaged.

    Raises:
        Damaged: A file is missing, or is no Parquet file.
        FedrayError: A file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for path in paths:
        content = read_or_explain(path, remedy)
        try:
            file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, pre_buffer=False)
            names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
            # a thread that still holds the bytes when Python ends would abort the process
            tables.append(file.read(columns=names, use_threads=False))
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
            raise say_damaged(path, error, remedy) from None
    return tables


def read_array_archive(path: Path, wanted: Collection[str], remedy: str = RESTORE) -> dict[str, NDArray[Any]]:
    """Returns arrays of a `.npz` file by name, without unpickling anything.

    Args:
        path: The file.
        wanted: Names of the arrays to read. An array that the file lacks is skipped.
        remedy: The advice in the message if the file is damaged.

    Raises:
        Damaged: The file is missing, or is no `.npz` file.
        FedrayError: The file cannot be read.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "pictures.npz"
        ...     np.savez(path, agreement=np.eye(2))
        ...     read_array_archive(path, ["agreement"])["agreement"].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    import numpy as np  # imported here so that the command line starts quickly

    content = io.BytesIO(read_or_explain(path, remedy))
    try:
        with np.load(content, allow_pickle=False) as packed:
            return {name: packed[name] for name in wanted if name in packed.files}
    except Exception as error:  # zipfile, decompressors and NumPy raise a dozen kinds of errors
        raise say_damaged(path, str(error) or type(error).__name__, remedy) from None


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
    """Returns the rounds that have a checkpoint, in ascending order.

    Args:
        folder: The folder `checkpoints` of a run directory.
    """
    found = [path.name[6:] for path in folder.glob("round-[0-9]*") if path.is_dir()]
    return sorted(int(name) for name in found if name.isdecimal())  # without copies that a user made


def read_totals(path: Path, remedy: str) -> dict[str, Any]:
    """Reads `progress.json` of a checkpoint, and checks its digest and its round.

    Args:
        path: The folder of the checkpoint.
        remedy: The advice in the message if the file is damaged.

    Raises:
        Damaged: The file is missing or was changed.
        FedrayError: The file cannot be read for a different reason.
    """
    file = path / "progress.json"
    totals = read_sealed(file, remedy)
    if totals.get("round") != int(path.name[6:]):
        raise say_damaged(file, f"it is that of round {totals.get('round')}", remedy)
    return totals


def read_vouched(out: Path, remedy: str) -> FileSums:
    """Returns the list of files in the newest checkpoint of a run directory; empty if there is no checkpoint.

    Raises:
        Damaged: The newest checkpoint is damaged.
        FedrayError: The newest checkpoint cannot be read for a different reason.
    """
    known = find_checkpoints(out / "checkpoints")
    totals = read_totals(out / "checkpoints" / f"round-{known[-1]:06d}", remedy) if known else {}
    files: FileSums = totals.get(FILES_KEY, {})
    return files


def name_part(round: int) -> str:
    """Returns the file name of the part of a table whose last round is `round`."""
    return f"part-{round:09d}.parquet"


def list_parts(out: Path, table: str) -> dict[int, Path]:
    """Returns the files of a table's parts, by the last round in each part, in ascending order. Ignores other files.

    Args:
        out: The run directory.
        table: One of `TABLES`.
    """
    folder = out / table
    names = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 - only names are needed
    found = [(int(match[1]), folder / name) for name in names if (match := _PART.fullmatch(name))]
    return dict(sorted(found))


def sum_file(path: Path) -> list[Any]:
    """Returns the number of bytes and the digest of a file, in the form of an entry of `FileSums`.

    Raises:
        OSError: The file is missing or cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return [file.tell(), digest.hexdigest()]


def check_file(path: Path, wanted: list[Any], remedy: str) -> None:
    """Checks that a file still has the number of bytes and the digest in `wanted`.

    Raises:
        Damaged: The file is missing or was changed.
        FedrayError: The file cannot be read for a different reason.
    """
    try:
        found = sum_file(path)
    except OSError as error:
        raise tell_apart(path, error, remedy) from None
    if found != wanted:
        why = "its checksum differs" if found[0] == wanted[0] else f"it has {found[0]} bytes and had {wanted[0]}"
        raise say_damaged(path, why, remedy)


def check_parts(out: Path, table: str) -> list[Path]:
    """Checks the parts of a table, and returns their paths in the order of rounds.

    Parts after the newest checkpoint have no digest yet, so they are not checked.

    Args:
        out: The run directory.
        table: One of `TABLES`.

    Raises:
        Damaged: A part is missing or was changed, or the newest checkpoint is damaged.
        FedrayError: A file cannot be read for a different reason.

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
    check_files(out, vouched, f"{table}/")
    return list(list_parts(out, table).values())


def check_files(out: Path, files: FileSums, begin: str = "") -> None:
    """Checks that files of a run directory still match a list of files.

    Args:
        out: The run directory.
        files: The list in a checkpoint or in the summary. The checkpoint's file with the state is not checked.
        begin: Beginning of the names of the files that are checked. By default all files are checked.

    Raises:
        Damaged: A file is missing or was changed.
        FedrayError: A file cannot be read for a different reason.
    """
    for name, wanted in files.items():
        if name.startswith(begin) and name != STATE_FILE:
            check_file(out / name, wanted, f"`fedray resume {out}` makes it again")


def sum_final_files(out: Path) -> FileSums:
    """Returns the list of files that a run has written at its end. The summary keeps this list."""
    return {name: sum_file(out / name) for name in FINAL_FILES if (out / name).is_file()}


def sum_parts(out: Path) -> FileSums:
    """Returns a list of all parts in a run directory, for directories whose checkpoints have no such list."""
    return {f"{table}/{path.name}": sum_file(path) for table in TABLES for path in list_parts(out, table).values()}


def has_file(folder: Path, name: str) -> bool:
    """Returns whether a directory holds a plain file of this name, or a link to a plain file.

    Args:
        folder: The directory, which may be missing.
        name: Name of the file, such as `scenario.yaml`.

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
