"""Readers of files that somebody else may have written: what is wrong is one line with the file's name."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.core.errors import BadInput, Damaged, FedrayError
from fedray.core.text import quote_value, show_line
from fedray.files.plain import explain_read_error, read_file, replace_infinite, write_json

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

# ---------------------------------------------------------------------------------------------------------------------
# JSON files that carry a digest of themselves, so that a flipped bit or a swapped file is noticed.

SEAL = "seal"
REMEDY = "`fedray resume` makes it again"


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
    """A JSON object without its digest; one that was written before there were digests is taken as it is.

    Args:
        path: The file.
        remedy: What the message advises where the file is missing or damaged.

    Raises:
        Damaged: It is missing, is no JSON object, or was changed.
        FedrayError: It cannot be read for another reason, which is named.
    """
    data = read_or_explain(path, remedy)
    try:
        found = json.loads(data.decode())
        if not isinstance(found, dict):
            raise ValueError("no keys in it")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged ({explain_read_error(error)})", remedy) from None
    check_seal(path, found, remedy)
    return found


def check_seal(path: Path, entries: dict[str, Any], remedy: str) -> None:
    """Takes the digest out of the entries of a file, and compares it with them.

    Args:
        path: The file.
        entries: What it holds; without a digest they are taken as they are.
        remedy: What the message advises.

    Raises:
        Damaged: The digest differs.
    """
    seal = entries.pop(SEAL, None)
    if seal is not None and seal != seal_entries({**entries, SEAL: path.name}):
        raise Damaged(f"{path} is damaged (its checksum differs)", remedy)


def read_or_explain(path: Path, remedy: str) -> bytes:
    """The bytes of a plain file of a run directory.

    Args:
        path: The file.
        remedy: What the message advises where the file is missing or no plain file.

    Raises:
        Damaged: It is missing, or something else has its name.
        BadInput: This user may not read it.
        FedrayError: It cannot be read for another reason, such as a fault of the disk.
    """
    try:
        return read_file(path)
    except OSError as error:
        raise tell_apart(path, error, remedy) from None


def tell_apart(path: Path, error: OSError, remedy: str) -> FedrayError:
    """The error of what could not be read: `Damaged` where it is missing or no plain file, else the true cause.

    A path that this user may not read is bad input, and a fault of the disk is none.

    Args:
        path: The file or the directory.
        error: What the system said.
        remedy: What to do where it is missing or no plain file.
    """
    why = explain_read_error(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Damaged(f"{path} is missing", remedy)
    if error.errno in (errno.EINVAL, errno.ELOOP, errno.ENXIO):  # a directory, a pipe, a device or a link
        return Damaged(f"{path} cannot be used ({why})", remedy)
    if isinstance(error, PermissionError) or error.errno == errno.ENAMETOOLONG:
        return BadInput(f"{path} cannot be read ({why}): it may be whole, make it readable first")
    return FedrayError(f"{path} cannot be read ({why}): it may be whole, check its disk first")


# ---------------------------------------------------------------------------------------------------------------------
# There is one reader for each format: Parquet and NumPy archives. (JSON has its own in `files.sealed`, YAML in
# `scenario.yaml_text`.) None of them follows a link, waits for a pipe, runs code, or opens a file of more than 1 GB.

RESTORE = "restore it, or run again"


def say_damaged(path: Path, why: object, remedy: str = RESTORE) -> Damaged:
    """The error of a file that cannot be what it should be.

    Args:
        path: the file.
        why: what is wrong, in a few words.
        remedy: what to do.
    """
    return Damaged(f"{name_file(path)} is damaged ({show_line(why, 160)})", remedy)


def name_file(path: Path) -> str:
    """A path for messages: printable, whatever bytes its name has."""
    return quote_value(str(path), 400)[1:-1]


def is_present(path: Path) -> bool:
    """Whether there is anything under this name, also a link that leads nowhere."""
    return os.path.lexists(path)


def read_parquet_files(
    paths: Iterable[Path], wanted: Collection[str] | None = None, remedy: str = RESTORE
) -> list[pa.Table]:
    """The tables of Parquet files.

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

    content, found = read_or_explain(path, remedy), {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            there = packed.namelist()
            for name in (name for name in wanted if f"{name}.npy" in there):
                file = io.BytesIO(packed.read(f"{name}.npy"))  # whole, so that its checksum is compared
                found[name] = np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except Exception as error:  # zipfile, its decompressors and NumPy's header raise a dozen kinds
        raise say_damaged(path, str(error) or type(error).__name__, remedy) from None
    return found
