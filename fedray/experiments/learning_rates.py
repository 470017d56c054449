"""The learning rate of each world, chosen inside the training part: `local.lr_grid`.

Before the run every (replicate, fold) trains with each candidate, all of them side by side as further worlds of one
training. `data.hold_out` of every client's rows is withheld from it (a fifth, where the scenario withholds none), and
each world takes the candidate of lowest held-out nll. The test rows are never read. The run then trains on what the
scenario says.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedray.assembly.user_objects import UserObjects
from fedray.core import files
from fedray.core.errors import Diverged, FedrayError
from fedray.evaluation.evaluate import make_evaluator
from fedray.runtime.session import Measure, Snapshot
from fedray.scenario.loader import dump_scenario
from fedray.scenario.schema import EvaluateKeys, Scenario
from fedray.simulation.interfaces import Progress, Runtime
from fedray.simulation.study import Study
from fedray.storage import directory, tables

HELD_OUT = 0.2  # of every client's rows, where the scenario withholds none
SCORE = "hold_out_nll"
Scores = dict[tuple[int, int], list[float]]
Train = Callable[[Scenario, Path, UserObjects, Callable[[Snapshot], None], Measure], Any]


def choose_learning_rates(scenario: Scenario, out: Path, own: UserObjects, train: Train) -> UserObjects:
    """`own` with the learning rate of each world, which `learning_rates.json` of the run directory keeps.

    A candidate with which some world diverges is dropped, and those above it: it is the largest that diverges first.

    Args:
        train: runs a scenario in this process.

    Raises:
        FedrayError: training diverges with every candidate.
    """
    path, grid = out / "learning_rates.json", sorted(scenario.local.lr_grid)
    if not path.is_file():
        found = _scores(scenario, out / "candidates", own, grid, train)
        worlds = [
            {"replicate": replicate, "fold": fold, "lr": _best(scores, grid), SCORE: scores}
            for (replicate, fold), scores in sorted(found.items())
        ]
        files.write_json(path, {"candidates": grid, "worlds": worlds})
    return replace(own, rates=tuple(float(world["lr"]) for world in json.loads(path.read_text())["worlds"]))


def _scores(scenario: Scenario, folder: Path, own: UserObjects, grid: list[float], train: Train) -> Scores:
    """The held-out score of every candidate that trains, the smallest first, by (replicate, fold)."""
    trial = rehearse(scenario)
    for number in range(len(grid), 0, -1):
        place = folder / f"smallest_{number}"
        if (place / "diverged").exists():
            continue
        if not (place / "scenario.yaml").is_file():
            shutil.rmtree(place, ignore_errors=True)
            directory.make_run_directory(place, dump_scenario(trial))
        try:
            train(trial, place, replace(own, grid=tuple(grid[:number])), lambda shown: None, held_out_scores)
        except Diverged:
            (place / "diverged").touch()
            continue
        found: Scores = {}
        for row in tables.read_table(place, "rounds").to_pylist():  # sorted: candidate after candidate
            if row["round"] == trial.rounds:
                found.setdefault((row["replicate"] % scenario.replicates, row["fold"]), []).append(row[SCORE])
        return found
    raise FedrayError(f"local.lr_grid = {grid}: training diverges with each of them: give smaller ones")


def rehearse(scenario: Scenario) -> Scenario:
    """What the candidates train: the scenario in one process, without some rows, scored once, at its end."""
    data = replace(scenario.data, hold_out=scenario.data.hold_out or HELD_OUT)
    once = EvaluateKeys(every=max(1, scenario.rounds))
    local = replace(scenario.local, lr_grid=[])
    return replace(scenario, runtime="inline", data=data, local=local, evaluate=once, loggers=[], table=[])


def held_out_scores(study: Study, runtime: Runtime) -> Callable[[Progress], list[dict[str, Any]]]:
    """The usual scores without those of the test set."""
    return make_evaluator(study, runtime, test=False)


def _best(scores: list[float], grid: list[float]) -> float:
    """The candidate of lowest score; of equal ones the smallest. One that is no number never wins over one that is.

    Example:
        >>> _best([0.5, 0.2, float("nan")], [0.01, 0.1, 1.0])
        0.1
    """
    ranked = [score if math.isfinite(score) else math.inf for score in scores]
    return grid[ranked.index(min(ranked))]
