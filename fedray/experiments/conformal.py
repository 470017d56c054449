"""Conformal sets of a prediction: the thresholds of a checkpoint, for any alpha and score, and what lies below them.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> study = build_study(read_scenario({"data": {"hold_out": 0.2}, "clients": {"number": 4}}))
    >>> read_rule(study, {"alpha": 0.2, "score": "aps"})[:3]
    (0.2, 'aps', 'exact')
    >>> read_rule(study, None) is None
    True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.assembly.conformal import check_withheld_rows, make_rule
from fedray.core.errors import BadInput
from fedray.core.method import Answer
from fedray.core.types import VARIANCE_FLOOR, FloatArray, State
from fedray.evaluation.conformal import Thresholds, calibrate
from fedray.evaluation.measured import gather_outputs, measure_models
from fedray.evaluation.regression import find_noise
from fedray.evaluation.row_scores import draw_uniform
from fedray.metrics.conformal import ConformalRule, score_labels
from fedray.scenario.loader import read_scenario
from fedray.simulation.interfaces import Runtime
from fedray.simulation.study import Study


class Calibrated(NamedTuple):
    """What the withheld rows say about the answers of a checkpoint.

    Attributes:
        rule: how sets are made.
        thresholds: of each world.
        residual: mean training residual variance of each world (regression), in standardized units.
    """

    rule: ConformalRule
    thresholds: list[Thresholds]
    residual: dict[int, float]


def read_rule(study: Study, keys: Mapping[str, Any] | None) -> ConformalRule | None:
    """The rule of a prediction: that of the scenario, or another one in its place.

    Args:
        study: what was trained.
        keys: those of `predict.conformal`; None: the scenario's rule, if it has one.

    Raises:
        BadInput: a key is wrong, the run withheld no rows, or too few for alpha.
    """
    if keys is None:
        return study.evaluation.conformal
    if not study.hold_out:
        raise BadInput("conformal needs rows that no model is trained on, and data.hold_out = 0: train with 0.2, say")
    read = read_scenario({"data": {"hold_out": 0.2}, "predict": {"conformal": {"alpha": 0.1, **keys}}})
    assert read.predict.conformal is not None
    rule = make_rule(read.predict.conformal, study.classes, study.shards.data.name)
    check_withheld_rows(rule, study.shards, float(study.scenario["data"]["hold_out"]))
    return rule


def calibrate_answers(study: Study, runtime: Runtime, state: State, rule: ConformalRule) -> Calibrated:
    """The thresholds of the models of a checkpoint.

    Args:
        study: what was trained.
        runtime: where the withheld rows are answered.
        state: the models.
        rule: how sets are made.
    """
    gamma = 0.0 if study.method.one_model_per_client else study.evaluation.gamma
    study = replace(study, evaluation=replace(study.evaluation, conformal=rule, gamma=gamma, ood=False))
    measured = measure_models(study, runtime, state, test=False)
    own = runtime.score_own_sets(state, None) if study.method.phase.is_personal else None
    found = [calibrate(study, w, gather_outputs(study, w, measured), own) for w in range(study.worlds)]
    return Calibrated(rule, found, measured.residual)


def find_sets(study: Study, world: int, found: Calibrated, probs: FloatArray, *, known: bool) -> NDArray[np.bool_]:
    """Which labels are in the set of each row, `[n, C]`.

    Args:
        study: what was trained.
        world: number of the world.
        found: the thresholds.
        probs: of the answer, `[n, C]`.
        known: whether a known client asks.
    """
    u = draw_uniform(study, world, "test", np.arange(len(probs)))
    return np.asarray(~(score_labels(probs, u, found.rule) > _pick(found, world, known)))


def find_intervals(
    study: Study, world: int, found: Calibrated, moments: tuple[FloatArray, FloatArray], answer: Answer, *, known: bool
) -> FloatArray:
    """Lower and upper end of each row's interval, `[n, 2]`, in target units.

    Args:
        study: what was trained.
        world: number of the world.
        found: the thresholds.
        moments: mean and variance of the answer, `[n, 1]` each, the latter without observation noise.
        answer: the models that answer.
        known: whether a known client asks.
    """
    mean, variance = (each.reshape(len(each), -1)[:, 0] for each in moments)
    scale = study.target_scale(world) ** 2
    own = known and study.method.phase.is_personal
    alone = answer.models == 1 and answer.spread is None and study.net.objective != "gaussian_nll"
    noise = find_noise(study, world, answer, alone=alone, residual=None if own else found.residual.get(world))
    sd = np.sqrt(np.maximum(variance + noise * scale, VARIANCE_FLOOR * scale))
    half = _pick(found, world, known) * sd
    return np.stack([mean - half, mean + half], axis=1)


def _pick(found: Calibrated, world: int, known: bool) -> float:
    thresholds = found.thresholds[world]
    return (thresholds.known if known else thresholds.everybody).value
