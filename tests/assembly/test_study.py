"""The worlds of a study: one for each replicate of each fold, with an address of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedray
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.data.types import Dataset, Split, regression
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import draw_first_state

FOLDS = 3


def make_folds() -> Dataset:
    """60 rows of a noisy line, and folds that all hold the same rows out."""
    x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
    y = x + np.sin(7 * x)
    rows = Split(x, y)
    same = (np.arange(0, 50), np.arange(50, 60))
    line = regression("line", rows, rows.take(np.arange(0)))
    shift, scale = (np.repeat(value, FOLDS, 0) for value in (line.shift, line.scale))
    y_shift, y_scale = (np.repeat(value, FOLDS, 0) for value in (line.y_shift, line.y_scale))
    return line._replace(folds=(same,) * FOLDS, shift=shift, scale=scale, y_shift=y_shift, y_scale=y_scale)


def run(fold: Any, **keys: Any) -> fedray.Run:
    scenario = {
        "rounds": 2, "runtime": "inline", "report": False, "method": {"name": "fed_ensemble", "models": 2},
        "clients": {"number": 4}, "local": {"epochs": 2, "lr": 0.05, "batch_size": 4}, "data": {"fold": fold}, **keys,
    }  # fmt: skip
    return fedray.run(scenario, data=make_folds())


def test_the_worlds_are_the_folds_of_one_replicate_after_another() -> None:
    study = build_study(
        read_scenario({"data": {"fold": "all"}, "replicates": 2, "clients": {"number": 4}}),
        UserObjects(data=make_folds()),
    )
    assert [study.place(world) for world in range(study.worlds)] == [(r, f) for r in range(2) for f in range(FOLDS)]


def test_folds_of_equal_rows_are_trained_from_different_first_models_and_batches() -> None:
    """All folds of a replicate started alike, so their spread left out that of the first models and the batches."""
    scenario = read_scenario({"data": {"fold": "all"}, "replicates": 2, "clients": {"number": 4}})
    study = build_study(scenario, UserObjects(data=make_folds()))
    first = draw_first_state(study, study.method.phase).models
    assert len(torch.unique(first, dim=0)) == len(first) == 2 * FOLDS * 5
    assert len(set(study.seeds.tolist())) == 2 * FOLDS
    plan = study.method.phase.schedule(0, None)
    trained = {tuple(plan.model[plan.world == world].tolist()) for world in range(study.worlds)}
    assert len(trained) > 2, "all folds have one schedule"
    scores = [row["rmse"] for row in run("all").rounds.to_pylist() if row["round"] == 2]
    assert len(set(scores)) == FOLDS


def test_a_fold_alone_is_that_fold_among_all_and_fold_0_has_the_seed_of_its_replicate() -> None:
    together = run("all", seed=5)
    for fold in range(FOLDS):
        alone = run(fold, seed=5)
        among = [row["rmse"] for row in together.rounds.to_pylist() if row["fold"] == fold]
        assert [row["rmse"] for row in alone.rounds.to_pylist()] == among
        assert alone.summary["seed"] == together.summary["seed"] == 5
    study = build_study(read_scenario({"seed": 5, "replicates": 3, "clients": {"number": 4}}))
    assert study.seeds.tolist() == [5, 6, 7]


def test_a_regression_with_several_targets_was_scored_on_the_first() -> None:
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    rows = Split(x, np.concatenate([x, -x], axis=1))
    with pytest.raises(BadInput, match="two has 2 targets, but a regression is scored on one: give one column"):
        fedray.run({"rounds": 1, "runtime": "inline", "clients": {"number": 2}}, data=regression("two", rows, rows))


def test_a_deep_ensemble_on_classes_was_told_to_choose_other_data_though_another_objective_does() -> None:
    keys = {"method": "deep_ensemble", "data": {"name": "digits"}}
    with pytest.raises(BadInput, match="digits has classes: set model.objective to auto"):
        build_study(read_scenario(keys), UserObjects())
    found = build_study(read_scenario({**keys, "model": {"objective": "auto"}}), UserObjects())
    assert found.net.objective == "cross_entropy"
