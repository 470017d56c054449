"""What clients hold. A world is replicate r of fold f, `w = r * F + f`, with its own seed and partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import EVALUATED_CLIENTS, IntArray
from fedray.data import partition
from fedray.data.generated import Generated
from fedray.data.label_noise import Wrong, mislabel, split_options
from fedray.data.partition import Cut
from fedray.data.scaling import Fetched, Scaling
from fedray.data.types import Array, Dataset

__all__ = ["Fetched", "Shards", "StoredShards", "build_shards"]


class Shards(Protocol):
    """The data of N clients in all worlds. world, client: `[J]` unless said otherwise."""

    data: Dataset
    number: int
    worlds: int

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Training samples of each job's client, `[J]`."""
        ...

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """The training rows of each job's client."""
        ...

    def normalise(self, x: Tensor, world: Tensor) -> Tensor:
        """Raw `[W, ..., *sample]` of worlds `[W]` -> float32 network input; tokens -> int64."""
        ...

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        """Labels as they are; regression targets `[W, ..., q]` standardised."""
        ...

    def test(self, world: int) -> tuple[Tensor, Tensor]:
        """Raw x, y of one world's test rows."""
        ...

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        """Raw x, y of the rows withheld from training, client after client (first 10,000 generated clients)."""
        ...

    def unlabelled(self, world: int) -> Tensor:
        """Raw x of the rows that the server holds instead of the clients."""
        ...

    def client_test(self, world: int, client: int) -> IntArray | None:
        """Rows of `test(world)` that are this client's own, `[n]`; None unless the partition is natural."""
        ...

    def client_holdout(self, world: int, client: int) -> IntArray:
        """Rows of `holdout(world)` that were withheld from this client, `[n]`."""
        ...

    def label_counts(self, world: int) -> IntArray:
        """Training samples of each class, `[N, classes]`; only the first 10,000 clients."""
        ...


class CutTable:
    """Several cuts over the same N clients as one: entry (w, i) is a run of `rows`."""

    def __init__(self, cuts: list[Cut]) -> None:
        self.number = cuts[0].clients
        size = np.stack([np.diff(cut.offsets) for cut in cuts])  # [worlds, N]
        base = np.cumsum([0, *(len(cut.rows) for cut in cuts[:-1])])
        start = np.stack([cut.offsets[:-1] + b for cut, b in zip(cuts, base, strict=True)])
        self.size, self.start = size.ravel(), start.ravel()
        tail = np.zeros(int(size.max(initial=0)), np.int64)  # so that a padded run never leaves the array
        self.rows = np.concatenate([*(cut.rows for cut in cuts), tail])

    def runs(self, world: IntArray, client: IntArray) -> tuple[IntArray, IntArray]:
        """Rows `[J, n_max]`, 0 behind size, and size `[J]`."""
        entry = world * self.number + client
        size = self.size[entry]
        place = np.arange(size.max(initial=0))
        rows = self.rows[self.start[entry][:, None] + place]
        if len(size) and size.min() < len(place):
            rows *= place < size[:, None]
        return rows, size

    def of_world(self, world: int, clients: int | None = None) -> tuple[IntArray, IntArray]:
        """All rows of one world, client after client, and their clients, `[n]` each."""
        first, number = world * self.number, self.number if clients is None else min(clients, self.number)
        size, start = self.size[first : first + number], int(self.start[first])
        return self.rows[start : start + int(size.sum())], np.repeat(np.arange(number), size)


class StoredShards:
    """Shards of a stored data set: one cut a world; see `Shards`."""

    def __init__(
        self,
        data: Dataset,
        folds: list[int],
        cuts: list[Cut],
        held: list[Cut],
        *,
        groups: Array | None,
        server: list[IntArray],
    ) -> None:
        """`folds[w]`, `cuts[w]`, `held[w]`, `server[w]` (rows): of world w. groups: client i's value of `group`, `[N]`,
        if natural."""
        self.data, self.number, self.worlds = data, cuts[0].clients, len(cuts)
        self._folds, self._server = folds, server
        self._train, self._held = CutTable(cuts), CutTable(held) if held else None
        self._x, self._y = torch.from_numpy(data.train.x), torch.from_numpy(data.train.y)
        self._scaling = Scaling.of(data, folds)
        self._own = _own_rows(data.test.group, groups)
        self._labels: Tensor | None = None

    def mislabel(self, wrong: Wrong, seeds: list[int]) -> None:
        """Gives some clients wrong training labels, `seeds[w]` of world w."""
        kinds = wrong.kinds(seeds, self.number)
        labels = np.tile(self.data.train.y, (self.worlds, 1))
        for world, seed in enumerate(seeds):
            rows, owner = self._train.of_world(world)
            key = rng.keys(seed, "noisy labels", rows)
            labels[world, rows] = mislabel(self.data.train.y[rows], kinds[world, owner], key, self.data.classes)
        self._labels = torch.from_numpy(labels.ravel())

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        size: IntArray = self._train.size[world * self.number + client]
        return size

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        rows, size = self._train.runs(world, client)
        if self._labels is None:
            return Fetched(self._x, self._y, torch.from_numpy(rows), size)
        return Fetched(self._x, self._labels, torch.from_numpy(rows), size, torch.from_numpy(world * len(self._y)))

    def normalise(self, x: Tensor, world: Tensor) -> Tensor:
        return self._scaling.normalise(x, world)

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        return self._scaling.targets(y, world)

    def test(self, world: int) -> tuple[Tensor, Tensor]:
        if self.data.folds:
            rows = torch.from_numpy(self.data.folds[self._folds[world]][1])
            return self._x[rows], self._y[rows]
        return torch.from_numpy(self.data.test.x), torch.from_numpy(self.data.test.y)

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        rows = self._held.of_world(world)[0] if self._held else np.empty(0, np.int64)
        index = torch.from_numpy(rows)
        return self._x[index], self._y[index]

    def unlabelled(self, world: int) -> Tensor:
        return self._x[torch.from_numpy(self._server[world] if self._server else np.empty(0, np.int64))]

    def client_test(self, world: int, client: int) -> IntArray | None:
        if self._own is None:
            return None
        return self._own.rows[self._own.offsets[client] : self._own.offsets[client + 1]]

    def client_holdout(self, world: int, client: int) -> IntArray:
        if not self._held:
            return np.empty(0, np.int64)
        size = self._held.size[world * self.number : (world + 1) * self.number]
        first = int(size[:client].sum())
        return np.arange(first, first + int(size[client]))

    def label_counts(self, world: int) -> IntArray:
        rows, owner = self._train.of_world(world, EVALUATED_CLIENTS)
        number, classes = min(self.number, EVALUATED_CLIENTS), self.data.classes
        if not classes:
            return np.zeros((number, 0), np.int64)
        counts = np.bincount(owner * classes + self.data.train.y[rows], minlength=number * classes)
        return counts.reshape(number, classes).astype(np.int64)


def _own_rows(test_group: IntArray | None, groups: Array | None) -> Cut | None:
    """Test rows of each client: those of its group."""
    if test_group is None or groups is None:
        return None
    client = np.minimum(np.searchsorted(groups, test_group), len(groups) - 1)
    known = np.flatnonzero(groups[client] == test_group)
    return partition.gather_cut(known, client[known], len(groups))


def build_shards(
    data: Dataset,
    name: str,
    options: dict[str, Any],
    clients: int | None,
    seeds: list[int],
    *,
    folds: list[int] | None = None,
    hold_out: float = 0.0,
    server: float = 0.0,
) -> Shards:
    """Deal a data set to clients, once a world.

    Args:
        name, options: the partition. clients: N; None where a natural partition gives it.
        seeds: one a replicate; world `r * F + f` is dealt by `stream(seeds[r], "partition")`.
        folds: which folds; default the first. hold_out: part of every client's rows withheld for validation.
        server: part of all rows that the server holds instead of the clients, without their labels.
    """
    options, wrong = split_options(options, data.classes)
    partition.check_partition_options(name, options)
    folds = folds or [0]
    _check(data, clients, folds, hold_out)
    if data.population:
        _check_generated(name)
        return Generated(data, data.population, clients or 0, seeds, hold_out, server, wrong)
    values, deal = _values(data, name, options), partial(partition.PARTITIONS[name], **options)
    if clients is None and name not in partition.BY_VALUE:
        raise BadInput("clients.number is missing: give the number of clients")
    worlds = list(product(seeds, folds))
    cut = partial(_dealt, data, values, partial(deal, clients=clients))
    groups = np.unique(data.train.group) if name == "natural" and data.train.group is not None else None
    shards = _stored(data, worlds, cut, groups, hold_out, server)
    if wrong is not None:
        shards.mislabel(wrong, [seed for seed, _ in worlds])
    return shards


def _stored(
    data: Dataset,
    worlds: list[tuple[int, int]],
    deal: Callable[[int, int], Cut],
    groups: Any,
    hold_out: float,
    server: float,
) -> StoredShards:
    """Cuts every world, takes the server's rows and the withheld ones out."""
    cuts, held, taken = [], [], []
    for seed, fold in worlds:
        cut = deal(seed, fold)
        if server:
            cut, rows = partition.share_with_server(cut, server, rng.stream(seed, "server data", fold))
            taken.append(rows)
        if hold_out:
            cut, rest = partition.withhold(cut, hold_out, rng.stream(seed, "hold_out", fold))
            held.append(rest)
        cuts.append(cut)
    return StoredShards(data, [fold for _, fold in worlds], cuts, held, groups=groups, server=taken)


def _check_generated(name: str) -> None:
    if name not in ("iid", "natural"):
        hint = "leave it out and use data.per_client for the classes a client holds"
        raise BadInput(f"data.partition.name = {name}, but synthetic clients make their own rows: {hint}")


def _check(data: Dataset, clients: int | None, folds: list[int], hold_out: float) -> None:
    if not 0 <= hold_out < 1:
        raise BadInput(f"data.hold_out = {hold_out}: it must be at least 0 and below 1")
    number = len(data.folds) or 1
    if bad := [f for f in folds if not 0 <= f < number]:
        raise BadInput(f"data.fold = {bad[0]}, but {data.name} has folds 0 .. {number - 1}: choose one of them")
    if clients is None and data.population:
        raise BadInput("clients.number is missing: give the number of clients")
    if clients is not None and clients < 1:
        raise BadInput(f"clients.number = {clients}: it must be at least 1")


def _dealt(data: Dataset, values: Array, deal: Callable[..., Cut], seed: int, fold: int) -> Cut:
    """A cut of the fold's training rows; its rows are rows of `data.train`."""
    generator = rng.stream(seed, "partition")
    if not data.folds:
        return deal(values, generator=generator)
    train = data.folds[fold][0]
    cut = deal(values[train], generator=generator)
    return cut._replace(rows=train[cut.rows])


def _values(data: Dataset, name: str, options: dict[str, Any]) -> Array:
    """What a partition goes by, `[n]`: labels, groups, or a column."""
    if name == "natural":
        if data.train.group is None:
            raise BadInput(f"data.partition.name = natural, but {data.name} has no natural clients: use another")
        return data.train.group
    if name == "column":
        wanted = options.get("column", "")
        if wanted not in data.columns:
            known = ", ".join(data.columns) or "none"
            raise BadInput(f"data.partition.column = {wanted}: no such column in {data.name}; its columns: {known}")
        return data.columns[wanted]
    return data.train.y
