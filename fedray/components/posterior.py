"""Servers that keep a distribution over the weights: FedAG's Gaussian, and FedBE's teachers.

`gaussian_server` keeps the mean and the population variance of a model's uploads, and a sample of models that answer.
`teacher_server` goes on from there: a model's teachers are its mean, S samples, and the uploads. The samples are drawn
from N(mean, diag variance) (`gaussian`), or they are convex combinations of the uploads with flat Dirichlet weights
(`dirichlet`). Buffers of normalization layers are never sampled: every sample has the mean's.

Example:
    >>> sampler = TeacherSampler("dirichlet", number=2, trainable=1)
    >>> drawn = sampler.draw(rng.keys(0, "fedbe", np.arange(2)), torch.zeros(1), torch.ones(1), torch.eye(2)[:, :1])
    >>> drawn.shape, bool(((drawn >= 0) & (drawn <= 1)).all())
    (torch.Size([2, 1]), True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedray.components.aggregation import Rows, group_uploads, keep_uploads, mean, upload_weights
from fedray.core import rng
from fedray.core.exact_sum import exact_sum
from fedray.core.method import Server
from fedray.core.types import State, Stats, Uploads, Weighting


@dataclass(frozen=True)
class Sampling:
    """Which models answer.

    Attributes:
        kind: `bootstrap`, the uploads themselves, or `omc`, draws from N(mu, diag variance).
        slots: how many, at most.
        seeds: one for each world.
        trainable: p, the numbers of a row that are drawn, from its start; buffers are the mean's.
    """

    kind: str
    slots: int
    seeds: Sequence[int]
    trainable: int


def gaussian_server(rows: Rows, sampling: Sampling, weighting: Weighting = "uniform") -> Server:
    """FedAG Alg. 1, eqs. 3-4: the mean of the uploads and their population variance, and a sample of models.

    The state keeps `variance` `[M, d]`, `sample` `[M, slots, d]`, `sample_weight` `[M, slots]` (0: an empty slot) and
    `sample_client` `[M, slots]` (its `Flight.sender`; -1: nobody). The mean is that of `mean`, bit for bit.

    Args:
        rows: the rows of the state.
        sampling: which models answer.
        weighting: of the uploads.
    """
    base, slots, bootstrap = mean(rows, weighting), sampling.slots, sampling.kind == "bootstrap"

    def init(models: Tensor) -> dict[str, Tensor]:
        sample = torch.zeros(len(models), slots, models.shape[1], dtype=models.dtype)
        sample[:, 0] = models
        weight = torch.zeros(len(models), slots, dtype=torch.float64)
        weight[:, 0] = 1.0
        client = torch.full((len(models), slots), -1, dtype=torch.int64)
        extra = {"sample": sample, "sample_weight": weight, "sample_client": client}
        return {"variance": torch.zeros_like(models), **extra}

    def reduce(uploads: Uploads) -> Stats:
        group, weight = rows.of(uploads), upload_weights(uploads, weighting)
        squares = exact_sum(uploads.delta, group, rows.number, weight, limbs=2, square=True)
        stats = {**base.reduce(uploads), "squares": squares}
        if bootstrap:
            stats["uploads"] = keep_uploads(uploads, uploads.delta)
        return stats

    def step(state: State, stats: Stats, t: int) -> State:
        weight = stats["weight"].total.clamp(min=1)[:, None]
        trained = stats["weight"].total > 0
        delta = stats["sum"].value() / weight
        spread = (stats["squares"].value() / weight - delta.square()).clamp(min=0.0).to(state.models.dtype)
        after = base.step(state, stats, t)
        variance = torch.where(trained[:, None], spread, state.extra["variance"])
        drawn = _uploads(state, stats, rows) if bootstrap else _draws(after, variance, trained, sampling, t)
        return after._replace(extra={**state.extra, "variance": variance, **drawn})

    return Server(init, reduce, step, keeps=bootstrap)


def _uploads(state: State, stats: Stats, rows: Rows) -> dict[str, Tensor]:
    """The sample whose members are the uploads; a model that nobody trained keeps the one it had."""
    sample, weight, client = (state.extra[name].clone() for name in ("sample", "sample_weight", "sample_client"))
    for row, each in group_uploads(rows, stats["uploads"]).items():
        sample[row], weight[row], client[row] = 0.0, 0.0, -1
        for slot, (sender, delta) in enumerate(each):
            sample[row, slot] = state.models[row] + delta
            weight[row, slot], client[row, slot] = 1.0, sender
    return {"sample": sample, "sample_weight": weight, "sample_client": client}


def _draws(after: State, variance: Tensor, trained: Tensor, how: Sampling, t: int) -> dict[str, Tensor]:
    """The sample whose members are drawn from N(mu, diag variance), by address; buffers are the mean's."""
    sample, weight = after.extra["sample"].clone(), after.extra["sample_weight"].clone()
    each, p = len(sample) // len(how.seeds), how.trainable
    for row in torch.nonzero(trained).flatten().tolist():
        key = rng.keys(how.seeds[row // each], "omc", t, row % each, np.arange(how.slots))
        noise = torch.from_numpy(rng.normal(key, p)).to(sample.dtype)
        sample[row] = after.models[row]
        sample[row, :, :p] += variance[row, :p].sqrt() * noise
        weight[row] = 1.0
    return {"sample": sample, "sample_weight": weight}


Follow = Callable[[int, int, int, Tensor], Tensor]  # (world, model, round, teachers [1 + S + n, d]) -> next model [d]


@dataclass(frozen=True)
class TeacherSampler:
    """How FedBE's samples are drawn.

    Attributes:
        kind: gaussian or dirichlet.
        number: S.
        trainable: p, the numbers of a row that are sampled, from its start.
    """

    kind: str
    number: int
    trainable: int

    def draw(self, key: rng.Keys, mean: Tensor, variance: Tensor, uploads: Tensor) -> Tensor:
        """Draws S samples `[S, d]`.

        Args:
            key: addresses `[S]`.
            mean: `[d]`.
            variance: `[d]`.
            uploads: `[n, d]`.
        """
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


def teacher_server(base: Server, rows: Rows, seeds: Sequence[int], sampler: TeacherSampler, follow: Follow) -> Server:
    """The mean, its teachers, and the next model that `follow` makes of them.

    The state keeps what the inner server keeps, `teachers` `[M, 1 + S + n, d]` and `teachers_weight` `[M, 1 + S + n]`
    (0: an empty place).

    Args:
        base: `gaussian_server` with the uploads as its sample of n slots.
        rows: the rows of the state.
        seeds: one for each world.
        sampler: of the S samples.
        follow: makes the next model of the teachers.
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


def follow_random_sample(seeds: Sequence[int], number: int) -> Follow:
    """The next model is one of the S samples."""

    def follow(world: int, model: int, t: int, teachers: Tensor) -> Tensor:
        return teachers[1 + int(rng.keys(seeds[world], "fedbe next", t, model) % np.uint64(number))]

    return follow
