"""A client's data as a mixture of what K models say: how samples are shared among the models, and the models' weights.

Example:
    Of two samples the first is explained by model 0 and the second by neither more than by the other.

    >>> share = share_samples(np.array([[0.0, 1.0], [50.0, 1.0]]), np.array([0.5, 0.5]))
    >>> share.round(2).tolist(), share.mean(axis=1).round(2).tolist()
    ([[1.0, 0.5], [0.0, 0.5]], [0.75, 0.25])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedray.core.types import FloatArray
from fedray.metrics.ensemble import to_floats

LEAST_SHARE = 1e-12  # no share is 0: rows of weight 0 are padding, and a model could never come back
STEPS = 20  # E steps of a client whose weights nobody knows


def share_samples(losses: ArrayLike, weights: ArrayLike) -> FloatArray:
    """The E step: `q_j(m)` in proportion to `pi_m exp(-l(h_m(x_j), y_j))`, `[K, n]`; its sum over the models is 1.

    Args:
        losses: Of each model on each sample, `[K, n]`: negative log likelihoods.
        weights: Of the models, pi, `[K]`, at least 0.

    Source: Marfoq et al. 2021, equation 11.
    """
    with np.errstate(divide="ignore"):
        score = np.log(to_floats(weights))[:, None] - to_floats(losses)
    odds = np.exp(score - score.max(axis=0, keepdims=True))
    share: FloatArray = np.maximum(odds / odds.sum(axis=0), LEAST_SHARE)
    return share


def fit_weights(losses: ArrayLike, steps: int = STEPS) -> FloatArray:
    """The weights of a client that meets models which stay as they are, `[K]`: E steps from equal weights.

    Args:
        losses: Of each model on each of the client's samples, `[K, n]`; without samples the weights stay equal.
        steps: Number of E steps.

    Example:
        >>> fit_weights([[0.0, 0.0], [3.0, 3.0]]).round(3).tolist()
        [1.0, 0.0]
    """
    found = to_floats(losses)
    weights = np.full(len(found), 1.0 / len(found))
    for _ in range(steps if found.shape[1] else 0):
        weights = share_samples(found, weights).mean(axis=1)
    return weights
