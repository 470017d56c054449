"""Who holds which rows. Every training row goes to exactly one client; nothing here loops until it is lucky."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data.types import Array

Generator = np.random.Generator


class Cut(NamedTuple):
    """Client i holds `rows[offsets[i]:offsets[i + 1]]`. rows `[n]`, offsets `[N + 1]`."""

    rows: IntArray
    offsets: IntArray

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def owner(self) -> IntArray:
        """Client of each entry of `rows`, `[n]`."""
        return np.repeat(np.arange(self.clients), np.diff(self.offsets))


def gather_cut(rows: IntArray, owner: IntArray, clients: int) -> Cut:
    """`owner[j]` holds `rows[j]`; the order inside a client stays."""
    order = np.argsort(owner, kind="stable")
    offsets = np.zeros(clients + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=clients), out=offsets[1:])
    return Cut(rows[order].astype(np.int64), offsets)


def _enough(rows: int, clients: int, each: int = 1) -> None:
    if clients < 1:
        raise BadInput(f"clients.number = {clients}: it must be at least 1")
    if rows < clients * each:
        what = f"{each} shards each" if each > 1 else "one row each"
        raise BadInput(
            f"clients.number = {clients}, but {rows} rows are too few for {what}: lower it to {rows // each}"
        )


def _labels(labels: Array, name: str) -> IntArray:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"data.partition.name = {name}, but the data has no classes: use iid or natural")
    return labels.astype(np.int64, copy=False)


def iid(labels: Array, clients: int, generator: Generator) -> Cut:
    """Shuffled and dealt evenly; the remainder goes one by one to the first clients.

    Example:
        >>> np.diff(iid(np.zeros(8), 3, np.random.default_rng(0)).offsets).tolist()
        [3, 3, 2]
    """
    n = len(labels)
    _enough(n, clients)
    return gather_cut(generator.permutation(n), np.arange(n) % clients, clients)


def shards(labels: Array, clients: int, generator: Generator, shards: int = 2) -> Cut:
    """Rows sorted by label (or single target) are cut into `clients * shards` shards, dealt at random, s a client.

    Source: McMahan et al. 2017; the "path" partition of SHEFL with 4.
    """
    if shards < 1:
        raise BadInput(f"data.partition.shards = {shards}: it must be at least 1")
    flat = labels.reshape(len(labels), -1)
    if flat.shape[1] != 1:
        raise BadInput("data.partition.name = shards, but the data has several targets: use iid or natural")
    n, total = len(labels), clients * shards
    _enough(n, clients, shards)
    order = generator.permutation(n)
    order = order[np.argsort(flat[order, 0], kind="stable")]
    shard = np.arange(n) * total // n  # sizes differ by at most 1
    return gather_cut(order, generator.permutation(total)[shard] // shards, clients)


def classes(labels: Array, clients: int, generator: Generator, classes: int = 2) -> Cut:
    """Every client holds exactly C classes ("N.o.C."); a class is dealt evenly to its holders.

    Classes have equally many holders (to within 1, unless a class has fewer rows than that). Each client takes the C
    classes with the most open places, ties at random: this fills all places whenever that is possible (Gale, Ryser).
    """
    y = _labels(labels, "classes")
    _enough(len(y), clients)
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
    """How many clients hold each class, `[G]`: equal, at most one a row, `clients * classes` in all."""
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


def dirichlet(labels: Array, clients: int, generator: Generator, alpha: float = 0.5, allow_empty: bool = False) -> Cut:
    """The rows of each class are dealt by proportions drawn from a symmetric Dirichlet(alpha) over clients.

    Empty clients then get one row each, taken from the largest clients; nothing is drawn again.
    Source: Hsu et al. 2019 (class-wise, as in Li et al. 2022).
    """
    y = _labels(labels, "dirichlet")
    if not 1e-4 <= alpha < 1e9:  # below, all rows of a class are one client's anyway, and numbers underflow
        raise BadInput(f"data.partition.alpha = {alpha}: it must be at least 0.0001 and below 1e9")
    _enough(len(y) if not allow_empty else clients, clients)
    order = generator.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    _, count = np.unique(y, return_counts=True)
    edges = np.cumsum(generator.dirichlet(np.full(clients, alpha), size=len(count)), axis=1)  # [G, N]
    edges[:, -1] = 1.0
    owner = np.concatenate([_dealt(edge, n) for edge, n in zip(edges, count, strict=True)])
    cut = gather_cut(order, owner, clients)
    return cut if allow_empty else _fill(cut, generator)


def _dealt(edges: Array, n: int) -> IntArray:
    """Owner of each of n rows in a row, `[n]`, for cumulated proportions `[N]`."""
    counts = np.diff(np.rint(np.minimum(edges, 1.0) * n).astype(np.int64), prepend=0)
    return np.repeat(np.arange(len(edges)), counts)


def _fill(cut: Cut, generator: Generator) -> Cut:
    """One row for each empty client: the topmost rows, if every client's rows are piled up in random order."""
    empty = np.flatnonzero(np.diff(cut.offsets) == 0)
    if not len(empty):
        return cut
    owner = cut.owner
    order = np.lexsort((generator.random(len(owner)), owner))
    height = np.arange(len(owner)) - cut.offsets[:-1][owner]  # of the order-th row
    given = order[np.argsort(-height, kind="stable")[: len(empty)]]  # never height 0, as n >= N
    owner[given] = empty
    return gather_cut(cut.rows, owner, cut.clients)


def natural(values: Array, clients: int | None, generator: Generator | None = None) -> Cut:
    """One client a value of `values` `[n]` (writer, role, printer), in sorted order."""
    found, owner = np.unique(values, return_inverse=True)
    if clients is not None and clients != len(found):
        raise BadInput(
            f"clients.number = {clients}, but the natural partition has {len(found)} clients: leave it out or set it "
            f"to {len(found)}"
        )
    return gather_cut(np.arange(len(values)), owner.astype(np.int64), len(found))


def column(values: Array, clients: int | None, generator: Generator | None = None, column: str = "") -> Cut:
    """One client a value of a table's column; `values` are those of the column."""
    return natural(values, clients, generator)


def count_withheld(size: IntArray, fraction: float) -> IntArray:
    """`floor(n * fraction)`, where 0.29 of 100 is 29."""
    count: IntArray = np.floor(size * fraction + 1e-9).astype(np.int64)
    return count


def share_with_server(cut: Cut, fraction: float, generator: Generator) -> tuple[Cut, IntArray]:
    """Takes a fraction of all rows (rounded down) from the clients at random; each keeps at least one: rest, taken."""
    first = np.zeros(len(cut.rows), dtype=bool)
    first[cut.offsets[:-1][np.diff(cut.offsets) > 0]] = True
    free = generator.permutation(np.flatnonzero(~first))
    taken = np.sort(free[: int(len(cut.rows) * fraction + 1e-9)])
    keep = np.ones(len(cut.rows), dtype=bool)
    keep[taken] = False
    return gather_cut(cut.rows[keep], cut.owner[keep], cut.clients), cut.rows[taken]


def withhold(cut: Cut, fraction: float, generator: Generator) -> tuple[Cut, Cut]:
    """Split every client's rows: `withheld(n, fraction)` of its n rows, drawn at random, go to the second cut."""
    size, owner = np.diff(cut.offsets), cut.owner
    order = np.lexsort((generator.random(len(owner)), owner))
    place = np.arange(len(owner)) - cut.offsets[:-1][owner]
    held = place >= (size - count_withheld(size, fraction))[owner]
    rows = cut.rows[order]
    return gather_cut(rows[~held], owner[~held], cut.clients), gather_cut(rows[held], owner[held], cut.clients)


PARTITIONS: dict[str, Callable[..., Cut]] = {
    "iid": iid,
    "shards": shards,
    "classes": classes,
    "dirichlet": dirichlet,
    "natural": natural,
    "column": column,
}
BY_VALUE = ("natural", "column")  # they set the number of clients


def check_partition_options(name: str, options: dict[str, Any]) -> None:
    """Raise BadInput for an unknown partition or option."""
    import difflib
    import inspect

    if name not in PARTITIONS:
        near = difflib.get_close_matches(name, PARTITIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(PARTITIONS)}"
        raise BadInput(f"data.partition.name = {name}: no such partition: {hint}")
    known = list(inspect.signature(PARTITIONS[name]).parameters)[3:]
    for key in options:
        if key not in known:
            hint = f"its options are: {', '.join(known) or 'none'}"
            raise BadInput(f"data.partition.{key}: {name} has no such option: {hint}")
