"""The store of data sets: an Arrow file for each split, memory-mapped and shared by all processes of a node.

The name of a file has a hash of the data set's name, its options, and the sizes and times of its source files. A file
replaces an older one when it is complete, so that several writers and a crash do no harm.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_store(Path(folder) / "rows.arrow", Split(np.eye(2, dtype=np.float32), np.array([0, 1])))
    ...     map_store(Path(folder) / "rows.arrow").split.x.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fedray.core.errors import FedrayWarning, Unwritable, warn_user
from fedray.data.catalogue import find_source, load_data
from fedray.data.files import find_cache_root, list_stamps
from fedray.data.spool import PIECE_BYTES, find_mapping, read_pieces, release
from fedray.data.types import Array, Dataset, Split
from fedray.files.plain import expand_user_path, open_replacement

FORMAT = 5  # a part of the hash: raise it when a loader or the layout changes
UNUSED_DAYS = 30  # after which a file makes room when another one is written
_OURS = re.compile(r".*-[0-9a-f]{16}-(?:train|test)\.arrow|\.[0-9a-f]{24}\.part")  # names of stored files, and of parts
STATISTICS = ("shift", "scale", "y_shift", "y_scale")


class StoredFile(NamedTuple):
    """What one file holds.

    Attributes:
        split: The rows, as views of the mapped file.
        columns: Further columns by name, `[n]` each.
        notes: What was written beside the rows.
    """

    split: Split
    columns: dict[str, Array]
    notes: dict[str, Any]


def open_dataset(name: str, root: Path | None = None, options: dict[str, Any] | None = None) -> Dataset:
    """Opens a data set from the store; if it is not there, it is loaded and, where that is a gain, stored.

    Arrays of a stored set are views of mapped files. They are copied on write, so that nothing changes the store. The
    data set's remarks are given as warnings.

    Args:
        name: As in the scenario.
        root: Folder of data files; None for the usual one.
        options: Of the data set.
    """
    data = _open_stored(name, root, options or {})
    for remark in data.remarks:
        warn_user(remark, FedrayWarning)
    return data


def _open_stored(name: str, root: Path | None, options: dict[str, Any]) -> Dataset:
    """The data set from the store, where it is put if that is a gain."""
    where = find_source(name).where
    if where is None:
        return load_data(name, root, **options)
    key = [options, list_stamps(where(root, **options)), _stamp_test_file(options)]
    return keep_dataset(name, key, lambda: load_data(name, root, **options))


def keep_dataset(name: str, key: Any, load: Callable[[], Dataset]) -> Dataset:
    """A data set from the store, where it is put if it is not there.

    Args:
        name: Of the data set.
        key: Whatever tells its rows from others, such as options and the times of its files.
        load: Reads or makes it.
    """
    text = json.dumps([FORMAT, name, *key], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    train, test = (find_cache_root() / f"{name}-{digest}-{part}.arrow" for part in ("train", "test"))
    try:
        data = _dataset(name, map_store(train), map_store(test))
        _mark_used([train, test])
        return data
    except (OSError, ValueError, KeyError):  # not there yet, or not readable
        data = load()
    _remove_unused(train.parent)
    write_store(test, data.test)
    write_store(train, data.train, data.columns, _notes(data))
    del data  # its rows may be large
    return _dataset(name, map_store(train), map_store(test))


def _mark_used(files: list[Path]) -> None:
    """Notes that stored files were used now; those of another user stay as they are."""
    for file in files:
        with suppress(OSError):
            os.utime(file)


def _remove_unused(folder: Path) -> None:
    """Removes stored files, and parts of files of writers that were killed, that nobody used for `UNUSED_DAYS`.

    A process that has one mapped keeps its rows, and whoever wants it again reads the source again. Files with other
    names are not fedray's.
    """
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    files = list(folder.iterdir()) if folder.is_dir() else []
    for file in (path for path in files if _OURS.fullmatch(path.name)):
        with suppress(OSError):  # another process removed it
            stat = file.stat()
            if max(stat.st_mtime, stat.st_atime) < oldest:
                file.unlink()


def _stamp_test_file(options: dict[str, Any]) -> Any:
    """Name, size and time of a table's file of test rows, if it has one."""
    other = options.get("test")
    path = expand_user_path("data.test", other) if isinstance(other, str) else None
    return list_stamps(path) if path is not None and path.is_file() else None


def _notes(data: Dataset) -> dict[str, Any]:
    """What a stored data set needs beside its rows."""
    values: dict[str, Any] = {k: [getattr(data, k).tolist(), list(getattr(data, k).shape)] for k in STATISTICS}
    words = {key: getattr(data, key) for key in ("class_names", "remarks", "features", "table")}
    for key, value in (("means", data.means), ("origin", data.origin)):
        values[key] = None if value is None else [value.tolist(), list(value.shape)]
    return {"classes": data.classes, **words, **values}


def _dataset(name: str, train: StoredFile, test: StoredFile) -> Dataset:
    """The data set of two files."""
    notes = train.notes
    shift, scale, y_shift, y_scale = (
        np.array(numbers, np.float32).reshape(shape) for numbers, shape in (notes[key] for key in STATISTICS)
    )
    names = tuple(notes["class_names"])
    data = Dataset(name, train.split, test.split, notes["classes"], names, shift, scale, y_shift, y_scale)
    remarks, features = tuple(notes["remarks"]), tuple(notes["features"])
    named = notes["table"] if features else {}  # a file of older versions has none: a table is read again
    filled = notes["means"] if features else notes.get("means")
    means = None if filled is None else np.array(filled[0], np.float32).reshape(filled[1])
    less = notes.get("origin")
    origin = None if less is None else np.array(less[0], np.float64).reshape(less[1])
    table = {key: None if values is None else tuple(values) for key, values in named.items()}
    data = data._replace(columns=train.columns, remarks=remarks, features=features, table=table)
    return data._replace(means=means, origin=origin)


def write_store(
    path: Path, split: Split, columns: dict[str, Array] | None = None, notes: dict[str, Any] | None = None
) -> None:
    """Writes a split as an Arrow IPC file with one record batch; readers see all of it or nothing.

    Args:
        path: The file.
        split: The rows.
        columns: Further columns by name, `[n]` each.
        notes: Whatever JSON can hold, to be written beside the rows.

    Raises:
        FedrayError: The file cannot be written.
    """
    import pyarrow as pa

    fields = {"x": split.x, "y": split.y, **({} if split.group is None else {"group": split.group})}
    fields |= {f"column {key}": values for key, values in (columns or {}).items()}
    arrays, shapes = [], {}
    for key, values in fields.items():
        if values.dtype.kind == "U":
            arrays.append(pa.array(values.tolist(), pa.string()))
            continue
        shapes[key] = [list(values.shape), values.dtype.str]
        flat, width = np.ascontiguousarray(values).reshape(-1), int(np.prod(values.shape[1:]))
        column = pa.array(flat)
        arrays.append(pa.FixedSizeListArray.from_arrays(column, width) if values.ndim > 1 else column)
    about = json.dumps({"shapes": shapes, "notes": notes or {}, "checksum": _checksum(fields, notes or {})})
    schema = pa.schema([pa.field(k, a.type) for k, a in zip(fields, arrays, strict=True)], {"fedray": about})
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_replacement(path) as file:
            os.fchmod(file.fileno(), 0o644)  # the cache may serve several users
            with pa.ipc.new_file(pa.PythonFile(_PieceFile(file, split), "w"), schema) as writer:
                writer.write_batch(batch)
    except OSError as error:
        why = error.strerror or error
        raise Unwritable(f"cannot write {path} ({why}): free some space or set FEDRAY_CACHE") from error


class _PieceFile:
    """A file that takes large buffers in pieces, and lets go what was mapped for a piece from another file."""

    def __init__(self, file: IO[bytes], split: Split) -> None:
        """Writes to `file` the rows of `split`."""
        self._file, self.closed = file, False
        found = [find_mapping(array) for array in (split.x, split.y) if not array.flags.writeable]
        self._mapped = [mapped for mapped in found if mapped is not None]

    def write(self, data: Any) -> int:
        """Writes a buffer and returns its length."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            self._file.write(view[start : start + PIECE_BYTES])
            for mapped in self._mapped:
                release(mapped)
        return len(view)

    def tell(self) -> int:
        """How much has been written."""
        return self._file.tell()

    def flush(self) -> None:
        """Hands what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """Does nothing: whoever opened the file closes it."""


def map_store(path: Path) -> StoredFile:
    """Maps a file; its numbers are read from the disk when they are used.

    Raises:
        OSError: The file is not there or cannot be mapped.
        ValueError: The file is damaged: one changed bit is enough.
    """
    import pyarrow as pa

    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    whole = np.frombuffer(mapped, np.uint8)
    reader = pa.ipc.open_file(pa.py_buffer(whole))
    batch, about = reader.get_batch(0), json.loads((reader.schema.metadata or {})[b"fedray"])
    arrays: dict[str, Array] = {}
    for key, column in zip(reader.schema.names, batch.columns, strict=True):
        if key in about["shapes"]:
            shape, dtype = about["shapes"][key]
            arrays[key] = _view(whole, column.flatten() if len(shape) > 1 else column, dtype).reshape(shape)
        else:
            arrays[key] = np.array(column.to_pylist(), dtype=str)
    if _checksum(arrays, about["notes"], mapped) != about["checksum"]:
        raise ValueError("its rows are not those that were written")
    columns = {key.removeprefix("column "): a for key, a in arrays.items() if key.startswith("column ")}
    return StoredFile(Split(arrays["x"], arrays["y"], arrays.get("group")), columns, about["notes"])


def _checksum(arrays: Mapping[str, Array], notes: dict[str, Any], mapped: mmap.mmap | None = None) -> int:
    """CRC-32 of all arrays and notes: 4 GB/s, and no single flipped bit goes unnoticed."""
    found = zlib.crc32(json.dumps(notes).encode())
    for key, values in arrays.items():
        found = zlib.crc32(key.encode(), found)
        if values.dtype.kind == "U":
            found = zlib.crc32("\0".join(values.tolist()).encode(), found)
        elif values.size:
            for piece in read_pieces(values, mapped):
                found = zlib.crc32(np.ascontiguousarray(piece).data, found)
    return found


def _view(whole: Array, column: Any, dtype: str) -> Array:
    """The numbers of a column as a view of the mapped file, without Arrow's read-only mark."""
    buffer = column.buffers()[1]
    if not buffer or not buffer.size:
        return np.empty(0, dtype)
    start = buffer.address - whole.ctypes.data
    size = len(column) * np.dtype(dtype).itemsize
    if not 0 <= start <= len(whole) - size:
        raise ValueError("a column outside its file")
    return whole[start : start + size].view(dtype)
