"""How well an uncertainty tells unknown inputs from known ones: out-of-distribution detection.

Source: Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural
Networks", ICLR 2017.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedray.metrics.arrays import to_floats

MISSED = 20  # a detector may miss one unknown input of so many, in `fpr95`


def auroc(unknown: ArrayLike, known: ArrayLike) -> float:
    """Area under the ROC curve: the probability that an unknown input is more uncertain than a known one.

    A tie counts as a half. NaN where an uncertainty is no number, or where there are no inputs of one kind.

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
    """Share of the known inputs that are taken for unknown where at least 95 % of the unknown ones are found.

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
