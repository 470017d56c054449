"""A student at the server: what it learns from, and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from fedray.core.types import Net

MOMENTUM = 0.9  # Chen and Chao 2021, appendix


class Teaching(NamedTuple):
    """What a student learns, and by which rule.

    Attributes:
        x: Network inputs, `[n, ...]`.
        target: What it aims at on each: probabilities, or outputs in a regression, `[n, C]`.
        batch_size: The most inputs of a batch.
        optimizer: SGD with a momentum of 0.9, or Adam with torch's defaults.
    """

    x: Tensor
    target: Tensor
    batch_size: int
    optimizer: Literal["momentum", "adam"]


Ask = Callable[[Net, Tensor, Tensor], Tensor]  # (network, model `[d]`, inputs `[n, ...]`) -> outputs `[n, C]`
Train = Callable[[Sequence[Tensor], Sequence[float]], Tensor]  # (inputs of each batch, rate of each) -> student `[d]`


class StudentEngine(NamedTuple):
    """What computes teachers and students.

    Attributes:
        ask: Answers with a model's raw outputs, in float64.
        begin: (network, start `[d]`, teaching) -> a function that takes the next steps and returns the student behind
            them. A step follows the mean gradient of its batch; buffers stay the start's, and dropout is off.
    """

    ask: Ask
    begin: Callable[[Net, Tensor, Teaching], Train]


EngineOf = Callable[[Net], StudentEngine]
