"""Makes, locks and removes run directories, and checks where runs and sweeps may be written."""

import itertools
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from fedray.core.errors import BadInput, FedrayError, Unwritable, show_line
from fedray.files import plain, run_files
from fedray.process import current_ending
from fedray.scenario.identity import IDENTITY_FILE

# ---------------------------------------------------------------------------------------------------------------------
# Functions that make, lock and shorten run directories.

LOCK = ".lock"


def make_run_directory(out: Path, scenario_text: str) -> None:
    """Makes a new run directory. If several processes try this at the same time, only one process succeeds.

    Raises:
        BadInput: The directory already has files of a run or other files.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_run_directory(Path(folder) / "run", "rounds: 2")
        ...     with lock_run_directory(Path(folder) / "run"):
        ...         sorted(path.name for path in (Path(folder) / "run").iterdir())
        ['.lock', 'checkpoints', 'scenario.yaml']
    """
    refuse_taken(out)
    (out / "checkpoints").mkdir(parents=True, exist_ok=True)
    with plain.hold_lock(out / LOCK, say_written(out)):
        refuse_taken(out)  # another process may have been faster
        plain.write_atomically(out / "scenario.yaml", scenario_text.encode())


def adopt_run(source: Path, out: Path, scenario_text: str) -> None:
    """Copies a run directory into a new one, where the run continues.

    If `scenario_text` differs from the source's scenario, `identity.json` and the manifest are not copied. The scenario
    with which the run continues is written last. A directory with a scenario is therefore complete.
    """
    same = (source / "scenario.yaml").read_bytes() == scenario_text.encode()
    stale = () if same else ("manifest.json", IDENTITY_FILE)
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("scenario.yaml", LOCK, *stale))
    plain.write_atomically(out / "scenario.yaml", scenario_text.encode())


def say_written(out: Path) -> BadInput:
    """Returns the error for a run directory that a different process is writing."""
    return BadInput(f"{out} is being written by another process: let it finish, or stop it")


def is_leftover(path: Path) -> bool:
    """Returns whether an entry of a directory comes from a run that ended before it wrote its scenario."""
    if path.name == "checkpoints":
        return path.is_dir() and not any(path.iterdir())
    return path.name == LOCK or path.suffix == ".part"


def has_begun(out: Path) -> bool:
    """Returns whether training has begun in a run directory.

    Training that compares the learning rates of `local.lr_grid` counts, too.
    """
    return any(out.rglob(IDENTITY_FILE))


def discard_run_directory(out: Path, fresh: bool) -> None:
    """Removes a directory that `make_run_directory` has made, so that bad input leaves nothing on the disk.

    A directory stays if its run has recorded rounds or chosen learning rates, or if another process writes to the
    directory. `fresh` says whether the command made the directory. If the directory existed before, only its content is
    removed.
    """
    if any((out / name).exists() for name in ("rounds.parquet", "learning_rates.json")) or plain.is_locked(out / LOCK):
        return
    for path in [out] if fresh else out.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def lock_run_directory(out: Path, *, wait: bool = True) -> Iterator[Callable[[], None]]:
    """Keeps other processes from writing a run directory.

    The lock ends with its process, even if the process is killed.

    If `wait` is true, the function waits for the lock. A resumed run does so, because the actors of a killed command
    may still write for some seconds.

    Yields:
        A function to call before each write. It raises `Unwritable` if the directory was moved or deleted.

    Raises:
        BadInput: A different process writes the directory.
        Unwritable: The directory cannot be written.
    """
    with plain.hold_lock(out / LOCK, say_written(out), wait=wait):
        confirm_directory = make_move_check(out)
        for path in out.glob("*/.*.part"):  # files of a process that was killed
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        yield confirm_directory


def make_move_check(out: Path) -> Callable[[], None]:
    """Returns a function that raises `Unwritable` if the directory was moved or deleted after this call.

    Raises:
        OSError: The directory does not exist.
    """
    began = out.stat()

    def confirm_directory() -> None:
        now = None
        with suppress(OSError):
            now = out.stat()
        if now is None or not os.path.samestat(now, began):
            raise Unwritable(
                f"{out} was moved or deleted while it was written: nothing more is written there; go on where it is "
                "now (`fedray resume` for a run)"
            )

    return confirm_directory


def drop_newer_parts(out: Path, round: int) -> None:
    """Removes parts of tables that were written after round `round`. If the best round is later, removes its models."""
    for table in run_files.TABLES:
        for number, part in run_files.list_parts(out, table).items():
            if number > round:
                part.unlink()
    for number in run_files.find_checkpoints(out / run_files.BEST_FOLDER):
        if number > round:
            shutil.rmtree(out / run_files.BEST_FOLDER / f"round-{number:06d}", ignore_errors=True)


# ---------------------------------------------------------------------------------------------------------------------
# The directory to which a run is written. It is a free directory that the user names, the next free directory in
# `runs`, or the directory of a run that is replaced.
#
# Nothing here imports torch, so that the command line can say at once that a directory is taken.


def require_run_directory(folder: Path) -> None:
    """Raises an error if a directory is no run directory.

    Raises:
        BadInput: The directory has no `scenario.yaml`, or this user may not read the directory.
        FedrayError: The disk has a fault.
    """
    if not run_files.has_file(folder, "scenario.yaml"):
        raise BadInput(f"{folder} is no run directory (it has no scenario.yaml): give the directory of a run")


def refuse_taken(out: Path, *, force: bool = False) -> None:
    """Raises an error if a new run cannot be written to a directory. `force` says whether a run may be replaced.

    Raises:
        BadInput: The directory holds files that do not belong to a run, a run that must not be replaced, or a run that
            a process is writing. The error is also raised for a link to a run.
    """
    if not out.exists() or (out.is_dir() and all(map(is_leftover, out.iterdir()))):
        return
    is_run = (out / "scenario.yaml").is_file() and (out / "checkpoints").is_dir()
    if is_run and not force:
        raise BadInput(
            f"out = {out} holds another run: choose another directory, or `fedray resume {out}`, or add --force"
        )
    if not is_run:
        raise BadInput(f"out = {out} holds other files: choose another directory")
    if out.is_symlink():
        raise BadInput(f"out = {out} is a link: --force replaces the run in a directory, so name the directory itself")
    if plain.is_locked(out / LOCK):
        raise say_written(out)


@contextmanager
def claim_numbered(wanted: Path) -> Iterator[Path]:
    """Makes the first of the directories `wanted`, `wanted-2`, `wanted-3` ... that does not exist.

    If the directory is still empty at the end of the `with` block, it is removed. Processes that call this at the same
    time get different directories.

    Yields:
        The directory.

    Raises:
        BadInput: The directory cannot be made.

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
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            out = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            with suppress(FileExistsError):
                out.mkdir()
                break
    except OSError as error:
        raise BadInput(f"{wanted} cannot be made ({error.strerror}): give another out") from None

    def release() -> None:
        with suppress(OSError):  # the directory stays if it holds a run
            out.rmdir()
            if made_parent:
                wanted.parent.rmdir()

    with current_ending().call(release):
        yield out


@contextmanager
def set_run_aside(out: Path) -> Iterator[Callable[[], None]]:
    """Gives a run a hidden name beside its directory, while a new run begins in the directory.

    If the `with` block fails, or a signal ends the process, the run is put back in place of the new one.

    Yields:
        A function that removes the run, after which nothing is put back. The end of the block calls it, too.

    Raises:
        BadInput: A different process writes the run.
        Unwritable: The run cannot be replaced.
    """
    aside = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.old")

    forgotten, trace = False, out / run_files.TRACEBACK_FILE

    def forget() -> None:
        nonlocal forgotten
        forgotten = True
        shutil.rmtree(aside, ignore_errors=True)

    def settle() -> None:
        if forgotten or not aside.exists():
            return
        told = trace.read_bytes() if trace.is_file() else None  # an error of the new run, which a message names
        shutil.rmtree(out, ignore_errors=True)
        with suppress(OSError):
            aside.rename(out)
            if told is not None:
                trace.write_bytes(told)

    with current_ending().call(settle):
        with lock_run_directory(out, wait=False), plain.explain_unwritable(out):
            out.rename(aside)
        yield forget
        forget()


# ---------------------------------------------------------------------------------------------------------------------
# `failure.json` holds the error that ended an unfinished run, until the run goes on.


def forget_failure(out: Path) -> None:
    """Removes the files about the error that ended an earlier session of a run."""
    for name in (run_files.FAILURE_FILE, run_files.TRACEBACK_FILE):
        with suppress(OSError):
            (out / name).unlink(missing_ok=True)


def record_failure(out: Path, error: Exception) -> None:
    """Writes the error that ended a run to `failure.json`.

    A failure to write the file, for example on a full disk, is ignored.

    Example:
        >>> import tempfile
        >>> out = Path(tempfile.mkdtemp())
        >>> (out / "scenario.yaml").write_text("rounds: 5")
        9
        >>> record_failure(out, FedrayError("round 3: client 7 diverged: lower local.lr"))
        >>> read_failure(out)
        FedrayError('round 3: client 7 diverged: lower local.lr')
    """
    if not (out / "scenario.yaml").exists():  # the run was moved or deleted, so nothing is written to its old path
        return
    text = str(error) if isinstance(error, FedrayError) else f"{type(error).__name__}: {error}"
    with suppress(FedrayError, OSError):
        plain.write_json(out / run_files.FAILURE_FILE, {"error": show_line(text, 2000)})


def read_failure(out: Path) -> FedrayError | None:
    """Returns the error that ended a run. None means that the run is complete, or that a process still trains it.

    Raises:
        Damaged: `failure.json` cannot be read.
    """
    if (out / run_files.FAILURE_FILE).exists():
        found = run_files.read_sealed(out / run_files.FAILURE_FILE, f"`fedray resume {out}`")
        return FedrayError(str(found.get("error", "unknown")))
    if (out / run_files.SUMMARY_FILE).exists() or plain.is_locked(out / LOCK):
        return None
    rounds = run_files.find_checkpoints(out / "checkpoints")
    where = f"after the checkpoint of round {rounds[-1]}" if rounds else "before its first checkpoint"
    return FedrayError(f"{out} is not finished: it stopped {where}; `fedray resume {quote(str(out))}` goes on")


# ---------------------------------------------------------------------------------------------------------------------
# Checks where a sweep may be written. They need no torch, so that the command line refuses a taken directory at once.

COPY = "sweep.yaml"  # name of a file in the directory of the sweep
TRIALS, JOURNAL = "trials", "study.journal"


def has_sweep(folder: Path) -> bool:
    """Returns whether a directory holds a sweep. In a directory without a sweep, `--resume` begins a new sweep."""
    return run_files.has_file(folder, COPY)


def refuse_taken_sweep(folder: Path, *, resume: bool) -> None:
    """Raises an error if a sweep cannot be written to a directory.

    Raises:
        BadInput: The directory holds a sweep and `resume` is False, or the directory holds something else.
    """
    if has_sweep(folder):
        if not resume:
            raise BadInput(f"out = {folder} holds a sweep: choose another directory, or add --resume to go on")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"out = {folder} holds other files: choose another directory")
