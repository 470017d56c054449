"""Clocks and sizes of processes, and laps of several pieces of work that take turns (Linux's /proc for process trees).

Example:
    >>> rounds = []
    >>> cost = measure_lap(rounds.append, 5)
    >>> rounds, cost.wall >= 0
    ([5], True)
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from fedray.core.errors import BadInput

MB = 1 << 20
Work = Callable[[int], None]  # does that many more rounds


class Cost(NamedTuple):
    """What one round costs.

    Attributes:
        cpu: CPU seconds.
        wall: wall seconds.
    """

    cpu: float
    wall: float


def pin_to_one_core() -> None:
    """Keeps this process on the last of the cores it may use."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure_lap(work: Work, rounds: int, clock: Callable[[], float] = time.process_time) -> Cost:
    """The cost of a round, the mean over one lap.

    Args:
        work: does that many more rounds.
        rounds: of the lap.
        clock: CPU seconds so far.
    """
    gc.collect()
    cpu, wall = clock(), time.perf_counter()
    work(rounds)
    return Cost((clock() - cpu) / rounds, (time.perf_counter() - wall) / rounds)


def take_turns(
    works: list[tuple[Work, int]],
    repeats: int,
    clock: Callable[[], float] = time.process_time,
    choose: Callable[[Iterable[float]], float] = statistics.median,
) -> list[Cost]:
    """Medians of every work's laps, `repeats` of them each, taken in turns (A B A B) after one lap to warm up.

    Args:
        works: what to do, and the rounds of a lap, for each of them.
        repeats: laps of each that count.
        clock: CPU seconds so far.
        choose: what becomes of the laps; `min` is steadier on a busy machine, which only ever adds time.
    """
    laps: list[list[Cost]] = [[] for _ in works]
    for turn in range(repeats + 1):
        for (work, rounds), costs in zip(works, laps, strict=True):
            cost = measure_lap(work, rounds if turn else max(1, rounds // 5), clock)
            if turn:
                costs.append(cost)
    return [Cost(*(choose(column) for column in zip(*costs, strict=True))) for costs in laps]


def measure_peak() -> float:
    """flop/s of a float32 product of 1024 x 1024 matrices on one core, the best of ten."""
    a, b = torch.arange(2.0 * 1024**2).view(2, 1024, 1024) / 1024**2

    def product(rounds: int) -> None:
        for _ in range(rounds):
            torch.mm(a, b)

    return 2 * 1024**3 / min(measure_lap(product, 3).cpu for _ in range(10))


class Process(NamedTuple):
    """A process.

    Attributes:
        id: its number.
        parent: number of the process that started it.
        command: its command line.
        cpu: CPU seconds, with those of the children it waited for.
        resident: bytes of memory.
    """

    id: int
    parent: int
    command: str
    cpu: float
    resident: int


def list_tree() -> list[Process]:
    """This process and all that descend from it."""
    if sys.platform != "linux":
        raise BadInput("this row reads /proc: run it on Linux")
    known = {one.id: one for one in map(_read_process, Path("/proc").glob("[0-9]*")) if one is not None}
    found, new = {os.getpid()}, {os.getpid()}
    while new:
        new = {one.id for one in known.values() if one.parent in found} - found
        found |= new
    return [known[i] for i in sorted(found)]


def _read_process(folder: Path) -> Process | None:
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended
        return None
    ticks = sum(int(n) for n in fields[11:15])  # its own and those of the children it waited for
    cpu = ticks / os.sysconf("SC_CLK_TCK")
    return Process(int(folder.name), int(fields[1]), command, cpu, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def measure_tree_cpu() -> float:
    """CPU seconds of the whole process tree (in steps of a clock tick)."""
    return sum(one.cpu for one in list_tree())


def measure_resident() -> int:
    """Bytes of memory this process holds now."""
    return next(one.resident for one in list_tree() if one.id == os.getpid())


def measure_peak_resident() -> int:
    """The most bytes this process has held."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
