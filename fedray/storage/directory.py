"""Making, locking and trimming a run directory."""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from fedray.core.errors import BadInput, FedrayError, Unwritable, show_line
from fedray.files import plain
from fedray.files.bounded import BEST_FOLDER, TABLES, find_checkpoints, has_file, list_parts, read_sealed
from fedray.files.plain import hold_lock, is_locked, write_json
from fedray.files.tables import FAILURE_FILE, SUMMARY_FILE
from fedray.scenario.identity import IDENTITY_FILE

# ---------------------------------------------------------------------------------------------------------------------
# Making, locking and trimming a run directory.

LOCK = ".lock"


def make_run_directory(out: Path, scenario_text: str) -> None:
    """Makes a fresh run directory; of several processes one makes it.

    Raises:
        BadInput: the directory holds something already.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_run_directory(Path(folder) / "run", "rounds: 2")
        ...     with lock_run_directory(Path(folder) / "run"):
        ...         sorted(path.name for path in (Path(folder) / "run").iterdir())
        ['.lock', 'checkpoints', 'scenario.yaml']
    """
    refuse_taken(out)
    try:
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out} cannot be made ({error.strerror}): choose another directory") from None
    with hold_lock(out / LOCK, say_written(out)):
        refuse_taken(out)  # another process may have been faster
        plain.write_atomically(out / "scenario.yaml", scenario_text.encode())


def adopt_run(source: Path, out: Path, scenario_text: str) -> None:
    """Copies a run that goes on in a directory of its own; under other keys its identity and manifest stay behind.

    The scenario is written last: a directory that has one is whole.

    Args:
        source: the run directory, which nobody writes.
        out: the new one, which does not exist yet.
        scenario_text: the keys with which it goes on.
    """
    same = (source / "scenario.yaml").read_bytes() == scenario_text.encode()
    stale = () if same else ("manifest.json", IDENTITY_FILE)
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("scenario.yaml", LOCK, *stale))
    plain.write_atomically(out / "scenario.yaml", scenario_text.encode())


def say_written(out: Path) -> BadInput:
    """Says that another process writes a run directory."""
    return BadInput(f"{out} is being written by another process: let it finish, or stop it")


def is_unborn(path: Path) -> bool:
    """Whether an entry of a directory is all that is left of a run that was ended before it had a scenario."""
    if path.name == "checkpoints":
        return path.is_dir() and not any(path.iterdir())
    return path.name == LOCK or path.suffix == ".part"


def discard_run_directory(out: Path, fresh: bool) -> None:
    """Removes what `make_run_directory` made: bad input leaves no directory behind.

    A directory stays where rows were recorded, or where another process writes it meanwhile.

    Args:
        out: the run directory.
        fresh: whether it did not exist before; else it is only emptied.
    """
    if (out / "rounds.parquet").exists() or is_locked(out / LOCK):
        return
    for path in [out] if fresh else out.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def lock_run_directory(out: Path, *, wait: bool = True) -> Iterator[Callable[[], None]]:
    """Keeps other processes from writing a run directory; the lock goes when its process does, however that ends.

    A run whose driver was killed may write for some seconds more: resuming waits for it.

    Args:
        out: the run directory.
        wait: whether another process may write it for some seconds more.

    Yields:
        A function to call before each write: it raises `Unwritable` where the directory was moved or deleted.

    Raises:
        BadInput: another process writes it.
        Unwritable: it cannot be written.
    """
    try:
        confirm_place = watch_place(out)
    except OSError as error:
        raise Unwritable(f"cannot write {out}: {error.strerror}: free space or choose another --out") from None
    with hold_lock(out / LOCK, say_written(out), wait=wait):
        for path in out.glob("*/.*.part"):  # of a process that was killed
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        yield confirm_place


def watch_place(out: Path) -> Callable[[], None]:
    """Returns a function that raises `Unwritable` if the directory was moved or deleted since now.

    Raises:
        OSError: it is not there.
    """
    began = out.stat()

    def confirm_place() -> None:
        now = None
        with suppress(OSError):
            now = out.stat()
        if now is None or not os.path.samestat(now, began):
            raise Unwritable(
                f"{out} was moved or deleted while it was written: nothing more is written there; go on where it is "
                "now (`fedray resume` for a run)"
            )

    return confirm_place


def drop_newer_parts(out: Path, round: int) -> None:
    """Removes the parts written after a round, and the best round's models where that came later."""
    for table in TABLES:
        for number, part in list_parts(out, table).items():
            if number > round:
                part.unlink()
    for number in find_checkpoints(out / BEST_FOLDER):
        if number > round:
            shutil.rmtree(out / BEST_FOLDER / f"round-{number:06d}", ignore_errors=True)


# ---------------------------------------------------------------------------------------------------------------------
# Where a run may be written: a directory that is named and free, the next free one below `runs`, or a run to replace.
#
# Nothing here imports torch, so that the command line can say at once that a directory is taken.


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

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with claim_numbered(Path(folder) / "runs" / "quickstart") as first:
        ...         _ = (first / "scenario.yaml").write_text("rounds: 2")
        ...     with claim_numbered(Path(folder) / "runs" / "quickstart") as second:
        ...         first.name, second.name
        ('quickstart', 'quickstart-2')
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


# ---------------------------------------------------------------------------------------------------------------------
# `failure.json`: the error that ended an unfinished run, kept in its directory until the run goes on.


def record_failure(out: Path, error: Exception) -> None:
    """Keeps what ended a run; a full disk must not hide the error itself.

    Args:
        out: the run directory.
        error: what was raised.

    Example:
        >>> import tempfile
        >>> out = Path(tempfile.mkdtemp())
        >>> (out / "scenario.yaml").write_text("rounds: 5")
        9
        >>> record_failure(out, FedrayError("round 3: client 7 diverged: lower local.lr"))
        >>> read_failure(out)
        FedrayError('round 3: client 7 diverged: lower local.lr')
        >>> forget_failure(out)
        >>> print(str(read_failure(out)).replace(str(out), "RUN"))
        RUN is not finished: it stopped before its first checkpoint; `fedray resume RUN` goes on
    """
    if not (out / "scenario.yaml").exists():  # the run was moved or deleted: nothing is written at its old place
        return
    text = str(error) if isinstance(error, FedrayError) else f"{type(error).__name__}: {error}"
    with suppress(FedrayError, OSError):
        write_json(out / FAILURE_FILE, {"error": show_line(text, 2000)})


def forget_failure(out: Path) -> None:
    """Removes what an earlier session kept: the run goes on."""
    with suppress(OSError):
        (out / FAILURE_FILE).unlink(missing_ok=True)


def read_failure(out: Path) -> FedrayError | None:
    """Reads what ended a run; None if it is finished, or another process still writes it.

    Args:
        out: the run directory.

    Raises:
        Damaged: the file that says so cannot be read.
    """
    if (out / FAILURE_FILE).exists():
        found = read_sealed(out / FAILURE_FILE, f"`fedray resume {out}`")
        return FedrayError(str(found.get("error", "unknown")))
    if (out / SUMMARY_FILE).exists() or is_locked(out / ".lock"):
        return None
    rounds = find_checkpoints(out / "checkpoints")
    where = f"after the checkpoint of round {rounds[-1]}" if rounds else "before its first checkpoint"
    return FedrayError(f"{out} is not finished: it stopped {where}; `fedray resume {quote(str(out))}` goes on")


# ---------------------------------------------------------------------------------------------------------------------
# Checks where a sweep may be written; without torch, so that the command line refuses a taken directory at once.

COPY = "sweep.yaml"  # name of a file in the directory of the sweep
TRIALS, JOURNAL = "trials", "study.journal"


def has_sweep(folder: Path) -> bool:
    """Returns whether a directory holds a sweep; if not, `--resume` begins a new sweep."""
    return has_file(folder, COPY)


def refuse_taken_sweep(folder: Path, *, resume: bool) -> None:
    """Refuses a directory that a sweep cannot be written to.

    Args:
        folder: the directory of the sweep.
        resume: whether to go on with the sweep in `folder`.

    Raises:
        BadInput: the directory holds a sweep that is not to go on, or something other than a sweep.
    """
    if has_sweep(folder):
        if not resume:
            raise BadInput(f"--out {folder} holds a sweep: choose another directory, or add --resume to go on")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--out {folder} holds other files: choose another directory")


def has_trials(folder: Path) -> bool:
    """Returns whether a trial of the sweep in a directory has begun to train."""
    return (folder / TRIALS).is_dir() and any((folder / TRIALS).iterdir())
