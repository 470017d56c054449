"""Arrays as the metrics take them, and the range of a score over the members of an ensemble."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedray.core.types import FloatArray, IntArray


def score_range(name: str, values: Sequence[float]) -> dict[str, float]:
    """Minimum, mean and maximum of a score.

    Example:
        >>> score_range("rmse", [1.0, 3.0])
        {'rmse_min': 1.0, 'rmse_mean': 2.0, 'rmse_max': 3.0}
    """
    return {f"{name}_min": min(values), f"{name}_mean": float(np.mean(values)), f"{name}_max": max(values)}


def to_floats(values: ArrayLike) -> FloatArray:
    """The values as float64; CPU tensors are read, too."""
    return np.asarray(values, dtype=np.float64)


def to_labels(values: ArrayLike) -> IntArray:
    """The values as int64; CPU tensors are read, too."""
    return np.asarray(values, dtype=np.int64)
