"""What partitions have in common: how many rows each client gets, and clients with too few rows filled up.

Example:
    >>> share_rows(np.array([1.0, 3.0]), rows=10, least=1).tolist()
    [3, 7]
    >>> cut = raise_to_least(gather_cut(np.arange(5), np.array([0, 0, 0, 0, 1]), 3), 1, rng.stream(0, "partition"))
    >>> np.diff(cut.offsets).tolist()
    [3, 1, 1]
"""

from __future__ import annotations

import numpy as np

from fedray.core import rng  # noqa: F401  (for the example)
from fedray.core.errors import BadInput
from fedray.core.rounding import round_to_sum
from fedray.core.types import FloatArray, IntArray
from fedray.data.cut import Cut, gather_cut
from fedray.data.types import Array

Generator = np.random.Generator


def check_rows(rows: int, clients: int, each: int = 1, what: str = "") -> None:
    """Refuses so many clients that some would not get `each` rows.

    Args:
        rows: Rows of the data, n.
        clients: Number of clients, N.
        each: Rows that each client gets at least.
        what: Instead of rows, for the message: `4 shards each`.
    """
    if clients < 1:
        raise BadInput(f"clients.number = {clients}: it must be at least 1")
    if rows < clients * each:
        words = what or ("one row each" if each == 1 else f"{each} rows each")
        raise BadInput(
            f"clients.number = {clients}, but {rows} rows are too few for {words}: lower it to {rows // each}"
        )


def check_labels(labels: Array, name: str) -> IntArray:
    """The labels as int64; targets of a regression are refused."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(
            f"data.partition.name = {name}, but the data has no classes: use iid, or natural where the rows "
            "say whose they are"
        )
    return labels.astype(np.int64, copy=False)


def check_least(rows: int, clients: int, least: int) -> None:
    """Refuses a least number of rows that the data does not have for every client."""
    check_rows(rows, clients)
    if least < 0 or clients * least > rows:
        raise BadInput(
            f"data.partition.min_rows = {least}, but {rows} rows are too few for {clients} clients: lower it to "
            f"{rows // clients} at most"
        )


def share_rows(weights: FloatArray, rows: int, least: int = 1) -> IntArray:
    """Numbers of rows in proportion to weights, `[N]`, which add up to `rows`.

    Client i gets `least + (rows - N least) w_i / sum(w)`, rounded by largest remainders.

    Args:
        weights: Of the clients, `[N]`, positive.
        rows: Number of rows, n.
        least: Rows that each client gets in any case.
    """
    rest = rows - least * len(weights)
    return least + round_to_sum(weights / weights.sum() * rest, rest)


def deal_sizes(order: IntArray, size: IntArray) -> Cut:
    """The cut in which client i gets the next `size[i]` rows of an order."""
    return Cut(order.astype(np.int64), np.concatenate([[0], np.cumsum(size)]).astype(np.int64))


def raise_to_least(cut: Cut, least: int, generator: Generator) -> Cut:
    """Gives rows to each client that has fewer than `least`.

    If the rows of every client are piled up in random order, the given rows are the topmost ones of all piles.

    Args:
        cut: What the clients hold; it has at least `least` rows for each of them.
        least: Rows that each client gets at least.
        generator: Draws the order of the piles.
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
