"""Measures each row of the benchmark's table in a separate process, so that rows do not share memory."""

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch

from fedray import __version__
from fedray.core.errors import BadInput, FedrayError
from fedray.runtime.environment import WORKER

# ---------------------------------------------------------------------------------------------------------------------
# Clocks and memory of processes (from Linux's /proc), and the measurement of several works in turns.

MB = 1 << 20
Work = Callable[[int], None]  # a function that runs the given number of further rounds


class Cost(NamedTuple):
    """The cost of one round.

    Attributes:
        cpu: CPU seconds per round.
        wall: Wall seconds per round.
    """

    cpu: float
    wall: float


def pin_to_one_core() -> None:
    """Pins this process to the last of the cores that it may use."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure_lap(work: Work, rounds: int, clock: Callable[[], float] = time.process_time) -> Cost:
    """Measures the mean cost of a round of `work`. All `rounds` rounds are timed together.

    `work` takes a number of rounds and runs them. `clock` returns how many CPU seconds were used so far.

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
    works: list[tuple[Work, int]], repeats: int, clock: Callable[[], float] = time.process_time
) -> list[Cost]:
    """Measures several functions in turns (A B A B), and returns the cost of one round of each function.

    Each pair in `works` has a function and the number of rounds in its laps. The function takes a number of rounds and
    runs them. The rounds of a lap are timed together. Each function runs a short lap to warm up, and then `repeats`
    laps. The cost of a function is the median of these laps. `clock` returns how many CPU seconds were used so far.
    """
    laps: list[list[Cost]] = [[] for _ in works]
    for turn in range(repeats + 1):
        for (work, rounds), costs in zip(works, laps, strict=True):
            cost = measure_lap(work, rounds if turn else max(1, rounds // 5), clock)
            if turn:
                costs.append(cost)
    return [Cost(*(statistics.median(column) for column in zip(*costs, strict=True))) for costs in laps]


def measure_peak() -> float:
    """Measures how many floating-point operations per second a product of 1024 x 1024 float32 matrices reaches."""
    a, b = torch.arange(2.0 * 1024**2).view(2, 1024, 1024) / 1024**2

    def product(rounds: int) -> None:
        for _ in range(rounds):
            torch.mm(a, b)

    return 2 * 1024**3 / min(measure_lap(product, 3).cpu for _ in range(10))


class Process(NamedTuple):
    """The state of one process.

    Attributes:
        id: The id of the process.
        parent: The id of the parent process.
        command: The command line of the process.
        cpu: The CPU seconds of the process and of all child processes that it waited for.
        resident: The memory of the process in bytes.
    """

    id: int
    parent: int
    command: str
    cpu: float
    resident: int


def list_tree() -> list[Process]:
    """Lists this process, its children, their children, and so on."""
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
    except OSError:  # the process has ended
        return None
    ticks = sum(int(n) for n in fields[11:15])  # seconds of the process and of the children it waited for
    cpu = ticks / os.sysconf("SC_CLK_TCK")
    return Process(int(folder.name), int(fields[1]), command, cpu, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def measure_tree_cpu() -> float:
    """Measures the CPU seconds of this process and all processes below it, in steps of a clock tick."""
    return sum(one.cpu for one in list_tree())


def measure_peak_resident() -> int:
    """Measures the largest number of bytes of memory that this process has held so far."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# ---------------------------------------------------------------------------------------------------------------------
# The result of a row, and the table of all results.


class BenchResult(NamedTuple):
    """One measured value of a row.

    Attributes:
        what: The measured work, in words.
        measured: The measured value.
        unit: The unit of `measured`. It is empty for a ratio.
        target: The largest acceptable value of `measured`, or the smallest if `at_least` is true. None means that there
            is no target.
        at_least: Whether `target` is the smallest acceptable value.
        wall: The ratio of wall times, if `measured` is a ratio of CPU seconds. Otherwise it is None.
        note: Details for the last column of the table.
    """

    what: str
    measured: float
    unit: str
    target: float | None
    at_least: bool
    wall: float | None
    note: str


HEAD = "| work | measured | target | met | in wall time | |\n| --- | --- | --- | --- | --- | --- |"


def format_row(result: BenchResult) -> str:
    """Formats a result as a row of a Markdown table.

    Example:
        >>> format_row(BenchResult("one thing", 0.08, "", 0.09, False, 0.081, "a note"))
        '| one thing | 0.080 | <= 0.09 | yes | 0.081 | a note |'
    """
    unit = f" {result.unit}" if result.unit else ""
    wall = "" if result.wall is None else f"{result.wall:.3g}"
    measured = f"{result.measured:.3f}" if abs(result.measured) < 10 else f"{result.measured:.1f}"
    target, met = "", ""
    if result.target is not None:
        fits = result.measured >= result.target if result.at_least else result.measured <= result.target
        target = f"{'>=' if result.at_least else '<='} {result.target:g}{unit}"
        met = "yes" if fits else "**no**"
    return f"| {result.what} | {measured}{unit} | {target} | {met} | {wall} | {result.note} |"


def describe_machine() -> str:
    """Describes this machine in one line."""
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count()
    load = f", load average {os.getloadavg()[0]:.1f} at the start"
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "ray"))
    software = f"Python {platform.python_version()}, fedray {__version__}, {versions}"
    return f"{_processor()}, {cores} cores, {software}; {time.strftime('%Y-%m-%d')}{load}"


def _processor() -> str:
    """Returns the name of the processor."""
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for text in path.read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# ---------------------------------------------------------------------------------------------------------------------
# The rows of the table, and the processes that measure them.


ROWS = {  # for each row, the function that measures it; its module loads only in the process that measures
    "thousand": "fedray.bench.works.measure_thousand",
    "ten_thousand": "fedray.bench.works.measure_ten_thousand",
    "cnn": "fedray.bench.works.measure_cnn",
    "wide_cnn": "fedray.bench.works.measure_wide_cnn",
    "evaluation": "fedray.bench.works.measure_evaluation",
    "ray": "fedray.bench.works.measure_overhead",
    "gpu": "fedray.bench.works.measure_gpu",
}


def run_benchmark(only: Sequence[str], quick: bool, show: Callable[[str], None], rows: Mapping[str, str] = ROWS) -> str:
    """Measures rows of the table, and returns the table.

    Args:
        only: Names of the rows to measure. If it is empty, all rows are measured.
        quick: Whether to measure fewer and shorter laps.
        show: A function that is called with each line of the table as soon as the line is known.
        rows: For each row the function that measures it, as `MODULE.FUNCTION`. Its only argument is `quick`.

    Raises:
        BadInput: `only` has a name that no row has.
        FedrayError: A row failed. The message is the end of the row's output.
    """
    if unknown := [name for name in only if name not in rows]:
        raise BadInput(f"--only {unknown[0]}: no such row: choose among {', '.join(rows)}")
    lines = [describe_machine(), "", *HEAD.splitlines()]
    show("\n".join(lines))
    for name in only or rows:
        results = measure_row(rows[name], quick)
        for line in map(format_row, results) if results else [f"| {name} | not measured: no GPU here | | | | |"]:
            lines.append(line)
            show(line)
    return "\n".join(lines) + "\n"


def measure_row(function: str, quick: bool) -> list[BenchResult]:
    """Measures one row in its own process. `function` is the name of the function that measures it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        command = [sys.executable, "-m", "fedray.bench", function, "quick" if quick else "full", str(out)]
        environment = {**os.environ, **WORKER, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FedrayError(f"{function} failed: {' '.join(done.stderr.split())[-500:]}")
        return [BenchResult(**result) for result in json.loads(out.read_text())]
