"""Making, locking and trimming a run directory.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     make_run_directory(Path(folder) / "run", "rounds: 2")
    ...     with lock_run_directory(Path(folder) / "run"):
    ...         sorted(path.name for path in (Path(folder) / "run").iterdir())
    ['.lock', 'checkpoints', 'scenario.yaml']
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedray.core import files
from fedray.core.errors import BadInput, FedrayError

LOCK_SECONDS = 30.0  # to wait for the process that writes the directory


def make_run_directory(out: Path, scenario_text: str) -> None:
    """Makes a fresh run directory.

    Raises:
        BadInput: the directory holds something already.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "another run" if (out / "scenario.yaml").exists() else "other files"
        raise BadInput(f"--out {out} holds {what}: choose another directory, or `fedray resume {out}`")
    try:
        (out / "checkpoints").mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"--out {out} cannot be made ({error.strerror}): choose another directory") from None
    files.write_atomically(out / "scenario.yaml", scenario_text.encode())


def discard_run_directory(out: Path, fresh: bool) -> None:
    """Removes what `make_run_directory` made, unless rows were recorded: bad input leaves no directory behind.

    Args:
        out: the run directory.
        fresh: whether it did not exist before; else it is only emptied.
    """
    if (out / "rounds.parquet").exists():
        return
    for path in [out] if fresh else out.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def lock_run_directory(out: Path) -> Iterator[None]:
    """Keeps other processes from writing a run directory; the lock goes when its process does, however that ends.

    A run whose driver was killed may write for some seconds more: resuming waits for it.
    """
    try:
        file = (out / ".lock").open("w")
    except OSError as error:
        raise FedrayError(f"cannot write {out}: {error.strerror}: free space or choose another --out") from None
    with file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise BadInput(f"{out} is being written by another process: let it finish, or stop it")
            time.sleep(0.1)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing can be promised
        return True
    return True


def drop_newer_parts(out: Path, round: int) -> None:
    """Removes the parts written after a round."""
    for name in ("rounds.parquet", "clients.parquet"):
        for part in (out / name).glob("part-*.parquet"):
            if int(part.stem[5:]) > round:
                part.unlink()
