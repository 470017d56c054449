"""The models of a world that answer, and the weight of each.

Example:
    >>> from fedray.core.types import State
    >>> state = State(torch.zeros(3, 2), torch.zeros(3, 0, dtype=torch.int64), {})
    >>> answer = Answer(state, 3, weights=np.array([[6.0, 0.0, 2.0]]))
    >>> drop_absent(torch.arange(3), answer, world=0).tolist(), weigh_present(answer, world=0).tolist()
    ([0, 2], [0.75, 0.25])
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.method import Answer
from fedray.core.types import AverageKind, FloatArray
from fedray.metrics import ensemble
from fedray.simulation.study import Study


def drop_absent(outputs: Tensor, answer: Answer, world: int) -> Tensor:
    """The outputs (or losses) of a world's models that have a weight.

    Args:
        outputs: one row a model, `[K, n, ...]`.
        answer: the models that answer, with their weights.
        world: number of the world.
    """
    return outputs if answer.weights is None else outputs[torch.from_numpy(answer.weights[world] > 0)]


def refuse_own_rule(study: Study, answer: Answer) -> None:
    """Raises `BadInput` where a method's rule cannot answer everybody, because the scenario asks for other answers."""
    if answer.combine is None:
        return
    name, average = study.method.name, study.evaluation.average
    if not study.classes:
        raise BadInput(f"method {name}: its Answer has combine, but {study.name} has real targets: leave combine out")
    if study.evaluation.gamma is not None:
        raise BadInput(
            f"method {name}: its Answer has combine, which answers everybody alike: leave predict.gamma and "
            "evaluate.personal out"
        )
    if average == "logits":
        raise BadInput(f"predict.average = {average}: the Answer of {name} has combine instead: leave it out")


def answer_world(outputs: Tensor, kind: AverageKind, answer: Answer, world: int) -> ensemble.ClassAnswer:
    """What the models of a world that answer say, and what they say together: by the method's rule, or their mean.

    Args:
        outputs: logits of all models of the world, `[A, n, C]`.
        kind: `predict.average` of the scenario.
        answer: the models that answer.
        world: number of the world.
    """
    present = drop_absent(outputs, answer, world).numpy()
    found = ensemble.answer_classes(present, kind, weigh_present(answer, world))
    return found if answer.combine is None else found._replace(mean=answer.combine(world, found.members))


def join_voters(outputs: Tensor, answer: Answer, world: int) -> Tensor:
    """The outputs of those whose mean is the answer: of the models, or `[1, n, C]` of the method's rule as one model.

    Args:
        outputs: of all models of the world, `[A, n, C]`.
        answer: the models that answer.
        world: number of the world.
    """
    if answer.combine is None:
        return drop_absent(outputs, answer, world)
    joined = answer.combine(world, ensemble.probabilities(outputs.numpy()))
    return torch.from_numpy(joined).log()[None]  # their softmax is the answer


def weigh_present(answer: Answer, world: int) -> FloatArray | None:
    """The weights of the models that `drop_absent` keeps, `[K]`, which sum to 1; None: they are equal.

    Args:
        answer: the models that answer, with their weights.
        world: number of the world.
    """
    if answer.weights is None:
        return None
    present = answer.weights[world][answer.weights[world] > 0].astype(np.float64)
    if (present == present[0]).all():
        return None
    weights: FloatArray = present / present.sum()
    return weights
