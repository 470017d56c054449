"""Measures the rows about replicates, folds, training without rounds, memory, a million clients, and evaluation."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedray.assembly.registry import UserObjects
from fedray.bench import works
from fedray.bench.rows import (
    MB,
    BenchResult,
    Cost,
    Work,
    list_tree,
    measure_peak_resident,
    measure_resident,
    pin_to_one_core,
    take_turns,
)
from fedray.bench.works import BenchWork, make_plain_laps, plain_mlp, simulate
from fedray.core.errors import FedrayError
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.run import run_scenario
from fedray.runtime.session import Inline, Snapshot
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress

WARM_UP = 0.2  # share of the rounds before memory is measured


def measure_replicates(quick: bool) -> list[BenchResult]:
    """Measures the ratio of the CPU times of a round with ten replicates and with one replicate."""
    pin_to_one_core()
    what = "ten replicates of a small study (digits, MLP 64-64-10, 10 clients a round) / one"
    alone, together = _measure_both(works.digits_study(1), works.digits_study(10), 3 if quick else 9, 20)
    return [_compare(what, 7.0, alone, together)]


def measure_folds(quick: bool) -> list[BenchResult]:
    """Measures the ratio of the CPU times of a round with twenty folds and with one fold."""
    pin_to_one_core()
    epochs = 4 if quick else 40
    what = f"twenty folds of Boston ({epochs} epochs, batch 1) / one fold"
    alone, together = _measure_both(works.boston(epochs, 0), works.boston(epochs), 2 if quick else 5, 1)
    return [_compare(what, 5.0, alone, together)]


def measure_buffered(quick: bool) -> list[BenchResult]:
    """Measures the ratio of the CPU times of a job without rounds (clients do not wait) and of a job in rounds."""
    pin_to_one_core()
    in_rounds, flying = works.small_clients(1000, 100), works.buffered_clients(1000, 100, goal=10)
    laps = [(simulate(in_rounds.study())[0], 10), (simulate(flying.study())[0], 100)]
    sync, steps = take_turns(laps, 5 if quick else 15)
    alone, buffered = (Cost(one.cpu / jobs, one.wall / jobs) for one, jobs in ((sync, 100), (steps, 10)))
    note = f"{1e6 * alone.cpu:.1f} us CPU a job in rounds, {1e6 * buffered.cpu:.1f} us without"
    what = "a job of 1,000 clients, 100 at the same time: without rounds, 10 uploads a server step / in rounds"
    return [BenchResult(what, buffered.cpu / alone.cpu, "", 1.3, False, buffered.wall / alone.wall, note)]


def _measure_both(one: BenchWork, many: BenchWork, repeats: int, rounds: int) -> list[Cost]:
    """Measures the cost of a round of one world, and of a round of many worlds in one run."""
    return take_turns([(simulate(work.study())[0], rounds) for work in (one, many)], repeats)


def _compare(what: str, target: float, alone: Cost, together: Cost) -> BenchResult:
    """Divides the cost of many worlds in one run by the cost of one world."""
    note = f"{1e3 * alone.cpu:.2f} ms CPU a round alone, {1e3 * together.cpu:.2f} ms together"
    return BenchResult(what, together.cpu / alone.cpu, "", target, False, together.wall / alone.wall, note)


def measure_million(quick: bool) -> list[BenchResult]:
    """Measures the ratio of the CPU times with a million and with ten thousand generated clients, and peak memory."""
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
    """Measures the growth of resident memory over whole runs, with run directory, evaluation and checkpoints."""
    rounds = 300 if quick else 1000
    work = works.small_clients(1000, 100)
    results = [_growth(f"memory growth over {rounds} rounds, inline", work, rounds, lambda: float(measure_resident()))]
    if not quick:
        scenario = replace(work.scenario, runtime="ray", clients=replace(work.scenario.clients, actors=2))
        work = work._replace(scenario=scenario)
        results.append(_growth("same, the client actors of Ray", work, rounds, _measure_actors))
    return results


def _measure_actors() -> float:
    """Measures the resident bytes of all client actors."""
    return float(sum(one.resident for one in list_tree() if one.command.startswith("ray::Client")))


def _growth(what: str, work: BenchWork, rounds: int, size: Callable[[], float]) -> BenchResult:
    """Estimates the growth of resident memory per round by least squares, after a warm-up."""
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
    """Measures the ratio of the CPU times of a whole study, from command to report, and of a plain training loop."""
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


def _measure_call(arguments: list[str]) -> Cost:
    """Measures the cost of one call of the command line."""
    cpu, wall = _children_cpu(), time.perf_counter()
    command = [sys.executable, "-m", "fedray", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FedrayError(f"fedray {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
    return Cost(_children_cpu() - cpu, time.perf_counter() - wall)


def _children_cpu() -> float:
    """Measures the CPU seconds of the processes that this one has started and waited for."""
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------------------------------------------------------------
# The row for evaluation: CPU seconds to score five models and their ensemble, divided by those of a plain loop.

PIECE = 500  # samples in a batch of the plain loop


def measure_evaluation(quick: bool) -> list[BenchResult]:
    """Measures the ratio of the costs of fedray and of a plain loop for scoring five models and their ensemble."""
    small = works.ensemble_of(works.plain_mlp, (64,), 2_000)
    large = works.ensemble_of(works.small_cnn, (1, 28, 28), 2_000)
    repeats = 3 if quick else 9
    what = "evaluation of five MLPs 64-64-10 and their mean, 2,000 samples"
    found = _compare_evaluations(what, small, (20, 20), repeats)
    return [found, _compare_evaluations("the same of CNNs 10-20-fc50", large, (1, 1), repeats)]


def _compare_evaluations(what: str, work: BenchWork, rounds: tuple[int, int], repeats: int) -> BenchResult:
    """Measures the ratio of costs for one work."""
    pin_to_one_core()
    plain, fedray, _ = make_evaluations(work)
    slow, fast = take_turns([(plain, rounds[0]), (fedray, rounds[1])], repeats)
    note = f"plain {1e3 * slow.cpu:.2f}, fedray {1e3 * fast.cpu:.2f} ms CPU; fedray has more scores (nll, ECE, members)"
    return BenchResult(what, fast.cpu / slow.cpu, "", None, False, fast.wall / slow.wall, note)


def make_evaluations(work: BenchWork) -> tuple[Work, Work, dict[str, float]]:
    """Returns an evaluation by a plain loop, one by fedray, and a dict with the latest accuracy of each.

    Example:
        >>> work = works.ensemble_of(works.plain_mlp, (64,), tested=20)
        >>> plain, fedray, scores = make_evaluations(work)
        >>> plain(1), fedray(1)
        (None, None)
        >>> abs(scores["plain"] - scores["fedray"]) < 1e-6  # the accuracy of the ensemble
        True
    """
    study = work.study()
    evaluate = make_evaluator(study, Inline(study))
    progress = begin_progress(study, study.method.phase)
    world, layout, scores = works.make_federation(study, work.module), study.net.layout, dict[str, float]()
    test = study.shards.data.test
    worlds = torch.zeros(1, dtype=torch.long)
    x = study.shards.normalize(torch.as_tensor(test.x)[None], worlds)[0]
    y = torch.as_tensor(test.y)

    def plain(rounds: int) -> None:
        for _ in range(rounds):
            total = torch.zeros(len(x), study.classes)
            for row in progress.state.models:
                world.model.load_state_dict(dict(layout.views(row)))
                with torch.no_grad():
                    total += torch.cat([world.model(piece).softmax(-1) for piece in torch.split(x, PIECE)])
            scores["plain"] = float((total.argmax(-1) == y).float().mean())

    def fedray(rounds: int) -> None:
        for _ in range(rounds):
            scores["fedray"] = evaluate(progress)[0]["accuracy"]

    return plain, fedray, scores
