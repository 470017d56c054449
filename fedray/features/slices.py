"""Slices of a network: what the clients of each tier train, their uploads, and the mean entry by entry (HeteroFL).

Example:
    Two clients, of which the second has trained the first number alone.

    >>> server = mean_of_slices(Rows(1, 1), "uniform", lambda _t: torch.tensor([[1.0, 1.0], [1.0, 0.0]]).double())
    >>> delta, one = torch.tensor([[1.0, 5.0], [3.0, 0.0]]), np.array([0, 1])
    >>> uploads = Uploads(delta, client=one, model=0 * one, world=0 * one, tier=one, size=1 + one)
    >>> start = State(torch.zeros(1, 2), torch.zeros(1, 0, dtype=torch.int64), {})
    >>> server.step(start, server.reduce(uploads), 0).models.tolist()
    [[2.0, 5.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedray.components.servers import Rows, apply_delta, group_totals, no_extra, upload_weights
from fedray.core.errors import BadInput
from fedray.core.method import Compress, Compressed, Server
from fedray.core.piece import Piece
from fedray.core.sums import exact_sum
from fedray.core.types import FloatArray, IntArray, Net, Plan, State, Stats, Uploads, Weighting
from fedray.models.slices import TierNet, find_columns, scale_hidden
from fedray.training.update import Site

Window = Callable[[int, int], int]  # (round, channels c of a hidden layer) -> the slice's first channel, 0 to c - 1
_KEPT = 64  # rounds and tiers whose places are remembered


@dataclass(frozen=True)
class Slices(Piece):
    """What each of T tiers trains of one network.

    Attributes:
        tier_nets: The network of each tier; a tier that trains everything has the whole network itself.
        places: A function (round, tier) -> places of the numbers of that network in the whole row, `[s]`, rising.
        share: Arithmetic of each network as a share of the whole one's, `[T]`, in (0, 1].
        answers: Whether known clients answer with their tier's slice, which then is the same in every round.
        factors: What each tier multiplies the numbers of the whole row by when its slice answers, `[d]` each, where the
            layers of its network divide by its width; None: nothing.
    """

    tier_nets: tuple[Net, ...]
    places: Callable[[int, int], Tensor]
    share: FloatArray
    answers: bool = False
    factors: tuple[Tensor | None, ...] = ()

    @property
    def nets(self) -> tuple[Net, ...]:
        return self.tier_nets

    def columns(self, t: int, tier: int) -> Tensor:
        return self.places(t, tier)

    def work(self, tier: IntArray) -> FloatArray:
        found: FloatArray = self.share[tier]
        return found

    def own_models(self, site: Site, plan: Plan, broadcast: Tensor, tier: int) -> Tensor:
        """The whole rows with 0 outside of the tier's slice of the first round, which answer as the slice does."""
        columns, factor = self.columns(0, tier), self.factors[tier] if self.factors else None
        kept = torch.zeros_like(broadcast).index_copy_(1, columns, broadcast[:, columns])
        return kept if factor is None else kept * factor.to(kept)


def cut_slices(nets: Sequence[TierNet], window: Window, *, answers: bool = False) -> Slices:
    """Which part of a network each tier trains.

    Args:
        nets: The network of each tier.
        window: Where the slices begin.
        answers: Whether known clients answer with their tier's slice, where one is narrow; the window then is the same
            in every round.

    Raises:
        BadInput: Nothing says what the tiers' networks are.
    """
    if not nets:
        raise BadInput(
            "setting.tier_nets is empty, because the method slices no network: call federated(setting) there"
        )

    @lru_cache(_KEPT)
    def columns(t: int, tier: int) -> Tensor:
        width, net, layers, *_ = nets[tier]
        if width == 1:
            return torch.arange(net.layout.d)
        return find_columns(layers, width, lambda channels: window(t, channels))

    narrow = any(tier.width < 1 for tier in nets)
    work = np.array([tier.work for tier in nets])
    factors = tuple(scale_hidden(tier.layers, tier.width) if tier.scaler else None for tier in nets)
    return Slices(tuple(tier.net for tier in nets), columns, work, answers and narrow, factors)


def mark_columns(slices: Slices, d: int) -> Callable[[int], Tensor]:
    """A function: round -> which numbers each tier trains, `[T, d]` float64 of 0 and 1.

    Args:
        slices: What the tiers train.
        d: Numbers of the whole network.
    """

    def marks(t: int) -> Tensor:
        held = torch.zeros(len(slices.nets), d, dtype=torch.float64)
        for tier, row in enumerate(held):
            row[slices.columns(t, tier)] = 1.0
        return held

    return marks


def mean_of_slices(rows: Rows, weighting: Weighting, held: Callable[[int], Tensor]) -> Server:
    """Each number becomes its mean over the uploads whose slice has it; what no slice has stays.

    Args:
        rows: the rows of the state.
        weighting: of the uploads.
        held: round -> which numbers each of T tiers trains, `[T, d]` float64 of 0 and 1.
    """
    tiers = len(held(0))

    def reduce(uploads: Uploads) -> Stats:
        row, weight = rows.of(uploads), upload_weights(uploads, weighting)
        totals = group_totals(uploads, row * tiers + torch.from_numpy(uploads.tier), weight, rows.number * tiers)
        return {"sum": exact_sum(uploads.delta, row, rows.number, weight), **totals}  # 0 outside of a slice

    def step(state: State, stats: Stats, t: int) -> State:
        weight = stats["weight"].total.view(rows.number, tiers).double() @ held(t)  # of each number, [M, d]
        return apply_delta(state, stats["sum"].value() / weight.clamp(min=1.0), stats)

    return Server(no_extra, reduce, step)


def compress_slices(each: Sequence[Compress]) -> Compress:
    """A compression of each tier's slice as one of the whole row; other numbers are sent as 0.

    What error feedback keeps of a number waits until the number is in the client's slice again.

    Args:
        each: of each tier's row, `[s]`.
    """

    def size(client: IntArray, tier: IntArray) -> IntArray:
        out = np.zeros(len(client), dtype=np.int64)
        for i, one in enumerate(each):
            out[tier == i] = one.bytes(client[tier == i], tier[tier == i])
        return out

    def apply(uploads: Uploads) -> Compressed:
        compress, columns = each[int(uploads.tier[0])], uploads.columns  # the clients of a block are of one tier
        if columns is None:
            return compress.apply(uploads)
        own = {name: value[:, columns] for name, value in uploads.own.items()}
        sent = compress.apply(uploads._replace(delta=uploads.delta[:, columns], own=own))
        kept = {name: uploads.own[name].index_copy(1, columns, value) for name, value in sent.own.items()}
        return Compressed(torch.zeros_like(uploads.delta).index_copy_(1, columns, sent.delta), kept)

    return Compress(size, apply, each[0].own, lossless=all(one.lossless for one in each))
