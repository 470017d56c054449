"""Scores probabilistic regression.

A prediction is a Gaussian with a mean and a variance. Both have the shape of the targets y, such as `[n]`. The scores
are means over all targets. The arrays are NumPy arrays or CPU tensors, and everything is computed in float64.
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from fedray.core.types import VARIANCE_FLOOR, FloatArray
from fedray.metrics.classification import mixture_moments, score_range, to_floats

INTERVAL_LEVELS = (0.5, 0.9, 0.95)  # of the intervals whose coverage is reported


def rmse(mean: ArrayLike, y: ArrayLike) -> float:
    """Returns the root mean squared error, in the target's unit."""
    return float(np.sqrt(((to_floats(mean) - to_floats(y)) ** 2).mean()))


def gaussian_nll(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> float:
    """Returns the mean of `(log(2 pi v) + (y - m)^2 / v) / 2`, the negative log-likelihood in nats.

    The predicted mean is m, and the predicted variance v is above 0.

    Example:
        >>> round(gaussian_nll([0.0], [1.0], [2.0]), 4)  # (log(2 pi) + 4) / 2
        2.9189
    """
    return float(_gaussian_losses(to_floats(mean), to_floats(variance), to_floats(y)).mean())


def _gaussian_losses(mean: FloatArray, v: FloatArray, y: FloatArray) -> FloatArray:
    """Returns the negative log-likelihood of each target, `[n]`."""
    return np.asarray(0.5 * (np.log(2.0 * np.pi * v) + (y - mean) ** 2 / v))


def row_scores(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> FloatArray:
    """Returns four values for each target, `[4, n]`. Their means over the targets are scores.

    The first two values are the squared error and the negative log-likelihood. The third value is 1 if the target is
    inside the central 95 % interval, and 0 otherwise. The fourth value is the width of this interval. The square root
    of the first mean is the RMSE. If a prediction is NaN, so are the target's values.

    Example:
        >>> row_scores([0.0, 0.0], [1.0, 1.0], [1.0, 3.0]).mean(axis=1).round(3).tolist()
        [5.0, 3.419, 0.5, 3.92]
    """
    m, v, targets = to_floats(mean), to_floats(variance), to_floats(y)
    half, squares = _quantile(0.95) * np.sqrt(v), (targets - m) ** 2
    inside = np.where(np.isnan(squares + half), np.nan, np.sqrt(squares) <= half)
    return np.stack([squares, _gaussian_losses(m, v, targets), inside, 2.0 * half])


def crps(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> float:
    """Returns the mean continuous ranked probability score of a Gaussian.

    The score of a target is `sd (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))` with z = (y - m) / sd. It tends to |y -
    m| as sd goes to 0. The predicted mean is m, and the predicted variance sd^2 is above 0.

    Returns:
        The score, in the target's units.
    """
    sd = np.sqrt(to_floats(variance))
    z = (to_floats(y) - to_floats(mean)) / sd
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return float((sd * (z * (2.0 * _normal_cdf(z) - 1.0) + 2.0 * density - 1.0 / math.sqrt(math.pi))).mean())


def coverage(mean: ArrayLike, variance: ArrayLike, y: ArrayLike, level: float) -> float:
    """Returns the share of the targets that are inside the central interval of probability `level`, 0 to 1.

    The share should be about `level`. It is NaN if a prediction is NaN.
    """
    half = _quantile(level) * np.sqrt(to_floats(variance))
    error = np.abs(to_floats(y) - to_floats(mean))
    return float((error <= half).mean()) if not np.isnan(error - half).any() else math.nan


def width(variance: ArrayLike, level: float = 0.95) -> float:
    """Returns the mean width of the central interval of probability `level`, in the target's unit.

    Example:
        >>> round(width([1.0, 1.0]), 3)
        3.92
    """
    return float((2.0 * _quantile(level) * np.sqrt(to_floats(variance))).mean())


def sharpness(variance: ArrayLike) -> float:
    """Returns the determinant sharpness, the mean of `det(Sigma)^(1 / 2d)` over the predictions (FedAG section 4, DS).

    Sigma is the covariance of one prediction, and d is the dimension of the target. For scalar targets the sharpness is
    the mean standard deviation, in the target's unit.

    Example:
        >>> sharpness([1.0, 16.0])
        2.5
    """
    return float(np.sqrt(to_floats(variance)).mean())


def sharpness_geometric(variance: ArrayLike) -> float:
    """Returns the geometric mean of the standard deviations, in the target's unit. It is at most `sharpness`.

    If all targets together count as one vector, the result is the determinant sharpness of this vector. The mean
    negative log-likelihood is `log(2 pi) / 2 + log(sharpness_geometric)`, plus half the mean of the squared
    standardized errors.

    Example:
        >>> round(sharpness_geometric([1.0, 16.0]), 6)
        2.0
    """
    return float(np.exp(0.5 * np.log(to_floats(variance)).mean()))


def pit(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> FloatArray:
    """Returns the histogram of the probability integral transform `Phi((y - m) / sd)`.

    Returns:
        Share of the targets in each of ten bins of equal width, `[10]`. The shares are about equal if the predictions
        are calibrated.
    """
    values = _normal_cdf((to_floats(y) - to_floats(mean)) / np.sqrt(to_floats(variance)))
    counts, _ = np.histogram(values, bins=10, range=(0.0, 1.0))
    return np.asarray(counts / counts.sum())


def regression_scores(
    members: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    variances: ArrayLike | None = None,
    noise: float = 0.0,
    residual: float | None = None,
    floor: float = VARIANCE_FLOOR,
) -> dict[str, float]:
    """Returns all scores of an ensemble of regressors, in the unit of `y`.

    Args:
        members: Predicted mean of each model, `[K, n]`, in the unit of `y`.
        y: Targets, `[n]`.
        weights: Weight of each model in the ensemble, `[K]`. The weights sum to 1. None means 1/K.
        variances: Predicted variance of each model, `[K, n]`. None means that the models predict no variance.
        noise: Variance of the observation noise. It is added to the variance of the ensemble's prediction.
        residual: Variance of the residuals on training samples, averaged over the clients. None means that this
            variance is unknown.
        floor: Smallest variance of the prediction. A run sets it to 1e-6 times the square of the target's scale.

    Returns:
        The scores rmse, nll, crps, coverage_50, coverage_90, coverage_95, width_95, sharpness and sharpness_geometric
        of the ensemble. All of these except rmse depend on `noise`. The scores rmse_min, rmse_mean and rmse_max are
        computed over the members. If `residual` is given, nll_none is the nll without noise, and nll_residual is the
        nll with `residual` as the noise.
    """
    rows = to_floats(members)
    mean, spread = mixture_moments(rows, weights, variances)
    v = np.maximum(spread + noise, floor)
    scores = {"rmse": rmse(mean, y), "nll": gaussian_nll(mean, v, y), "crps": crps(mean, v, y)}
    scores |= {f"coverage_{100 * level:.0f}": coverage(mean, v, y, level) for level in INTERVAL_LEVELS}
    scores |= {"width_95": width(v), "sharpness": sharpness(v), "sharpness_geometric": sharpness_geometric(v)}
    if residual is not None:
        scores["nll_none"] = gaussian_nll(mean, np.maximum(spread, floor), y)
        scores["nll_residual"] = gaussian_nll(mean, np.maximum(spread + residual, floor), y)
    return scores | score_range("rmse", [rmse(row, y) for row in rows])


def _normal_cdf(z: FloatArray) -> FloatArray:
    """Returns the distribution function of the standard normal distribution at z."""
    import torch  # not at the top: see `classification.probabilities`

    return np.asarray(torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(z))).numpy())


def _quantile(level: float) -> float:
    """Returns half the width of the central interval of probability `level`, in standard deviations."""
    return NormalDist().inv_cdf(0.5 + 0.5 * level)
