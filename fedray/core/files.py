"""Writing and naming files: atomic writes, JSON, paths that users give."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file under a temporary name, fsyncs and renames it: readers see the old file or the new one."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise FedrayError(f"cannot write {path}: {error.strerror}: free space or choose another --out") from None


def replace_file(path: Path, data: bytes) -> None:
    """Does the work of `write_atomically`.

    Raises:
        OSError: the file cannot be written; the old one, if any, is as it was.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        sync_to_disk(part)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def sync_to_disk(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk itself (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def expand_user_path(key: str, text: str) -> Path:
    """A path as a user writes it, `~` for a home included; one that no file can have is refused."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long a name; a home of nobody
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{key} = {text[:100]}: no such path ({why}): correct it") from None
    return path


def to_finite_numbers(key: str, path: Path, needed: tuple[str, ...], more: tuple[str, ...]) -> dict[str, FloatArray]:
    """The columns of a small table of numbers, CSV or Parquet; an empty cell is NaN.

    Args:
        key: of the scenario, for the message. needed, more: names of the columns.

    Raises:
        BadInput: it cannot be read, lacks a column, has an unknown one, or no rows.
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
    """Writes JSON atomically; NaN becomes null."""
    text = json.dumps(_finite(value), indent=2)
    write_atomically(path, (text + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def hash_tensors(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names and little-endian bytes, in the order given."""
    h = hashlib.sha256()
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().numpy()
        h.update(name.encode())
        h.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    return h.hexdigest()
