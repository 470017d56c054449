"""Warns of classes that the test rows have and no client's training rows.

Example:
    >>> counts, tested = np.array([[3, 1, 0], [2, 0, 0]]), np.array([0, 0, 1, 2])
    >>> find_unseen(counts.sum(axis=0), tested).tolist()
    [2]
"""

from __future__ import annotations

import numpy as np

from fedray.core.errors import warn_user
from fedray.core.types import EVALUATED_CLIENTS, IntArray
from fedray.data.types import Dataset
from fedray.simulation.study import Study

MOST_COUNTS = 10**7  # of clients and classes, 80 MB; beyond it, all rows count as somebody's


def warn_of_unseen_classes(study: Study) -> None:
    """Warns of classes of test rows that no client has.

    Of several worlds the first one that has such classes is described.

    Args:
        study: What will run. Generated clients are not looked at.
    """
    data = study.shards.data
    if data.population is not None or not study.classes:
        return
    for world in range(study.worlds):
        counts, tested = _count_rows(study, world), _read_tested(study, world)
        if not counts.sum():
            return
        unseen = find_unseen(counts, tested)
        if len(unseen):
            warn_user(_describe_unseen(data, unseen, tested))
            return


def find_unseen(counts: IntArray, tested: IntArray) -> IntArray:
    """Classes that test rows have and training rows have not.

    Args:
        counts: Training rows of each class, `[C]`.
        tested: Classes of the test rows, `[n]`.
    """
    return np.flatnonzero((np.bincount(tested, minlength=len(counts)) > 0) & (counts == 0))


def _describe_unseen(data: Dataset, unseen: IntArray, tested: IntArray) -> str:
    """What it means that nobody can learn some classes."""
    names = ", ".join(data.class_names[c] for c in unseen[:5].tolist()) + (", ..." if len(unseen) > 5 else "")
    them = "it" if len(unseen) == 1 else "them"
    which = f"class {names}, which has" if len(unseen) == 1 else f"classes {names} ({len(unseen)} classes), which have"
    number = int(np.isin(tested, unseen).sum())
    if np.isin(data.train.y, unseen).any():
        remedy = "deal such rows to clients (data.partition, data.hold_out)"
    else:
        remedy = f"give training rows of {them}, or leave {them} out of the test rows"
    return (
        f"data {data.name}: no client has a training row of {which} {number:,} of {len(tested):,} test rows: no model "
        f"can learn {them}, and accuracy can hardly exceed {1 - number / len(tested):.4g}: {remedy}"
    )


def _count_rows(study: Study, world: int) -> IntArray:
    """Training rows of each class that clients of a world have, `[C]`; of very many clients, those of the data set."""
    number = study.clients.number
    if number > EVALUATED_CLIENTS or number * study.classes > MOST_COUNTS:
        return np.bincount(study.shards.data.train.y, minlength=study.classes)
    counts: IntArray = study.shards.label_counts(world).sum(axis=0)
    return counts


def _read_tested(study: Study, world: int) -> IntArray:
    """Classes of the test rows of a world, `[n]`."""
    data = study.shards.data
    if data.folds:
        return data.train.y[data.folds[int(study.folds[world])][1]]
    labels: IntArray = study.shards.test(world)[1].numpy()
    return labels
