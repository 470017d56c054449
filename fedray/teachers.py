"""FedBE's server: teachers drawn from a distribution over the uploads, and what follows from them.

A model's teachers are its mean, S samples, and the uploads. Samples: `gaussian`, N(mean, diag population variance), or
`dirichlet`, convex combinations of the uploads with flat Dirichlet weights. Both by address. Buffers of normalisation
layers are never sampled: every sample has the mean's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedray import rng
from fedray.core import Server, State, Stats
from fedray.server import Rows

Follow = Callable[[int, int, int, Tensor], Tensor]  # (world, model, round, teachers [1 + S + n, d]) -> next model [d]


@dataclass(frozen=True)
class Sampler:
    """kind: gaussian or dirichlet; number: S; trainable: numbers of a row that are sampled, from its start."""

    kind: str
    number: int
    trainable: int

    def draw(self, key: rng.Keys, mean: Tensor, variance: Tensor, uploads: Tensor) -> Tensor:
        """S samples `[S, d]`; key `[S]`, mean, variance `[d]`, uploads `[n, d]`."""
        out = mean.repeat(self.number, 1)
        part = slice(0, self.trainable)
        if self.kind == "gaussian":
            noise = torch.from_numpy(rng.normal(key, self.trainable)).to(mean.dtype)
            out[:, part] += variance[part].sqrt() * noise
        else:
            share = -np.log1p(-rng.uniform(key, len(uploads)))  # Exp(1), normalised: a flat Dirichlet
            share /= share.sum(axis=1, keepdims=True)
            out[:, part] = (torch.from_numpy(share) @ uploads[:, part].double()).to(mean.dtype)
        return out


def bayesian(base: Server, rows: Rows, seeds: Sequence[int], sampler: Sampler, follow: Follow) -> Server:
    """The mean, its teachers, and the next model that `follow` makes of them.

    base: `server.gaussian` with the uploads as its sample of n places. extra: its own, and `teachers`
    `[M, 1 + S + n, d]` with `teachers_weight` (0: an empty place).
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        extra = base.init(models)
        places = 1 + sampler.number + extra["sample"].shape[1]
        teachers = torch.zeros(len(models), places, models.shape[1], dtype=models.dtype)
        teachers[:, 0] = models
        weight = torch.zeros(len(models), places, dtype=torch.float64)
        weight[:, 0] = 1.0
        return {**extra, "teachers": teachers, "teachers_weight": weight}

    def step(state: State, stats: Stats, t: int) -> State:
        after = base.step(state, stats, t)
        models, extra = after.models.clone(), after.extra
        known, weight = extra["teachers"].clone(), extra["teachers_weight"].clone()
        for row in torch.nonzero(stats["weight"].total > 0).flatten().tolist():
            world, k = divmod(row, rows.models)
            uploads = extra["sample"][row][extra["sample_weight"][row] > 0]
            key = rng.keys(seeds[world], "fedbe", t, k, np.arange(sampler.number))
            drawn = sampler.draw(key, models[row], extra["variance"][row], uploads)
            teachers = torch.cat([models[row][None], drawn, uploads])
            known[row, : len(teachers)] = teachers
            weight[row] = (torch.arange(known.shape[1]) < len(teachers)).double()
            models[row] = follow(world, k, t, teachers)
        return after._replace(models=models, extra={**extra, "teachers": known, "teachers_weight": weight})

    return Server(init, base.reduce, step, keeps=base.keeps)


def at_random(seeds: Sequence[int], number: int) -> Follow:
    """The next model is one of the S samples."""

    def follow(world: int, model: int, t: int, teachers: Tensor) -> Tensor:
        return teachers[1 + int(rng.keys(seeds[world], "fedbe next", t, model) % np.uint64(number))]

    return follow
