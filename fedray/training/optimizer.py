"""One optimizer step for stacked parameters: the same few lines for every engine.

The gradient of a lane is `data gradient + weight_decay w + pull (w - anchor) + offset`; SGD and Adam follow torch.optim
(coupled weight decay; Adam with betas 0.9 and 0.999, eps 1e-8).

Example:
    Two lanes of one parameter; the second one gets no gradient.

    >>> step = make_optimizer(Local(lr=0.1), 0.1, [], [])
    >>> params = [torch.tensor([[1.0], [1.0]])]
    >>> step(params, [torch.tensor([[2.0], [0.0]])], None)
    >>> params[0].flatten().tolist()
    [0.800000011920929, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedray.core.method import Local
from fedray.core.types import Layout

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # torch.optim.Adam's defaults
Step = Callable[[Sequence[Tensor], Sequence[Tensor], int | None], None]  # (parameters, gradients, lanes), in place
Complete = Callable[[Sequence[Tensor], Sequence[Tensor], "int | None"], list[Tensor]]
_Move = Callable[[list[Tensor], list[Tensor], int | None], None]


def split_rows(layout: Layout, rows: Tensor) -> list[Tensor]:
    """`[W, d]` -> one contiguous tensor `[W, *shape]` a name, copied."""
    return [view.contiguous().clone() for view in layout.views(rows).values()]


def join_rows(tensors: Sequence[Tensor], lanes: int) -> Tensor:
    """The inverse of `split_rows` for the first `lanes` lanes: `[lanes, d]`."""
    return torch.cat([tensor[:lanes].reshape(lanes, -1) for tensor in tensors], dim=1)


def make_optimizer(
    local: Local,
    lr: float,
    anchor: Sequence[Tensor],
    offset: Sequence[Tensor],
    velocities: list[Tensor] | None = None,
) -> Step:
    """A function `step(params, grads, lanes)` that updates the first lanes (None: all) of stacked tensors in place.

    Args:
        local: The optimizer and its settings.
        lr: Learning rate of this round.
        anchor: What parameters are pulled towards, stacked as they are; empty: there is no pull.
        offset: What is added to the gradients, stacked as the parameters are; empty: nothing.
        velocities: Where the momentum of SGD is kept; empty: it begins at zeros. None: a list of its own.
    """
    kept = [] if velocities is None else velocities
    move = _make_adam(lr) if local.optimizer == "adam" else _make_sgd(lr, local.momentum, kept)
    complete = make_complete(local, anchor, offset)

    def step(params: Sequence[Tensor], grads: Sequence[Tensor], lanes: int | None) -> None:
        now = list(params) if lanes is None else [p[:lanes] for p in params]
        move(now, complete(now, grads, lanes), lanes)

    return step


def make_complete(local: Local, anchor: Sequence[Tensor], offset: Sequence[Tensor]) -> Complete:
    """A function (first lanes of the parameters, gradients of the data, lanes) -> the whole local gradients.

    Args:
        local: Its weight decay and pull.
        anchor: What parameters are pulled towards, stacked as they are; empty: there is no pull.
        offset: What is added to the gradients, stacked as the parameters are; empty: nothing.
    """

    def complete(now: Sequence[Tensor], grads: Sequence[Tensor], lanes: int | None) -> list[Tensor]:
        g = list(grads)
        if offset:
            g = list(torch._foreach_add(g, [o[:lanes] for o in offset]))
        if local.weight_decay:
            g = list(torch._foreach_add(g, list(now), alpha=local.weight_decay))
        if local.pull:  # the difference first: 0 at the anchor, and no rounding error that Adam divides by itself
            away = torch._foreach_sub(list(now), [a[:lanes] for a in anchor])
            g = list(torch._foreach_add(g, away, alpha=local.pull))
        return g

    return complete


def is_plain_sgd(local: Local) -> bool:
    """Whether the update is linear in the gradient of the same step: SGD without momentum."""
    return local.optimizer == "sgd" and not local.momentum


def _make_adam(lr: float) -> _Move:
    """Adam: a function (first lanes of the parameters, their whole gradients, lanes)."""
    moments: list[list[Tensor]] = []
    count = 0

    def move(now: list[Tensor], g: list[Tensor], lanes: int | None) -> None:
        nonlocal count
        count += 1
        if not moments:
            moments.extend([torch.zeros_like(p) for p in now] for _ in range(2))
        first, second = ([m[:lanes] for m in moment] for moment in moments)
        torch._foreach_lerp_(first, g, 1.0 - _BETA1)
        torch._foreach_mul_(second, _BETA2)
        torch._foreach_addcmul_(second, g, g, 1.0 - _BETA2)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, (1.0 - _BETA2**count) ** 0.5)
        torch._foreach_add_(root, _EPS)
        torch._foreach_addcdiv_(now, first, root, -lr / (1.0 - _BETA1**count))

    return move


def _make_sgd(lr: float, momentum: float, velocities: list[Tensor]) -> _Move:
    """SGD: a function (first lanes of the parameters, their whole gradients, lanes)."""

    def move(now: list[Tensor], g: list[Tensor], lanes: int | None) -> None:
        if momentum:
            if not velocities:
                velocities.extend(torch.zeros_like(p) for p in now)
            velocity = [v[:lanes] for v in velocities]
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, g)
            g = velocity
        torch._foreach_add_(now, g, alpha=-lr)

    return move
