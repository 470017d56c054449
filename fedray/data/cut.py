"""A cut of rows into clients, and the rows that are taken from them for the server and for validation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.rounding import round_to_sum
from fedray.core.types import FloatArray, IntArray
from fedray.data.types import Array


class Cut(NamedTuple):
    """A partition of rows: client i holds `rows[offsets[i]:offsets[i + 1]]`.

    Attributes:
        rows: Indices of the rows, client after client, `[n]`.
        offsets: Where the rows of each client begin, and the end, `[N + 1]`.
    """

    rows: IntArray
    offsets: IntArray

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.offsets) - 1

    @property
    def owner(self) -> IntArray:
        """Client of each entry of `rows`, `[n]`."""
        return np.repeat(np.arange(self.clients), np.diff(self.offsets))


class Dealt(NamedTuple):
    """Who holds which rows, one entry for each world.

    Attributes:
        owned: All rows that were dealt, with their clients.
        kept: What the clients train on.
        held: What is withheld from them; empty without any.
        server: The rows that the server holds in their place; empty without any.
    """

    owned: list[Cut]
    kept: list[Cut]
    held: list[Cut]
    server: list[IntArray]


def gather_cut(rows: IntArray, owner: IntArray, clients: int) -> Cut:
    """Returns the cut in which `owner[j]` holds `rows[j]`; the rows of a client keep their order.

    Args:
        rows: Indices of rows, `[n]`.
        owner: Client of each row, `[n]`.
        clients: Number of clients, N.

    Example:
        >>> cut = gather_cut(np.array([10, 11, 12]), np.array([1, 0, 1]), clients=2)
        >>> cut.rows.tolist(), cut.offsets.tolist()
        ([11, 10, 12], [0, 1, 3])
    """
    order = np.argsort(owner, kind="stable")
    offsets = np.zeros(clients + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=clients), out=offsets[1:])
    return Cut(rows[order].astype(np.int64), offsets)


def count_withheld(size: IntArray, fraction: float) -> IntArray:
    """How many rows are withheld from clients with these sizes: `size * fraction` rounded down, 29 for 0.29 of 100."""
    count: IntArray = np.floor(size * fraction + 1e-9).astype(np.int64)
    return count


def share_with_server(cut: Cut, fraction: float, generator: np.random.Generator) -> tuple[Cut, IntArray]:
    """Takes a share of all rows from the clients at random; each client keeps at least one row.

    Args:
        cut: What the clients hold.
        fraction: Share of all rows (rounded down).
        generator: Draws the rows.

    Returns:
        What the clients keep, and the rows that were taken.
    """
    first = np.zeros(len(cut.rows), dtype=bool)
    first[cut.offsets[:-1][np.diff(cut.offsets) > 0]] = True
    free = generator.permutation(np.flatnonzero(~first))
    taken = np.sort(free[: int(len(cut.rows) * fraction + 1e-9)])
    keep = np.ones(len(cut.rows), dtype=bool)
    keep[taken] = False
    return gather_cut(cut.rows[keep], cut.owner[keep], cut.clients), cut.rows[taken]


def withhold(cut: Cut, fraction: float, generator: np.random.Generator) -> tuple[Cut, Cut]:
    """Withholds a share of every client's rows, drawn at random.

    Args:
        cut: What the clients hold.
        fraction: Share of a client's rows, see `count_withheld`.
        generator: Draws the rows.

    Returns:
        What the clients keep, and what is withheld from them.
    """
    size, owner = np.diff(cut.offsets), cut.owner
    order = np.lexsort((generator.random(len(owner)), owner))
    place = np.arange(len(owner)) - cut.offsets[:-1][owner]
    held = place >= (size - count_withheld(size, fraction))[owner]
    rows = cut.rows[order]
    return gather_cut(rows[~held], owner[~held], cut.clients), gather_cut(rows[held], owner[held], cut.clients)


# ---------------------------------------------------------------------------------------------------------------------
# What partitions have in common: how many rows each client gets, and clients with too few rows filled up.

Generator = np.random.Generator


def check_rows(rows: int, clients: int, each: int = 1) -> None:
    """Refuses so many clients that some would not get `each` rows.

    Args:
        rows: Rows of the data, n.
        clients: Number of clients, N.
        each: Rows that each client gets at least.
    """
    if rows < clients * each:
        raise BadInput(f"clients.number = {clients}, but {rows} rows are too few for {each} each: use {rows // each}")


def check_labels(labels: Array, name: str) -> IntArray:
    """Returns the labels as int64; targets of a regression are refused."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"data.partition.name = {name}, but the data has no classes: use iid or natural")
    return labels.astype(np.int64, copy=False)


def share_rows(weights: FloatArray, rows: int, least: int = 1) -> IntArray:
    """Numbers of rows in proportion to weights, `[N]`, which add up to `rows`.

    Client i gets `least + (rows - N least) w_i / sum(w)`, rounded by largest remainders.

    Args:
        weights: Of the clients, `[N]`, positive.
        rows: Number of rows, n.
        least: Rows that each client gets in any case.

    Example:
        >>> share_rows(np.array([1.0, 3.0]), rows=10, least=1).tolist()
        [3, 7]
    """
    rest = rows - least * len(weights)
    return least + round_to_sum(weights / weights.sum() * rest, rest)


def deal_sizes(order: IntArray, size: IntArray) -> Cut:
    """Returns the cut in which client i gets the next `size[i]` rows of an order."""
    return Cut(order.astype(np.int64), np.concatenate([[0], np.cumsum(size)]).astype(np.int64))


def raise_to_least(cut: Cut, least: int, generator: Generator) -> Cut:
    """Gives rows to each client that has fewer than `least`.

    If the rows of every client are piled up in random order, the given rows are the topmost ones of all piles.

    Args:
        cut: What the clients hold; it has at least `least` rows for each of them.
        least: Rows that each client gets at least.
        generator: Draws the order of the piles.

    Example:
        >>> from fedray.core import rng
        >>> cut = gather_cut(np.arange(5), np.array([0, 0, 0, 0, 1]), 3)
        >>> np.diff(raise_to_least(cut, 1, rng.stream(0, "partition")).offsets).tolist()
        [3, 1, 1]
    """
    lacking = np.maximum(least - np.diff(cut.offsets), 0)
    if not lacking.any():
        return cut
    owner = cut.owner
    order = np.lexsort((generator.random(len(owner)), owner))
    height = np.arange(len(owner)) - cut.offsets[:-1][owner]  # of the order-th row
    given = order[np.argsort(-height, kind="stable")[: int(lacking.sum())]]  # never below `least`, as n >= N least
    owner[given] = np.repeat(np.arange(cut.clients), lacking)
    return gather_cut(cut.rows, owner, cut.clients)
