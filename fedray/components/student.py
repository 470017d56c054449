"""Students and teachers by torch, for every network.

Example:
    >>> from torch import nn
    >>> from fedray.models.net import net_of
    >>> net = net_of(lambda: nn.Linear(1, 2), "own", "cross_entropy", 2)
    >>> x, start = torch.ones(3, 1), net.init(0)
    >>> train = begin_student(net, start, Teaching(x, torch.tensor([[0.0, 1.0]]).expand(3, 2), 3, "momentum"))
    >>> student = train([torch.arange(3)] * 50, [0.5] * 50)
    >>> bool(ask_model(net, student, x).softmax(-1)[0, 1] > 0.9)
    True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from fedray.core.student import MOMENTUM, StudentEngine, Teaching, Train
from fedray.core.types import EVALUATED_ROWS, Net
from fedray.models.loss import per_sample


def ask_model(net: Net, row: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[n, C]`, float64, of one model `[d]` on inputs `[n, ...]`, without dropout and gradients."""
    net.module.eval()
    views = net.layout.views(row)
    with torch.no_grad():
        parts = [functional_call(net.module, views, (part,)) for part in torch.split(x, EVALUATED_ROWS)]
    return torch.cat(parts).double()


def begin_student(net: Net, start: Tensor, teaching: Teaching) -> Train:
    """A student at its start, as `StudentEngine.begin`.

    Args:
        net: its network.
        start: where it starts, `[d]`.
        teaching: what it learns.
    """
    net.module.eval()
    tensors = [view.clone() for view in net.layout.views(start).values()]
    params = [t.requires_grad_() for t in tensors[: net.layout.trainable_tensors]]
    names = net.layout.names
    move = _follow_momentum(params) if teaching.optimizer == "momentum" else _follow_adam(params)

    def train(batches: Sequence[Tensor], rates: Sequence[float]) -> Tensor:
        for batch, rate in zip(batches, rates, strict=True):
            out = functional_call(net.module, dict(zip(names, tensors, strict=True)), (teaching.x[batch],))
            move(torch.autograd.grad(loss_to_teachers(net, out, teaching.target[batch]), params), rate)
        return torch.cat([t.detach().reshape(-1) for t in tensors])

    return train


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


def _follow_momentum(params: list[Tensor]) -> Callable[[Sequence[Tensor], float], None]:
    velocity = [torch.zeros_like(p) for p in params]

    def move(grads: Sequence[Tensor], rate: float) -> None:
        with torch.no_grad():
            torch._foreach_mul_(velocity, MOMENTUM)
            torch._foreach_add_(velocity, list(grads))
            torch._foreach_add_(params, velocity, alpha=-rate)

    return move


def _follow_adam(params: list[Tensor]) -> Callable[[Sequence[Tensor], float], None]:
    optimizer = torch.optim.Adam(params)

    def move(grads: Sequence[Tensor], rate: float) -> None:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    return move


TORCH = StudentEngine(ask_model, begin_student)


def use_torch(_net: Net) -> StudentEngine:
    """The engine that has every network."""
    return TORCH
