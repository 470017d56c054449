"""The learning rate of each world, chosen inside the training part: `local.lr_grid`.

Before the run every (replicate, fold) trains with each candidate, all of them side by side as further worlds of one
training. `data.hold_out` of every client's rows is withheld from it (a fifth, where the scenario withholds none), and
each world takes the candidate of lowest held-out nll. Where known clients answer with models or weights of their own,
it is the mean nll of these answers, each on its client's withheld rows (of a regression, of their RMSE). The test rows
are never read. The run then trains on what the scenario says.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedray.assembly.own_training import drop_watchers
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import Diverged, FedrayError
from fedray.core.types import EVALUATED_CLIENTS
from fedray.evaluation.evaluate import make_evaluator
from fedray.experiments.predict import Predictor
from fedray.files.sealed import read_sealed, write_sealed
from fedray.metrics.classification import nll
from fedray.runtime.session import Measure, Snapshot
from fedray.scenario.evaluation import EvaluateKeys
from fedray.scenario.loader import dump_scenario, to_plain
from fedray.scenario.reading import answers_clients_apart
from fedray.scenario.schema import Scenario
from fedray.simulation.interfaces import Progress, Runtime
from fedray.simulation.stopping import WITHHELD
from fedray.simulation.study import Study
from fedray.storage import directory, tables
from fedray.storage.mending import warn_of_damage

HELD_OUT_SHARE = 0.2  # of every client's rows, where the scenario withholds none
SCORE = "hold_out_nll"
OWN_SCORE, OWN_ERROR = "hold_out_personal_nll", "hold_out_personal_rmse"  # of the answers that clients use
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
        name, scores = _score_candidates(scenario, out / "candidates", own, grid, train)
        worlds = [
            {"replicate": replicate, "fold": fold, "lr": choose_best(each, grid), name: each}
            for (replicate, fold), each in sorted(scores.items())
        ]
        write_sealed(path, {"candidates": grid, "worlds": worlds})
    return replace(own, rates=tuple(float(world["lr"]) for world in read_sealed(path)["worlds"]))


def _score_candidates(
    scenario: Scenario, folder: Path, own: UserObjects, grid: list[float], train: Train
) -> tuple[str, Scores]:
    """A held-out score and its value for every candidate that trains, the smallest first, by (replicate, fold)."""
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
        table = tables.read_table(candidates, "rounds")
        name = next((name for name in (OWN_SCORE, OWN_ERROR) if name in table.column_names), SCORE)
        for row in table.to_pylist():  # sorted: candidate after candidate
            if row["round"] == trial.rounds:
                scores.setdefault((row["replicate"] % scenario.replicates, row["fold"]), []).append(row[name])
        return name, scores
    raise FedrayError(f"local.lr_grid = {grid}: training diverges with each of them: give smaller ones")


def make_candidate_scenario(scenario: Scenario) -> Scenario:
    """What the candidates train: the scenario in one process, without some rows, scored once, at its end."""
    data = replace(scenario.data, hold_out=scenario.data.hold_out or HELD_OUT_SHARE)
    once = EvaluateKeys(every=max(1, scenario.rounds), personal=answers_clients_apart(to_plain(scenario)))
    local = replace(scenario.local, lr_grid=[])
    return replace(scenario, runtime="inline", data=data, local=local, evaluate=once, loggers=[], table=[])


def make_held_out_evaluator(study: Study, runtime: Runtime) -> Callable[[Progress], list[dict[str, Any]]]:
    """A function that gives the usual scores without those of the test set, and the nll of clients' own answers."""
    usual = make_evaluator(study, runtime, test=False)

    def evaluate(progress: Progress) -> list[dict[str, Any]]:
        rows = usual(progress)
        if not study.classes or not any(f"{WITHHELD}personal_accuracy" in row for row in rows):
            return rows
        predictor = Predictor(study, progress.state, runtime.private())
        return [row | {OWN_SCORE: _measure_own_loss(predictor, world)} for world, row in enumerate(rows)]

    return evaluate


def _measure_own_loss(predictor: Predictor, world: int) -> float:
    """The mean over the known clients of the nll of their own answers, each on the client's withheld rows."""
    study, losses = predictor.study, []
    x, y = study.split("hold_out", world)
    for client in range(min(study.clients.number, EVALUATED_CLIENTS)):
        rows = torch.from_numpy(study.shards.client_holdout(world, client))
        if len(rows):
            losses.append(nll(predictor.ask(x[rows], world, client)[0].mean, y[rows].numpy()))
    return float(np.mean(losses)) if losses else math.nan


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
