"""A cut of rows into clients, and the rows that are taken from them for the server and for validation.

Example:
    >>> cut = gather_cut(np.array([10, 11, 12]), np.array([1, 0, 1]), clients=2)
    >>> cut.rows.tolist(), cut.offsets.tolist()
    ([11, 10, 12], [0, 1, 3])
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedray.core.types import IntArray


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
    """The cut in which `owner[j]` holds `rows[j]`; the rows of a client keep their order.

    Args:
        rows: Indices of rows, `[n]`.
        owner: Client of each row, `[n]`.
        clients: Number of clients, N.
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
