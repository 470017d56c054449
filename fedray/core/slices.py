"""Slices of a network: which part of it the clients of each tier train.

Example:
    >>> from fedray.models.nets import build_net
    >>> whole, half = (build_net("mlp", (2,), 1, "mse", hidden=[width]) for width in (4, 2))
    >>> slices = Slices((whole, half), lambda _round, _tier: torch.arange(9), np.array([1.0, 0.5]))
    >>> slices.numbers.tolist()
    [17, 9]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import FloatArray, IntArray, Net


class Slices(NamedTuple):
    """What each of T tiers trains of one network.

    Attributes:
        nets: The network of each tier; a tier that trains everything has the whole network itself.
        columns: A function (round, tier) -> places of the numbers of that network in the whole row, `[s]`, rising.
        work: Arithmetic of each network as a share of the whole one's, `[T]`, in (0, 1].
        answers: Whether known clients answer with their tier's slice, which then is the same in every round.
        factors: What each tier multiplies the numbers of the whole row by when its slice answers, `[d]` each, where the
            layers of its network divide by its width; None: nothing.
    """

    nets: tuple[Net, ...]
    columns: Callable[[int, int], Tensor]
    work: FloatArray
    answers: bool = False
    factors: tuple[Tensor | None, ...] = ()

    @property
    def numbers(self) -> IntArray:
        """Numbers in a row of each network, s, `[T]`."""
        return np.array([net.layout.d for net in self.nets], dtype=np.int64)

    def keep_slice(self, models: Tensor, tier: int) -> Tensor:
        """The whole rows of models `[M, d]` with 0 outside of a tier's slice of the first round: they answer alike."""
        columns, factor = self.columns(0, tier), self.factors[tier] if self.factors else None
        kept = torch.zeros_like(models).index_copy_(1, columns, models[:, columns])
        return kept if factor is None else kept * factor.to(kept)
