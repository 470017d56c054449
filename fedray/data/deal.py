"""How the rows of a data set are dealt to clients, to the server, and to validation, in every world.

Example:
    >>> from fedray.data.catalogue import load_data
    >>> shards = build_shards(load_data("digits"), "iid", {}, clients=100, seeds=[0])
    >>> shards.sizes(np.array([0, 0]), np.array([0, 99])).tolist()
    [15, 14]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.data import partition
from fedray.data.cut import Cut, share_with_server, withhold
from fedray.data.generated import GeneratedShards
from fedray.data.label_noise import split_options
from fedray.data.shards import Shards
from fedray.data.stored import StoredShards
from fedray.data.types import Array, Dataset


class Dealing(NamedTuple):
    """How rows are dealt to clients.

    Attributes:
        name: The partition.
        options: Of the partition, and of wrong labels.
        clients: Number of clients, N; None where a natural partition gives it.
    """

    name: str
    options: dict[str, Any]
    clients: int | None


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
    pooled: Dealing | None = None,
) -> Shards:
    """Deals a data set to clients, once for each world.

    Args:
        data: The data set.
        name: The partition.
        options: Of the partition, and of wrong labels.
        clients: Number of clients, N; None where a natural partition gives it.
        seeds: One for each replicate; world `r * F + f` is dealt by `stream(seeds[r], "partition")`.
        folds: Which folds are worlds; None means the first one.
        hold_out: Share of every client's rows that is withheld for validation, at least 0 and below 1.
        server: Share of all rows that the server holds without their labels, instead of the clients.
        pooled: The clients whose rows are pooled; their wrong labels stay wrong. None: nothing is pooled.
    """
    options, noise = split_options(options, data.classes)
    if pooled is not None:
        noise = split_options(pooled.options, data.classes)[1]
    partition.check_partition_options(name, options)
    folds = folds or [0]
    _check_arguments(data, name, clients, folds, hold_out)
    if data.population:
        owners = clients if pooled is None else pooled.clients
        return GeneratedShards(
            data,
            data.population,
            clients or 0,
            seeds,
            hold_out=hold_out,
            server=server,
            label_noise=noise,
            owners=owners,
        )
    if clients is None and name not in partition.BY_VALUE:
        raise BadInput("clients.number is missing: give the number of clients")
    worlds = list(product(seeds, folds))
    cuts = _deal_rows(data, name, options, clients, worlds)
    groups = np.unique(data.train.group) if name == "natural" and data.train.group is not None else None
    shards = _set_rows_aside(data, worlds, cuts, groups, hold_out=hold_out, server=server)
    if noise is not None:
        owned = cuts if pooled is None else _deal_clients(data, pooled, worlds)
        shards.mislabel(noise, [seed for seed, _ in worlds], owned)
    return shards


def _deal_clients(data: Dataset, clients: Dealing, worlds: list[tuple[int, int]]) -> list[Cut]:
    """The cuts of clients whose rows are pooled, as if they were not."""
    options = split_options(clients.options, data.classes)[0]
    partition.check_partition_options(clients.name, options)
    return _deal_rows(data, clients.name, options, clients.clients, worlds)


def _deal_rows(
    data: Dataset, name: str, options: dict[str, Any], clients: int | None, worlds: list[tuple[int, int]]
) -> list[Cut]:
    """The cut of each world, (seed, fold) each, by a named partition."""
    values, deal = _partition_values(data, name, options), partial(partition.PARTITIONS[name], **options)
    return [_deal_fold(data, values, lambda rows, draw: deal(rows, clients, draw), *world) for world in worlds]


def _set_rows_aside(
    data: Dataset,
    worlds: list[tuple[int, int]],
    cuts: list[Cut],
    groups: Array | None,
    *,
    hold_out: float,
    server: float,
) -> StoredShards:
    """Takes the server's rows and the withheld ones from the clients of every world, (seed, fold) each."""
    kept, held, taken = [], [], []
    for (seed, fold), cut in zip(worlds, cuts, strict=True):
        if server:
            cut, rows = share_with_server(cut, server, rng.stream(seed, "server data", fold))
            taken.append(rows)
        if hold_out:
            cut, rest = withhold(cut, hold_out, rng.stream(seed, "hold_out", fold))
            held.append(rest)
        kept.append(cut)
    return StoredShards(data, [fold for _, fold in worlds], kept, held, groups=groups, server=taken)


def _check_arguments(data: Dataset, name: str, clients: int | None, folds: list[int], hold_out: float) -> None:
    """Refuses arguments of `build_shards` that are out of range or do not fit together."""
    if not 0 <= hold_out < 1:
        raise BadInput(f"data.hold_out = {hold_out}: it must be at least 0 and below 1")
    number = len(data.folds) or 1
    if bad := [f for f in folds if not 0 <= f < number]:
        raise BadInput(f"data.fold = {bad[0]}, but {data.name} has folds 0 .. {number - 1}: choose one of them")
    if clients is None and data.population:
        raise BadInput("clients.number is missing: give the number of clients")
    if data.population and name not in ("iid", "natural"):
        hint = "leave it out and use data.per_client for the classes a client holds"
        raise BadInput(f"data.partition.name = {name}, but synthetic clients make their own rows: {hint}")
    if data.population and name == "iid":
        for key, value in (("per_client", data.population.per_client), ("spread", data.population.spread)):
            if value:
                raise BadInput(
                    f"data.{key} = {value:g}, but data.partition.name is iid: leave one of the two out (the partition "
                    "of synthetic clients is natural)"
                )
    if clients is not None and clients < 1:
        raise BadInput(f"clients.number = {clients}: it must be at least 1")


def _deal_fold(
    data: Dataset, values: Array, deal: Callable[[Array, np.random.Generator], Cut], seed: int, fold: int
) -> Cut:
    """Deals the training rows of a fold; the rows of the result are rows of `data.train`."""
    generator = rng.stream(seed, "partition")
    if not data.folds:
        return deal(values, generator)
    train = data.folds[fold][0]
    cut = deal(values[train], generator)
    return cut._replace(rows=train[cut.rows])


def _partition_values(data: Dataset, name: str, options: dict[str, Any]) -> Array:
    """The values by which a partition deals the rows, `[n]`: labels, groups, or a column."""
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
