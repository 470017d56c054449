"""Scores of probabilistic regression."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import ArrayLike

from fedray.core.types import FloatArray
from fedray.metrics.arrays import score_range, to_floats
from fedray.metrics.ensemble import mixture_moments

LEVELS = (0.5, 0.9, 0.95)  # of the intervals whose coverage is reported
VARIANCE_FLOOR = 1e-6  # in standardised units


def rmse(mean: ArrayLike, y: ArrayLike) -> float:
    """Root mean squared error, in the target's units."""
    return float(np.sqrt(((to_floats(mean) - to_floats(y)) ** 2).mean()))


def gaussian_nll(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> float:
    """Mean of `(log(2 pi v) + (y - m)^2 / v) / 2`, nats."""
    v = to_floats(variance)
    return float((0.5 * (np.log(2.0 * np.pi * v) + (to_floats(y) - to_floats(mean)) ** 2 / v)).mean())


def crps(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> float:
    """Mean continuous ranked probability score of a Gaussian, in the target's units; |y - m| as the variance goes to 0.

    `sd (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))`, z = (y - m) / sd. Source: Gneiting et al. 2005, eq. 5.
    """
    sd = np.sqrt(to_floats(variance))
    z = (to_floats(y) - to_floats(mean)) / sd
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return float((sd * (z * (2.0 * _phi(z) - 1.0) + 2.0 * density - 1.0 / math.sqrt(math.pi))).mean())


def coverage(mean: ArrayLike, variance: ArrayLike, y: ArrayLike, level: float) -> float:
    """Share of targets inside the central interval of a level; a calibrated prediction has coverage = level."""
    half = _quantile(level) * np.sqrt(to_floats(variance))
    return float((np.abs(to_floats(y) - to_floats(mean)) <= half).mean())


def width(variance: ArrayLike, level: float = 0.95) -> float:
    """Mean width of the central interval of a level, in the target's units.

    Example:
        >>> round(width([1.0, 1.0]), 3)
        3.92
    """
    return float((2.0 * _quantile(level) * np.sqrt(to_floats(variance))).mean())


def sharpness(variance: ArrayLike) -> float:
    """Determinant sharpness `det(Sigma)^(1 / 2d)`, in the target's units; in logs, so that d may be large.

    Source: FedAG section 4 (DS).

    Args:
        variance: `[d]`, then Sigma is diagonal and DS the geometric mean of the sds; or a full Sigma `[d, d]`.

    Example:
        >>> round(sharpness([1.0, 16.0]), 6), round(sharpness([[1.0, 0.0], [0.0, 16.0]]), 6)
        (2.0, 2.0)
    """
    v = to_floats(variance)
    logs = np.log(v).mean() if v.ndim < 2 else np.linalg.slogdet(v)[1] / len(v)
    return float(np.exp(0.5 * logs))


def pit(mean: ArrayLike, variance: ArrayLike, y: ArrayLike, bins: int = 10) -> FloatArray:
    """Histogram of the probability integral transform `Phi((y - m) / sd)`: shares `[bins]`, flat if calibrated."""
    values = _phi((to_floats(y) - to_floats(mean)) / np.sqrt(to_floats(variance)))
    counts, _ = np.histogram(values, bins=bins, range=(0.0, 1.0))
    shares: FloatArray = counts / counts.sum()
    return shares


def regression_scores(
    members: ArrayLike,
    y: ArrayLike,
    *,
    variances: ArrayLike | None = None,
    noise: float = 0.0,
    residual: float | None = None,
    floor: float = VARIANCE_FLOOR,
) -> dict[str, float]:
    """All scores of an ensemble of regressors, in the units of `y`.

    Args:
        members: `[K, n]`, each model's mean (standardisation undone).
        y: targets `[n]`.
        variances: `[K, n]`, the models' own predicted variances, if they predict any.
        noise: observation noise variance of the chosen reading, added to the knowledge uncertainty: 0, a fixed one, or
            the residual one.
        residual: the clients' mean training residual variance, if known: then both readings of the nll are given.
        floor: smallest variance, 1e-6 times the square of the target's scale.

    Returns:
        rmse, nll, crps, coverage_50, _90, _95, width_95, sharpness of the answer (nll and what follows under `noise`);
        rmse_min, _mean, _max over the members; nll_none and nll_residual where `residual` is given.
    """
    rows = to_floats(members)
    mean, spread = mixture_moments(rows, variances=variances)
    v = np.maximum(spread + noise, floor)
    scores = {"rmse": rmse(mean, y), "nll": gaussian_nll(mean, v, y), "crps": crps(mean, v, y)}
    scores |= {f"coverage_{100 * level:.0f}": coverage(mean, v, y, level) for level in LEVELS}
    scores |= {"width_95": width(v), "sharpness": sharpness(v.reshape(-1))}
    if residual is not None:
        scores["nll_none"] = gaussian_nll(mean, np.maximum(spread, floor), y)
        scores["nll_residual"] = gaussian_nll(mean, np.maximum(spread + residual, floor), y)
    return scores | score_range("rmse", [rmse(row, y) for row in rows])


def _phi(z: FloatArray) -> FloatArray:
    """Standard normal distribution function."""
    result: FloatArray = torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(z))).numpy()
    return result


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + 0.5 * level)
