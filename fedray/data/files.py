"""Where data files are, how packed ones are read, and what is said when they are missing or damaged."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedray.core.errors import BadInput

MOST_UNPACKED = 4 << 30  # bytes; the largest set known here (CIFAR) unpacks to 180 MB


def cache_root() -> Path:
    """Folder for what fedray derives from data files: `FEDRAY_CACHE`, else the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("FEDRAY_CACHE") or platformdirs.user_cache_dir("fedray"))


def data_root(root: Path | None) -> Path:
    """Folder of data files: `data.root`, else `FEDRAY_DATA`, else a folder in the user's cache."""
    return Path(root or os.environ.get("FEDRAY_DATA") or cache_root() / "data").expanduser()


def find_file(root: Path | None, name: str, candidates: list[str], needs: str = "", fetchable: bool = True) -> Path:
    """The first of `candidates` (below the root) that exists and holds a file that matches `needs`.

    Raises BadInput, one line with the folder looked for and the remedy.
    """
    base = data_root(root)
    for candidate in candidates:
        path = base / candidate
        if path.exists() and (not needs or any(path.glob(needs))):
            return path
    get = f"run `fedray data get {name}`, or " if fetchable else "put the files there, or "
    where = base / candidates[0] / needs if needs else base / candidates[0]
    raise BadInput(f"data.name = {name}, but there is no {where}: {get}set data.root or FEDRAY_DATA")


def explain_damage(name: str, path: Path, why: object) -> BadInput:
    """The error for a file that cannot be read."""
    reason = " ".join(str(why).split()) or type(why).__name__
    return BadInput(f"data.name = {name}, but {path} is damaged ({reason}): replace it by the original file")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the cache for unpacked files, gone afterwards: nothing is ever written beside the data."""
    import tempfile

    base = cache_root()
    try:
        base.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=base, prefix="unpack-")
    except OSError as error:
        raise BadInput(f"FEDRAY_CACHE: cannot write to {base} ({error.strerror}): set FEDRAY_CACHE") from error
    with folder as path:
        yield Path(path)


def gunzip(name: str, source: Path, target: Path) -> None:
    """Unpack one .gz file, if what it holds is not too large."""
    try:
        with gzip.open(source, "rb") as packed, target.open("wb") as out:
            while part := packed.read(1 << 20):
                _bounded(out.tell() + len(part))
                out.write(part)
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise explain_damage(name, source, error) from error
    except Exception as error:  # zlib.error has no common base with the others
        raise explain_damage(name, source, error) from error


def untar(name: str, source: Path, target: Path) -> None:
    """Unpack an archive; members that would leave `target`, links out of it and too large ones are refused."""
    import lzma
    import zlib

    size = 0

    def checked(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
        nonlocal size
        size += member.size
        _bounded(size)
        return tarfile.data_filter(member, place)

    try:
        with tarfile.open(source) as archive:
            archive.extractall(target, filter=checked)
    except (tarfile.TarError, EOFError, OSError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise explain_damage(name, source, error) from error


def _bounded(size: int) -> None:
    if size > MOST_UNPACKED:
        raise OSError(f"it unpacks to more than {MOST_UNPACKED >> 20} MB")


def stamp(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of a file, or of all files of a folder: changes when the data changes."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    stats = [(file, file.stat()) for file in files]
    return [(str(file.relative_to(path.parent)), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
