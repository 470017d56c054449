"""Distillation at the server: a student learns from teachers on inputs without labels.

The student starts from the mean and follows SGD with momentum on the teachers' average; its weights are averaged over
the ends of the second half of the epochs (SWA: Izmailov et al. 2018). Classes: cross entropy against the averaged
probabilities sharpened to `p^(1/T) / sum p^(1/T)` (FedBE section 4.2). Regression: squared error against the averaged
outputs. Normalization layers keep the student's statistics, dropout is off.

Example:
    >>> from torch import nn
    >>> from fedray.models.net import net_of
    >>> net = net_of(lambda: nn.Linear(1, 2), "own", "cross_entropy", 2)
    >>> teachers = torch.stack([net.init(0), net.init(1)])
    >>> average_teachers(net, Distil(temperature=1.0), torch.ones(3, 1), teachers).sum(1)
    tensor([1., 1., 1.])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedray.components.student import TORCH, ask_model
from fedray.core import rng
from fedray.core.student import Ask, StudentEngine, Teaching
from fedray.core.types import Net


@dataclass(frozen=True)
class Distil:
    """How the student learns.

    Attributes:
        epochs: passes over the server's inputs.
        lr: learning rate, above 0.
        batch_size: inputs of a step.
        temperature: T, above 0; below 1 it sharpens.
    """

    epochs: int = 20
    lr: float = 0.01
    batch_size: int = 32
    temperature: float = 0.5


def train_student(
    net: Net, how: Distil, x: Tensor, teachers: Tensor, key: rng.Keys, *, engine: StudentEngine = TORCH
) -> Tensor:
    """The distilled row `[d]`.

    Args:
        net: the network of student and teachers.
        how: how the student learns.
        x: inputs without labels, `[n, ...]`.
        teachers: `[S, d]`; the first is the start.
        key: the address of the order of the inputs.
        engine: computes teachers and student.
    """
    target = average_teachers(net, how, x, teachers, ask=engine.ask)
    train = engine.begin(net, teachers[0], Teaching(x, target, how.batch_size, "momentum"))
    total, kept = torch.zeros_like(teachers[0], dtype=torch.float64), 0
    for epoch in range(how.epochs):
        order = torch.from_numpy(rng.permutations(rng.fresh(key, epoch), len(x)))
        batches = torch.split(order, how.batch_size)
        student = train(batches, [how.lr] * len(batches))
        if epoch >= how.epochs // 2:
            total += student.double()
            kept += 1
    return (total / kept).to(teachers.dtype) if kept else teachers[0]


def average_teachers(net: Net, how: Distil, x: Tensor, teachers: Tensor, *, ask: Ask = ask_model) -> Tensor:
    """What the student aims at, `[n, C]`: sharpened mean probabilities, or mean outputs.

    Args:
        net: the network.
        how: has the temperature.
        x: inputs `[n, ...]`.
        teachers: `[S, d]`.
        ask: (network, model, inputs) -> raw outputs.
    """
    total = torch.zeros(len(x), net.outputs, dtype=torch.float64)
    for row in teachers:
        out = ask(net, row, x)
        total += out.softmax(-1) if net.objective == "cross_entropy" else out
    mean = total / len(teachers)
    if net.objective == "cross_entropy":
        mean = mean.pow(1.0 / how.temperature)
        mean /= mean.sum(-1, keepdim=True)
    return mean.to(teachers.dtype)
