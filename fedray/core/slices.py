"""Slices of a network: which part of it the clients of each tier train.

Example:
    >>> import torch
    >>> from fedray.models.catalogue import build_net
    >>> whole, half = (build_net("mlp", (2,), 1, "mse", hidden=[width]) for width in (4, 2))
    >>> slices = Slices((whole, half), lambda _round, _tier: torch.arange(9), np.array([1.0, 0.5]))
    >>> slices.numbers.tolist()
    [17, 9]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedray.core.types import FloatArray, IntArray, Net

if TYPE_CHECKING:
    from torch import Tensor


class Slices(NamedTuple):
    """What each of T tiers trains of one network.

    Attributes:
        nets: The network of each tier; a tier that trains everything has the whole network itself.
        columns: A function (round, tier) -> places of the numbers of that network in the whole row, `[s]`, rising.
        work: Arithmetic of each network as a share of the whole one's, `[T]`, in (0, 1].
    """

    nets: tuple[Net, ...]
    columns: Callable[[int, int], Tensor]
    work: FloatArray

    @property
    def numbers(self) -> IntArray:
        """Numbers in a row of each network, s, `[T]`."""
        return np.array([net.layout.d for net in self.nets], dtype=np.int64)
