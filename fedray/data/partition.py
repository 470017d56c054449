"""Partitions: which client holds which training rows.

Every row goes to exactly one client. No rejection sampling: empty clients, say, are filled directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput
from fedray.core.text import suggest_nearest
from fedray.core.types import FloatArray, IntArray
from fedray.data.cut import Cut, gather_cut
from fedray.data.dealing import Generator, check_labels, check_least, check_rows, raise_to_least
from fedray.data.grouping import column, domain, natural, time
from fedray.data.skew import dirichlet_clients, exponential, lognormal, power_law, sizes
from fedray.data.types import Array


def iid(labels: Array, clients: int, generator: Generator) -> Cut:
    """Rows are shuffled and dealt evenly; the first clients get the remaining rows, one each.

    Args:
        labels: Of the rows, `[n]`; only their number counts.
        clients: Number of clients, N.
        generator: Draws the partition.

    Example:
        >>> np.diff(iid(np.zeros(8), 3, np.random.default_rng(0)).offsets).tolist()
        [3, 3, 2]
    """
    n = len(labels)
    check_rows(n, clients)
    return gather_cut(generator.permutation(n), np.arange(n) % clients, clients)


def shards(labels: Array, clients: int, generator: Generator, shards: int = 2) -> Cut:
    """Rows are sorted by label and cut into `clients * shards` shards, which are dealt at random.

    Source: McMahan et al. 2017; the "path" partition of SHEFL with 4.

    Args:
        labels: Of the rows, `[n]`, or one target for each row.
        clients: Number of clients, N.
        generator: Draws the partition.
        shards: Shards of each client.
    """
    if shards < 1:
        raise BadInput(f"data.partition.shards = {shards}: it must be at least 1")
    flat = labels.reshape(len(labels), -1)
    if flat.shape[1] != 1:
        raise BadInput(
            "data.partition.name = shards, but the data has several targets: use iid, or natural "
            "where the rows say whose they are"
        )
    n, total = len(labels), clients * shards
    check_rows(n, clients, shards, f"{shards} shards each" if shards > 1 else "")
    order = generator.permutation(n)
    order = order[np.argsort(flat[order, 0], kind="stable")]
    shard = np.arange(n) * total // n  # sizes differ by at most 1
    return gather_cut(order, generator.permutation(total)[shard] // shards, clients)


def classes(labels: Array, clients: int, generator: Generator, classes: int = 2) -> Cut:
    """Every client holds the same number of classes; the rows of a class are dealt evenly to its holders.

    All classes have the same number of holders (to within 1, unless a class has fewer rows than that). Each client
    takes the classes with the most open places, ties at random: this fills all places whenever that is possible
    (Gale, Ryser).

    Args:
        labels: Of the rows, `[n]` integers.
        clients: Number of clients, N.
        generator: Draws the partition.
        classes: Classes of each client.
    """
    y = check_labels(labels, "classes")
    check_rows(len(y), clients)
    _, y, count = np.unique(y, return_inverse=True, return_counts=True)
    if classes < 1:
        raise BadInput(f"data.partition.classes = {classes}: it must be at least 1")
    if classes > len(count):
        raise BadInput(f"data.partition.classes = {classes}, but the data has {len(count)} classes: lower it")
    open_places = _holders(count, clients, classes, generator)
    holder = np.empty((clients, classes), np.int64)
    for i, tie in enumerate(generator.random((clients, len(count)))):
        holder[i] = np.argsort(tie - open_places, kind="stable")[:classes]
        open_places[holder[i]] -= 1
    slot_class, slot_client = holder.ravel(), np.repeat(np.arange(clients), classes)
    by_class = generator.permutation(len(slot_class))
    by_class = by_class[np.argsort(slot_class[by_class], kind="stable")]  # slots of class 0, of class 1, ...
    slots = np.bincount(slot_class, minlength=len(count))
    order = generator.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    label = y[order]
    place = np.arange(len(y)) - (np.cumsum(count) - count)[label]  # position inside the class
    slot = (np.cumsum(slots) - slots)[label] + place * slots[label] // count[label]
    return gather_cut(order, slot_client[by_class[slot]], clients)


def _holders(count: IntArray, clients: int, classes: int, generator: Generator) -> IntArray:
    """How many clients hold each class, `[G]`: as equal as possible, and never more than the class has rows.

    The numbers add up to `clients * classes`.
    """
    cap, need = np.minimum(count, clients), clients * classes
    if need < len(count):
        least = -(-len(count) // clients)
        raise BadInput(
            f"data.partition.classes = {classes} with {clients} clients reaches {need} of {len(count)} classes, and "
            f"every row must be dealt: raise it to {least}"
        )
    if cap.sum() < need:
        raise BadInput(f"data.partition.classes = {classes}, but {clients} clients have too few rows for it: lower it")
    filled = np.minimum(cap[:, None], np.arange(clients + 1)).sum(axis=0)  # places below each level
    level = int(np.searchsorted(filled, need, side="right")) - 1  # the highest level that is not too much
    places = np.minimum(cap, level)
    more = np.flatnonzero(cap > level)
    places[generator.permutation(more)[: need - int(places.sum())]] += 1
    return places


def dirichlet(
    labels: Array,
    clients: int,
    generator: Generator,
    alpha: float = 0.5,
    *,
    allow_empty: bool = False,
    min_rows: int | None = None,
    cap: bool = False,
) -> Cut:
    """The rows of each class are dealt by proportions drawn from a symmetric Dirichlet(alpha) over the clients.

    `dirichlet_clients` draws one vector over the classes for each client instead.

    Source: Yurochkin et al. 2019 (PFNM, section 4). With `cap` the code of Li et al. 2022 (NIID-Bench), which draws
    everything again until each client has 10 rows; here clients with fewer than `min_rows` are filled up.

    Args:
        labels: Of the rows, `[n]` integers.
        clients: Number of clients, N.
        generator: Draws the partition.
        alpha: 0.0001 to 1e9; the smaller, the more the clients differ.
        allow_empty: Whether clients may have no rows.
        min_rows: Rows that each client gets at least, of the largest clients; None: one, unless clients may be empty.
        cap: Whether a client that has n / N rows or more gets none of further classes, in the order of their labels.
    """
    y = check_labels(labels, "dirichlet")
    if not 1e-4 <= alpha < 1e9:  # below, all rows of a class are one client's anyway, and numbers underflow
        raise BadInput(f"data.partition.alpha = {alpha}: it must be at least 0.0001 and below 1e9")
    if allow_empty and min_rows:
        raise BadInput(f"data.partition.min_rows = {min_rows}, but data.partition.allow_empty is true: leave one out")
    least = 1 if min_rows is None and not allow_empty else min_rows or 0
    check_rows(len(y) if least else clients, clients)
    check_least(max(len(y), clients), clients, least)
    order = generator.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    _, count = np.unique(y, return_counts=True)
    shares, size, owners = generator.dirichlet(np.full(clients, alpha), size=len(count)), np.zeros(clients), []
    for share, n in zip(shares, count, strict=True):
        edges = np.cumsum(_leave_out(share, size >= len(y) / clients) if cap else share)
        edges[-1] = 1.0
        owners.append(_owners(edges, n))
        size += np.bincount(owners[-1], minlength=clients)
    return raise_to_least(gather_cut(order, np.concatenate(owners), clients), least, generator)


def _leave_out(share: FloatArray, full: NDArray[np.bool_]) -> FloatArray:
    """The shares `[N]` of clients that are not full, which sum to 1; equal ones where theirs are too small."""
    left = np.where(full, 0.0, share)
    return left / left.sum() if left.sum() > 0 else ~full / np.count_nonzero(~full)


def _owners(edges: Array, n: int) -> IntArray:
    """Client of each of n rows, `[n]` and rising, for cumulated proportions `[N]`."""
    counts = np.diff(np.rint(np.minimum(edges, 1.0) * n).astype(np.int64), prepend=0)
    return np.repeat(np.arange(len(edges)), counts)


PARTITIONS: dict[str, Callable[..., Cut]] = {
    "iid": iid,
    "shards": shards,
    "classes": classes,
    "dirichlet": dirichlet,
    "dirichlet_clients": dirichlet_clients,
    "lognormal": lognormal,
    "power_law": power_law,
    "exponential": exponential,
    "sizes": sizes,
    "natural": natural,
    "column": column,
    "domain": domain,
    "time": time,
}
BY_VALUE = ("natural", "column")  # the values give the number of clients
BY_COLUMN = ("column", "domain", "time")  # `data.partition.column` names the values


def check_partition_options(name: str, options: dict[str, Any]) -> None:
    """Raises BadInput for an unknown partition or option."""
    if name not in PARTITIONS:
        remedy = suggest_nearest(name, PARTITIONS, f"choose one of {', '.join(PARTITIONS)}")
        raise BadInput(f"data.partition.name = {name}: no such partition: {remedy}")
    known = list(inspect.signature(PARTITIONS[name]).parameters)[3:]
    for key in options:
        if key not in known:
            hint = f"its options are: {', '.join(known) or 'none'}"
            raise BadInput(f"data.partition.{key}: {name} has no such option: {hint}")
