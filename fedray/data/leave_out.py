"""Clients' data without a part of it. World `w * F + f` of F folds is world w of the whole without its part f.

Part f is client f's data (leave one client out), or fold f of every client's own rows, which are dealt to the folds by
address. A training in such a world never meets the rows of its part: they are not in its shards.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedray import rng
from fedray.core import IntArray
from fedray.data.shards import Fetched, Shards


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
