"""Scores of predictions. Pure functions on NumPy arrays or CPU tensors, computed in float64.

Classification takes probabilities `[n, C]` and labels `[n]`; regression takes mean and variance of a Gaussian
prediction in the target's own units, `[n]` or any one shape (scores are then means over all numbers). K members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from fedray.core import FloatArray, IntArray
from fedray.predict import entropies, moments

LEVELS = (0.5, 0.9, 0.95)  # of the intervals whose coverage is reported
BINS = 15  # of the reliability diagram: Guo et al. 2017, section 2
VARIANCE_FLOOR = 1e-6  # in standardised units


def accuracy(probs: ArrayLike, y: ArrayLike) -> float:
    """Share of samples whose most probable class (the first, in a tie) is the label.

    Example:
        >>> accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
        0.5
    """
    return float((_floats(probs).argmax(axis=-1) == _labels(y)).mean())


def nll(probs: ArrayLike, y: ArrayLike) -> float:
    """Mean of `-log p(label)`, nats; probabilities below 2.2e-16 count as that, so that it stays finite."""
    p = _floats(probs)
    chosen = p[np.arange(len(p)), _labels(y)]
    return float(-np.log(np.clip(chosen, np.finfo(np.float64).eps, 1.0)).mean())


def brier(probs: ArrayLike, y: ArrayLike) -> float:
    """Mean of `sum_c (p_c - 1[c = label])^2`, 0 to 2 (Brier 1950).

    Example:
        >>> brier([[0.0, 1.0]], [0])
        2.0
    """
    p = _floats(probs)
    return float(((p - np.eye(p.shape[-1])[_labels(y)]) ** 2).sum(axis=-1).mean())


class Calibration(NamedTuple):
    """The table of a reliability diagram, one row a bin. confidence and accuracy are NaN in an empty bin."""

    lower: FloatArray
    upper: FloatArray
    samples: IntArray
    confidence: FloatArray
    accuracy: FloatArray


def calibration(probs: ArrayLike, y: ArrayLike, bins: int = BINS) -> Calibration:
    """Accuracy by confidence, in bins `(lower, upper]` of equal width (Guo et al. 2017, section 2)."""
    p = _floats(probs)
    confidence, right = p.max(axis=-1), (p.argmax(axis=-1) == _labels(y)).astype(np.float64)
    edges = np.linspace(0.0, 1.0, bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    filled = np.where(count > 0, count, np.nan)
    sums = (np.bincount(index, weights=v, minlength=bins) for v in (confidence, right))
    means = [total / filled for total in sums]
    return Calibration(edges[:-1], edges[1:], count.astype(np.int64), means[0], means[1])


def ece(probs: ArrayLike, y: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error: mean over samples of their bin's |accuracy - confidence|.

    Example:
        >>> round(ece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 3)
        0.3
    """
    table = calibration(probs, y, bins)
    return float(np.nansum(table.samples * np.abs(table.accuracy - table.confidence)) / table.samples.sum())


def entropy(probs: ArrayLike) -> float:
    """Mean entropy in nats; of the averaged distribution it is FE's "avg entropy"."""
    return float(entropies(probs).mean())


def disagreement(members: ArrayLike) -> float:
    """Share of (pair of members, sample) whose most probable classes differ; 0 for one member.

    Args:
        members: `[K, n, C]`.
    """
    rows = _floats(members)
    models, classes = rows.shape[0], rows.shape[-1]
    if models < 2:
        return 0.0
    votes = np.stack([(rows.argmax(axis=-1) == c).sum(axis=0) for c in range(classes)])  # [C, n]
    agreeing = (votes * (votes - 1)).sum(axis=0)
    return float(1.0 - agreeing.mean() / (models * (models - 1)))


def confusion(probs: ArrayLike, y: ArrayLike) -> IntArray:
    """`[C, C]`: how many samples of class (row) were given to class (column).

    Example:
        >>> confusion([[0.9, 0.1], [0.8, 0.2]], [0, 1]).tolist()
        [[1, 0], [1, 0]]
    """
    p = _floats(probs)
    classes = p.shape[-1]
    cells = np.bincount(_labels(y) * classes + p.argmax(axis=-1), minlength=classes**2)
    return cells.reshape(classes, classes).astype(np.int64)


def weighted_f1(probs: ArrayLike, y: ArrayLike) -> float:
    """F1 = 2 hits / (given + true) of each class, weighted by how often the class is true."""
    table = confusion(probs, y)
    true, given = table.sum(axis=1), table.sum(axis=0)
    f1 = 2.0 * np.diag(table) / np.maximum(true + given, 1)
    return float((f1 * true).sum() / true.sum())


def classification(members: ArrayLike, y: ArrayLike, answer: ArrayLike | None = None) -> dict[str, float]:
    """All scores of an ensemble of classifiers.

    Args:
        members: `[K, n, C]`, each model's probabilities.
        y: labels `[n]`.
        answer: `[n, C]`, what the ensemble answers where that is not the plain mean (`predict.average` of logits,
            `predict.personalised`).

    Returns:
        accuracy, f1_weighted, nll, brier, ece, entropy of the answer; disagreement; accuracy_min, _mean, _max over the
        members.
    """
    rows = _floats(members)
    p = rows.mean(axis=0) if answer is None else _floats(answer)
    scores = {"accuracy": accuracy(p, y), "f1_weighted": weighted_f1(p, y), "nll": nll(p, y), "brier": brier(p, y)}
    scores |= {"ece": ece(p, y), "entropy": entropy(p), "disagreement": disagreement(rows)}
    return scores | _spread("accuracy", [accuracy(row, y) for row in rows])


def rmse(mean: ArrayLike, y: ArrayLike) -> float:
    """Root mean squared error, in the target's units."""
    return float(np.sqrt(((_floats(mean) - _floats(y)) ** 2).mean()))


def gaussian_nll(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> float:
    """Mean of `(log(2 pi v) + (y - m)^2 / v) / 2`, nats."""
    v = _floats(variance)
    return float((0.5 * (np.log(2.0 * np.pi * v) + (_floats(y) - _floats(mean)) ** 2 / v)).mean())


def crps(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> float:
    """Mean continuous ranked probability score of a Gaussian, in the target's units; |y - m| as the variance goes to 0.

    `sd (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi))`, z = (y - m) / sd. Source: Gneiting et al. 2005, eq. 5.
    """
    sd = np.sqrt(_floats(variance))
    z = (_floats(y) - _floats(mean)) / sd
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return float((sd * (z * (2.0 * _phi(z) - 1.0) + 2.0 * density - 1.0 / math.sqrt(math.pi))).mean())


def coverage(mean: ArrayLike, variance: ArrayLike, y: ArrayLike, level: float) -> float:
    """Share of targets inside the central interval of a level; a calibrated prediction has coverage = level."""
    half = _quantile(level) * np.sqrt(_floats(variance))
    return float((np.abs(_floats(y) - _floats(mean)) <= half).mean())


def width(variance: ArrayLike, level: float = 0.95) -> float:
    """Mean width of the central interval of a level, in the target's units.

    Example:
        >>> round(width([1.0, 1.0]), 3)
        3.92
    """
    return float((2.0 * _quantile(level) * np.sqrt(_floats(variance))).mean())


def sharpness(variance: ArrayLike) -> float:
    """Determinant sharpness `det(Sigma)^(1 / 2d)`, in the target's units; in logs, so that d may be large.

    Source: FedAG section 4 (DS).

    Args:
        variance: `[d]`, then Sigma is diagonal and DS the geometric mean of the sds; or a full Sigma `[d, d]`.

    Example:
        >>> round(sharpness([1.0, 16.0]), 6), round(sharpness([[1.0, 0.0], [0.0, 16.0]]), 6)
        (2.0, 2.0)
    """
    v = _floats(variance)
    logs = np.log(v).mean() if v.ndim < 2 else np.linalg.slogdet(v)[1] / len(v)
    return float(np.exp(0.5 * logs))


def pit(mean: ArrayLike, variance: ArrayLike, y: ArrayLike, bins: int = 10) -> FloatArray:
    """Histogram of the probability integral transform `Phi((y - m) / sd)`: shares `[bins]`, flat if calibrated."""
    values = _phi((_floats(y) - _floats(mean)) / np.sqrt(_floats(variance)))
    counts, _ = np.histogram(values, bins=bins, range=(0.0, 1.0))
    shares: FloatArray = counts / counts.sum()
    return shares


def regression(
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
    rows = _floats(members)
    mean, spread = moments(rows, variances=variances)
    v = np.maximum(spread + noise, floor)
    scores = {"rmse": rmse(mean, y), "nll": gaussian_nll(mean, v, y), "crps": crps(mean, v, y)}
    scores |= {f"coverage_{100 * level:.0f}": coverage(mean, v, y, level) for level in LEVELS}
    scores |= {"width_95": width(v), "sharpness": sharpness(v.reshape(-1))}
    if residual is not None:
        scores["nll_none"] = gaussian_nll(mean, np.maximum(spread, floor), y)
        scores["nll_residual"] = gaussian_nll(mean, np.maximum(spread + residual, floor), y)
    return scores | _spread("rmse", [rmse(row, y) for row in rows])


def per_client(values: ArrayLike, higher_is_better: bool = True) -> dict[str, float]:
    """One score a client, `[N]` (`predict.by_client`), in three numbers; clients without data (NaN) do not count.

    Returns:
        mean, p10 (a tenth of the clients are no better), worst.

    Example:
        >>> per_client([0.5, 0.9, 1.0, np.nan])["worst"]
        0.5
    """
    v = _floats(values)
    v = v[~np.isnan(v)]
    if v.size == 0:
        return {"mean": math.nan, "p10": math.nan, "worst": math.nan}
    tenth, worst = (0.1, v.min()) if higher_is_better else (0.9, v.max())
    return {"mean": float(v.mean()), "p10": float(np.quantile(v, tenth)), "worst": float(worst)}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_min": min(values), f"{name}_mean": float(np.mean(values)), f"{name}_max": max(values)}


def _phi(z: FloatArray) -> FloatArray:
    """Standard normal distribution function."""
    result: FloatArray = torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(z))).numpy()
    return result


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + 0.5 * level)


def _floats(values: ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def _labels(values: ArrayLike) -> IntArray:
    return np.asarray(values, dtype=np.int64)
