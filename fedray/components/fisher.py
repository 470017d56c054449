"""A server that weighs every number of an upload by how much its client's data say about it (FedFisher).

Sources: Matena, Raffel, *Merging Models with Fisher-Weighted Averaging*, NeurIPS 2022 (the closed form); Jhunjhunwala,
Wang, Joshi, *FedFisher*, AISTATS 2024 (the steps towards it).

If client k's loss is `1/2 (w - w_k)' F_k (w - w_k)` with a diagonal F_k, the sum of all losses, weighed by p_k, has its
optimum at `sum p_k F_k w_k / sum p_k F_k`. Where the F_k are equal, or nothing is known, that is the mean.

Example:
    The first client is three times as sure of the first number as the second one, and equally of the second number.

    >>> import numpy as np
    >>> both = np.array([0, 1])
    >>> sent, sure = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[3.0, 1.0], [1.0, 1.0]])
    >>> uploads = Uploads(sent, client=both, model=0 * both, world=0 * both, tier=0 * both, size=1 + both, beside=sure)
    >>> server = fisher_mean(Rows(worlds=1, models=1))
    >>> state = State(torch.zeros(1, 2), torch.zeros(1, 0, dtype=torch.int64), {})
    >>> server.step(state, server.reduce(uploads), 0).models.tolist()
    [[0.75, 0.5]]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.components.aggregation import Rows, apply_delta, group_totals, no_extra, upload_weights
from fedray.core.exact_sum import exact_sum
from fedray.core.method import Server
from fedray.core.types import State, Stats, Uploads, Weighting

LEAST = 1e-12  # mean curvature below which a number counts as unknown: exact sums have a resolution of 5e-20

Score = Callable[[int, Tensor], float]  # (world, model [d]) -> how well it does on the server's rows; higher is better
Step = Callable[[Tensor], Tensor]  # gradient `[d]` -> what is subtracted, `[d]`


class Descent(NamedTuple):
    """How a server goes towards an optimum that it knows, to stay where its own rows say that the model is best.

    Attributes:
        steps: How many steps it makes.
        each: Steps from one look at the server's rows to the next.
        start: Makes the optimizer, without memory.
        score: How well a model does; None: the last one stays.
    """

    steps: int
    each: int
    start: Callable[[], Step]
    score: Score | None = None


def descend(how: Descent, start: Tensor, gradient: Callable[[Tensor], Tensor], world: int) -> Tensor:
    """The model `[d]` behind the steps, or the first one of the best score among the start and those looked at.

    Args:
        how: which steps.
        start: where they begin, `[d]` float64.
        gradient: of what is minimized, at a model.
        world: whose rows the server looks at.
    """
    now, step = start, how.start()
    best, most = start, -math.inf if how.score is None else how.score(world, start)
    for done in range(1, how.steps + 1):
        now = now - step(gradient(now))
        if how.score is not None and (done % how.each == 0 or done == how.steps):
            found = how.score(world, now)
            best, most = (now, found) if found > most else (best, most)
    return now if how.score is None else best


def adam(lr: float, eps: float = 1e-6) -> Callable[[], Step]:
    """Adam with beta 0.9 and 0.999 (Kingma, Ba 2015), as the code of FedBEns has it.

    Args:
        lr: its learning rate.
        eps: what is added to the root.
    """

    def start() -> Step:
        memory: list[Any] = [0, 0.0, 0.0]

        def step(g: Tensor) -> Tensor:
            t, first, second = memory[0] + 1, 0.9 * memory[1] + 0.1 * g, 0.999 * memory[2] + 0.001 * g * g
            memory[:] = t, first, second
            moved: Tensor = lr * first / (1.0 - 0.9**t) / ((second / (1.0 - 0.999**t)).sqrt() + eps)
            return moved

        return step

    return start


def summing_adam(lr: float) -> Callable[[], Step]:
    """The optimizer of FedFisher's code: Adam whose memories are sums, `m <- 0.9 m + g`, `v <- 0.99 v + g^2`.

    Args:
        lr: its learning rate.
    """

    def start() -> Step:
        memory: list[Any] = [0.0, 0.0]

        def step(g: Tensor) -> Tensor:
            memory[:] = 0.9 * memory[0] + g, 0.99 * memory[1] + g * g
            moved: Tensor = lr * memory[0] / (memory[1].sqrt() + 0.01)
            return moved

        return step

    return start


def fisher_mean(
    rows: Rows, weighting: Weighting = "uniform", damping: float = 0.0, how: Descent | None = None
) -> Server:
    """`w <- sum p_k (F_k + damping) w_k / sum p_k (F_k + damping)` in each number, or steps from the mean towards it.

    Numbers whose mean curvature is below `LEAST` are averaged with the weights p_k alone, and so are float buffers,
    which have none. With an infinite damping all are.

    Args:
        rows: the rows of the state.
        weighting: makes p_k: uniform, or examples (n_k / n).
        damping: is added to every F_k, at least 0.
        how: how the server goes there; None: at once.
    """

    def reduce(uploads: Uploads) -> Stats:
        assert uploads.beside is not None
        group, weight = rows.of(uploads), upload_weights(uploads, weighting)
        sure = uploads.beside.double() + damping
        return {
            "sum": exact_sum(uploads.delta, group, rows.number, weight),
            "curvature": exact_sum(sure, group, rows.number, weight, limbs=2),
            "weighed": exact_sum(sure * uploads.delta, group, rows.number, weight, limbs=2),
            **group_totals(uploads, group, weight, rows.number),
        }

    def step(state: State, stats: Stats, _t: int) -> State:
        weight = stats["weight"].total.clamp(min=1)[:, None]
        mean, sure = stats["sum"].value() / weight, stats["curvature"].value() / weight
        known = sure > LEAST
        best = torch.where(known, stats["weighed"].value() / weight / sure.where(known, torch.ones_like(sure)), mean)
        if how is None:
            return apply_delta(state, best, stats)
        after = mean.clone()
        for row in torch.nonzero(stats["weight"].total).flatten().tolist():
            before = state.models[row].double()
            goal, weigh = before + best[row], sure[row]
            found = descend(how, before + mean[row], partial(_pull, goal, weigh), row // rows.models)
            after[row] = found - before
        return apply_delta(state, after, stats)

    return Server(no_extra, reduce, step)


def _pull(goal: Tensor, weigh: Tensor, now: Tensor) -> Tensor:
    """The gradient of `1/2 (w - goal)' F (w - goal)`."""
    return weigh * (now - goal)
