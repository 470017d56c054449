"""The store of data sets: one file of arrays per data set, memory-mapped and shared by all processes of a node.

The file name has a hash of the data set's name, its options, and the sizes and times of its source files. A complete
file replaces an older one at once; several writers or a crash do no harm. A file begins with the length of a JSON text
(8 bytes). The JSON text holds notes, and the type, shape and offset of each array. The arrays follow.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "rows.store"
    ...     write_store(file, {"x": np.eye(2), "site": np.array(["Rome", "Oslo"])}, {"classes": 2})
    ...     arrays, notes = map_store(file)
    >>> arrays["x"].tolist(), arrays["site"].tolist(), notes
    ([[1.0, 0.0], [0.0, 1.0]], ['Rome', 'Oslo'], {'classes': 2})
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedray.core.errors import FedrayWarning, Unwritable, warn_user
from fedray.data.catalogue import find_source, load_data
from fedray.data.files import find_cache_root, list_stamps
from fedray.data.spool import read_pieces
from fedray.data.types import Array, Dataset, Split
from fedray.files.plain import expand_user_path, open_replacement

FORMAT = 6  # enters the hash: raise this number when a loader or the layout of files changes
UNUSED_DAYS = 30  # files unused for longer are deleted when another file is written
ALIGNED = 64  # bytes: each array begins at a multiple of this
STATISTICS = ("shift", "scale", "y_shift", "y_scale", "means", "origin")
WORDS = ("class_names", "remarks", "features")


def open_dataset(name: str, root: Path | None = None, options: dict[str, Any] | None = None) -> Dataset:
    """Opens a data set from the store; a data set that is not in the store is loaded, and stored if that saves time.

    The arrays of a stored data set are views of mapped files. Writing to an array makes a copy and leaves the store
    unchanged. The remarks of the data set are issued as warnings.

    Args:
        name: Name of the data set, as in the scenario.
        root: Folder of data files; None for the usual folder.
        options: Options of the data set.
    """
    options, where = options or {}, find_source(name).where
    if where is None:
        data = load_data(name, root, **options)
    else:
        other = options.get("test")
        test = expand_user_path("data.test", other) if isinstance(other, str) else None
        stamps = [list_stamps(where(root, **options)), list_stamps(test) if test and test.is_file() else None]
        data = keep_dataset(name, [options, *stamps], lambda: load_data(name, root, **options))
    for remark in data.remarks:
        warn_user(remark, FedrayWarning)
    return data


def keep_dataset(name: str, key: Any, load: Callable[[], Dataset]) -> Dataset:
    """Returns a data set from the store; a data set that is not in the store is loaded and stored first.

    Args:
        name: Name of the data set.
        key: Facts that distinguish the data set from others of this name, such as options and the times of files.
        load: Function that reads or makes the data set.
    """
    text = json.dumps([FORMAT, name, *key], sort_keys=True, default=str)
    file = find_cache_root() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.store"
    try:
        data = _unpack(name, *map_store(file))
        with suppress(OSError):  # a file of another user stays as it is
            os.utime(file)
        return data
    except (OSError, ValueError, KeyError, TypeError):  # no such file yet, or an unreadable one
        data = load()
    oldest = time.time() - UNUSED_DAYS * 24 * 3600  # a process that has mapped an older file keeps its arrays
    for old in file.parent.glob("*.store"):
        with suppress(OSError):  # another process removed it
            if max(old.stat().st_mtime, old.stat().st_atime) < oldest:
                old.unlink()
    write_store(file, *_pack(data))
    del data  # its rows may be large
    return _unpack(name, *map_store(file))


def _pack(data: Dataset) -> tuple[dict[str, Array], dict[str, Any]]:
    """Returns the arrays of a data set by name, and its other facts as notes."""
    parts = (("train", data.train), ("test", data.test))
    rows = {f"{part} {key}": values for part, split in parts for key, values in zip(Split._fields, split)}
    found = {**rows, **{key: getattr(data, key) for key in STATISTICS}}
    found |= {f"column {name}": values for name, values in data.columns.items()}
    notes = {key: getattr(data, key) for key in ("classes", "table", *WORDS)}
    return {key: values for key, values in found.items() if values is not None}, notes


def _unpack(name: str, arrays: dict[str, Array], notes: dict[str, Any]) -> Dataset:
    """Returns the data set that `_pack` took apart."""
    train, test = (Split(arrays[f"{of} x"], arrays[f"{of} y"], arrays.get(f"{of} group")) for of in ("train", "test"))
    columns = {key.removeprefix("column "): values for key, values in arrays.items() if key.startswith("column ")}
    table = {key: None if values is None else tuple(values) for key, values in notes["table"].items()}
    more: dict[str, Any] = {key: tuple(notes[key]) for key in WORDS} | {key: arrays.get(key) for key in STATISTICS}
    return Dataset(name, train, test, notes["classes"], columns=columns, table=table, **more)


def write_store(path: Path, arrays: Mapping[str, Array], notes: dict[str, Any]) -> None:
    """Writes arrays of numbers and text as one file; readers see the whole file or none.

    Args:
        path: The file.
        arrays: The arrays by name.
        notes: Further facts that JSON can hold, written into the same file.

    Raises:
        FedrayError: The file cannot be written.
    """
    places, end = {}, 0
    for key, values in arrays.items():
        places[key] = [values.dtype.str, list(values.shape), end]
        end += values.nbytes + -values.nbytes % ALIGNED
    about = json.dumps({"arrays": places, "notes": notes}).encode()
    about += b" " * (-(8 + len(about)) % ALIGNED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_replacement(path) as file:
            os.fchmod(file.fileno(), 0o644)  # the cache may serve several users
            file.write(len(about).to_bytes(8, "little") + about)
            for values in arrays.values():
                for piece in read_pieces(values):
                    file.write(np.ascontiguousarray(piece).data)
                file.write(bytes(-values.nbytes % ALIGNED))
    except OSError as error:
        why = error.strerror or error
        raise Unwritable(f"cannot write {path} ({why}): free some space or set FEDRAY_CACHE") from error


def map_store(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Maps a file of the store and returns its arrays and notes; numbers are read from the disk when they are used.

    Raises:
        OSError: The file is missing or cannot be mapped.
        ValueError: The file is damaged; `KeyError` and `TypeError` mean the same.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    begin = 8 + int.from_bytes(mapped[:8], "little")
    about = json.loads(mapped[8:begin])
    arrays: dict[str, Array] = {
        key: np.frombuffer(mapped, kind, math.prod(shape), begin + place).reshape(shape)
        for key, (kind, shape, place) in about["arrays"].items()
    }
    return arrays, about["notes"]
