"""Row 11: how long the command line takes to answer.

Example:
    >>> measure_startup(True)[0].what  # doctest: +SKIP
    '`fedray --help`'
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedray.bench.measure import Cost
from fedray.bench.table import BenchResult
from fedray.core.errors import FedrayError

SCENARIO = """\
rounds: 50
method: {name: fed_ensemble, models: 5}
data: {name: digits, partition: {name: classes, classes: 2}}
model: {name: mlp, hidden: [64]}
clients: {number: 100}
"""


def measure_startup(_quick: bool) -> list[BenchResult]:
    """Wall time of `fedray --help` and `fedray check`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(SCENARIO)
        return [
            _fastest("`fedray --help`", 0.5, ["--help"]),
            _fastest("`fedray check` of the quick start (digits)", 2.0, ["check", str(path)]),
        ]


def _fastest(what: str, target: float, arguments: list[str]) -> BenchResult:
    """The quickest of five calls, in wall time."""
    costs = []
    for _ in range(5):
        cpu, wall = _children_cpu(), time.perf_counter()
        command = [sys.executable, "-m", "fedray", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FedrayError(f"fedray {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
        costs.append(Cost(_children_cpu() - cpu, time.perf_counter() - wall))
    note = f"wall, best of 5; {min(cost.cpu for cost in costs):.2f} s CPU"
    return BenchResult(what, min(cost.wall for cost in costs), "s", target, False, None, note)


def _children_cpu() -> float:
    """CPU seconds of the processes that this one has started and waited for."""
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
