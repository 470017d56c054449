"""Shards whose inputs are computed where they are read: a client's out-of-fold features, with its own labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.types import IntArray
from fedray.data.scaling import Fetched
from fedray.data.shards import Shards
from fedray.data.types import Split

Compute = Callable[[int, int], Tensor]  # (world, client) -> its features `[n, F]` float32


class Features:
    """The worlds and clients of `whole`, seen through `compute`; see `shards.Shards`. width: F."""

    def __init__(self, whole: Shards, width: int, compute: Compute) -> None:
        self.whole, self.width, self.compute = whole, width, compute
        none = Split(np.zeros((0, width), np.float32), np.zeros(0, np.int64))
        self.data = whole.data._replace(train=none, test=none, population=None)
        self.number, self.worlds = whole.number, whole.worlds

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        return self.whole.sizes(world, client)

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        there = self.whole.fetch(world, client)
        x = [self.compute(w, c) for w, c in zip(world.tolist(), client.tolist(), strict=True)]
        place = np.arange(there.rows.shape[1])
        inside = place < there.size[:, None]
        job = torch.from_numpy(np.repeat(np.arange(len(client)), there.size))
        y = there.labels(there.rows[torch.from_numpy(inside)], job)
        start = np.cumsum(there.size) - there.size
        rows = np.where(inside, start[:, None] + place, 0)
        return Fetched(torch.cat(x), y, torch.from_numpy(rows), there.size)

    def normalise(self, x: Tensor, world: Tensor) -> Tensor:
        return x

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        return self.whole.targets(y, world)

    def test(self, world: int) -> tuple[Tensor, Tensor]:
        return self.whole.test(world)

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        return self.whole.holdout(world)

    def unlabelled(self, world: int) -> Tensor:
        return self.whole.unlabelled(world)

    def client_test(self, world: int, client: int) -> IntArray | None:
        return self.whole.client_test(world, client)

    def client_holdout(self, world: int, client: int) -> IntArray:
        return self.whole.client_holdout(world, client)

    def label_counts(self, world: int) -> IntArray:
        return self.whole.label_counts(world)


class LeaveOut:
    """Shards of `len(seeds) * folds` worlds; see `shards.Shards`. seeds: one a world of the whole."""

    def __init__(self, whole: Shards, seeds: tuple[int, ...], folds: int, within: bool) -> None:
        self.whole, self.seeds, self.folds, self.within = whole, seeds, folds, within
        self.data, self.number, self.worlds = whole.data, whole.number, whole.worlds * folds

    def fold_of(self, world: int, client: int, size: int) -> IntArray:
        """The part that each row of a client belongs to, `[n]`; `world` is one of the whole."""
        if not self.within:
            return np.full(size, client)
        order = rng.stream(self.seeds[world], "within", client).permutation(size)
        return np.asarray(order % self.folds, dtype=np.int64)

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        size, fold = self.whole.sizes(world // self.folds, client), world % self.folds
        if not self.within:
            return np.where(client == fold, 0, size)
        return np.asarray(size - (size - fold + self.folds - 1) // self.folds)

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        fetched = self.whole.fetch(world // self.folds, client)
        kept = []
        for j, (w, c) in enumerate(zip(world.tolist(), client.tolist(), strict=True)):
            part = self.fold_of(w // self.folds, c, int(fetched.size[j]))
            kept.append(fetched.rows[j, : len(part)][torch.from_numpy(part != w % self.folds)])
        size = np.array([len(rows) for rows in kept], dtype=np.int64)
        rows = torch.zeros(len(kept), int(size.max(initial=0)), dtype=torch.int64)
        for row, mine in zip(rows, kept, strict=True):
            row[: len(mine)] = mine
        return fetched._replace(rows=rows, size=size)

    def normalise(self, x: Tensor, world: Tensor) -> Tensor:
        return self.whole.normalise(x, world // self.folds)

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        return self.whole.targets(y, world // self.folds)

    def test(self, world: int) -> tuple[Tensor, Tensor]:
        return self.whole.test(world // self.folds)

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        return self.whole.holdout(world // self.folds)

    def unlabelled(self, world: int) -> Tensor:
        return self.whole.unlabelled(world // self.folds)

    def client_test(self, world: int, client: int) -> IntArray | None:
        return self.whole.client_test(world // self.folds, client)

    def client_holdout(self, world: int, client: int) -> IntArray:
        return self.whole.client_holdout(world // self.folds, client)

    def label_counts(self, world: int) -> IntArray:
        return self.whole.label_counts(world // self.folds)
