"""Files: atomic writes, JSON, small tables of numbers, paths that users give, and hashes of tensors.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "scores.json", {"loss": float("nan")})
    ...     print((Path(folder) / "scores.json").read_text().strip())
    {
      "loss": null
    }
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that belongs to a run; readers see the old file or the new one.

    Raises:
        FedrayError: The file cannot be written.
    """
    try:
        replace_file(path, data)
    except OSError as error:
        raise FedrayError(f"cannot write {path}: {error.strerror}: free space or choose another --out") from None


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file like `write_atomically`, for callers with messages of their own.

    Raises:
        OSError: The file cannot be written; the old one, if any, is as it was.
    """
    with open_replacement(path) as file:
        file.write(data)


@contextmanager
def open_replacement(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file that replaces `path` when the block ends without an error.

    The file has a temporary name of its own until it is complete and on the disk itself. So a crash leaves the old
    file, and several processes may write the same path at once.

    Raises:
        OSError: The file cannot be written; the old one, if any, is as it was.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
        sync_to_disk(part)
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def sync_to_disk(path: Path) -> None:
    """Waits until a file, or the list of the names in a folder, is on the disk itself (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def expand_user_path(key: str, text: str) -> Path:
    """The path that a user wrote, with `~` expanded.

    Args:
        key: Of the scenario, for the message.
        text: The path.

    Raises:
        BadInput: No file can have this path.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long a name; a home of nobody
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{key} = {text[:100]}: no such path ({why}): correct it") from None
    return path


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


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically; NaN and infinity become null."""
    text = json.dumps(_replace_infinite(value), indent=2)
    write_atomically(path, (text + "\n").encode())


def _replace_infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _replace_infinite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_infinite(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def hash_tensors(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over the tensors' names and their little-endian bytes, in the order of the dict."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().numpy()
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()
