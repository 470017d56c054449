"""Rounds shares to whole numbers that keep their sum; without torch, for commands that only read a scenario."""

from __future__ import annotations

import numpy as np

from fedray.core.types import FloatArray, IntArray


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
