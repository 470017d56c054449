"""The two views of a federation's data that stacking trains on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core import rng
from fedray.core.types import IntArray
from fedray.data.cut import count_withheld
from fedray.data.shards import Fetched, ServerShards, Shards, Standardization
from fedray.data.types import Split

# ---------------------------------------------------------------------------------------------------------------------
# A base network is trained once for each fold, without that fold's rows: `LeaveOutShards` leaves them out. The meta
# model is trained on what the bases predict for rows that they were not trained on: `FeatureShards` shows these
# predictions as the clients' inputs. Both wrap other shards, and both are shards themselves.

Compute = Callable[[int, int], Tensor]  # (world, client) -> features of its training rows, `[n, F]` float32


class FeatureShards:
    """Shards whose training inputs are computed when they are read; test and withheld rows stay raw."""

    def __init__(self, whole: Shards, width: int, compute: Compute, pooled: bool = False) -> None:
        """Wraps other shards.

        Args:
            whole: Gives the labels, and all rows that are not trained on.
            width: Number of features, F.
            compute: Gives the features of a client's rows.
            pooled: Whether client 0 stands for a server that has the features of all clients, and nobody else has any.
        """
        self.whole, self.width, self.compute, self.pooled = whole, width, compute, pooled
        none = Split(np.zeros((0, width), np.float32), np.zeros(0, np.int64))
        self.data = whole.data._replace(train=none, test=none, population=None)
        self.number, self.worlds = whole.number, whole.worlds
        self.targets, self.test, self.holdout, self.server = whole.targets, whole.test, whole.holdout, whole.server
        self.client_test, self.client_holdout = whole.client_test, whole.client_holdout
        self.label_counts, self.clusters, self.cluster_test = whole.label_counts, whole.clusters, whole.cluster_test

    @property
    def at_server(self) -> bool:
        """Whether client 0 stands for a server, which alone has rows."""
        return self.pooled or isinstance(self.whole, ServerShards)

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Those of the whole; all rows at client 0 where they are pooled."""
        if not self.pooled:
            return self.whole.sizes(world, client)
        everyone = np.arange(self.number)
        each = self.whole.sizes(np.repeat(world, self.number), np.tile(everyone, len(world))).reshape(-1, self.number)
        return np.where(client == 0, each.sum(axis=1), 0)

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Features that are computed for this call, with the labels of the whole."""
        if not self.pooled:
            return self._fetch(world, client)
        each = self._fetch(np.repeat(world, self.number), np.tile(np.arange(self.number), len(world)))
        total = each.size.reshape(-1, self.number).sum(axis=1)
        start, size = np.cumsum(total) - total, np.where(client == 0, total, 0)
        place = np.arange(size.max(initial=0))  # the rows of a world lie one after another, client after client
        rows = np.where(place < size[:, None], start[:, None] + place, 0)
        return each._replace(rows=torch.from_numpy(rows), size=size)

    def _fetch(self, world: IntArray, client: IntArray) -> Fetched:
        raw = self.whole.fetch(world, client)
        x = [self.compute(w, c) for w, c in zip(world.tolist(), client.tolist(), strict=True)]
        place = np.arange(raw.rows.shape[1])
        inside = place < raw.size[:, None]
        job = torch.from_numpy(np.repeat(np.arange(len(client)), raw.size))
        y = raw.labels(raw.rows[torch.from_numpy(inside)], job)
        start = np.cumsum(raw.size) - raw.size
        rows = np.where(inside, start[:, None] + place, 0)
        return Fetched(torch.cat(x), y, torch.from_numpy(rows), raw.size)

    def normalize(self, x: Tensor, _world: Tensor) -> Tensor:
        """Features as they are."""
        return x

    def standardization(self, world: IntArray) -> Standardization:
        """Features are used as they are; targets as in the whole."""
        return self.whole.standardization(world)._replace(shift=None, scale=None)


def mask_rows(fetched: Fetched, masks: list[NDArray[np.bool_]]) -> Fetched:
    """Returns some of the rows of each job: those where its mask `[n]` is true."""
    kept = [rows[: len(mask)][torch.from_numpy(mask)] for rows, mask in zip(fetched.rows, masks, strict=True)]
    size = np.array([len(rows) for rows in kept], dtype=np.int64)
    rows = torch.zeros(len(kept), int(size.max(initial=0)), dtype=torch.int64)
    for padded, own in zip(rows, kept, strict=True):
        padded[: len(own)] = own
    return fetched._replace(rows=rows, size=size)


class LeaveOutShards:
    """Shards with a world for each world of the whole and each fold; world `w * folds + f` lacks the rows of fold f.

    Example:
        >>> from fedray.data.catalogue import load_data
        >>> from fedray.data.deal import build_shards
        >>> whole = build_shards(load_data("digits"), "iid", {}, clients=4, seeds=[0])
        >>> part = LeaveOutShards(whole, seeds=(0,), folds=4, within=False)
        >>> part.sizes(np.array([2, 2]), np.array([1, 2])).tolist()  # client 2 has no rows in world 2
        [360, 0]
    """

    def __init__(self, whole: Shards, seeds: tuple[int, ...], folds: int, within: bool) -> None:
        """Wraps other shards.

        Args:
            whole: The shards with all rows.
            seeds: One for each world of the whole.
            folds: Number of folds.
            within: Whether fold f is a part of every client's rows; otherwise it is all rows of client f.
        """
        self.whole, self.seeds, self.folds, self.within = whole, seeds, folds, within
        self.data, self.number, self.worlds = whole.data, whole.number, whole.worlds * folds
        # all else is as in the whole, in the world that a fold is of
        self.normalize: Callable[[Tensor, Tensor], Tensor] = lambda x, world: whole.normalize(x, world // folds)
        self.targets = lambda y, world: whole.targets(y, world // folds)
        self.standardization = lambda world: whole.standardization(world // folds)
        self.test = lambda world: whole.test(world // folds)
        self.holdout = lambda world: whole.holdout(world // folds)
        self.server = lambda world: whole.server(world // folds)
        self.client_test = lambda world, client: whole.client_test(world // folds, client)
        self.clusters = lambda world: whole.clusters(world // folds)
        self.cluster_test = lambda world, client: whole.cluster_test(world // folds, client)
        self.client_holdout = lambda world, client: whole.client_holdout(world // folds, client)
        self.label_counts = lambda world: whole.label_counts(world // folds)

    def fold_of(self, world: int, client: int, size: int) -> IntArray:
        """Returns the fold of each row of a client, `[n]`.

        Args:
            world: World of the whole.
            client: The client.
            size: Number of its rows, n.
        """
        if not self.within:
            return np.full(size, client)
        order = rng.stream(self.seeds[world], "within", client).permutation(size)
        return np.asarray(order % self.folds, dtype=np.int64)

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Number of rows without those of the fold, `[J]`."""
        size, fold = self.whole.sizes(world // self.folds, client), world % self.folds
        if not self.within:
            return np.where(client == fold, 0, size)
        return np.asarray(size - (size - fold + self.folds - 1) // self.folds)

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Returns the rows of the whole without those of the fold."""
        fetched, masks = self.whole.fetch(world // self.folds, client), []
        for j, (w, c) in enumerate(zip(world.tolist(), client.tolist(), strict=True)):
            masks.append(self.fold_of(w // self.folds, c, int(fetched.size[j])) != w % self.folds)
        return mask_rows(fetched, masks)


# ---------------------------------------------------------------------------------------------------------------------
# Rows that every client keeps back for a second training: one view of a federation without them, one with them alone.


class ProxyShards:
    """Shards of which a client's training rows are shown in part; everything else is the whole's.

    Example:
        >>> from fedray.data.catalogue import load_data
        >>> from fedray.data.deal import build_shards
        >>> whole = build_shards(load_data("digits"), "iid", {}, clients=4, seeds=[0])
        >>> both = [ProxyShards(whole, (0,), 0.1, shows=shows) for shows in (False, True)]
        >>> [each.sizes(np.array([0]), np.array([2])).tolist() for each in both]  # of 359 rows
        [[324], [35]]
    """

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
        """Returns the rows that are shown."""
        fetched = self.whole.fetch(world, client)
        jobs = zip(world.tolist(), client.tolist(), fetched.size.tolist(), strict=True)
        return mask_rows(fetched, [self._mask(*job) for job in jobs])

    def _mask(self, world: int, client: int, size: int) -> NDArray[np.bool_]:
        """Returns which of a client's rows are shown, `[n]`."""
        place = rng.stream(self._seeds[world], "proxy", client).permutation(size)
        is_proxy: NDArray[np.bool_] = place < count_withheld(np.array(size), self._share)
        return is_proxy if self._shows else ~is_proxy
