"""What a row reports, and the table of all of them."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from fedray.core.version import __version__


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
