"""The rows by name, and the run of several: each in a process of its own, so that none sees another's memory."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import NamedTuple

import torch

from fedray.core.errors import BadInput, FedrayError
from fedray.core.version import __version__
from fedray.runtime.environment import WORKER

# ---------------------------------------------------------------------------------------------------------------------
# Clocks and sizes of processes, and laps of several pieces of work that take turns (Linux's /proc for process trees).

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

    Example:
        >>> rounds = []
        >>> cost = measure_lap(rounds.append, 5)
        >>> rounds, cost.wall >= 0
        ([5], True)
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


# ---------------------------------------------------------------------------------------------------------------------
# The rows by name, and the run of several: each in a process of its own, so that none sees another's memory.

# ---------------------------------------------------------------------------------------------------------------------
# What a row reports, and the table of all of them.


class BenchResult(NamedTuple):
    """One measured figure.

    Attributes:
        what: the work.
        measured: the figure.
        unit: of the figure; empty for a ratio.
        target: what it should be at most, or at least; None where none was set.
        at_least: whether larger is better.
        wall: the same in wall time, where `measured` is a ratio of CPU seconds; else None.
        note: details.
    """

    what: str
    measured: float
    unit: str
    target: float | None
    at_least: bool
    wall: float | None
    note: str

    @property
    def meets_target(self) -> bool:
        """Whether the figure is as good as its target, if it has one."""
        if self.target is None:
            return True
        return self.measured >= self.target if self.at_least else self.measured <= self.target


HEAD = "| work | measured | target | met | in wall time | |\n| --- | --- | --- | --- | --- | --- |"


def format_row(result: BenchResult) -> str:
    """A result as a row of a Markdown table.

    Example:
        >>> format_row(BenchResult("one thing", 0.08, "", 0.09, False, 0.081, "a note"))
        '| one thing | 0.080 | <= 0.09 | yes | 0.081 | a note |'
    """
    unit = f" {result.unit}" if result.unit else ""
    sign = ">=" if result.at_least else "<="
    wall = "" if result.wall is None else f"{result.wall:.3g}"
    measured = f"{result.measured:.3f}" if abs(result.measured) < 10 else f"{result.measured:.1f}"
    met = "yes" if result.meets_target else "**no**"
    target = "" if result.target is None else f"{sign} {result.target:g}{unit}"
    met = "" if result.target is None else met
    return f"| {result.what} | {measured}{unit} | {target} | {met} | {wall} | {result.note} |"


def describe_machine() -> str:
    """Where this ran, as a line."""
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count()
    load = f", load average {os.getloadavg()[0]:.1f} at the start"
    versions = ", ".join([f"fedray {__version__}", *filter(None, map(_find_version, ("torch", "numpy", "ray")))])
    when = time.strftime("%Y-%m-%d")
    return f"{_processor()}, {cores} cores, Python {platform.python_version()}, {versions}; {when}{load}"


def _find_version(package: str) -> str | None:
    """A package and its version; None where it is not installed."""
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for text in path.read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# ---------------------------------------------------------------------------------------------------------------------
# The rows by name, and the run of several: each in a process of its own, so that none sees another's memory.


class BenchRow(NamedTuple):
    """The function of a row, by its names: its module loads where it runs.

    Attributes:
        module: in `fedray.bench`.
        name: of the function.
    """

    module: str
    name: str

    @property
    def function(self) -> Callable[[bool], list[BenchResult]]:
        """Measures the row; its argument says whether quickly."""
        found: Callable[[bool], list[BenchResult]] = getattr(import_module(f"fedray.bench.{self.module}"), self.name)
        return found


ROWS = {
    "thousand": BenchRow("works", "measure_thousand"),
    "ten_thousand": BenchRow("works", "measure_ten_thousand"),
    "cnn": BenchRow("works", "measure_cnn"),
    "wide_cnn": BenchRow("works", "measure_wide_cnn"),
    "fedag": BenchRow("works", "measure_fedag"),
    "evaluation": BenchRow("studies", "measure_evaluation"),
    "study": BenchRow("studies", "measure_small_study"),
    "replicates": BenchRow("studies", "measure_replicates"),
    "folds": BenchRow("studies", "measure_folds"),
    "buffered": BenchRow("studies", "measure_buffered"),
    "ray": BenchRow("works", "measure_overhead"),
    "scaling": BenchRow("works", "measure_scaling"),
    "memory": BenchRow("studies", "measure_memory"),
    "million": BenchRow("studies", "measure_million"),
    "gpu": BenchRow("works", "measure_gpu"),
}


def run_benchmark(only: Sequence[str], quick: bool, show: Callable[[str], None]) -> str:
    """Measures rows and returns their table.

    Args:
        only: names of rows; empty means all of them.
        quick: whether with fewer and shorter laps.
        show: called with each line of the table as soon as it is known.

    Raises:
        BadInput: a row does not exist.
        FedrayError: a row failed; the message is the end of what it printed.
    """
    if unknown := [name for name in only if name not in ROWS]:
        raise BadInput(f"--only {unknown[0]}: no such row: choose among {', '.join(ROWS)}")
    lines = [describe_machine(), "", *HEAD.splitlines()]
    show("\n".join(lines))
    for name in only or ROWS:
        results = measure_row(name, quick)
        for line in map(format_row, results) if results else [f"| {name} | not measured: no GPU here | | | | |"]:
            lines.append(line)
            show(line)
    return "\n".join(lines) + "\n"


def measure_row(name: str, quick: bool) -> list[BenchResult]:
    """Measures one row, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        command = [sys.executable, "-m", "fedray.bench", name, "quick" if quick else "full", str(out)]
        done = subprocess.run(command, env={**os.environ, **WORKER}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FedrayError(f"row {name} failed: {' '.join(done.stderr.split())[-500:]}")
        return [BenchResult(**result) for result in json.loads(out.read_text())]
