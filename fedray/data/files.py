"""Places of data files, unpacking of archives, and the errors for files that are missing or damaged.

Example:
    >>> find_data_root(Path("/data"))
    PosixPath('/data')
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedray.core.errors import BadInput


def find_cache_root() -> Path:
    """Returns the folder for data that fedray derives from files: `FEDRAY_CACHE`, else the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("FEDRAY_CACHE") or platformdirs.user_cache_dir("fedray")).expanduser()


def find_data_root(root: Path | None) -> Path:
    """Returns the folder of data files: `data.root`, else `FEDRAY_DATA`, else a folder in the user's cache."""
    return Path(root or os.environ.get("FEDRAY_DATA") or find_cache_root() / "data").expanduser()


def find_file(root: Path | None, name: str, candidates: list[str], needs: str = "", *, fetchable: bool = True) -> Path:
    """Returns the first of several paths that exists.

    Args:
        root: Folder of data files, as `data.root` names it, or None.
        name: Name of the data set, for the message.
        candidates: Paths to try, relative to the folder of data files.
        needs: Pattern of file names; the path must hold a matching file. Empty: any path will do.
        fetchable: Whether `fedray data get` can download the data set.

    Raises:
        BadInput: None of the paths exists; the message names the first path and the remedy.
    """
    base = find_data_root(root)
    for candidate in candidates:
        path = base / candidate
        if path.exists() and (not needs or any(path.glob(needs))):
            return path
    get = f"run `fedray data get {name}`, or " if fetchable else "put the files there, or "
    where = base / candidates[0] / needs if needs else base / candidates[0]
    raise BadInput(f"data.name = {name}, but there is no {where}: {get}set data.root or FEDRAY_DATA")


def explain_damage(name: str, path: Path, why: object) -> BadInput:
    """Returns the error to raise for a data file that cannot be read.

    Args:
        name: Name of the data set.
        path: The file or folder.
        why: The error that reading the file raised, or a sentence.
    """
    reason = " ".join(str(why).split()) or type(why).__name__
    return BadInput(f"data.name = {name}, but {path} is damaged ({reason}): replace it by the original file")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a temporary folder in the cache for unpacked files; the folder with the data stays as it is."""
    import tempfile

    base = find_cache_root()
    try:
        base.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=base, prefix="unpack-")
    except OSError as error:
        raise BadInput(f"FEDRAY_CACHE: cannot write to {base} ({error.strerror}): set FEDRAY_CACHE") from error
    with folder as path:
        yield Path(path)


def gunzip(name: str, source: Path, target: Path) -> None:
    """Unpacks one .gz file.

    Args:
        name: Name of the data set, for messages.
        source: The packed file.
        target: The file to write.

    Raises:
        BadInput: The file is damaged.
    """
    try:
        with gzip.open(source, "rb") as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out)
    except (EOFError, OSError, zlib.error) as error:
        raise explain_damage(name, source, error) from error


def untar(name: str, source: Path, target: Path) -> None:
    """Unpacks an archive.

    Args:
        name: Name of the data set, for messages.
        source: The archive.
        target: The folder to write to.

    Raises:
        BadInput: The archive is damaged, or holds anything but files and folders inside `target`.
    """
    root = target.resolve()
    try:
        with tarfile.open(source) as archive:
            for member in archive:  # early releases of Python 3.11 have no filters of `extractall`
                path = (root / member.name).resolve()
                if not path.is_relative_to(root) or not (member.isreg() or member.isdir()):
                    raise OSError(f"{member.name[:100]} is no file or folder inside it")
                (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
                if packed := archive.extractfile(member):
                    with packed, path.open("wb") as out:
                        shutil.copyfileobj(packed, out)
    except (tarfile.TarError, EOFError, OSError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise explain_damage(name, source, error) from error


def list_stamps(path: Path) -> list[tuple[str, int, int]]:
    """Returns path, size and time of change of a file, or of each file in a folder, to notice changed data."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    stats = [(file, file.stat()) for file in files]
    return [(str(file.relative_to(path.parent)), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
