"""Rounds shares to whole numbers; without torch, for commands that only read a scenario."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedray.core.types import FloatArray, IntArray


def count_test_clients(wanted: int | float | Sequence[str], clients: int) -> int:
    """Returns how many of N clients never train: a number, a share that is rounded (1 at least), or a list of names.

    Example:
        >>> [count_test_clients(wanted, 24) for wanted in (3, 0.2, ["Rome", "Oslo"])]
        [3, 5, 2]
    """
    if isinstance(wanted, float):
        return max(1, round(wanted * clients))
    return wanted if isinstance(wanted, int) else len(wanted)


def round_to_sum(share: FloatArray, total: int) -> IntArray:
    """Rounds shares `[n]` to whole numbers that add up to `total`, by largest remainders.

    If remainders are equal, the first one is rounded up.

    Args:
        share: Shares of at least 0, `[n]`; their sum is `total`, up to rounding errors.
        total: The sum of the whole numbers.
    """
    whole: IntArray = np.floor(share).astype(np.int64)
    whole[np.argsort(whole - share, kind="stable")[: total - int(whole.sum())]] += 1
    return whole
