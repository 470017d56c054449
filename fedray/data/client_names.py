"""What the clients are called, where each has the rows of one name: a mapping from clients to data, or a natural group.

Example:
    >>> from fedray.data.adaptation import adapt
    >>> from fedray.data.deal import build_shards
    >>> ward = np.arange(20.0).reshape(10, 2), [0, 1] * 5
    >>> data = adapt({"Rome": ward, "Oslo": ward})
    >>> name_clients(build_shards(data, "natural", {}, clients=2, seeds=[0]))
    ('Rome', 'Oslo')
    >>> name_clients(build_shards(data, "iid", {}, clients=2, seeds=[0]))
    ()
"""

from __future__ import annotations

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.text import suggest_nearest
from fedray.data.cut import Cut
from fedray.data.shards import Shards
from fedray.data.stored import StoredShards
from fedray.data.types import Array

COLUMNS = ("client of the row", "client")  # of data that are given client by client
MOST_NAMES = 10_000


def name_clients(shards: Shards, group: str | None = None) -> tuple[str, ...]:
    """The name of each client, N of them; empty where a client has rows of several names, or two have one.

    Args:
        shards: The clients' data.
        group: The column of the natural clients, where a table has one.
    """
    if not isinstance(shards, StoredShards) or shards.dealt.owned[0].clients > MOST_NAMES:
        return ()
    if shards.original is not shards.data:  # copies of all rows
        return ()
    known = shards.data.columns
    column = next((known[name] for name in (group, *COLUMNS) if name is not None and name in known), None)
    if column is None:
        return ()
    each = {_name_owners(cut, column) for cut in shards.dealt.owned}
    return each.pop() if len(each) == 1 else ()


def find_client(client: int | str, names: tuple[str, ...], number: int) -> int:
    """The number of a client that is named, or is a number already.

    Args:
        client: Its name, or 0 to N - 1.
        names: Of the clients, as `name_clients` gives them.
        number: Of clients, N.

    Raises:
        BadInput: There is no such client.
    """
    if isinstance(client, str):
        if client in names:
            return names.index(client)
        if not names:
            raise BadInput(f"client = {client!r}, but the clients of this run have no names: give 0 to {number - 1}")
        remedy = suggest_nearest(client, names, "choose one of them")
        raise BadInput(f"client = {client!r}: there is no such client: {remedy} ({', '.join(names)[:300]})")
    if not isinstance(client, int | np.integer) or isinstance(client, bool):
        raise BadInput(f"client = {client!r}: give its name, or a number from 0 to {number - 1}")
    if not 0 <= client < number:
        raise BadInput(f"client = {client}, but the run has clients 0 to {number - 1}: choose one of them")
    return int(client)


def _name_owners(cut: Cut, column: Array) -> tuple[str, ...]:
    """The value that all rows of a client have and nobody else's do, for each client; empty where there is none."""
    values = column[cut.rows]
    first = cut.offsets[:-1]
    if not len(values) or (np.diff(cut.offsets) == 0).any() or (values != values[first][cut.owner]).any():
        return ()
    names = tuple(str(name) for name in values[first])
    return names if len(set(names)) == len(names) else ()
