"""Conformal scores of rows: from the raw outputs of the models that answer, with everybody's weights or a client's own.

Example:
    >>> found = RowScores(np.array([[0.3, 0.8], [0.9, 0.2]]), None, np.array([0, 0]))
    >>> find_true_scores(found).tolist(), cover_rows(found, 0.8).covered.tolist()
    ([0.3, 0.9], [1.0, 0.0])
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedray.core import rng
from fedray.core.method import Answer
from fedray.core.types import FloatArray, IntArray
from fedray.evaluation.present import weigh_present
from fedray.evaluation.regression import Members, read_members
from fedray.metrics import ensemble
from fedray.metrics.conformal import ConformalRule, Sets, cover_labels, cover_targets, score_labels
from fedray.simulation.study import Study


class RowAnswers(NamedTuple):
    """What the models that answer say about some rows.

    Attributes:
        votes: of each model, which their average sums up, `[K, n, C]`; None for a regression.
        members: means and variances of each model; None for classes.
        y: labels `[n]`, or targets `[n]` in their own unit.
        u: uniform numbers for the scores, `[n]`.
        weights: everybody's over the models, `[K]`; None: equal ones.
    """

    votes: FloatArray | None
    members: Members | None
    y: Any
    u: FloatArray
    weights: FloatArray | None = None


class RowScores(NamedTuple):
    """The scores of rows before a threshold is known.

    Attributes:
        labels: of each label, `[n, C]`; None for a regression.
        moments: mean and standard deviation of the answer, `[n]` each; None for classes.
        y: labels or targets, `[n]`.
    """

    labels: FloatArray | None
    moments: tuple[FloatArray, FloatArray] | None
    y: Any


def draw_uniform(study: Study, world: int, split: str, rows: IntArray) -> FloatArray:
    """The uniform numbers of the scores of some rows of a split, `[n]`: a row has the same in every round."""
    return rng.uniform(rng.keys(int(study.seeds[world]), f"conformal {split}", rows), 1)[..., 0]


def read_answers(
    study: Study,
    world: int,
    outputs: Tensor,
    split: str,
    answer: Answer,
    *,
    rows: IntArray | None = None,
    residual: float | None = None,
) -> RowAnswers:
    """What models say about the rows of a split.

    Args:
        study: what was trained.
        world: number of the world.
        outputs: raw outputs of the models that answer on these rows, `[K, n, C]`.
        split: `test` or `hold_out`.
        answer: the models that answer.
        rows: places in the split, `[n]`; None: all of them.
        residual: mean training residual variance in standardized units, if known.
    """
    y = study.split(split, world)[1].numpy()
    rows = np.arange(len(y)) if rows is None else rows
    u = draw_uniform(study, world, split, rows)
    if study.classes:
        if answer.combine is not None:  # one voter, who says what the rule says
            return RowAnswers(answer.combine(world, ensemble.probabilities(outputs.numpy()))[None], None, y[rows], u)
        votes = ensemble.member_votes(outputs.numpy(), study.evaluation.average)
        if study.parts:  # a stack answers by its first row
            return RowAnswers(votes[:1], None, y[rows], u)
        return RowAnswers(votes, None, y[rows], u, weigh_present(answer, world))
    members = read_members(study, world, outputs, split, answer, rows=rows, residual=residual)
    return RowAnswers(None, members, members.y, u, members.weights)


def score_rows(
    study: Study, of: RowAnswers, rows: IntArray | None = None, weights: FloatArray | None = None
) -> RowScores:
    """The scores of some rows.

    Args:
        study: what was trained; it has a rule.
        of: what the models say.
        rows: places in `of`, `[n]`; None: all of them.
        weights: over the models, `[K]`; None: those of everybody.
    """
    weights = of.weights if weights is None else weights
    chosen: Any = slice(None) if rows is None else rows
    models: Any = slice(None) if weights is None else weights > 0
    w = None if weights is None else weights[models]
    if of.votes is not None:
        mean = ensemble.average(of.votes[models][:, chosen], "outputs", w)
        probs = ensemble.probabilities(mean) if study.evaluation.average == "logits" else mean
        return RowScores(score_labels(probs, of.u[chosen], get_rule(study)), None, of.y[chosen])
    assert of.members is not None
    own = None if of.members.variances is None else of.members.variances[models][:, chosen]
    moments = ensemble.mixture_moments(of.members.means[models][:, chosen], w, own)
    sd = np.sqrt(np.maximum(moments.variance + of.members.noise, of.members.floor))
    return RowScores(None, (moments.mean, sd), of.y[chosen])


def get_rule(study: Study) -> ConformalRule:
    """The rule of a study that has one."""
    assert study.evaluation.conformal is not None
    return study.evaluation.conformal


def find_true_scores(found: RowScores) -> FloatArray:
    """The scores of the right answers, `[n]`."""
    if found.labels is not None:
        return np.asarray(found.labels[np.arange(len(found.y)), found.y])
    assert found.moments is not None
    mean, sd = found.moments
    return np.asarray(np.abs(found.y - mean) / sd)


def cover_rows(found: RowScores, threshold: float) -> Sets:
    """What the sets of rows hold."""
    if found.labels is not None:
        return cover_labels(found.labels, found.y, threshold)
    assert found.moments is not None
    return cover_targets(*found.moments, found.y, threshold)
