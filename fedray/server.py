"""How uploads become the next state: reduce where the client runs, add up, then one step at the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedray import rng
from fedray.core import BadInput, Server, State, Stats, Tier, Uploads
from fedray.tree import Counts, Kept, Largest, exact_sum

Weighting = Literal["uniform", "examples"]


@dataclass(frozen=True)
class Rows:
    """Where the M = worlds * models rows of the state are: row of (replicate, model) = replicate * models + model."""

    worlds: int
    models: int

    @property
    def number(self) -> int:
        return self.worlds * self.models

    def of(self, uploads: Uploads) -> Tensor:
        return torch.from_numpy(uploads.replicate * self.models + uploads.model)


def weights(uploads: Uploads, weighting: Weighting) -> Tensor:
    """Integer weights `[J]`: 1 a client, or its number of samples."""
    size = np.ones_like(uploads.size) if weighting == "uniform" else uploads.size
    return torch.from_numpy(size)


def no_extra(models: Tensor) -> dict[str, Tensor]:
    """For servers without state of their own."""
    return {}


def mean(rows: Rows, weighting: Weighting = "uniform") -> Server:
    """`w_k <- mean of the uploads that started from w_k` (FE Remark 1); a model that nobody trained stays."""

    def reduce(uploads: Uploads) -> Stats:
        group, weight = rows.of(uploads), weights(uploads, weighting)
        return {
            "sum": exact_sum(uploads.delta, group, rows.number, weight),
            **totals(uploads, group, weight, rows.number),
        }

    def step(state: State, stats: Stats, t: int) -> State:
        weight = stats["weight"].total
        delta = stats["sum"].value() / weight.clamp(min=1)[:, None]
        return moved(state, delta, stats)

    return Server(no_extra, reduce, step)


def by_tier(rows: Rows, tiers: int, weighting: Weighting = "uniform") -> Server:
    """SHEFL section 3.3: the mean of each tier's deltas, then the mean of the tiers that sent something."""

    def reduce(uploads: Uploads) -> Stats:
        group = rows.of(uploads) * tiers + torch.from_numpy(uploads.tier)
        weight = weights(uploads, weighting)
        both = totals(uploads, group, weight, rows.number * tiers)
        return {"sum": exact_sum(uploads.delta, group, rows.number * tiers, weight), **both}

    def step(state: State, stats: Stats, t: int) -> State:
        weight = stats["weight"].total.view(rows.number, tiers)
        means = stats["sum"].value().view(rows.number, tiers, -1) / weight.clamp(min=1)[..., None]
        there = (weight > 0).double()
        delta = (means * there[..., None]).sum(1) / there.sum(1).clamp(min=1)[:, None]
        return moved(state, delta, stats)

    return Server(no_extra, reduce, step)


def paper_eq2(rows: Rows, tiers: Sequence[Tier]) -> Server:
    """SHEFL eq. 2 as printed: multipliers `a_h = (H + L) / (2 K) * L / H` and `a_l = (H + L) / 2` on the sum of deltas,
    divided by H + L, the clients of the round. Equal to `by_tier` exactly when L = K and one LPC trained this model.

    The tier that trains several models a round is HPC, the other LPC.
    """
    if len(tiers) != 2 or (tiers[0].models_per_round == 1) == (tiers[1].models_per_round == 1):
        raise BadInput(
            "server.coefficients = paper_eq2 is written for one tier of several models a round and one of a single "
            "model: give clients.tiers two such tiers, or choose equal_groups"
        )
    base = by_tier(rows, 2)
    hpc = int(tiers[0].models_per_round == 1)

    def step(state: State, stats: Stats, t: int) -> State:
        counts = stats["weight"].total.view(rows.worlds, rows.models, 2).sum(1).double()  # jobs [R, C]
        each = torch.tensor([float(one.models_per_round or rows.models) for one in tiers], dtype=torch.float64)
        clients = (counts / each).repeat_interleave(rows.models, 0)  # [M, C]
        h, low = clients[:, hpc], clients[:, 1 - hpc]
        scale = torch.zeros(rows.number, 2, dtype=torch.float64)
        everyone = (h + low).clamp(min=1.0)
        scale[:, hpc] = torch.where(h > 0, everyone / (2 * rows.models) * low / h.clamp(min=1.0), 0.0)
        scale[:, 1 - hpc] = everyone / 2
        sums = stats["sum"].value().view(rows.number, 2, -1)
        return moved(state, (sums * scale[..., None]).sum(1) / everyone[:, None], stats)

    return base._replace(step=step)


@dataclass(frozen=True)
class Sampling:
    """Which models answer. kind: `bootstrap`, the uploads themselves, or `omc`, draws from N(mu, diag variance).

    slots: how many, at most; seeds: one a world; trainable: numbers of a row that are drawn, from its start (buffers
    are the mean's).
    """

    kind: str
    slots: int
    seeds: Sequence[int]
    trainable: int


def gaussian(rows: Rows, sampling: Sampling, weighting: Weighting = "uniform") -> Server:
    """FedAG Alg. 1, eqs. 3-4: the mean of the uploads and their population variance, and a sample of models.

    extra: `variance` `[M, d]`; `sample` `[M, slots, d]`, `sample_weight` (0: empty slot) and `sample_client` (-1: no
    client's) `[M, slots]`. The mean is `mean`'s, bit for bit.
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
        group, weight = rows.of(uploads), weights(uploads, weighting)
        squares = exact_sum(uploads.delta, group, rows.number, weight, limbs=2, square=True)
        stats = {**base.reduce(uploads), "squares": squares}
        if bootstrap:
            keys = zip(uploads.replicate.tolist(), uploads.model.tolist(), uploads.client.tolist(), strict=True)
            stats["uploads"] = Kept(dict(zip(keys, uploads.delta, strict=True)))
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
    kept = stats["uploads"].rows
    filled: dict[int, int] = {}
    for key in sorted(kept):
        row = key[0] * rows.models + key[1]
        slot = filled.setdefault(row, 0)
        if slot == 0:
            sample[row], weight[row], client[row] = 0.0, 0.0, -1
        sample[row, slot] = state.models[row] + kept[key]
        weight[row, slot], client[row, slot] = 1.0, key[2]
        filled[row] += 1
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


def totals(uploads: Uploads, group: Tensor, weight: Tensor, groups: int) -> Stats:
    """Total weight of each group `[G]`, and the largest counters seen."""
    out: Stats = {"weight": Counts(torch.zeros(groups, dtype=torch.int64).index_add_(0, group, weight))}
    if uploads.counters is not None and uploads.counters.shape[1]:
        most = torch.zeros(groups, uploads.counters.shape[1], dtype=torch.int64)
        index = group[:, None].expand_as(uploads.counters)
        out["counters"] = Largest(most.scatter_reduce_(0, index, uploads.counters, "amax"))
    return out


def moved(state: State, delta: Tensor, stats: Stats) -> State:
    """The state after adding `delta` `[M, d]` (float64) to the models; counters take the maximum."""
    models = (state.models.double() + delta).to(state.models.dtype)
    return State(models, counted(state.counters, stats), state.extra)


def counted(counters: Tensor, stats: Stats) -> Tensor:
    """The counters `[M, c]` after a round: the largest that were seen."""
    if "counters" not in stats:
        return counters
    return torch.maximum(counters, stats["counters"].most.view(len(counters), -1, counters.shape[1]).amax(1))
