"""Metrics of a user's own, beside fedray's: a number for each world and split.

Example:
    >>> import fedray
    >>> def hard(scored):
    ...     return (scored.prediction.max(axis=1) < 0.5).mean()
    >>> keys = {"rounds": 1, "clients": {"number": 4}, "runtime": "inline", "report": False}
    >>> run = fedray.run(keys, metrics={"hard": hard})
    >>> [0 <= value <= 1 for value in run.rounds["hard"].to_pylist()]
    [True, True]
"""

from __future__ import annotations

from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import FloatArray
from fedray.evaluation.present import answer_world, drop_absent
from fedray.evaluation.regression import read_members
from fedray.metrics import ensemble
from fedray.metrics.scored import Scored, read_metric
from fedray.simulation.study import Study


def score_own_metrics(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer, *, residual: float | None = None
) -> dict[str, float]:
    """The values of the user's metrics by name; empty without any.

    Args:
        study: what was trained.
        world: number of the world.
        outputs: raw outputs of the models that answer, on the whole split.
        split: `test` or `hold_out`.
        answer: the models that answer.
        residual: mean training residual variance in standardised units, if known.
    """
    metrics = study.evaluation.metrics
    if not metrics:
        return {}
    x, y = study.split(split, world)
    members, prediction, variance = _answer_rows(study, world, outputs, split, answer, residual=residual)
    targets = y.numpy() if study.classes else y.double().numpy().reshape(len(y), -1)[:, 0]
    scored = Scored(prediction, targets, members, x.numpy(), split, *study.place(world), variance)
    return {name: read_metric(name, function, scored) for name, function in metrics.items()}


def _answer_rows(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer, *, residual: float | None
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """The members' answers, and the ensemble's with its variance."""
    if study.parts:
        probs = ensemble.probabilities(outputs.numpy())
        return probs[1:], probs[0], None
    if study.classes:
        return (*answer_world(outputs, study.evaluation.average, answer, world), None)
    of = read_members(study, world, drop_absent(outputs, answer, world), split, answer, residual=residual)
    return of.means, *of.answer
