"""What a Ray that fedray starts leaves on the machine: its folder of logs and sockets.

Each such Ray has a folder of its own, locked by the process that started it for as long as that lives; Ray's processes
carry the folder's name in their environment. So nothing is removed that belongs to somebody else, or to a run that goes
on.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with open_session(Path(place)) as folder:
    ...         is_abandoned(folder), [found.name == folder.name for found in find_sessions([Path(place)])]
    (False, [True])
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedray.core.errors import FedrayError

PREFIX = "fedray-ray-"  # of the folders
LOCK = "lock"
MARK = "FEDRAY_RAY_SESSION"  # variable of Ray's processes: the folder
PROCESSES = Path("/proc")
KILL_SECONDS = 5.0  # for killed processes to be gone
ENDING_SECONDS = 10.0  # for a Ray to end whose driver was killed


def session_place() -> Path:
    """The directory in which the folders are made: RAY_TMPDIR, as for Ray itself, else that of temporary files."""
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())


def session_places() -> list[Path]:
    """Returns the directories in which folders may have been made."""
    return list(dict.fromkeys(path.absolute() for path in (session_place(), Path(tempfile.gettempdir()), Path("/tmp"))))


@contextmanager
def open_session(place: Path) -> Iterator[Path]:
    """Makes a folder for a Ray, which stays locked while the block runs; whoever leaves it removes the folder.

    Raises:
        FedrayError: Nothing can be written there.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place)).absolute()
        lock = (folder / LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise FedrayError(
            f"{place}: Ray cannot keep its files there ({error.strerror}): set RAY_TMPDIR to another directory"
        ) from None
    with lock:
        yield folder


def find_sessions(places: Sequence[Path]) -> list[Path]:
    """Returns the folders of this user that fedray made and that are still there, dead or alive."""
    found = []
    for path in sorted(path for place in places for path in place.glob(f"{PREFIX}*")):
        with suppress(OSError):
            is_own = path.lstat().st_uid == os.getuid() and not path.is_symlink()
            found += [path] if is_own and (path / LOCK).is_file() else []
    return found


def is_abandoned(folder: Path) -> bool:
    """Whether the process that started the Ray of a folder is gone; Ray's own processes may still end."""
    try:
        with (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:  # it is locked, or was removed meanwhile
        return False


def wait_for_ends(folders: Sequence[Path]) -> list[Path]:
    """Waits `ENDING_SECONDS` at most for the Rays of folders whose owners are gone, which end by themselves.

    Returns:
        The folders whose Ray goes on.
    """
    deadline = time.monotonic() + ENDING_SECONDS
    while (ending := [folder for folder in folders if session_processes(folder)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return ending


def session_processes(folder: Path) -> list[int]:
    """Ids of the processes of a session's Ray: its own and its workers."""
    mark, found = f"{MARK}={folder}".encode(), []
    for path in PROCESSES.iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


def kill_session(folder: Path) -> None:
    """Ends all processes of a session's Ray at once, and waits until they are gone."""
    deadline = time.monotonic() + KILL_SECONDS
    while (pids := session_processes(folder)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove_session(folder: Path) -> None:
    """Removes the folder of a Ray that has ended."""
    shutil.rmtree(folder, ignore_errors=True)


def measure_size(paths: Sequence[Path]) -> int:
    """Returns the size of files, and of all files in folders, bytes."""
    size = 0
    for path in (one for top in paths for one in (top, *top.rglob("*"))):
        with suppress(OSError):
            size += path.lstat().st_size
    return size
