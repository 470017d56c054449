"""The rows by name, and the run of several: each in a process of its own, so that none sees another's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fedray.bench.table import HEAD, BenchResult, describe_machine, format_row
from fedray.core.errors import BadInput, FedrayError
from fedray.runtime.environment import WORKER


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
    "thousand": BenchRow("ratios", "measure_thousand"),
    "ten_thousand": BenchRow("ratios", "measure_ten_thousand"),
    "cnn": BenchRow("ratios", "measure_cnn"),
    "wide_cnn": BenchRow("ratios", "measure_wide_cnn"),
    "fedag": BenchRow("ratios", "measure_fedag"),
    "optimizers": BenchRow("ratios", "measure_optimizers"),
    "evaluation": BenchRow("evaluation", "measure_evaluation"),
    "study": BenchRow("startup", "measure_small_study"),
    "replicates": BenchRow("studies", "measure_replicates"),
    "folds": BenchRow("studies", "measure_folds"),
    "buffered": BenchRow("studies", "measure_buffered"),
    "ray": BenchRow("actors", "measure_overhead"),
    "scaling": BenchRow("actors", "measure_scaling"),
    "memory": BenchRow("studies", "measure_memory"),
    "million": BenchRow("studies", "measure_million"),
    "startup": BenchRow("startup", "measure_startup"),
    "gpu": BenchRow("gpu", "measure_gpu"),
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
