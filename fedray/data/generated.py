"""Clients whose rows are generated when they are read, so that a million clients need no storage.

A client's rows follow from its address. A row is the mean of its class plus the sum of two rows of a pool of noise.
Rows of the pool are N(0, 1/2) and chosen by address: a pool of 2^16 rows gives 2^32 different noises, all standard
normal, at the price of two look-ups.

Example:
    >>> from fedray.data.synthetic import make_population
    >>> data = make_population(None, features=4, classes=2, test=10)
    >>> shards = GeneratedShards(data, data.population, 10**6, [0], hold_out=0.0)
    >>> shards.fetch(np.array([0]), np.array([999_999])).x.shape
    torch.Size([20, 4])
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import EVALUATED_CLIENTS, IntArray
from fedray.data.cut import count_withheld
from fedray.data.label_noise import LabelNoise, mislabel
from fedray.data.scaling import Fetched, Scaling, Standardization
from fedray.data.synthetic import draw_class_means
from fedray.data.types import Dataset, Population

POOL_NUMBERS = 1 << 22  # float32 numbers in the pool of noise: 16 MB


class GeneratedShards:
    """The rows of a population; the methods are described in `fedray.data.shards.Shards`."""

    def __init__(
        self,
        data: Dataset,
        population: Population,
        clients: int,
        seeds: list[int],
        *,
        hold_out: float,
        server: float = 0.0,
        label_noise: LabelNoise | None = None,
        owners: int | None = None,
    ) -> None:
        """Draws the pool of noise.

        Args:
            data: The data set, with the test rows.
            population: How rows are generated.
            clients: Number of clients, N.
            seeds: One for each world.
            hold_out: Share of every client's rows that is withheld.
            server: Rows of the server, as a share of the clients' rows.
            label_noise: Which clients have wrong labels; None for none.
            owners: How many clients have wrong labels or right ones; it differs from N where one client has the rows of
                all, the same number each. None means N.
        """
        if clients < 1:
            raise BadInput(f"clients.number = {clients}: it must be at least 1")
        self.data, self.number, self.worlds = data, clients, len(seeds)
        self._population, self._hold_out, self._server = population, hold_out, server
        self._seeds = np.asarray(seeds, dtype=np.int64)
        self._scaling = Scaling.of(data, [0] * len(seeds))
        self._rows = 1 << max(10, min(16, (POOL_NUMBERS // population.features).bit_length() - 1))
        draw = rng.stream(population.seed, "synthetic noise")
        noise = draw.standard_normal((self._rows, population.features), dtype=np.float32)
        table = np.concatenate([draw_class_means(population), noise * np.float32(np.sqrt(0.5))])
        self._table = torch.from_numpy(table)  # [classes + pool, features]
        self._owners = owners or clients
        self._kinds = None if label_noise is None else label_noise.kinds(seeds, self._owners)
        self._held: dict[int, IntArray] = {}  # of a world: where the withheld rows of each known client begin

    def _total(self, world: IntArray, client: IntArray) -> IntArray:
        """Rows of each client before any are withheld, `[J]`."""
        p = self._population
        if not p.spread:
            return np.full(len(client), p.samples, dtype=np.int64)
        z = rng.normal(rng.keys(self._seeds[world], "synthetic size", client), 1)[:, 0]
        size: IntArray = np.maximum(np.rint(p.samples * np.exp(p.spread * z)), 1).astype(np.int64)
        return size

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Drawn by address where the population has a spread."""
        total = self._total(world, client)
        kept: IntArray = total - count_withheld(total, self._hold_out)
        return kept

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Rows that are made for this call."""
        drawn = self._draw(world, client, np.zeros(len(client), np.int64), self.sizes(world, client))
        if self._kinds is None:
            return drawn
        owner, place = np.nonzero(np.arange(drawn.rows.shape[1]) < drawn.size[:, None])  # row by row, as drawn
        key = rng.fresh(rng.keys(self._seeds[world], "noisy labels", client)[owner], place)
        share = self._owners // self.number  # owners that one client pools
        first = client[owner] * share
        kind = self._kinds[world[owner], first + place * share // drawn.size[owner]]
        y = mislabel(drawn.y.numpy(), kind, key, self._population.classes)
        return drawn._replace(y=torch.from_numpy(y))

    def _draw(self, world: IntArray, client: IntArray, first: IntArray, size: IntArray) -> Fetched:
        """Rows `first .. first + size` of each client; row r depends on the world's seed, the client and r alone."""
        n = int(size.max(initial=0))
        mask = np.arange(n) < size[:, None]  # [J, n]
        label, pick = self._words(world, client, first, n)
        y, noise = label[mask], pick[mask]
        pool = self._population.classes + np.stack([noise & (self._rows - 1), (noise >> 32) & (self._rows - 1)])
        parts = torch.from_numpy(np.stack([y, *pool], axis=1))  # [n, 3]: rows of the table that add up to a sample
        x = torch.nn.functional.embedding_bag(parts, self._table, mode="sum")
        rows = np.zeros(mask.shape, dtype=np.int64)
        rows[mask] = np.arange(len(y))
        return Fetched(x, torch.from_numpy(y), torch.from_numpy(rows), size)

    def _words(self, world: IntArray, client: IntArray, first: IntArray, n: int) -> tuple[IntArray, IntArray]:
        """Label and noise address of n rows a client, `[J, n]` each."""
        key = rng.keys(self._seeds[world], "synthetic", client)
        row = rng.fresh(key[:, None], first[:, None] + np.arange(n))  # [J, n]
        words = (rng.bits(row, 2) >> np.uint64(1)).astype(np.int64)  # 63 bits
        choices = self._population.per_client or self._population.classes
        label = ((words[..., 0] >> 31) * choices) >> 32
        if self._population.per_client:
            held = rng.permutations(rng.keys(self._seeds[world], "synthetic classes", client), self._population.classes)
            label = np.take_along_axis(held, label, axis=1)
        return label, words[..., 1]

    def normalize(self, x: Tensor, world: Tensor) -> Tensor:
        """As float32; generated inputs need no standardizing."""
        return self._scaling.normalize(x, world)

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        """Labels as they are."""
        return self._scaling.targets(y, world)

    def standardization(self, world: IntArray) -> Standardization:
        """The statistics of the worlds' folds."""
        return self._scaling.standardization(world)

    def test(self, _world: int) -> tuple[Tensor, Tensor]:
        """The test rows of the data set, the same in all worlds."""
        return torch.from_numpy(self.data.test.x), torch.from_numpy(self.data.test.y)

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        """The last rows of each of the first clients."""
        client = np.arange(min(self.number, EVALUATED_CLIENTS))
        worlds = np.full_like(client, world)
        kept = self.sizes(worlds, client)
        held = self._draw(worlds, client, kept, self._total(worlds, client) - kept)
        return held.x, held.y

    def server(self, world: int) -> tuple[Tensor, Tensor]:
        """The rows of further generated clients, as many as the server's share says."""
        number = math.ceil(min(self.number, EVALUATED_CLIENTS) * self._server)
        client = self.number + np.arange(number)
        worlds = np.full_like(client, world)
        drawn = self._draw(worlds, client, np.zeros_like(client), self._total(worlds, client))
        return drawn.x, drawn.y

    def client_test(self, _world: int, _client: int) -> IntArray | None:
        """None: no test row belongs to a client."""
        return None

    def clusters(self, _world: int) -> IntArray | None:
        """None: all clients draw from the same classes."""
        return None

    def cluster_test(self, _world: int, _client: int) -> IntArray | None:
        """None: every test row is everybody's."""
        return None

    def client_holdout(self, world: int, client: int) -> IntArray:
        """A range, because withheld rows come client after client."""
        if world not in self._held:
            known = np.arange(min(self.number, EVALUATED_CLIENTS))
            size = count_withheld(self._total(np.full_like(known, world), known), self._hold_out)
            self._held[world] = np.concatenate([[0], np.cumsum(size)])
        return np.arange(*self._held[world][client : client + 2].tolist())

    def label_counts(self, world: int) -> IntArray:
        """Counts of the true labels, even where clients have wrong ones."""
        client = np.arange(min(self.number, EVALUATED_CLIENTS))
        worlds = np.full_like(client, world)
        size = self.sizes(worlds, client)
        n = int(size.max(initial=0))
        label, _ = self._words(worlds, client, np.zeros_like(client), n)
        cell = (client[:, None] * self._population.classes + label)[np.arange(n) < size[:, None]]
        counts = np.bincount(cell, minlength=len(client) * self._population.classes)
        return counts.reshape(len(client), -1).astype(np.int64)
