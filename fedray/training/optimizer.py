"""One optimiser step for stacked parameters: the same few lines for every engine.

The gradient of a lane is `data gradient + weight_decay w + pull (w - anchor) + offset`; SGD and Adam follow torch.optim
(coupled weight decay; Adam with betas 0.9 and 0.999, eps 1e-8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import Layout, Local

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # torch.optim.Adam's defaults
Step = Callable[[Sequence[Tensor], Sequence[Tensor], int | None], None]


def split_rows(layout: Layout, rows: Tensor) -> list[Tensor]:
    """`[W, d]` -> one contiguous tensor `[W, *shape]` a name, copied."""
    return [view.contiguous().clone() for view in layout.views(rows).values()]


def join_rows(tensors: Sequence[Tensor], lanes: int) -> Tensor:
    """The inverse of `split_rows` for the first `lanes` lanes: `[lanes, d]`."""
    return torch.cat([tensor[:lanes].reshape(lanes, -1) for tensor in tensors], dim=1)


def make_optimizer(local: Local, lr: float, anchor: Sequence[Tensor], offset: Sequence[Tensor]) -> Step:
    """A function `step(params, grads, lanes)` that updates the first lanes (None: all) of stacked tensors in place.

    anchor and offset are stacked like the parameters; empty where there is no pull or offset.
    """
    moments: list[list[Tensor]] = []
    count = 0

    def step(params: Sequence[Tensor], grads: Sequence[Tensor], lanes: int | None) -> None:
        nonlocal count
        count += 1
        now = [p[:lanes] for p in params]
        g = list(grads)
        if offset:
            g = list(torch._foreach_add(g, [o[:lanes] for o in offset]))
        if local.weight_decay or local.pull:
            g = list(torch._foreach_add(g, now, alpha=local.weight_decay + local.pull))
        if local.pull:
            torch._foreach_add_(g, [a[:lanes] for a in anchor], alpha=-local.pull)
        _move(local, lr, count, moments, now, g, lanes)

    return step


def count_trainable_tensors(layout: Layout) -> int:
    """How many of the layout's tensors are trainable (they come first)."""
    ends = np.cumsum(layout.sizes)
    return int((ends <= layout.trainable).sum())


def _move(
    local: Local,
    lr: float,
    count: int,
    moments: list[list[Tensor]],
    now: list[Tensor],
    g: list[Tensor],
    lanes: int | None,
) -> None:
    """SGD, SGD with momentum or Adam on the first lanes; `moments` holds the running state."""
    if local.optimizer == "adam":
        if not moments:
            moments += [[torch.zeros_like(p) for p in now], [torch.zeros_like(p) for p in now]]
        first, second = ([m[:lanes] for m in moment] for moment in moments)
        torch._foreach_lerp_(first, g, 1.0 - _BETA1)
        torch._foreach_mul_(second, _BETA2)
        torch._foreach_addcmul_(second, g, g, 1.0 - _BETA2)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, (1.0 - _BETA2**count) ** 0.5)
        torch._foreach_add_(root, _EPS)
        torch._foreach_addcdiv_(now, first, root, -lr / (1.0 - _BETA1**count))
        return
    if local.momentum:
        if not moments:
            moments.append([torch.zeros_like(p) for p in now])
        velocity = [m[:lanes] for m in moments[0]]
        torch._foreach_mul_(velocity, local.momentum)
        torch._foreach_add_(velocity, g)
        g = velocity
    torch._foreach_add_(now, g, alpha=-lr)
