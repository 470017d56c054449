"""The learning rate of each world, chosen inside the training part: `local.lr_grid`.

Before the run every (replicate, fold) trains with each candidate, all of them side by side as further worlds of one
training. `data.hold_out` of every client's rows is withheld from it (a fifth, where the scenario withholds none), and
each world takes the candidate of lowest held-out nll. The test rows are never read. The run then trains on what the
scenario says.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.assembly.own_training import drop_watchers
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import Diverged, FedrayError
from fedray.evaluation.evaluate import make_evaluator
from fedray.files.sealed import read_sealed, write_sealed
from fedray.runtime.session import Measure, Snapshot
from fedray.scenario.evaluation import EvaluateKeys
from fedray.scenario.loader import dump_scenario
from fedray.scenario.schema import Scenario
from fedray.simulation.interfaces import Progress, Runtime
from fedray.simulation.study import Study
from fedray.storage import directory, tables
from fedray.storage.mending import warn_of_damage

HELD_OUT_SHARE = 0.2  # of every client's rows, where the scenario withholds none
SCORE = "hold_out_nll"
Scores = dict[tuple[int, int], list[float]]
Train = Callable[[Scenario, Path, UserObjects, Callable[[Snapshot], None], Measure], Any]


def choose_learning_rates(scenario: Scenario, out: Path, own: UserObjects, train: Train) -> UserObjects:
    """`own` with the learning rate of each world, which `learning_rates.json` of the run directory keeps.

    If training diverges in some world, the largest candidate is dropped, until no world diverges.

    Args:
        scenario: the scenario, whose `local.lr_grid` are the candidates.
        out: the run directory.
        own: the user's Python objects.
        train: runs a scenario in this process (`fedray.experiments.run.run_inline`).

    Raises:
        FedrayError: training diverges with every candidate.
    """
    path, grid = out / "learning_rates.json", sorted(scenario.local.lr_grid)
    if not path.is_file():
        scores = _score_candidates(scenario, out / "candidates", own, grid, train)
        worlds = [
            {"replicate": replicate, "fold": fold, "lr": choose_best(each, grid), SCORE: each}
            for (replicate, fold), each in sorted(scores.items())
        ]
        write_sealed(path, {"candidates": grid, "worlds": worlds})
    return replace(own, rates=tuple(float(world["lr"]) for world in read_sealed(path)["worlds"]))


def _score_candidates(scenario: Scenario, folder: Path, own: UserObjects, grid: list[float], train: Train) -> Scores:
    """The held-out score of every candidate that trains, the smallest first, by (replicate, fold)."""
    trial, training = drop_watchers(make_candidate_scenario(scenario), own.training)
    own = replace(own, training=training)
    for number in range(len(grid), 0, -1):
        candidates = folder / f"smallest_{number}"
        if (candidates / "diverged").exists():
            continue
        if not (candidates / "scenario.yaml").is_file():
            shutil.rmtree(candidates, ignore_errors=True)
            directory.make_run_directory(candidates, dump_scenario(trial))
        warn_of_damage(candidates)
        try:
            train(trial, candidates, replace(own, grid=tuple(grid[:number])), _ignore, make_held_out_evaluator)
        except Diverged:
            (candidates / "diverged").touch()
            continue
        scores: Scores = {}
        for row in tables.read_table(candidates, "rounds").to_pylist():  # sorted: candidate after candidate
            if row["round"] == trial.rounds:
                scores.setdefault((row["replicate"] % scenario.replicates, row["fold"]), []).append(row[SCORE])
        return scores
    raise FedrayError(f"local.lr_grid = {grid}: training diverges with each of them: give smaller ones")


def make_candidate_scenario(scenario: Scenario) -> Scenario:
    """What the candidates train: the scenario in one process, without some rows, scored once, at its end."""
    data = replace(scenario.data, hold_out=scenario.data.hold_out or HELD_OUT_SHARE)
    once = EvaluateKeys(every=max(1, scenario.rounds))
    local = replace(scenario.local, lr_grid=[])
    return replace(scenario, runtime="inline", data=data, local=local, evaluate=once, loggers=[], table=[])


def make_held_out_evaluator(study: Study, runtime: Runtime) -> Callable[[Progress], list[dict[str, Any]]]:
    """A function that gives the usual scores without those of the test set."""
    return make_evaluator(study, runtime, test=False)


def choose_best(scores: list[float], grid: list[float]) -> float:
    """The candidate of lowest score; of equal ones the smallest. A NaN or infinite score never wins over a finite one.

    Args:
        scores: one for each candidate.
        grid: the candidates, rising.

    Example:
        >>> choose_best([0.5, 0.2, float("nan")], [0.01, 0.1, 1.0])
        0.1
    """
    ranked = [score if math.isfinite(score) else math.inf for score in scores]
    return grid[ranked.index(min(ranked))]


def _ignore(_snapshot: Snapshot) -> None:
    """A watcher that does nothing."""
