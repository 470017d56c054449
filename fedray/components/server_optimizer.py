"""Server optimizers: the move of any server is taken as a pseudo-gradient.

The inner server may be a mean, a mean by tier, or a robust one. Only trainable numbers are moved: float buffers
(BatchNorm) stay as the inner server left them. A model that nobody trained in a round keeps its weights and the state
of its optimizer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedray.components.aggregation import Rows, place_change, step_and_move, trained_models
from fedray.core.errors import BadInput
from fedray.core.method import Server
from fedray.core.types import ServerOptimizerKind, State, Stats

BETA2, TAU = 0.99, 1e-3  # Reddi et al. 2021, section 5.1


def with_optimizer(
    base: Server, rows: Rows, trainable: int, kind: ServerOptimizerKind, *, lr: float, momentum: float = 0.9
) -> Server:
    """The inner server's move is a pseudo-gradient `g` of a server optimizer.

    `momentum`: `m <- momentum m + g`, `w <- w + lr m` (FedAvgM, Hsu et al. 2019; momentum 0 and lr 1 are no optimizer).
    `adam` and `yogi`: Reddi et al. 2021, Alg. 2: `m <- momentum m + (1 - momentum) g`, `v <- 0.99 v + 0.01 g^2` or
    `v <- v - 0.01 g^2 sign(v - g^2)`, `w <- w + lr m / (sqrt(v) + tau)`, tau = 1e-3, v starting at tau^2.

    Args:
        base: the inner server.
        rows: the rows of the state.
        trainable: p, the numbers of a row that are moved.
        kind: momentum, adam or yogi.
        lr: above 0.
        momentum: in [0, 1).

    Raises:
        BadInput: in a step, the state has no memory of the optimizer, because another `init` took the place of its own.

    Example:
        >>> from fedray.components.aggregation import mean
        >>> server = with_optimizer(mean(Rows(1, 1)), Rows(1, 1), 3, "adam", lr=0.1)
        >>> sorted(server.init(torch.zeros(1, 3)))
        ['optimizer_first', 'optimizer_second']
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        zero = torch.zeros(len(models), trainable, dtype=torch.float64)
        second = {} if kind == "momentum" else {"optimizer_second": zero + TAU**2}
        return {**base.init(models), "optimizer_first": zero, **second}

    def step(state: State, stats: Stats, t: int) -> State:
        if "optimizer_first" not in state.extra:
            raise BadInput(
                f"server.optimizer = {kind} finds no 'optimizer_first' in the state's extra: a server.init that takes "
                "the place of another one returns its tensors too, {**phase.server.init(models), ...}"
            )
        after, g = step_and_move(base, state, stats, t, trainable)
        trained, extra = trained_models(stats, rows), dict(after.extra)
        before = state.extra["optimizer_first"]  # the inner server may return an extra without it
        first = before * momentum + (g if kind == "momentum" else (1.0 - momentum) * g)
        change = first
        if kind != "momentum":
            v, square = state.extra["optimizer_second"], g.square()
            down = (1.0 - BETA2) * (v - square if kind == "adam" else square * torch.sign(v - square))
            second = v - down
            change = first / (second.sqrt() + TAU)
            extra["optimizer_second"] = torch.where(trained, second, v)
        extra["optimizer_first"] = torch.where(trained, first, before)
        return place_change(state, after, lr * change, trained)._replace(extra=extra)

    return Server(init, base.reduce, step, base.keeps)
