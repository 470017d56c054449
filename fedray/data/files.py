"""Finds data files on disk, unpacks archives, and stores arrays in files if they are too large for memory."""

import mmap
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput, FedrayError, Unwritable
from fedray.core.types import IntArray
from fedray.files.plain import expand_user_path

# ---------------------------------------------------------------------------------------------------------------------
# Paths of data files, unpacking of archives, and the errors for files that are missing or damaged.


def find_cache_root() -> Path:
    """Returns the folder for data that fedray computes from files.

    The environment variable `FEDRAY_CACHE` names this folder. If the variable is not set, the folder is in the user's
    cache.
    """
    import platformdirs

    return Path(os.environ.get("FEDRAY_CACHE") or platformdirs.user_cache_dir("fedray")).expanduser()


def find_data_root(root: Path | None) -> Path:
    """Returns the folder of data files.

    `root` is the value of the key `data.root`. If `root` is None, the environment variable `FEDRAY_DATA` names the
    folder. If this variable is not set either, the folder is in the user's cache.

    Example:
        >>> find_data_root(Path("/data"))
        PosixPath('/data')
    """
    return Path(root or os.environ.get("FEDRAY_DATA") or find_cache_root() / "data").expanduser()


def find_path(key: str, path: str | None, kind: str, wanted: str) -> Path:
    """Returns the path of a file or folder that a scenario names, and expands `~`.

    `kind` is `file`, `folder` or `file or folder`. If `path` is None or empty, the error message asks for `wanted`.

    Raises:
        BadInput: `path` is None or empty, or there is no file or folder of this kind at the path.
    """
    if not path:
        raise BadInput(f"{key} is missing: give {wanted}")
    place = expand_user_path(key, path)
    if not {"file": place.is_file, "folder": place.is_dir}.get(kind, place.exists)():
        where = "" if place.is_absolute() else f" in {Path.cwd()}"
        remedy = "correct it, or start from the folder where the run began" if where else "correct it"
        raise BadInput(f"{key} = {path}: there is no such {kind}{where}: {remedy}")
    return place


def find_file(root: Path | None, name: str, candidates: list[str], needs: str = "", *, fetchable: bool = True) -> Path:
    """Returns the first path in `candidates` that exists. The candidates are relative to the folder of data files.

    If the pattern `needs` is not empty, only folders with a file that matches this pattern are considered. `fetchable`
    says whether the error message suggests a download of the data set.

    Raises:
        BadInput: None of the paths exists.
    """
    base = find_data_root(root)
    for candidate in candidates:
        path = base / candidate
        if path.exists() and (not needs or any(path.glob(needs))):
            return path
    get = f"run `fedray data get {name}`, or " if fetchable else "put the files there, or "
    where = base / candidates[0] / needs if needs else base / candidates[0]
    raise BadInput(f"data.name = {name}, but there is no {where}: {get}set data.root or FEDRAY_DATA")


@contextmanager
def blame_file(name: str, path: Path) -> Iterator[None]:
    """Runs a block of code that reads a data file. An error in the block becomes a `BadInput` that names the file."""
    try:
        yield
    except (FedrayError, ImportError, MemoryError):
        raise
    except Exception as error:  # the packages that read files raise errors of many kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"data.name = {name}, but {path} is damaged ({reason}): replace it by the original") from error


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a temporary folder in the cache for unpacked files. The folder with the data is not changed."""
    base = find_cache_root()
    try:
        base.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=base, prefix="unpack-")
    except OSError as error:
        raise BadInput(f"FEDRAY_CACHE: cannot write to {base} ({error.strerror}): set FEDRAY_CACHE") from error
    with folder as path:
        yield Path(path)


def untar(name: str, source: Path, target: Path) -> None:
    """Unpacks an archive.

    Raises:
        BadInput: The archive is damaged, or an entry is neither a plain file nor a folder, or lies outside `target`.
    """
    root = target.resolve()
    with blame_file(name, source), tarfile.open(source) as archive:
        for member in archive:  # `extractall` has no filters in early releases of Python 3.11
            path = (root / member.name).resolve()
            if not path.is_relative_to(root) or not (member.isreg() or member.isdir()):
                raise OSError(f"{member.name[:100]} is no file or folder inside it")
            (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
            if packed := archive.extractfile(member):
                with packed, path.open("wb") as out:
                    shutil.copyfileobj(packed, out)


def list_stamps(path: Path) -> list[tuple[str, int, int]]:
    """Returns absolute path, size in bytes and time of change in nanoseconds of a file, or of each file in a folder."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    stats = [(file, file.stat()) for file in files]
    return [(str(file.absolute()), stat.st_size, stat.st_mtime_ns) for file, stat in stats]


# ---------------------------------------------------------------------------------------------------------------------
# Arrays that may be too large for memory.
#
# Small arrays stay in memory. Large arrays are written to a file without a name in the temporary directory, and
# mapped into memory from there. The space on the disk is freed when the array is no longer used.

LARGE_BYTES = 1 << 26  # arrays of this size and above go to a file
PIECE_BYTES = 1 << 24


class Spool:
    """Joins several arrays of samples to one array. All samples must have the same shape and type.

    If the joined array is large, it is stored in a temporary file instead of memory.

    Example:
        >>> spool = Spool()
        >>> spool.append(np.array([[1, 2]], np.uint8))
        >>> spool.append(np.array([[3, 4], [5, 6]], np.uint8))
        >>> spool.finish().tolist()
        [[1, 2], [3, 4], [5, 6]]
    """

    def __init__(self) -> None:
        """Makes a spool without samples."""
        self._pieces: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._bytes = self.rows = 0

    def append(self, piece: NDArray[Any]) -> None:
        """Adds an array of n samples, `[n, ...]`.

        Raises:
            ValueError: The samples do not have the shape and type of the samples added before.
        """
        if not len(piece):
            return
        if self._pieces and (piece.shape[1:], piece.dtype) != (self._pieces[0].shape[1:], self._pieces[0].dtype):
            raise ValueError(f"rows of shape {piece.shape[1:]} after rows of shape {self._pieces[0].shape[1:]}")
        self._bytes, self.rows = self._bytes + piece.nbytes, self.rows + len(piece)
        if self._file is not None:
            self._write(piece)
            return
        self._pieces.append(piece)
        if self._bytes >= LARGE_BYTES:  # one sample stays in memory, because new samples must have its shape and type
            pieces, self._pieces = self._pieces, [self._pieces[0][:1].copy()]
            self._file = tempfile.TemporaryFile(prefix="fedray-rows-")  # noqa: SIM115  (`finish` closes it)
            for one in pieces:
                self._write(one)

    def finish(self) -> NDArray[Any]:
        """Returns all samples as one array, `[n, ...]`. The array is empty if no sample was added."""
        if self._file is None:
            return np.concatenate(self._pieces) if self._pieces else np.empty((0, 1), np.float32)
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        form = self._pieces[0]
        return np.frombuffer(mapped, form.dtype).reshape(self.rows, *form.shape[1:])

    def _write(self, piece: NDArray[Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(np.ascontiguousarray(piece).data)
        except OSError as error:
            raise Unwritable(
                f"cannot write rows to {tempfile.gettempdir()} ({error}): free it or set TMPDIR"
            ) from error


def read_pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yields an array in pieces of at most 16 MB. A piece is larger only if a single sample is larger.

    If the array is large, read-only and mapped from a file, the memory of each piece is freed after its use. No page of
    the file may have been written to.
    """
    rows = max(1, PIECE_BYTES // max(1, array[:1].nbytes))
    mapped = None
    if array.nbytes >= LARGE_BYTES and not array.flags.writeable:
        base: object = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        mapped = base if isinstance(base, mmap.mmap) else None
    for start in range(0, len(array), rows):
        yield array[start : start + rows]
        if mapped is not None:
            with suppress(AttributeError, OSError, ValueError):  # some systems have no such call
                mapped.madvise(mmap.MADV_DONTNEED)


def take_rows(array: NDArray[Any], rows: IntArray) -> NDArray[Any]:
    """Returns `array[rows]` for indices in ascending order. A large array is not copied into memory.

    Example:
        >>> take_rows(np.arange(4) * 10, np.array([0, 3])).tolist()
        [0, 30]
    """
    if array.nbytes < LARGE_BYTES:
        return array[rows]
    if len(rows) == len(array):
        return array
    spool, start = Spool(), 0
    for piece in read_pieces(array):
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(piece))] - start
        spool.append(piece[inside])
        start += len(piece)
    return spool.finish()
