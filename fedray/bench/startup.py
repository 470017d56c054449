"""Row 11: how long the command line takes to answer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedray.bench.table import Result
from fedray.core import FedrayError

SCENARIO = """\
rounds: 50
method: {name: fed_ensemble, models: 5}
data: {name: digits, partition: {name: classes, classes: 2}}
model: {name: mlp, hidden: [64]}
clients: {number: 100}
"""


def startup(quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(SCENARIO)
        times = {0.5: _fastest(["--help"]), 2.0: _fastest(["check", str(path)])}
    names = {0.5: "`fedray --help`", 2.0: "`fedray check` of the quick start (digits)"}
    return [Result(names[limit], took, "s", limit, False, None, "wall, best of 5") for limit, took in times.items()]


def _fastest(arguments: list[str]) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "fedray.cli", *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise FedrayError(f"fedray {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
        best = min(best, time.perf_counter() - began)
    return best
