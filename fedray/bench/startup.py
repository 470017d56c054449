"""How long the command line takes to answer, and what a whole small study costs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torch import nn

from fedray.assembly.user_objects import UserObjects
from fedray.bench.measure import Cost, pin_to_one_core, take_turns
from fedray.bench.ratios import make_plain_laps
from fedray.bench.table import BenchResult
from fedray.bench.works import BenchWork, plain_mlp
from fedray.core.errors import FedrayError
from fedray.scenario.loader import read_scenario

SCENARIO = """\
rounds: 50
method: {name: fed_ensemble, models: 5}
data: {name: digits, partition: {name: classes, classes: 2}}
model: {name: mlp, hidden: [64]}
clients: {number: 100}
local: {lr: 0.3, batch_size: 10, epochs: 10, lr_decay: 0.99, lr_decay_every: 10}
"""


def measure_startup(_quick: bool) -> list[BenchResult]:
    """Wall time of `fedray --help` and `fedray check`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(SCENARIO)
        return [
            _fastest("`fedray --help`", 0.5, ["--help"]),
            _fastest("`fedray check` of the quick start (digits)", 1.0, ["check", str(path)]),
        ]


def measure_small_study(quick: bool) -> list[BenchResult]:
    """CPU time of a whole study, from the command to its report, over that of a plain loop that only trains."""
    rounds, seeds = (10, 2) if quick else (50, 5)
    scenario = read_scenario(SCENARIO, {"rounds": rounds, "replicates": seeds, "runtime": "inline"})
    work = BenchWork(scenario, UserObjects(), lambda: nn.Sequential(nn.Flatten(), *plain_mlp().children()))
    pin_to_one_core()
    (plain,) = take_turns([(make_plain_laps(work.study(), work), 1)], 1 if quick else 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(SCENARIO)
        keys = [f"rounds={rounds}", f"replicates={seeds}", "runtime=inline", "--out", str(Path(folder) / "run")]
        whole = _measure_call(["run", str(path), *keys])
    training = plain.cpu * rounds
    note = f"{whole.cpu:.1f} s CPU, {whole.wall:.1f} s of wall time; the plain loop trains for {training:.1f} s"
    what = f"a whole study: the quick start with {seeds} seeds and {rounds} rounds, from the command to its report"
    return [BenchResult(what, whole.cpu / training, "", None, False, None, note)]


def _fastest(what: str, target: float, arguments: list[str]) -> BenchResult:
    """The quickest of five calls, in wall time."""
    costs = [_measure_call(arguments) for _ in range(5)]
    note = f"wall, best of 5; {min(cost.cpu for cost in costs):.2f} s CPU"
    return BenchResult(what, min(cost.wall for cost in costs), "s", target, False, None, note)


def _measure_call(arguments: list[str]) -> Cost:
    """What one call of the command line costs."""
    cpu, wall = _children_cpu(), time.perf_counter()
    command = [sys.executable, "-m", "fedray", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FedrayError(f"fedray {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
    return Cost(_children_cpu() - cpu, time.perf_counter() - wall)


def _children_cpu() -> float:
    """CPU seconds of the processes that this one has started and waited for."""
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
