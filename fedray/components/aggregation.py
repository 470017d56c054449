"""Servers: how the uploads of a round become the next state.

`reduce` turns a block of uploads into sums, in the process that trained them; the sums of all blocks are added; `step`
computes the next models from the total, at the coordinator.

Example:
    >>> delta, one = torch.tensor([[1.0], [3.0]]), np.array([0, 1])
    >>> uploads = Uploads(delta, client=one, model=0 * one, world=0 * one, tier=0 * one, size=1 + one)
    >>> server = mean(Rows(worlds=1, models=1), "examples")
    >>> start = State(torch.zeros(1, 1), torch.zeros(1, 0, dtype=torch.int64), {})
    >>> server.step(start, server.reduce(uploads), 0).models.item()  # (1 * 1 + 2 * 3) / 3
    2.3333332538604736
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.exact_sum import Counts, Kept, Largest, exact_sum
from fedray.core.method import Server
from fedray.core.types import State, Stats, Tier, Uploads, Weighting


@dataclass(frozen=True)
class Rows:
    """Where the M = worlds * models rows of the state are: row of (world, model) = world * models + model.

    Attributes:
        worlds: number of worlds.
        models: K.
    """

    worlds: int
    models: int

    @property
    def number(self) -> int:
        """M."""
        return self.worlds * self.models

    def of(self, uploads: Uploads) -> Tensor:
        """The row that each upload belongs to, `[J]`."""
        return torch.from_numpy(uploads.world * self.models + uploads.model)


def upload_weights(uploads: Uploads, weighting: Weighting) -> Tensor:
    """Integer weights `[J]`: 1 a client, or its number of samples."""
    size = np.ones_like(uploads.size) if weighting == "uniform" else uploads.size
    return torch.from_numpy(size)


def no_extra(_models: Tensor) -> dict[str, Tensor]:
    """For servers without state of their own."""
    return {}


def mean(rows: Rows, weighting: Weighting = "uniform") -> Server:
    """`w_k <- mean of the uploads that started from w_k` (FE Remark 1); a model that nobody trained stays."""

    def reduce(uploads: Uploads) -> Stats:
        group, weight = rows.of(uploads), upload_weights(uploads, weighting)
        return {
            "sum": exact_sum(uploads.delta, group, rows.number, weight),
            **group_totals(uploads, group, weight, rows.number),
        }

    def step(state: State, stats: Stats, _t: int) -> State:
        weight = stats["weight"].total
        delta = stats["sum"].value().numpy() / np.maximum(weight.numpy(), 1)[:, None]  # half of torch's time for few
        return apply_delta(state, torch.from_numpy(delta), stats)

    return Server(no_extra, reduce, step, on_device=True)


def by_tier(rows: Rows, tiers: int, weighting: Weighting = "uniform") -> Server:
    """SHEFL section 3.3: the mean of each tier's deltas, then the mean of the tiers that sent something.

    Args:
        rows: the rows of the state.
        tiers: number of tiers.
        weighting: of the uploads inside a tier.
    """

    def reduce(uploads: Uploads) -> Stats:
        group = rows.of(uploads) * tiers + torch.from_numpy(uploads.tier)
        weight = upload_weights(uploads, weighting)
        both = group_totals(uploads, group, weight, rows.number * tiers)
        return {"sum": exact_sum(uploads.delta, group, rows.number * tiers, weight), **both}

    def step(state: State, stats: Stats, _t: int) -> State:
        weight = stats["weight"].total.view(rows.number, tiers)
        means = stats["sum"].value().view(rows.number, tiers, -1) / weight.clamp(min=1)[..., None]
        there = (weight > 0).double()
        delta = (means * there[..., None]).sum(1) / there.sum(1).clamp(min=1)[:, None]
        return apply_delta(state, delta, stats)

    return Server(no_extra, reduce, step, on_device=True)


def paper_eq2(rows: Rows, tiers: Sequence[Tier]) -> Server:
    """SHEFL eq. 2 as printed: multipliers on the sum of deltas, divided by H + L, the clients of the round.

    They are `a_h = (H + L) / (2 K) * L / H` and `a_l = (H + L) / 2`. The result equals `by_tier` exactly when L = K and
    one LPC trained this model. The tier that trains several models a round is HPC, the other LPC.

    Raises:
        BadInput: there are not two such tiers.
    """
    if len(tiers) != 2 or (tiers[0].models_per_round == 1) == (tiers[1].models_per_round == 1):
        raise BadInput(
            "server.coefficients = paper_eq2 is written for one tier of several models a round and one of a single "
            "model: give clients.tiers two such tiers, or choose equal_groups"
        )
    base = by_tier(rows, 2)
    hpc = int(tiers[0].models_per_round == 1)

    def step(state: State, stats: Stats, _t: int) -> State:
        counts = stats["weight"].total.view(rows.worlds, rows.models, 2).sum(1).double()  # jobs [R, C]
        each = torch.tensor([float(one.models_per_round or rows.models) for one in tiers], dtype=torch.float64)
        clients = (counts / each).repeat_interleave(rows.models, 0)  # [M, C]
        h, low = clients[:, hpc], clients[:, 1 - hpc]
        scale = torch.zeros(rows.number, 2, dtype=torch.float64)
        everyone = (h + low).clamp(min=1.0)
        scale[:, hpc] = torch.where(h > 0, everyone / (2 * rows.models) * low / h.clamp(min=1.0), 0.0)
        scale[:, 1 - hpc] = everyone / 2
        sums = stats["sum"].value().view(rows.number, 2, -1)
        return apply_delta(state, (sums * scale[..., None]).sum(1) / everyone[:, None], stats)

    return base._replace(step=step)


def group_totals(uploads: Uploads, group: Tensor, weight: Tensor, groups: int) -> Stats:
    """Total weight of each group `[G]`, and its largest counters.

    Args:
        uploads: J of them.
        group: `[J]`, the group of each.
        weight: `[J]` integers.
        groups: G.
    """
    out: Stats = {"weight": Counts(torch.zeros(groups, dtype=torch.int64).index_add_(0, group, weight))}
    if uploads.counters is not None and uploads.counters.shape[1]:
        most = torch.zeros(groups, uploads.counters.shape[1], dtype=torch.int64)
        index = group[:, None].expand_as(uploads.counters)
        out["counters"] = Largest(most.scatter_reduce_(0, index, uploads.counters, "amax"))
    return out


def apply_delta(state: State, delta: Tensor, stats: Stats) -> State:
    """The state after adding a delta to the models; counters take the maximum.

    Args:
        state: before the step.
        delta: `[M, d]` float64.
        stats: may hold the largest counters.
    """
    before = state.models.numpy()
    models = torch.from_numpy((delta.numpy() + before).astype(before.dtype))  # added in float64
    return State(models, merge_counters(state.counters, stats), state.extra)


def merge_counters(counters: Tensor, stats: Stats) -> Tensor:
    """The counters `[M, c]` after a round: the largest that were seen."""
    if "counters" not in stats:
        return counters
    return torch.maximum(counters, stats["counters"].most.view(len(counters), -1, counters.shape[1]).amax(1))


def keep_uploads(uploads: Uploads, values: Tensor) -> Kept:
    """A value `[J, ...]` of each upload by itself, for the servers that need every one of them."""
    keys = zip(uploads.world.tolist(), uploads.model.tolist(), uploads.client.tolist(), strict=True)
    return Kept(dict(zip(keys, values, strict=True)))


def group_uploads(rows: Rows, kept: Kept) -> dict[int, list[tuple[int, Tensor]]]:
    """The client and the value of each kept upload by row of the state, in the order of rows and of clients.

    Example:
        >>> group_uploads(Rows(worlds=2, models=3), Kept({(1, 2, 9): "b", (1, 2, 4): "a", (0, 1, 7): "c"}))
        {1: [(7, 'c')], 5: [(4, 'a'), (9, 'b')]}
    """
    found: dict[int, list[tuple[int, Tensor]]] = {}
    for world, model, client in sorted(kept.rows):
        found.setdefault(world * rows.models + model, []).append((client, kept.rows[world, model, client]))
    return found


def step_and_move(base: Server, state: State, stats: Stats, t: int, trainable: int) -> tuple[State, Tensor]:
    """The state after an inner server, and how far it moved the trainable numbers, `[M, p]` float64.

    Args:
        base: the inner server.
        state: before the step.
        stats: what it reads.
        t: the round.
        trainable: p.
    """
    after = base.step(state, stats, t)
    return after, after.models.double()[:, :trainable] - state.models.double()[:, :trainable]


def place_change(state: State, after: State, change: Tensor, trained: Tensor) -> State:
    """The state `after`, but with the trainable numbers of `state` plus a change where the model was trained.

    Args:
        state: before the round.
        after: what an inner server made of it.
        change: `[M, p]` float64.
        trained: `[M, 1]`, which models somebody trained.
    """
    p = change.shape[1]
    models = after.models.double()
    models[:, :p] = torch.where(trained, state.models.double()[:, :p] + change, models[:, :p])
    return after._replace(models=models.to(state.models.dtype))


def trained_models(stats: Stats, rows: Rows) -> Tensor:
    """Which models somebody trained in this round, `[M, 1]`."""
    trained: Tensor = stats["weight"].total.view(rows.number, -1).sum(1)[:, None] > 0
    return trained
