"""Servers of corrected local objectives: FedDyn and SCAFFOLD.

Example:
    >>> zero_buffers(torch.ones(1, 4), 3)
    tensor([[1., 1., 1., 0.]])
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedray.components.servers import Rows, place_change, step_and_move
from fedray.core.method import Server
from fedray.core.sums import Counts, exact_sum
from fedray.core.types import State, Stats, Uploads

CONTROL = "broadcast/control"  # SCAFFOLD's c, which travels with the models


def zero_buffers(rows: Tensor, p: int) -> Tensor:
    """`[W, d]` with zeros behind the first p numbers: float buffers have no gradient to correct."""
    if rows.shape[1] == p:
        return rows
    kept = rows.clone()
    kept[:, p:] = 0.0
    return kept


def feddyn_server(base: Server, rows: Rows, clients: int, alpha: float, trainable: int) -> Server:
    """FedDyn's server: `w <- mean of uploads - h / alpha`, h the running mean of all N clients' corrections.

    As clients change theirs by `-alpha (u - w)`, h moves by `-alpha n / N` times the mean delta of the n uploads.

    Args:
        base: the server that merges uploads.
        rows: the rows of the state.
        clients: N.
        alpha: weight of the regularization, above 0.
        trainable: p, the numbers of a row that are corrected.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**base.init(models), "dynamic": torch.zeros(len(models), trainable, dtype=torch.float64)}

    def reduce(uploads: Uploads) -> Stats:
        group = rows.of(uploads)
        jobs = torch.zeros(rows.number, dtype=torch.int64).index_add_(0, group, torch.ones_like(group))
        return {**base.reduce(uploads), "jobs": Counts(jobs)}

    def step(state: State, stats: Stats, t: int) -> State:
        after, g = step_and_move(base, state, stats, t, trainable)
        jobs = stats["jobs"].total[:, None]
        h = after.extra["dynamic"] - alpha * (jobs.double() / clients) * g
        return place_change(state, after, g - h / alpha, jobs > 0)._replace(extra={**after.extra, "dynamic": h})

    return Server(init, reduce, step, base.keeps)


def scaffold_server(base: Server, rows: Rows, clients: int) -> Server:
    """SCAFFOLD's server: beside the models, `c <- c + 1/N sum of the clients' changes`; c is broadcast.

    Args:
        base: the server that merges uploads.
        rows: the rows of the state.
        clients: N.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**base.init(models), CONTROL: torch.zeros_like(models)}

    def reduce(uploads: Uploads) -> Stats:
        assert uploads.beside is not None
        group = rows.of(uploads)
        change = exact_sum(uploads.beside, group, rows.number, torch.ones_like(group), limbs=2)
        return {**base.reduce(uploads), "change": change}

    def step(state: State, stats: Stats, t: int) -> State:
        after = base.step(state, stats, t)
        control = after.extra[CONTROL].double() + stats["change"].value() / clients
        return after._replace(extra={**after.extra, CONTROL: control.to(state.models.dtype)})

    return Server(init, reduce, step, base.keeps)
