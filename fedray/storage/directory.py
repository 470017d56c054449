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

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fedray.core.errors import BadInput, Unwritable
from fedray.files import plain
from fedray.files.checksums import BEST_FOLDER, TABLES, find_checkpoints, list_parts, refuse_links
from fedray.files.locks import hold_lock, is_locked
from fedray.scenario.identity import IDENTITY_FILE

LOCK = ".lock"
ASIDE = ".old"  # ends the name of a checkpoint while another of the same round takes its place
_UNFINISHED = re.compile(r"\.([0-9a-f]{24}|round-\d+)\.part")


def make_run_directory(out: Path, scenario_text: str) -> None:
    """Makes a fresh run directory; of several processes one makes it.

    Raises:
        BadInput: the directory holds something already.
    """
    _refuse_taken(out)
    try:
        (out / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out} cannot be made ({error.strerror}): choose another directory") from None
    with hold_lock(out / LOCK, say_written(out)):
        _refuse_taken(out)  # another process may have been faster
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


def _refuse_taken(out: Path) -> None:
    """Refuses a directory that holds more than what is left of a run that was never made."""
    if out.exists() and (not out.is_dir() or not all(map(is_unborn, out.iterdir()))):
        what = "another run" if (out / "scenario.yaml").exists() else "other files"
        raise BadInput(f"--out {out} holds {what}: choose another directory, or `fedray resume {out}`")


def say_written(out: Path) -> BadInput:
    """What is said of a run directory that another process writes."""
    return BadInput(f"{out} is being written by another process: let it finish, or stop it")


def is_unborn(path: Path) -> bool:
    """Whether an entry of a directory is all that is left of a run that was ended before it had a scenario."""
    if path.name == "checkpoints":
        return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    if path.name == LOCK:
        return path.is_file() and not path.is_symlink()
    return _UNFINISHED.fullmatch(path.name) is not None


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
        BadInput: another process writes it, or it holds symbolic links.
        Unwritable: it cannot be written.
    """
    refuse_links(out)
    try:
        confirm_place = watch_place(out)
    except OSError as error:
        raise Unwritable(f"cannot write {out}: {error.strerror}: free space or choose another --out") from None
    with hold_lock(out / LOCK, say_written(out), wait=wait):
        _drop_unfinished_files(out)
        yield confirm_place


def watch_place(out: Path) -> Callable[[], None]:
    """A function that raises `Unwritable` where the directory was moved or deleted since now.

    Raises:
        OSError: it is not there.
    """
    now = out.stat()
    return partial(_confirm_place, out, (now.st_dev, now.st_ino))


def _confirm_place(out: Path, began: tuple[int, int]) -> None:
    """Raises `Unwritable` where a path no longer leads to the directory that it led to."""
    try:
        now = out.stat()
    except OSError:
        now = None
    if now is None or (now.st_dev, now.st_ino) != began:
        raise Unwritable(
            f"{out} was moved or deleted while it was written: nothing more is written there; go on where it is now "
            "(`fedray resume` for a run)"
        )


def _drop_unfinished_files(out: Path) -> None:
    """Removes temporary files and folders that a killed process left where only the holder of the lock writes."""
    for folder in ("checkpoints", BEST_FOLDER, *TABLES):
        for path in (out / folder).glob(".*.part"):
            if _UNFINISHED.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        settle_replacements(out / folder)


def settle_replacements(folder: Path) -> None:
    """Removes the checkpoints that others have replaced; where this was interrupted, the old one is back at its place.

    Args:
        folder: holds checkpoints; it may be missing.
    """
    for aside in folder.glob(f".round-*{ASIDE}"):
        final = aside.with_name(aside.name.removeprefix(".").removesuffix(ASIDE))
        with suppress(OSError):  # nothing can be written: it stays for the next time
            shutil.rmtree(aside) if final.exists() else aside.rename(final)


def drop_newer_parts(out: Path, round: int) -> None:
    """Removes the parts written after a round, and the best round's models where that came later."""
    for table in TABLES:
        for number, part in list_parts(out, table).items():
            if number > round:
                part.unlink()
    for number in find_checkpoints(out / BEST_FOLDER):
        if number > round:
            shutil.rmtree(out / BEST_FOLDER / f"round-{number:06d}", ignore_errors=True)
