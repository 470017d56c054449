"""JSON files that carry a digest of themselves, so that a flipped bit or a swapped file is noticed.

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

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput, Damaged, FedrayError
from fedray.files.plain import explain_read_error, read_file, replace_infinite, write_json

SEAL = "seal"
REMEDY = "`fedray resume` makes it again"


def seal_entries(entries: Mapping[str, Any]) -> str:
    """SHA-256 of the entries of a JSON object, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def write_sealed(path: Path, entries: Mapping[str, Any]) -> None:
    """Writes a JSON object atomically, with a digest of its entries and of its name; NaN and infinity become null."""
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
