"""Arrays as the metrics take them, and the range of a score over members."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedray.core.types import FloatArray, IntArray


def score_range(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_min": min(values), f"{name}_mean": float(np.mean(values)), f"{name}_max": max(values)}


def to_floats(values: ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def to_labels(values: ArrayLike) -> IntArray:
    return np.asarray(values, dtype=np.int64)
