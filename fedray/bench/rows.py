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

from fedray.bench.table import HEAD, Result, line, machine
from fedray.core.errors import BadInput, FedrayError
from fedray.runtime.environment import WORKER


class Row(NamedTuple):
    """A row's function, by module and name: modules load where they run."""

    module: str
    name: str

    @property
    def function(self) -> Callable[[bool], list[Result]]:
        found: Callable[[bool], list[Result]] = getattr(import_module(f"fedray.bench.{self.module}"), self.name)
        return found


ROWS = {
    "thousand": Row("ratios", "thousand"),
    "ten_thousand": Row("ratios", "ten_thousand"),
    "cnn": Row("ratios", "cnn"),
    "wide_cnn": Row("ratios", "wide_cnn"),
    "fedag": Row("ratios", "fedag"),
    "replicates": Row("studies", "replicates"),
    "folds": Row("studies", "folds"),
    "ray": Row("actors", "overhead"),
    "scaling": Row("actors", "scaling"),
    "memory": Row("studies", "memory"),
    "million": Row("studies", "million"),
    "startup": Row("startup", "startup"),
}


def bench(only: Sequence[str], quick: bool, show: Callable[[str], None]) -> str:
    """Measures rows (all, unless `only` names some), shows each as it is done, and returns the whole table.

    Raises:
        BadInput: a row that does not exist.
        FedrayError: a row failed; the end of what it said.
    """
    if unknown := [name for name in only if name not in ROWS]:
        raise BadInput(f"--only {unknown[0]}: no such row: choose among {', '.join(ROWS)}")
    lines = [machine(), "", *HEAD.splitlines()]
    show("\n".join(lines))
    for name in only or ROWS:
        for result in measured(name, quick):
            lines.append(line(result))
            show(lines[-1])
    return "\n".join(lines) + "\n"


def measured(name: str, quick: bool) -> list[Result]:
    """One row, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        command = [sys.executable, "-m", "fedray.bench", name, "quick" if quick else "full", str(out)]
        done = subprocess.run(command, env={**os.environ, **WORKER}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FedrayError(f"row {name} failed: {' '.join(done.stderr.split())[-500:]}")
        return [Result(**result) for result in json.loads(out.read_text())]
