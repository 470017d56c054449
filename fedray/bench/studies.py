"""Rows 6, 9 and 10: replicates and folds as lanes, memory over a thousand rounds, a million clients."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedray.bench import works
from fedray.bench.measure import MB, peak_resident, pin_to_one_core, resident, take_turns, tree
from fedray.bench.table import BenchResult
from fedray.bench.works import BenchWork, simulation
from fedray.experiments.run import run_scenario
from fedray.runtime.session import Snapshot

WARM_UP = 0.2  # of the rounds, before memory is looked at


def measure_replicates(quick: bool) -> list[BenchResult]:
    pin_to_one_core()
    what = "ten replicates of a small study (digits, MLP 64-64-10, 10 clients a round) / one"
    return [_shared(what, 7.0, works.digits_study(1), works.digits_study(10), 3 if quick else 9, 20)]


def measure_folds(quick: bool) -> list[BenchResult]:
    pin_to_one_core()
    epochs = 4 if quick else 40
    what = f"twenty folds of Boston ({epochs} epochs, batch 1) / one fold"
    return [_shared(what, 5.0, works.boston(epochs, 0), works.boston(epochs), 2 if quick else 5, 1)]


def _shared(what: str, target: float, one: BenchWork, many: BenchWork, repeats: int, rounds: int) -> BenchResult:
    """Cost of many worlds in one run over the cost of one world."""
    alone, together = take_turns([(simulation(work.study())[0], rounds) for work in (one, many)], repeats)
    note = f"{1e3 * alone.cpu:.2f} ms CPU a round alone, {1e3 * together.cpu:.2f} ms together"
    return BenchResult(what, together.cpu / alone.cpu, "", target, False, together.wall / alone.wall, note)


def measure_million(quick: bool) -> list[BenchResult]:
    """Generated clients, so that nothing is stored for those who do not take part."""
    pin_to_one_core()
    few, many = (simulation(works.generated(number, 1000).study())[0] for number in (10_000, 1_000_000))
    small, large = take_turns([(few, 4), (many, 4)], 3 if quick else 9)
    note = f"{1e3 * small.cpu:.1f} ms CPU a round of 10,000, {1e3 * large.cpu:.1f} ms of 1,000,000"
    what = "1,000,000 clients, 1,000 a round / 10,000 clients, 1,000 a round"
    most = peak_resident() / MB
    return [
        BenchResult(what, large.cpu / small.cpu, "", 1.1, False, large.wall / small.wall, note),
        BenchResult("peak memory of the process that ran both", most, "MB", 2048.0, False, None, "target 2 GB"),
    ]


def measure_memory(quick: bool) -> list[BenchResult]:
    """Whole runs with a run directory, evaluation and checkpoints."""
    rounds = 300 if quick else 1000
    work = works.small_clients(1000, 100)
    results = [_growth(f"memory growth over {rounds} rounds, inline", work, rounds, lambda: float(resident()))]
    if not quick:
        scenario = replace(work.scenario, runtime="ray", clients=replace(work.scenario.clients, actors=2))
        results.append(_growth("same, the client actors of Ray", work._replace(scenario=scenario), rounds, _actors))
    return results


def _actors() -> float:
    return float(sum(one.resident for one in tree() if one.command.startswith("ray::Client")))


def _growth(what: str, work: BenchWork, rounds: int, size: Callable[[], float]) -> BenchResult:
    """The slope of resident memory over rounds, by least squares, after a warm-up."""
    seen: list[tuple[int, float]] = []

    def watch(shown: Snapshot) -> None:
        seen.append((shown["round"], size() / MB))

    scenario = replace(work.scenario, rounds=rounds, evaluate=replace(work.scenario.evaluate, every=10))
    with tempfile.TemporaryDirectory() as folder:
        run_scenario(scenario, Path(folder) / "run", work.own, watch)
    at, megabytes = np.array([point for point in seen if WARM_UP * rounds <= point[0] < rounds]).T
    slope = float(np.polyfit(at, megabytes, 1)[0]) * 100
    note = f"{megabytes[0]:.0f} MB at round {at[0]:.0f}, {megabytes[-1]:.0f} MB at round {at[-1]:.0f}"
    return BenchResult(what, slope, "MB per 100 rounds", 1.0, False, None, note)
