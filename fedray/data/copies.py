"""Every group of clients has all rows of the data, shown in its own way, and is tested on such rows (`copies`).

The data set gets each row once for each of G groups: the rows of group g are those from `g n` on. Then every copy is
dealt to the clients of its group alone.

Example:
    >>> from fedray.data.catalogue import load_data
    >>> data = load_data("digits")
    >>> four = copy_rows(data, Shifts(rotation=4, copies=True))
    >>> len(four.train.y) // len(data.train.y)
    4
    >>> np.array_equal(four.test.x[359], np.rot90(data.test.x[0], axes=(-2, -1)))
    True

Source: Ghosh, Chung, Yin, Ramchandran, *An Efficient Framework for Clustered Federated Learning*, NeurIPS 2020, section
6: rotated MNIST.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data.cut import Cut, gather_cut
from fedray.data.shifts import Shifts
from fedray.data.types import Array, Dataset, Split


def copy_rows(data: Dataset, shifts: Shifts) -> Dataset:
    """The data set with each training and test row once for each group, `[G n]`; images are turned as the group's.

    Args:
        data: With classes or images.
        shifts: One of `rotation` and `permute_labels` says how many groups there are. What labels mean to a group
            depends on the world, so that they stay as they are here.
    """
    groups = shifts.clusters

    def turn(x: Array) -> Array:
        turns = 4 // shifts.rotation if shifts.rotation else 0
        return np.concatenate([np.rot90(x, g * turns, axes=(-2, -1)) if turns else x for g in range(groups)])

    def copy(split: Split) -> Split:
        group = None if split.group is None else np.tile(split.group, groups)
        return Split(turn(split.x), np.concatenate([split.y] * groups), group)

    n = len(data.train.y)
    folds = tuple((_copy_places(train, n, groups), _copy_places(test, n, groups)) for train, test in data.folds)
    columns = {name: np.tile(values, groups) for name, values in data.columns.items()}
    return data._replace(train=copy(data.train), test=copy(data.test), folds=folds, columns=columns)


def _copy_places(rows: IntArray, n: int, groups: int) -> IntArray:
    """The places of some rows in all copies of n rows, copy after copy."""
    places: IntArray = (np.arange(groups)[:, None] * n + rows).ravel()
    return places


def deal_copies(rows: IntArray, copy: IntArray, cluster: IntArray, deal: Callable[[IntArray, int], Cut]) -> Cut:
    """The cut in which the clients of each group share the copy of their group.

    Args:
        rows: The rows that are dealt, `[n]`.
        copy: The copy that each of them belongs to, `[n]`.
        cluster: The group of each client, `[N]`.
        deal: (rows, number of clients) -> a cut of their places.

    Raises:
        BadInput: A group has no client.
    """
    every, owner = [], []
    for group in np.unique(copy).tolist():
        members, mine = np.flatnonzero(cluster == group), rows[copy == group]
        if not len(members):
            raise BadInput(
                f"clients.number = {len(cluster)}, but data.partition.copies gives rows to {int(copy.max()) + 1} "
                "groups: raise it"
            )
        cut = deal(mine, len(members))
        every.append(mine[cut.rows])
        owner.append(members[cut.owner])
    return gather_cut(np.concatenate(every), np.concatenate(owner), len(cluster))


def check_copies(cut: Cut, cluster: IntArray, each: int) -> None:
    """Refuses a cut in which a client has rows of another group's copy.

    Args:
        cut: Who holds which rows.
        cluster: The group of each client, `[N]`.
        each: Rows of a copy.
    """
    wrong = cut.rows // each != cluster[cut.owner]
    if wrong.any():
        client = int(cut.owner[np.argmax(wrong)])
        raise BadInput(
            f"data.partition.copies = true, but client {client} has rows of a copy that is not its group's: give a "
            "partition that was dealt with the same data.partition keys and seed"
        )
