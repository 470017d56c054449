"""The cells of a table: each is a run of its own, trained by a process that ends when the process of the table does.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, hold_cell(Path(folder) / "a") as lock:
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['.a.lock']
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.core.errors import FedrayError
from fedray.core.text import format_seconds
from fedray.experiments.cell_lines import CellLines
from fedray.files import plain
from fedray.files.locks import hold_lock
from fedray.process.child import follow_child, start_child, stop_children
from fedray.process.ending import current_ending
from fedray.runtime.environment import PARTS_VARIABLE
from fedray.scenario.loader import NamedCell, dump_scenario, read_scenario
from fedray.storage.directory import LOCK, watch_place

log = logging.getLogger("fedray")
DONE = "summary.json"
Children = list["subprocess.Popen[str]"]


def train_cells(
    cells: Sequence[NamedCell], folder: Path, jobs: int, options: dict[str, list[str]], say: Callable[[str], None]
) -> dict[str, str]:
    """Trains the cells that are not finished yet, and returns the reason of each one that failed, by its name.

    Args:
        cells: in the order in which they begin.
        folder: holds a run directory for each cell, under the cell's name.
        jobs: how many train at the same time.
        options: of the command line, for each cell.
        say: called with a line about each cell that ends, and now and then about how far a cell is.

    Raises:
        FedrayError: the folder cannot be written, or another process trains one of its cells.
    """
    failed: dict[str, str] = {}
    children: Children = []
    plain.make_parent(folder / "cell")
    confirm_place = watch_place(folder)
    at_once = max(1, min(jobs, len(cells)))
    began = time.monotonic()
    at_work: list[str] = []
    ended: list[str] = []
    shared: dict[str, Any] = {"children": children, "at_once": at_once, "lines": CellLines(say)}

    def train(cell: NamedCell) -> None:
        confirm_place()
        at_work.append(cell.name)
        log.info("training %s; %s of %s cells have ended", ", ".join(at_work), len(ended), len(cells))
        reason = _train_cell(cell, folder / cell.name, options[cell.name], **shared)
        at_work.remove(cell.name)
        ended.append(cell.name)
        if reason is not None:
            failed[cell.name] = reason
        state = "is done" if reason is None else f"failed ({reason})"
        say(f"cell {cell.name} {state}: {len(ended)} of {len(cells)}, {format_seconds(time.monotonic() - began)}")

    pool = ThreadPoolExecutor(at_once)
    ending = current_ending()
    stop = _make_stop(pool, children)
    ending.hooks.append(stop)
    try:
        list(pool.map(train, cells))
    finally:
        stop()
        pool.shutdown(wait=True)
        ending.hooks.remove(stop)
    confirm_place()
    return {cell.name: failed[cell.name] for cell in cells if cell.name in failed}


def _make_stop(pool: ThreadPoolExecutor, children: Children) -> Callable[[], None]:
    """A function that lets no further cell begin, and ends those that train."""

    def stop() -> None:
        pool.shutdown(wait=False, cancel_futures=True)
        stop_children(list(children))

    return stop


def _train_cell(
    cell: NamedCell, folder: Path, options: list[str], *, children: Children, at_once: int, lines: CellLines
) -> str | None:
    """Runs or resumes one cell; None where it comes to its end or had done so before, else the reason in one line.

    Cells that train at the same time share the cluster, or this machine. Notes of its process are warnings here.
    """
    with hold_cell(folder) as lock:
        if (folder / DONE).is_file():
            return None
        if (folder / "scenario.yaml").is_file():
            _move_cell(cell, folder / "scenario.yaml")
            command = ["resume", str(folder)]
        else:
            _remove_unborn(folder)
            source = folder.parent / f"{folder.name}.yaml"
            plain.write_atomically(source, dump_scenario(cell.scenario).encode())
            command = ["run", str(source), "--out", str(folder)]
        child = start_child([*command, *options], keep=[lock], variables={PARTS_VARIABLE: str(at_once)})
        children.append(child)
        status = follow_child(child, lambda line: lines.hear(cell.name, line))
        children.remove(child)
    if status == 0:
        return None
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return (lines.newest(cell.name) or "no message").removeprefix("fedray: ")


def _move_cell(cell: NamedCell, given: Path) -> None:
    """Lets a cell go on where its table says now, with what else changes no result, but not its report."""
    found = replace(read_scenario(given, explicit=False), report=cell.scenario.report)
    if found != cell.scenario:
        plain.write_atomically(given, dump_scenario(cell.scenario).encode())


@contextmanager
def hold_cell(folder: Path) -> Iterator[int]:
    """Keeps other tables from a cell; the process that trains it holds the lock too, as long as it lives.

    A table that was killed leaves children that end some moments later: the next one waits for them.

    Args:
        folder: the run directory of the cell.

    Yields:
        The descriptor of the lock, for the process that trains the cell.

    Raises:
        FedrayError: the lock cannot be written, or another process holds it for longer than 30 s.
    """
    path = folder.parent / f".{folder.name}.lock"
    with hold_lock(path, FedrayError(f"another `fedray table` trains {folder}: let it finish, or stop it")) as handle:
        yield handle


def _remove_unborn(folder: Path) -> None:
    """Removes what a run that was killed while it made its directory left: empty folders and unfinished files."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for path in (*folder.glob(".*.part"), folder / LOCK):
        path.unlink(missing_ok=True)
    for path in (folder / "checkpoints", folder):
        with suppress(OSError):
            path.rmdir()
