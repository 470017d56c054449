"""Partitions by what is known of the rows: natural clients, the values of a column, domains, and time.

Example:
    >>> natural(np.array([30, 10, 30]), None).rows.tolist()
    [1, 0, 2]
    >>> time(np.array([5.0, 1.0, 3.0, 2.0]), 2).rows.tolist()
    [1, 3, 2, 0]
"""

from __future__ import annotations

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data.cut import Cut, gather_cut
from fedray.data.dealing import Generator, check_rows, share_rows
from fedray.data.types import Array


def natural(values: Array, clients: int | None, _generator: Generator | None = None) -> Cut:
    """Each value (writer, role, printer) is a client, in sorted order.

    Args:
        values: Of the rows, `[n]`.
        clients: Number of different values; None accepts any number.
    """
    return _take_owners(values, clients, "the natural partition")


def _take_owners(values: Array, clients: int | None, what: str) -> Cut:
    """Each value is a client; `what` says where they come from, for the message."""
    found, owner = np.unique(values, return_inverse=True)
    if clients is not None and clients != len(found):
        raise BadInput(
            f"clients.number = {clients}, but {what} has {len(found)} clients: leave it out (clients.number=null) or "
            f"set it to {len(found)}"
        )
    return gather_cut(np.arange(len(values)), owner.astype(np.int64), len(found))


def column(
    values: Array,
    clients: int | None,
    _generator: Generator | None = None,
    column: str = "",
) -> Cut:
    """Each value of a table's column is a client.

    Args:
        values: The column, `[n]`.
        clients: Number of different values; None accepts any number.
        column: Name of the column, for messages: the caller has chosen the values.
    """
    return _take_owners(values, clients, f"the column {column}")


def domain(
    values: Array,
    clients: int,
    generator: Generator,
    column: str = "domain",  # noqa: ARG001  (an option of the scenario, by which the caller has chosen the values)
) -> Cut:
    """Each value of a column is a domain with a group of clients, among whom its rows are dealt evenly.

    Domain g of n_g rows gets `1 + (N - G) n_g / n` of the N clients, rounded by largest remainders; ids go by domain.

    Source: Peng et al. 2020 (federated adversarial domain adaptation: a client has one domain), with several clients a
    domain.

    Args:
        values: Domain of each row, `[n]`, of G different values.
        clients: Number of clients, N >= G.
        generator: Shuffles the rows of each domain.
        column: Name of the column; a data set that is made of several has the column `domain`.
    """
    found, group, count = np.unique(values, return_inverse=True, return_counts=True)
    check_rows(len(values), clients)
    if clients < len(found):
        raise BadInput(f"clients.number = {clients}, but the column has {len(found)} domains: raise it to {len(found)}")
    number = _clients_of_domains(count, clients)
    order = generator.permutation(len(values))
    order = order[np.argsort(group[order], kind="stable")]
    place = np.arange(len(order)) - (np.cumsum(count) - count)[group[order]]  # position inside the domain
    first = np.cumsum(number) - number
    owner = first[group[order]] + place % number[group[order]]
    return gather_cut(order, owner.astype(np.int64), clients)


def _clients_of_domains(count: IntArray, clients: int) -> IntArray:
    """Clients of each domain of `count` rows, `[G]`: in proportion, and never more than its rows."""
    number = np.minimum(share_rows(count.astype(np.float64), clients), count)
    spare = np.repeat(np.arange(len(count)), count - number)  # places that domains still have
    more: IntArray = np.bincount(spare[: clients - int(number.sum())], minlength=len(count))
    return number + more


def time(
    values: Array,
    clients: int,
    _generator: Generator | None = None,
    column: str = "",  # noqa: ARG001  (an option of the scenario, by which the caller has chosen the values)
) -> Cut:
    """The rows are sorted by a column and cut into spans of equal numbers of rows, one a client, the earliest first.

    Rows of the same time keep their order. Client i has the rows from the quantile `i / N` to `(i + 1) / N`. Columns of
    a table come as text: where all of it is numbers they are sorted as numbers, missing ones last.

    There is no paper to name: it is the plain split of a stream by its time.

    Args:
        values: The column, `[n]`: numbers, dates, or texts that sort as the times do.
        clients: Number of clients, N.
        column: Name of the column.
    """
    check_rows(len(values), clients)
    order = np.argsort(_read_numbers(values), kind="stable")
    return gather_cut(order, np.arange(len(order)) * clients // len(order), clients)


def _read_numbers(values: Array) -> Array:
    """The numbers that texts say, `[n]`; the values as they are where some are no numbers."""
    if values.dtype.kind != "U":
        return values
    for kind in (np.int64, np.float64):  # whole numbers first: nanoseconds since 1970 are more than float64 tells apart
        try:
            return np.where(values == "<NA>", "nan", values).astype(kind)
        except (ValueError, OverflowError):
            continue
    return values
