"""What a Ray that fedray starts leaves on the machine: its folder of logs and sockets, and its shared memory.

Each such Ray has a folder of its own, marked by `owner.json` and locked by the process that started it for as long as
that lives; Ray's processes carry the folder's name in their environment. So nothing is removed that belongs to somebody
else, or to a run that goes on. Ray's raylet names its semaphores by its process id and the time.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with open_session(Path(place)) as folder:
    ...         is_abandoned(folder), [found.name == folder.name for found in find_sessions([Path(place)])]
    (False, [True])
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedray.core.errors import BadInput, FedrayError

PREFIX = "fedray-ray-"  # of the folders
OWNER, LOCK = "owner.json", "lock"
MARK = "FEDRAY_RAY_SESSION"  # variable of Ray's processes: the folder
PROCESSES, SHARED_MEMORY = Path("/proc"), Path("/dev/shm")
SEMAPHORES = ("sem.hdr", "sem.obj")  # what Ray calls them; then the raylet's process id, `-`, the time in ns
SOCKET_BYTES = 107 if sys.platform == "linux" else 103  # of the path of a Unix socket
# what Ray appends to the folder: the session with its time and process id, and the longest name of a socket
SOCKET_NAME = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.1"
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
    """Makes a marked folder for a Ray, which stays locked while the block runs; whoever leaves it removes the folder.

    Raises:
        BadInput: The path is too long for Ray's sockets, or nothing can be written there.
    """
    size = len(os.fsencode(place.absolute() / f"{PREFIX}12345678")) + len(SOCKET_NAME)
    if size > SOCKET_BYTES:
        raise BadInput(
            f"{place}: Ray's sockets would have paths of {size} bytes there, and {SOCKET_BYTES} are possible: "
            "set RAY_TMPDIR to a short directory, as in RAY_TMPDIR=/tmp"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place)).absolute()
        lock = (folder / LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "system": _system(), "start": time.time_ns()}
        (folder / OWNER).write_text(json.dumps({**owner, "raylets": []}))
    except OSError as error:
        raise FedrayError(
            f"{place}: Ray cannot keep its files there ({error.strerror}): set RAY_TMPDIR to another directory"
        ) from None
    with lock:
        yield folder


def _system() -> str:
    """Returns what tells apart the machines, starts and containers in which a process id has a meaning."""
    try:
        boot = (PROCESSES / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(PROCESSES / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def note_raylet(folder: Path, pid: int) -> None:
    """Writes down the id of the process that makes the shared memory of a session."""
    owner = _read_owner(folder)
    owner["raylets"].append(pid)
    (folder / OWNER).write_text(json.dumps(owner))


def _read_owner(folder: Path) -> dict[str, Any]:
    """Returns what `open_session` wrote.

    Raises:
        ValueError: This is no folder that fedray made.
    """
    try:
        owner = json.loads((folder / OWNER).read_bytes()[:100_000])
        good = isinstance(owner["host"], str) and isinstance(owner["system"], str) and isinstance(owner["start"], int)
        good = good and all(isinstance(pid, int) for pid in [owner["pid"], *owner["raylets"]])
    except (OSError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder} has no {OWNER}") from error
    if not good:
        raise ValueError(f"{folder / OWNER} is not as fedray writes it")
    found: dict[str, Any] = owner
    return found


def find_sessions(places: Sequence[Path]) -> list[Path]:
    """Returns the folders of this user that fedray made and that are still there, dead or alive."""
    found = []
    for path in sorted(path for place in places for path in place.glob(f"{PREFIX}*")):
        with suppress(OSError, ValueError):
            if path.lstat().st_uid == os.getuid() and path.is_dir() and not path.is_symlink():
                _read_owner(path)
                found.append(path)
    return found


def is_abandoned(folder: Path) -> bool:
    """Whether the process that started the Ray of a folder is gone; Ray's own processes may still end.

    That can be known on the machine (and in the container) where it was made; elsewhere the answer is no. After a
    restart of the machine everybody is gone.
    """
    try:
        owner = _read_owner(folder)
    except ValueError:  # it was removed meanwhile
        return False
    if owner["host"] != socket.gethostname() or not owner["system"]:
        return False
    boot, _, names = owner["system"].partition(" ")
    now, _, names_now = _system().partition(" ")
    if boot == now and names != names_now:  # another container
        return False
    try:
        with (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
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


def _lives(pid: int) -> bool:
    """Whether a process goes on; one that has ended stays in the list until its parent asks for its status."""
    try:
        return (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return (PROCESSES / str(pid)).exists()


def session_memory(folder: Path) -> list[Path]:
    """Finds the semaphores in shared memory that the dead raylets of a session have left."""
    try:
        owner = _read_owner(folder)
    except ValueError:  # another process has removed the folder
        return []
    gone = [pid for pid in owner["raylets"] if not _lives(pid)]
    found = []
    for path in (path for pid in gone for name in SEMAPHORES for path in SHARED_MEMORY.glob(f"{name}{pid}-*")):
        made = path.name.rpartition("-")[2]
        with suppress(OSError):
            if made.isdigit() and int(made) >= owner["start"] and path.lstat().st_uid == os.getuid():
                found.append(path)
    return found


def remove_session(folder: Path) -> None:
    """Removes the folder of a Ray that has ended, and its shared memory."""
    for path in session_memory(folder):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def measure_size(paths: Sequence[Path]) -> int:
    """Returns the size of files, and of all files in folders, bytes."""
    size = 0
    for path in (one for top in paths for one in (top, *top.rglob("*"))):
        with suppress(OSError):
            size += path.lstat().st_size
    return size
