"""How well an uncertainty separates unknown inputs from known ones, and drifting clients from the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedray.core.types import FloatArray
from fedray.metrics.ensemble import to_floats

# ---------------------------------------------------------------------------------------------------------------------
# How well an uncertainty separates unknown inputs from known ones: out-of-distribution detection.
#
# Source: Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural
# Networks", ICLR 2017.

MISSED = 20  # in `fpr95`, a detector may miss one of so many unknown inputs


def auroc(unknown: ArrayLike, known: ArrayLike) -> float:
    """Returns the area under the ROC curve: the probability that an unknown input is more uncertain than a known one.

    A tie counts as a half. The area is NaN where an uncertainty is not finite, or where there are no inputs of one
    kind.

    Args:
        unknown: Uncertainties of the unknown inputs, `[m]`.
        known: Uncertainties of the known inputs, `[n]`.

    Example:
        >>> auroc([0.9, 0.5], [0.1, 0.5])
        0.875
    """
    high, low = to_floats(unknown), np.sort(to_floats(known))
    if not (len(high) and len(low) and np.isfinite(high).all() and np.isfinite(low).all()):
        return float("nan")
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2 * len(low)))


def fpr95(unknown: ArrayLike, known: ArrayLike) -> float:
    """Returns the share of the known inputs taken for unknown where at least 95 % of the unknown ones are found.

    Args:
        unknown: Uncertainties of the unknown inputs, `[m]`.
        known: Uncertainties of the known inputs, `[n]`.

    Example:
        >>> fpr95([0.9, 0.8, 0.7], [0.1, 0.2, 0.75, 0.95])
        0.5
    """
    high, low = np.sort(to_floats(unknown)), to_floats(known)
    if not (len(high) and len(low) and np.isfinite(high).all() and np.isfinite(low).all()):
        return float("nan")
    return float((low >= high[len(high) // MISSED]).mean())


# ---------------------------------------------------------------------------------------------------------------------
# Data drift: which clients have data that look unusual to an ensemble (not SCAFFOLD's drift of local training).
#
# A client whose data moved away from what the models were trained on makes them disagree, so its knowledge
# uncertainty stands out from that of the other clients: the scores are z-scores over the clients, and no labels are
# needed. `metrics.ensemble.uncertainty` measures both kinds of uncertainty. SCAFFOLD's "client drift" is something
# else: how far the local training of a client leads away from the minimum of the global loss.

# A client is an anomaly beyond this many standard deviations from the mean of the clients (the three-sigma rule). Among
# N clients no z-score exceeds sqrt(N - 1), so that nothing can be flagged where there are fewer than 11.
ANOMALY_Z = 3.0
# Differences of this size, relative to the largest value, are rounding: models answer in float32.
ROUNDING = 1e-6


class Drift(NamedTuple):
    """The drift scores of the clients of one world.

    Attributes:
        total: Mean total uncertainty of the ensemble on each client's data, `[N]`; NaN for a client without data.
        knowledge: Mean knowledge uncertainty, the part that the models' disagreement explains, `[N]`; NaN for a client
            without data.
        z_total: The z-scores of `total` over the clients, `[N]`.
        z_knowledge: The z-scores of `knowledge` over the clients, `[N]`: the drift score.
        anomaly: Whether `|z_knowledge|` is above `ANOMALY_Z`, `[N]`.
    """

    total: FloatArray
    knowledge: FloatArray
    z_total: FloatArray
    z_knowledge: FloatArray
    anomaly: NDArray[np.bool_]


def score_drift(total: ArrayLike, knowledge: ArrayLike) -> Drift:
    """Computes the drift scores of the clients of one world from their uncertainties.

    Args:
        total: Mean total uncertainty on each client's data, `[N]`, in nats (or squared target units); NaN without data.
        knowledge: Mean knowledge uncertainty, `[N]`, in the same unit.

    Example:
        >>> drift = score_drift(total=[0.5] * 20, knowledge=[0.1] * 19 + [0.9])
        >>> drift.z_knowledge[[0, 19]].round(2).tolist()
        [-0.23, 4.36]
        >>> np.flatnonzero(drift.anomaly).tolist()
        [19]
    """
    z = z_scores(knowledge)
    anomaly = np.abs(np.nan_to_num(z)) > ANOMALY_Z
    return Drift(np.asarray(total, np.float64), np.asarray(knowledge, np.float64), z_scores(total), z, anomaly)


def z_scores(values: ArrayLike) -> FloatArray:
    """Returns `(v - mean) / sd` over the finite entries of `[N]`; 0 where all are equal up to rounding.

    The z-score of an entry that is not finite is NaN.

    Example:
        >>> z_scores([1.0, 3.0, np.nan]).tolist()
        [-1.0, 1.0, nan]
    """
    v = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(v)
    if not finite.any():
        return np.full(v.shape, np.nan)
    centered, sd = v - v[finite].mean(), v[finite].std()
    scores = np.zeros_like(v) if sd <= ROUNDING * np.abs(v[finite]).max() else centered / sd
    return np.where(finite, scores, np.nan)
