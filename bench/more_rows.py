"""Measures the rows of the table of speed that only this repository needs: `python bench/more_rows.py [--quick]`.

`fedray bench` has the rows that compare fedray with a plain loop on a user's machine. Here are training of FedAG, a
whole study, replicates and folds, training without rounds, a second actor, memory, and a million clients. `--only ROW`
measures one row. Each row runs in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from fedray.assembly.registry import UserObjects
from fedray.bench import rows as bench
from fedray.bench.rows import MB, BenchResult, Cost
from fedray.bench.works import (
    BenchWork,
    Laps,
    describe_costs,
    fedavg_scenario,
    images,
    make_plain_laps,
    measure_ratio,
    noise,
    on_ray,
    plain_mlp,
    simulate,
    small_clients,
    small_cnn,
)
from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.data.files import find_data_root
from fedray.data.types import Dataset, Split, regression
from fedray.experiments.run import run_scenario
from fedray.runtime.session import Snapshot
from fedray.scenario.loader import read_scenario

BOSTON = (506, 13, 20)  # samples, features, folds


def boston_mlp() -> nn.Module:
    """Makes a network of 13 inputs, 50 hidden units and one target, with 751 parameters."""
    return nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 1))


def buffered_clients(number: int, concurrency: int, goal: int) -> BenchWork:
    """Makes a benchmark of asynchronous training with the clients of `small_clients`.

    A server step, which uses `goal` uploads, counts as a round. `concurrency` clients train at the same time. Their
    speeds are log-normal.
    """
    keys = fedavg_scenario(number, number, batch_size=10)
    keys["participation"] = {"mode": "buffered", "concurrency": concurrency, "goal": goal}
    keys["clients"]["tiers"] = {"phones": {"spread": 1.0}}
    own = UserObjects(data=noise(20 * number, (64,)), model=plain_mlp)
    return BenchWork(read_scenario(keys), own, plain_mlp)


def generated(number: int, per_round: int) -> BenchWork:
    """Makes a benchmark of clients with 20 samples each. The samples are generated when they are needed."""
    keys = fedavg_scenario(number, per_round, batch_size=10) | {"data": {"name": "synthetic"}}
    return BenchWork(read_scenario(keys), UserObjects(model=plain_mlp), plain_mlp)


def boston(epochs: int, fold: int | str = "all") -> BenchWork:
    """Makes a benchmark of Boston housing. 10 clients train for `epochs` epochs, in batches of one sample."""
    keys = fedavg_scenario(10, 10, batch_size=1, epochs=epochs, lr=0.01)
    keys["data"] = {"name": "uci/bostonHousing", "fold": fold}
    keys["model"] = {"name": "mlp", "objective": "half_mse"}
    folder = find_data_root(None) / "UCI" / "UCI_Datasets" / "bostonHousing"
    data = None if folder.is_dir() else like_boston()
    return BenchWork(read_scenario(keys), UserObjects(data=data, model=boston_mlp), boston_mlp)


def like_boston(n: int = BOSTON[0], folds: int = BOSTON[2]) -> Dataset:
    """Makes random data of the size of Boston housing, for machines without that data set."""
    features = BOSTON[1]
    random = rng.stream(0, "bench table")
    x, y = random.standard_normal((n, features), dtype=np.float32), random.standard_normal((n, 1), dtype=np.float32)
    data = regression("noise", Split(x, y), Split(x[:0], y[:0]))
    orders = [random.permutation(n) for _ in range(folds)]
    cuts = tuple((np.sort(order[n // 10 :]), np.sort(order[: n // 10])) for order in orders)
    shift, scale, y_shift, y_scale = (
        np.repeat(one, folds, axis=0) for one in (data.shift, data.scale, data.y_shift, data.y_scale)
    )
    return data._replace(folds=cuts, shift=shift, scale=scale, y_shift=y_shift, y_scale=y_scale)


def digits_study(replicates: int) -> BenchWork:
    """Makes a small benchmark of handwritten digits. 10 of its 100 clients train in a round."""
    keys = fedavg_scenario(100, 10, batch_size=10) | {"data": {"name": "digits"}, "replicates": replicates}
    keys["model"] = {"name": "mlp", "hidden": [64]}
    return BenchWork(read_scenario(keys), UserObjects(), plain_mlp)


def measure_fedag(quick: bool) -> list[BenchResult]:
    """Measures the cost of fedray with the local training of FedAG, divided by the cost of the plain loop."""
    epochs = 4 if quick else 40
    what = f"FedAG's local training, Boston, 20 folds x 10 clients x {epochs} epochs, batch 1, MLP 13-50-1"
    return measure_ratio(what, 0.003, boston(epochs), Laps(1, 1, 1 if quick else 2), boston(1))


def measure_scaling(quick: bool) -> list[BenchResult]:
    """Measures the wall time of a round on Ray with one actor, divided by the wall time with two actors."""
    from fedray.runtime.ray.connection import open_ray

    work = images(small_cnn, per_round=40)
    with open_ray(None, 3), on_ray(work, 1) as one, on_ray(work, 2) as two:
        laps = [(simulate(work.study(), runtime)[0], 5) for runtime in (one, two)]
        alone, both = bench.take_turns(laps, 3 if quick else 9, bench.measure_tree_cpu)
    what = "two client actors of one CPU against one, small CNN with 40 clients a round (wall)"
    return [BenchResult(what, alone.wall / both.wall, "x", 1.8, True, None, describe_costs(alone, both))]


# ---------------------------------------------------------------------------------------------------------------------
# Rows about replicates, folds, training without rounds, memory, a million clients, and evaluation.

WARM_UP = 0.2  # share of the rounds before memory is measured


def measure_replicates(quick: bool) -> list[BenchResult]:
    """Measures the CPU time of a round with ten replicates, divided by the time with one replicate."""
    bench.pin_to_one_core()
    what = "ten replicates of a small study (digits, MLP 64-64-10, 10 clients a round) / one"
    alone, together = _measure_both(digits_study(1), digits_study(10), 3 if quick else 9, 20)
    return [_compare(what, 7.0, alone, together)]


def measure_folds(quick: bool) -> list[BenchResult]:
    """Measures the CPU time of a round with twenty folds, divided by the time with one fold."""
    bench.pin_to_one_core()
    epochs = 4 if quick else 40
    what = f"twenty folds of Boston ({epochs} epochs, batch 1) / one fold"
    alone, together = _measure_both(boston(epochs, 0), boston(epochs), 2 if quick else 5, 1)
    return [_compare(what, 5.0, alone, together)]


def measure_buffered(quick: bool) -> list[BenchResult]:
    """Measures the CPU time of a job in asynchronous training, divided by the time of a job in rounds."""
    bench.pin_to_one_core()
    in_rounds, flying = small_clients(1000, 100), buffered_clients(1000, 100, goal=10)
    laps = [(simulate(in_rounds.study())[0], 10), (simulate(flying.study())[0], 100)]
    sync, steps = bench.take_turns(laps, 5 if quick else 15)
    alone, buffered = (Cost(one.cpu / jobs, one.wall / jobs) for one, jobs in ((sync, 100), (steps, 10)))
    note = f"{1e6 * alone.cpu:.1f} us CPU a job in rounds, {1e6 * buffered.cpu:.1f} us without"
    what = "a job of 1,000 clients, 100 at the same time: without rounds, 10 uploads a server step / in rounds"
    return [BenchResult(what, buffered.cpu / alone.cpu, "", 1.3, False, buffered.wall / alone.wall, note)]


def _measure_both(one: BenchWork, many: BenchWork, repeats: int, rounds: int) -> list[Cost]:
    """Measures the cost of a round with one world (seed and fold), and of a round with many worlds."""
    return bench.take_turns([(simulate(work.study())[0], rounds) for work in (one, many)], repeats)


def _compare(what: str, target: float, alone: Cost, together: Cost) -> BenchResult:
    """Returns the cost of a round with many worlds (seeds and folds), divided by the cost with one world."""
    note = f"{1e3 * alone.cpu:.2f} ms CPU a round alone, {1e3 * together.cpu:.2f} ms together"
    return BenchResult(what, together.cpu / alone.cpu, "", target, False, together.wall / alone.wall, note)


def measure_million(quick: bool) -> list[BenchResult]:
    """Measures a round of 1,000 out of a million clients.

    The results are the CPU time, divided by the CPU time with ten thousand clients, and the peak memory.
    """
    bench.pin_to_one_core()
    few, many = (simulate(generated(number, 1000).study())[0] for number in (10_000, 1_000_000))
    small, large = bench.take_turns([(few, 4), (many, 4)], 3 if quick else 9)
    note = f"{1e3 * small.cpu:.1f} ms CPU a round of 10,000, {1e3 * large.cpu:.1f} ms of 1,000,000"
    what = "1,000,000 clients, 1,000 a round / 10,000 clients, 1,000 a round"
    peak = bench.measure_peak_resident() / MB
    return [
        BenchResult(what, large.cpu / small.cpu, "", 1.1, False, large.wall / small.wall, note),
        BenchResult("peak memory of the process that ran both", peak, "MB", 2048.0, False, None, "target 2 GB"),
    ]


def measure_memory(quick: bool) -> list[BenchResult]:
    """Measures the growth of resident memory over whole runs, which also evaluate and write files."""
    rounds = 300 if quick else 1000
    work = small_clients(1000, 100)
    results = [
        _growth(
            f"memory growth over {rounds} rounds, inline",
            work,
            rounds,
            lambda: sum(one.resident for one in bench.list_tree() if one.id == os.getpid()),
        )
    ]
    if not quick:
        scenario = replace(work.scenario, runtime="ray", clients=replace(work.scenario.clients, actors=2))
        work = work._replace(scenario=scenario)
        results.append(
            _growth(
                "same, the client actors of Ray",
                work,
                rounds,
                lambda: sum(one.resident for one in bench.list_tree() if one.command.startswith("ray::Client")),
            )
        )
    return results


def _growth(what: str, work: BenchWork, rounds: int, size: Callable[[], float]) -> BenchResult:
    """Estimates the growth of resident memory in 100 rounds by least squares, after a warm-up."""
    points: list[tuple[int, float]] = []

    def watch(snapshot: Snapshot) -> None:
        points.append((snapshot["round"], size() / MB))

    scenario = replace(work.scenario, rounds=rounds, evaluate=replace(work.scenario.evaluate, every=10))
    with tempfile.TemporaryDirectory() as folder:
        run_scenario(scenario, Path(folder) / "run", work.own, watch)
    at, megabytes = np.array([point for point in points if WARM_UP * rounds <= point[0] < rounds]).T
    slope = float(np.polyfit(at, megabytes, 1)[0]) * 100
    note = f"{megabytes[0]:.0f} MB at round {at[0]:.0f}, {megabytes[-1]:.0f} MB at round {at[-1]:.0f}"
    return BenchResult(what, slope, "MB per 100 rounds", 1.0, False, None, note)


# ---------------------------------------------------------------------------------------------------------------------
# The cost of a whole small study.

SCENARIO = """\
rounds: 50
method: {name: fed_ensemble, models: 5}
data: {name: digits, partition: {name: classes, classes: 2}}
model: {name: mlp, hidden: [64]}
clients: {number: 100}
local: {lr: 0.3, batch_size: 10, epochs: 10, lr_decay: 0.99, lr_decay_every: 10}
"""


def measure_small_study(quick: bool) -> list[BenchResult]:
    """Measures the CPU time of a small run, from command to report, divided by the time of a plain training loop."""
    rounds, seeds = (10, 2) if quick else (50, 5)
    scenario = read_scenario(SCENARIO, {"rounds": rounds, "replicates": seeds, "runtime": "inline"})
    work = BenchWork(scenario, UserObjects(), lambda: nn.Sequential(nn.Flatten(), *plain_mlp().children()))
    bench.pin_to_one_core()
    (plain,) = bench.take_turns([(make_plain_laps(work.study(), work), 1)], 1 if quick else 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(SCENARIO)
        keys = [f"rounds={rounds}", f"replicates={seeds}", "runtime=inline", "--out", str(Path(folder) / "run")]
        whole = _measure_call(["run", str(path), *keys])
    training = plain.cpu * rounds
    note = f"{whole.cpu:.1f} s CPU, {whole.wall:.1f} s of wall time; the plain loop trains for {training:.1f} s"
    what = f"a whole study: the quick start with {seeds} seeds and {rounds} rounds, from the command to its report"
    return [BenchResult(what, whole.cpu / training, "", None, False, None, note)]


def _measure_call(arguments: list[str]) -> Cost:
    """Measures the cost of one call of the command line."""
    cpu, wall = _children_cpu(), time.perf_counter()
    command = [sys.executable, "-m", "fedray", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FedrayError(f"fedray {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
    return Cost(_children_cpu() - cpu, time.perf_counter() - wall)


def _children_cpu() -> float:
    """Measures the CPU seconds of the processes that this process has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------------------------------------------------------------
# The command.

ROWS = {  # for each row, the function that measures it
    "fedag": "more_rows.measure_fedag",
    "study": "more_rows.measure_small_study",
    "replicates": "more_rows.measure_replicates",
    "folds": "more_rows.measure_folds",
    "buffered": "more_rows.measure_buffered",
    "scaling": "more_rows.measure_scaling",
    "memory": "more_rows.measure_memory",
    "million": "more_rows.measure_million",
}


def main() -> None:
    """Prints the table, one row after the other."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--only", action="append", default=[], help="a row to measure; may be repeated")
    asked = parser.parse_args()
    bench.run_benchmark(asked.only, asked.quick, print, ROWS)


if __name__ == "__main__":
    main()
