"""The directory into which a call from Python writes: the one that it names, or one in a temporary folder.

A process has one temporary folder for all its runs without a directory, which stays locked while the process lives. So
`fedray clean` knows which of them nobody uses any more.

Example:
    >>> with choose_out(None, "run") as out:
    ...     out.name, out.exists(), out.parent.exists(), is_in_use(out.parent.parent)
    ('run', False, True, True)
    >>> out.parent.exists()  # nothing was written
    False
"""

from __future__ import annotations

import atexit
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from fedray.files.plain import expand_user_path

PREFIX = "fedray-out-"  # of the temporary folders
LOCK = "in_use"


@contextmanager
def choose_out(out: str | Path | None, name: str) -> Iterator[Path]:
    """Gives the directory, which is made by whoever writes it.

    Args:
        out: What the user gave; None: a directory in a fresh temporary folder, which goes again where it stays empty.
        name: Of the directory in the temporary folder.

    Raises:
        BadInput: No directory can have this path.
    """
    if out is not None:
        yield expand_user_path("out", str(out))
        return
    place = _open_place(gettempdir(), os.getpid())
    place.mkdir(mode=0o700, exist_ok=True)  # it was removed meanwhile
    folder = Path(mkdtemp(dir=place))
    try:
        yield folder / name
    finally:
        with suppress(OSError):  # it holds a run
            folder.rmdir()


@cache
def _open_place(parent: str, _process: int) -> Path:
    """The temporary folder of this process, locked while it lives; it goes with the process where it stays empty."""
    place = Path(mkdtemp(prefix=PREFIX, dir=parent))
    with suppress(OSError):  # a file system without locks
        fcntl.flock(os.open(place / LOCK, os.O_CREAT | os.O_WRONLY, 0o600), fcntl.LOCK_EX)
    atexit.register(_leave_place, place, os.getpid())
    return place


def _leave_place(place: Path, process: int) -> None:
    with suppress(OSError):
        if os.getpid() == process and [path.name for path in place.iterdir()] == [LOCK]:
            (place / LOCK).unlink()
            place.rmdir()


def find_places(parents: Sequence[Path]) -> list[Path]:
    """The temporary folders of this user's processes, those that go on among them.

    Args:
        parents: The directories in which they may be.
    """
    found = []
    for path in sorted(path for parent in parents for path in parent.glob(f"{PREFIX}*")):
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid() and path.is_dir() and not path.is_symlink():
                found.append(path)
    return [path for path in found if (path / LOCK).is_file()]


def is_in_use(place: Path) -> bool:
    """Whether the process goes on to which a temporary folder belongs; also where that cannot be known."""
    try:
        with (place / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except OSError:
        return True
