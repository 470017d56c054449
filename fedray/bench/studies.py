"""Rows 6, 9 and 10: replicates and folds as lanes, memory over a thousand rounds, a million clients."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedray.bench import works
from fedray.bench.measure import (
    MB,
    Cost,
    list_tree,
    measure_peak_resident,
    measure_resident,
    pin_to_one_core,
    take_turns,
)
from fedray.bench.table import BenchResult
from fedray.bench.works import BenchWork, simulate
from fedray.experiments.run import run_scenario
from fedray.runtime.session import Snapshot

WARM_UP = 0.2  # of the rounds, before memory is looked at


def measure_replicates(quick: bool) -> list[BenchResult]:
    """CPU time of a round of ten replicates over that of one."""
    pin_to_one_core()
    what = "ten replicates of a small study (digits, MLP 64-64-10, 10 clients a round) / one"
    alone, together = _measure_both(works.digits_study(1), works.digits_study(10), 3 if quick else 9, 20)
    return [_compare(what, 7.0, alone, together)]


def measure_folds(quick: bool) -> list[BenchResult]:
    """CPU time of a round of twenty folds over that of one."""
    pin_to_one_core()
    epochs = 4 if quick else 40
    what = f"twenty folds of Boston ({epochs} epochs, batch 1) / one fold"
    alone, together = _measure_both(works.boston(epochs, 0), works.boston(epochs), 2 if quick else 5, 1)
    return [_compare(what, 5.0, alone, together)]


def measure_buffered(quick: bool) -> list[BenchResult]:
    """CPU time of a job where clients do not wait for rounds over that of a job in rounds."""
    pin_to_one_core()
    in_rounds, flying = works.small_clients(1000, 100), works.buffered_clients(1000, 100, goal=10)
    laps = [(simulate(in_rounds.study())[0], 10), (simulate(flying.study())[0], 100)]
    sync, steps = take_turns(laps, 5 if quick else 15)
    alone, buffered = (Cost(one.cpu / jobs, one.wall / jobs) for one, jobs in ((sync, 100), (steps, 10)))
    note = f"{1e6 * alone.cpu:.1f} us CPU a job in rounds, {1e6 * buffered.cpu:.1f} us without"
    what = "a job of 1,000 clients, 100 at the same time: without rounds, 10 uploads a server step / in rounds"
    return [BenchResult(what, buffered.cpu / alone.cpu, "", 1.3, False, buffered.wall / alone.wall, note)]


def _measure_both(one: BenchWork, many: BenchWork, repeats: int, rounds: int) -> list[Cost]:
    """Cost of a round of one world, and of many worlds in one run."""
    return take_turns([(simulate(work.study())[0], rounds) for work in (one, many)], repeats)


def _compare(what: str, target: float, alone: Cost, together: Cost) -> BenchResult:
    """Cost of many worlds in one run over the cost of one world."""
    note = f"{1e3 * alone.cpu:.2f} ms CPU a round alone, {1e3 * together.cpu:.2f} ms together"
    return BenchResult(what, together.cpu / alone.cpu, "", target, False, together.wall / alone.wall, note)


def measure_million(quick: bool) -> list[BenchResult]:
    """CPU time of a round of a million generated clients over that of ten thousand, and peak memory."""
    pin_to_one_core()
    few, many = (simulate(works.generated(number, 1000).study())[0] for number in (10_000, 1_000_000))
    small, large = take_turns([(few, 4), (many, 4)], 3 if quick else 9)
    note = f"{1e3 * small.cpu:.1f} ms CPU a round of 10,000, {1e3 * large.cpu:.1f} ms of 1,000,000"
    what = "1,000,000 clients, 1,000 a round / 10,000 clients, 1,000 a round"
    peak = measure_peak_resident() / MB
    return [
        BenchResult(what, large.cpu / small.cpu, "", 1.1, False, large.wall / small.wall, note),
        BenchResult("peak memory of the process that ran both", peak, "MB", 2048.0, False, None, "target 2 GB"),
    ]


def measure_memory(quick: bool) -> list[BenchResult]:
    """Growth of resident memory over whole runs, with run directory, evaluation and checkpoints."""
    rounds = 300 if quick else 1000
    work = works.small_clients(1000, 100)
    results = [_growth(f"memory growth over {rounds} rounds, inline", work, rounds, lambda: float(measure_resident()))]
    if not quick:
        scenario = replace(work.scenario, runtime="ray", clients=replace(work.scenario.clients, actors=2))
        results.append(
            _growth("same, the client actors of Ray", work._replace(scenario=scenario), rounds, _measure_actors)
        )
    return results


def _measure_actors() -> float:
    """Resident bytes of all client actors."""
    return float(sum(one.resident for one in list_tree() if one.command.startswith("ray::Client")))


def _growth(what: str, work: BenchWork, rounds: int, size: Callable[[], float]) -> BenchResult:
    """The slope of resident memory over rounds, by least squares, after a warm-up."""
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
