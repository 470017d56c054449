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
from torch.func import functional_call

from fedray.core import rng
from fedray.core.types import EVALUATED_ROWS, Net
from fedray.models.loss import per_sample

MOMENTUM = 0.9  # Chen and Chao 2021, appendix


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


def train_student(net: Net, how: Distil, x: Tensor, teachers: Tensor, key: rng.Keys) -> Tensor:
    """The distilled row `[d]`.

    Args:
        net: the network of student and teachers.
        how: how the student learns.
        x: inputs without labels, `[n, ...]`.
        teachers: `[S, d]`; the first is the start.
        key: the address of the order of the inputs.
    """
    net.module.eval()
    target = average_teachers(net, how, x, teachers)
    tensors = [view.clone() for view in net.layout.views(teachers[0]).values()]
    params = [t.requires_grad_() for t in tensors[: net.layout.trainable_tensors]]
    velocity = [torch.zeros_like(p) for p in params]
    total, kept = torch.zeros_like(teachers[0], dtype=torch.float64), 0
    for epoch in range(how.epochs):
        order = torch.from_numpy(rng.permutations(rng.fresh(key, epoch), len(x)))
        for a in range(0, len(x), how.batch_size):
            batch = order[a : a + how.batch_size]
            out = functional_call(net.module, dict(zip(net.layout.names, tensors, strict=True)), (x[batch],))
            grads = torch.autograd.grad(loss_to_teachers(net, out, target[batch]), params)
            with torch.no_grad():
                torch._foreach_mul_(velocity, MOMENTUM)
                torch._foreach_add_(velocity, list(grads))
                torch._foreach_add_(params, velocity, alpha=-how.lr)
        if epoch >= how.epochs // 2:
            total += torch.cat([t.detach().reshape(-1) for t in tensors]).double()
            kept += 1
    return (total / kept).to(teachers.dtype) if kept else teachers[0]


def average_teachers(net: Net, how: Distil, x: Tensor, teachers: Tensor) -> Tensor:
    """What the student aims at, `[n, C]`: sharpened mean probabilities, or mean outputs.

    Args:
        net: the network.
        how: has the temperature.
        x: inputs `[n, ...]`.
        teachers: `[S, d]`.
    """
    total = torch.zeros(len(x), net.outputs, dtype=torch.float64)
    for row in teachers:
        out = ask_model(net, row, x)
        total += out.softmax(-1) if net.objective == "cross_entropy" else out
    mean = total / len(teachers)
    if net.objective == "cross_entropy":
        mean = mean.pow(1.0 / how.temperature)
        mean /= mean.sum(-1, keepdim=True)
    return mean.to(teachers.dtype)


def ask_model(net: Net, row: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[n, C]`, float64, of one model `[d]` on inputs `[n, ...]`, without gradients."""
    views = net.layout.views(row)
    with torch.no_grad():
        parts = [functional_call(net.module, views, (part,)) for part in torch.split(x, EVALUATED_ROWS)]
    return torch.cat(parts).double()


def loss_to_teachers(net: Net, out: Tensor, target: Tensor) -> Tensor:
    """What a student minimizes on a batch: its cross entropy to the teachers' probabilities, or half the squared error.

    Args:
        net: the network.
        out: raw outputs of the student, `[B, C]`.
        target: probabilities or outputs of the teachers, `[B, C]`.
    """
    if net.objective == "cross_entropy":
        return -(target * out.log_softmax(-1)).sum(-1).mean()
    return per_sample("half_mse", out, target).mean()
