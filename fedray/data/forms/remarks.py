"""What a user is told of rows that were read, in one sentence each.

Example:
    >>> tell_lost(np.array([0, 1, 1, 1]), np.array([1, 2]))[0][:63]
    'data: all rows of 1 of 2 clients were drawn as test rows, so th'
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedray.core.types import IntArray
from fedray.data.ranges import find_range, tell_scale
from fedray.data.types import Array


def tell_empty(empty: Array, names: tuple[str, ...]) -> list[str]:
    """What is said of columns that no training row has; `names` is empty where they have none."""
    if empty.ndim != 1 or not empty.any():
        return []
    some = [names[i] if names else str(i) for i in np.flatnonzero(empty)]
    listed = ", ".join(some[:5]) + (", ..." if len(some) > 5 else "")
    which, them = (f"column {listed}", "it") if len(some) == 1 else (f"columns {listed}", "them")
    return [f"data: no training row has a value in {which}, read as 0: leave {them} out"]


def tell_lost(group: IntArray | None, keep: IntArray) -> list[str]:
    """What is said of clients all of whose rows were drawn as test rows."""
    if group is None or not (lost := len(np.setdiff1d(group, group[keep]))):
        return []
    of = len(np.unique(group))
    return [
        f"data: all rows of {lost} of {of} clients were drawn as test rows, so that {of - lost} clients are left: "
        "lower data.test_fraction, or leave clients of few rows out"
    ]


def tell_test_scale(kind: str, train: Array, test: Array, names: Sequence[str]) -> list[str]:
    """What is said of test inputs on another scale than the training inputs; nothing of tokens.

    Args:
        kind: What the inputs are.
        train: The training inputs; none where they are generated.
        test: The test inputs.
        names: Of the inputs, where they have some.
    """
    if kind == "tokens" or not len(train) or not len(test):
        return []
    return tell_scale(find_range(train), test, f"the test {'pictures' if kind == 'images' else 'rows'}", names)
