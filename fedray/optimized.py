"""Servers around servers: optimisers on the mean delta, and the corrections of FedDyn and SCAFFOLD.

Each wraps any server (mean, by tier, robust) and touches trainable numbers only: float buffers (BatchNorm) stay as the
inner server left them. A model that nobody trained in a round keeps its weights and the optimiser's state.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedray.core import Server, State, Stats, Uploads
from fedray.server import Rows
from fedray.tree import Counts, exact_sum

Kind = Literal["momentum", "adam", "yogi"]
BETA2, TAU = 0.99, 1e-3  # Reddi et al. 2021, section 5.1
CONTROL = "broadcast/control"  # SCAFFOLD's c, which travels with the models


def optimised(base: Server, rows: Rows, trainable: int, kind: Kind, lr: float, momentum: float = 0.9) -> Server:
    """The inner server's move is a pseudo-gradient `g` of a server optimiser.

    momentum: `m <- momentum m + g`, `w <- w + lr m` (FedAvgM, Hsu et al. 2019; momentum 0 and lr 1 are no optimiser).
    adam, yogi: Reddi et al. 2021, Alg. 2: `m <- momentum m + (1 - momentum) g`, `v <- 0.99 v + 0.01 g^2` or
    `v <- v - 0.01 g^2 sign(v - g^2)`, `w <- w + lr m / (sqrt(v) + tau)`, tau = 1e-3, v starting at tau^2.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        zero = torch.zeros(len(models), trainable, dtype=torch.float64)
        second = {} if kind == "momentum" else {"optimizer_second": zero + TAU**2}
        return {**base.init(models), "optimizer_first": zero, **second}

    def step(state: State, stats: Stats, t: int) -> State:
        after, g = _move(base, state, stats, t, trainable)
        trained, extra = _trained(stats, rows), dict(after.extra)
        first = extra["optimizer_first"] * momentum + (g if kind == "momentum" else (1.0 - momentum) * g)
        change = first
        if kind != "momentum":
            v, square = extra["optimizer_second"], g.square()
            down = (1.0 - BETA2) * (v - square if kind == "adam" else square * torch.sign(v - square))
            second = v - down
            change = first / (second.sqrt() + TAU)
            extra["optimizer_second"] = torch.where(trained, second, v)
        extra["optimizer_first"] = torch.where(trained, first, extra["optimizer_first"])
        return _placed(state, after, lr * change, trained)._replace(extra=extra)

    return Server(init, base.reduce, step, base.keeps)


def dynamic(base: Server, rows: Rows, clients: int, alpha: float, trainable: int) -> Server:
    """FedDyn's server: `w <- mean of uploads - h / alpha`, h the running mean of all N clients' corrections.

    As clients change theirs by `-alpha (u - w)`, h moves by `-alpha n / N` times the mean delta of the n uploads.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**base.init(models), "dynamic": torch.zeros(len(models), trainable, dtype=torch.float64)}

    def reduce(uploads: Uploads) -> Stats:
        group = rows.of(uploads)
        jobs = torch.zeros(rows.number, dtype=torch.int64).index_add_(0, group, torch.ones_like(group))
        return {**base.reduce(uploads), "jobs": Counts(jobs)}

    def step(state: State, stats: Stats, t: int) -> State:
        after, g = _move(base, state, stats, t, trainable)
        jobs = stats["jobs"].total[:, None]
        h = after.extra["dynamic"] - alpha * (jobs.double() / clients) * g
        return _placed(state, after, g - h / alpha, jobs > 0)._replace(extra={**after.extra, "dynamic": h})

    return Server(init, reduce, step, base.keeps)


def controlled(base: Server, rows: Rows, clients: int) -> Server:
    """SCAFFOLD's server: beside the models, `c <- c + 1/N sum of the clients' changes`; c is broadcast."""

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**base.init(models), CONTROL: torch.zeros_like(models)}

    def reduce(uploads: Uploads) -> Stats:
        assert uploads.change is not None
        group = rows.of(uploads)
        change = exact_sum(uploads.change, group, rows.number, torch.ones_like(group), limbs=2)
        return {**base.reduce(uploads), "change": change}

    def step(state: State, stats: Stats, t: int) -> State:
        after = base.step(state, stats, t)
        control = after.extra[CONTROL].double() + stats["change"].value() / clients
        return after._replace(extra={**after.extra, CONTROL: control.to(state.models.dtype)})

    return Server(init, reduce, step, base.keeps)


def _move(base: Server, state: State, stats: Stats, t: int, trainable: int) -> tuple[State, Tensor]:
    """The state after the inner server, and how far it moved the trainable numbers, `[M, p]` float64."""
    after = base.step(state, stats, t)
    return after, after.models.double()[:, :trainable] - state.models.double()[:, :trainable]


def _placed(state: State, after: State, change: Tensor, trained: Tensor) -> State:
    """`after`, its trainable numbers those of `state` plus `change` where the model was trained."""
    p = change.shape[1]
    models = after.models.double()
    models[:, :p] = torch.where(trained, state.models.double()[:, :p] + change, models[:, :p])
    return after._replace(models=models.to(state.models.dtype))


def _trained(stats: Stats, rows: Rows) -> Tensor:
    """Which models somebody trained in this round, `[M, 1]`."""
    trained: Tensor = stats["weight"].total.view(rows.number, -1).sum(1)[:, None] > 0
    return trained
