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

from fedray.core.method import Answer
from fedray.core.types import FloatArray


def drop_absent(outputs: Tensor, answer: Answer, world: int) -> Tensor:
    """The outputs (or losses) of a world's models that have a weight.

    Args:
        outputs: one row a model, `[K, n, ...]`.
        answer: the models that answer, with their weights.
        world: number of the world.
    """
    return outputs if answer.weights is None else outputs[torch.from_numpy(answer.weights[world] > 0)]


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
