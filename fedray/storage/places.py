"""Where a run may be written: a directory that is named and free, the next free one below `runs`, or a run to replace.

Nothing here imports torch, so that the command line can say at once that a directory is taken.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with claim_numbered(Path(folder) / "runs" / "quickstart") as first:
    ...         _ = (first / "scenario.yaml").write_text("rounds: 2")
    ...     with claim_numbered(Path(folder) / "runs" / "quickstart") as second:
    ...         first.name, second.name
    ('quickstart', 'quickstart-2')
"""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedray.core.errors import BadInput, FedrayError
from fedray.files.checksums import has_file
from fedray.files.locks import is_locked
from fedray.storage.directory import LOCK, is_unborn, lock_run_directory, say_written


def require_run_directory(folder: Path) -> None:
    """Refuses a directory that no run was written to.

    Raises:
        BadInput: it has no `scenario.yaml`, or this user may not read it.
        FedrayError: the disk has a fault.
    """
    if not has_file(folder, "scenario.yaml"):
        raise BadInput(f"{folder} is no run directory (it has no scenario.yaml): give the --out of a run")


def refuse_taken(out: Path, *, force: bool = False) -> None:
    """Refuses a directory that a new run cannot be written to.

    Args:
        out: the directory.
        force: whether the run that it holds is to be replaced.

    Raises:
        BadInput: it holds a run that is not to be replaced or that a process writes, or something else than a run.
    """
    if not out.exists() or (out.is_dir() and all(map(is_unborn, out.iterdir()))):
        return
    is_run = (out / "scenario.yaml").is_file() and (out / "checkpoints").is_dir()
    if is_run and not force:
        raise BadInput(
            f"--out {out} holds another run: choose another directory, or `fedray resume {out}`, or add --force"
        )
    if not is_run:
        raise BadInput(f"--out {out} holds other files: choose another directory")
    if out.is_symlink():
        raise BadInput(f"--out {out} is a link: --force replaces the run in a directory, so name the directory itself")
    if is_locked(out / LOCK):
        raise say_written(out)


@contextmanager
def claim_numbered(wanted: Path) -> Iterator[Path]:
    """Makes the first of `wanted`, `wanted-2`, `wanted-3` ... that does not exist; removed again if it stays empty.

    Two processes that ask at once get two directories.

    Args:
        wanted: the directory that the first run gets.

    Yields:
        The directory.

    Raises:
        BadInput: it cannot be made.
    """
    made_parent = not wanted.parent.exists()
    for number in itertools.count(1):
        out = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            wanted.parent.mkdir(parents=True, exist_ok=True)
            out.mkdir()
            break
        except FileExistsError:
            if not wanted.parent.is_dir():
                raise BadInput(f"{wanted.parent} is a file, but runs are written below it: give --out") from None
        except OSError as error:
            raise BadInput(f"{out} cannot be made ({error.strerror}): give --out") from None
    try:
        yield out
    finally:
        with suppress(OSError):  # a run is in it
            out.rmdir()
            if made_parent:
                wanted.parent.rmdir()


def remove_run(out: Path) -> None:
    """Removes a finished or interrupted run, in one step for whoever looks, unless a process still writes it.

    Raises:
        BadInput: another process writes it.
        FedrayError: it cannot be removed.
    """
    aside = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.old")
    with lock_run_directory(out, wait=False):
        try:
            out.rename(aside)
        except OSError as error:
            raise FedrayError(f"{out} cannot be replaced ({error.strerror}): choose another --out") from None
    shutil.rmtree(aside, ignore_errors=True)
