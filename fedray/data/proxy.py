"""Rows that every client keeps back for a second training: one view of a federation without them, one with them alone.

Example:
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.data.deal import build_shards
    >>> whole = build_shards(load_data("digits"), "iid", {}, clients=4, seeds=[0])
    >>> both = [ProxyShards(whole, (0,), 0.1, shows=shows) for shows in (False, True)]
    >>> [each.sizes(np.array([0]), np.array([2])).tolist() for each in both]  # of 359 rows
    [[324], [35]]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.types import IntArray
from fedray.data.cut import count_withheld
from fedray.data.shards import Fetched, Shards
from fedray.data.stacking import mask_rows


class ProxyShards:
    """Shards of which a client's training rows are shown in part; everything else is the whole's."""

    def __init__(self, whole: Shards, seeds: tuple[int, ...], share: float, *, shows: bool) -> None:
        """Wraps other shards.

        Args:
            whole: The shards with all rows.
            seeds: One for each world.
            share: Share of a client's rows that are proxy rows, rounded down.
            shows: Whether these are shown; otherwise all others are.
        """
        self.whole, self._seeds, self._share, self._shows = whole, seeds, share, shows
        self.data, self.number, self.worlds = whole.data, whole.number, whole.worlds
        self.normalize, self.targets, self.standardization = whole.normalize, whole.targets, whole.standardization
        self.test, self.holdout, self.server = whole.test, whole.holdout, whole.server
        self.client_test, self.client_holdout = whole.client_test, whole.client_holdout
        self.label_counts, self.clusters, self.cluster_test = whole.label_counts, whole.clusters, whole.cluster_test

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Number of rows that are shown, `[J]`."""
        size = self.whole.sizes(world, client)
        proxy = count_withheld(size, self._share)
        return proxy if self._shows else size - proxy

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """The rows that are shown."""
        fetched = self.whole.fetch(world, client)
        jobs = zip(world.tolist(), client.tolist(), fetched.size.tolist(), strict=True)
        return mask_rows(fetched, [self._mask(*job) for job in jobs])

    def _mask(self, world: int, client: int, size: int) -> NDArray[np.bool_]:
        """Which of a client's rows are shown, `[n]`."""
        place = rng.stream(self._seeds[world], "proxy", client).permutation(size)
        is_proxy: NDArray[np.bool_] = place < count_withheld(np.array(size), self._share)
        return is_proxy if self._shows else ~is_proxy
