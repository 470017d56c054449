"""A lock that ends with the process that holds it, however that ends.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, hold_lock(Path(folder) / ".lock", BadInput("it is taken")):
    ...     (Path(folder) / ".lock").is_file()
    True
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedray.core.errors import BadInput, FedrayError, Unwritable

log = logging.getLogger("fedray")
LOCK_SECONDS = 30.0  # to wait for the process that holds the lock


@contextmanager
def hold_lock(path: Path, taken: BadInput | FedrayError, *, wait: bool = True) -> Iterator[int]:
    """Holds the lock of a file, which is made if it is not there; links are not followed.

    Args:
        path: the file.
        taken: raised where another process holds the lock for longer than `LOCK_SECONDS`.
        wait: whether it may be held so long; else `taken` is raised at once.

    Yields:
        The descriptor of the file: a child process that has it keeps the lock too.

    Raises:
        Unwritable: the file cannot be written.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise Unwritable(f"cannot write {path}: {error.strerror}: free space or choose another --out") from None
    try:
        deadline, told = time.monotonic() + LOCK_SECONDS, False
        while not _try_lock(handle):
            if not wait or time.monotonic() > deadline:
                raise taken
            if not told:
                told = True
                log.info("waiting for the process that writes %s", path.parent)
            time.sleep(0.05)
        yield handle
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file now; False where there is no such file.

    Example:
        >>> is_locked(Path("no such file"))
        False
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(handle)
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing can be promised
        return True
    return True
