"""How well models tell clusters of clients apart.

Example:
    >>> compare_clusters(np.array([0, 0, 1, 1]), np.array([[0.1, 0.9], [0.0, 1.0], [0.8, 0.2], [1.0, 0.0]]))
    1.0
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedray.core.types import IntArray


def compare_clusters(true: IntArray, weights: ArrayLike) -> float:
    """The adjusted Rand index of the models that clients weigh most, and of their true clusters.

    1: the same clusters, whatever their numbers; 0: as by chance. Source: Hubert and Arabie 1985, by scikit-learn.

    Args:
        true: The true cluster of each client, `[N]`; clients behind those with weights are left out.
        weights: Of the models, `[n, K]`, of the first n clients; of equal ones the first counts.
    """
    from sklearn.metrics import adjusted_rand_score

    chosen = np.asarray(weights).argmax(axis=1)
    return float(adjusted_rand_score(true[: len(chosen)], chosen))
