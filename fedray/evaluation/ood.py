"""How uncertain the answers to out-of-distribution inputs are, beside those to the rows of a split.

Example:
    >>> import fedray
    >>> keys = {"rounds": 5, "clients": 10, "evaluate": {"every": 5, "ood": "noise"}}
    >>> run = fedray.run(keys, runtime="inline", report=False)
    >>> run.metrics["ood_auroc"] > 0.5
    True
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import FloatArray
from fedray.evaluation.present import answer_world, weigh_present
from fedray.metrics import ensemble
from fedray.metrics.ood import auroc, fpr95
from fedray.simulation.study import Study

DRAWN_BINS = 20  # of the entropy, in the report's picture


class _Uncertainty(NamedTuple):
    """The uncertainty of each row: entropy of the answer `[n]`, and the part of disagreement `[n]`, if there is one."""

    total: FloatArray
    knowledge: FloatArray | None


def score_ood(study: Study, world: int, known: Tensor, unknown: Tensor, answer: Answer) -> dict[str, float]:
    """The scores of out-of-distribution detection by a world's answers.

    Args:
        study: what was trained.
        world: number of the world.
        known: raw outputs of all models on the rows of a split, `[K, n, C]`.
        unknown: the same on the out-of-distribution inputs, `[K, m, C]`.
        answer: the models that answer.
    """
    inside, outside = (_measure_uncertainty(study, world, outputs, answer) for outputs in (known, unknown))
    scores = {
        "ood_auroc": auroc(outside.total, inside.total),
        "ood_fpr95": fpr95(outside.total, inside.total),
        "ood_entropy": float(outside.total.mean()),
    }
    if inside.knowledge is not None and outside.knowledge is not None:
        scores["ood_auroc_knowledge"] = auroc(outside.knowledge, inside.knowledge)
    return scores


def collect_ood_report(study: Study, known: Tensor, unknown: Tensor, answer: Answer) -> dict[str, Any]:
    """Arrays for the report's picture of the first world.

    Args:
        study: what was trained.
        known: raw outputs of all models on the test rows, `[K, n, C]`.
        unknown: the same on the out-of-distribution inputs, `[K, m, C]`.
        answer: the models that answer.

    Returns:
        `ood_entropies`, `[bins, 3]`: the lower end of each bin of the entropy, and the shares of the test rows and of
        the other inputs in it; and `ood_auroc`, `[1]`.
    """
    both = [_measure_uncertainty(study, 0, outputs, answer).total for outputs in (known, unknown)]
    edges = np.linspace(0.0, math.log(study.classes), DRAWN_BINS + 1)
    shares = [np.histogram(np.minimum(each, edges[-1]), edges)[0] / len(each) for each in both]
    return {
        "ood_entropies": np.stack([edges[:-1], *shares], axis=1),
        "ood_auroc": np.array([auroc(both[1], both[0])]),
    }


def _measure_uncertainty(study: Study, world: int, outputs: Tensor, answer: Answer) -> _Uncertainty:
    """The uncertainty of the answers to some rows; a stack answers by its first row, which nobody disagrees with."""
    if study.parts:
        return _Uncertainty(ensemble.entropies(ensemble.probabilities(outputs[0].numpy())), None)
    members, mean = answer_world(outputs, study.evaluation.average, answer, world)
    total = ensemble.entropies(mean)
    if len(members) == 1 or answer.combine is not None:  # the parts sum to the total of a mean alone
        return _Uncertainty(total, None)
    each, weights = ensemble.entropies(members), weigh_present(answer, world)
    return _Uncertainty(total, np.maximum(total - np.average(each, axis=0, weights=weights), 0.0))
