"""What the name of a score says: which task has it, and whether lower values are better."""

from __future__ import annotations

import numpy as np

from fedray.core.scores import find_score
from fedray.metrics.classification import classification_scores
from fedray.metrics.regression import regression_scores


def fits_task(name: str, classes: int) -> bool:
    """Whether a task can have a score: a regression has no accuracy, and a classification has no rmse.

    Args:
        name: Of the score, with or without `hold_out_`.
        classes: Number of classes; 0 for a regression.

    Example:
        >>> [fits_task(name, classes=10) for name in ("rmse", "hold_out_rmse", "nll", "hold_out_nll")]
        [False, False, True, True]
    """
    tasks = classification_scores(np.full((1, 1, 2), 0.5), [0]), regression_scores(np.zeros((1, 1)), [0.0])
    own, other = tasks if classes else tasks[::-1]
    score = name.removeprefix("hold_out_")
    return score in own or score not in other


def lower_is_better(name: str) -> bool:
    """Whether lower values of a score are better; the score may be of the answer, of members, or on held-out rows.

    Of a user's own metrics lower values are better where the name ends with `_error` or `_loss`.

    Example:
        >>> [lower_is_better(name) for name in ("accuracy", "nll_residual", "hold_out_rmse_mean", "entropy")]
        [False, True, True, False]
    """
    found = find_score(name)
    return name.endswith(("_error", "_loss")) if found is None else bool(found.lower)


def has_direction(name: str) -> bool:
    """Whether one way of a score is better: more entropy is neither better nor worse, and nor is more coverage.

    Example:
        >>> [has_direction(name) for name in ("accuracy", "hold_out_entropy", "coverage_90", "a_metric_of_mine")]
        [True, False, False, True]
    """
    found = find_score(name)
    return found is None or found.lower is not None


def reaches_target(name: str, value: float, target: float) -> bool:
    """Whether the value of a score is at least as good as a target.

    Args:
        name: of the score; it says which way is better.
        value: what was measured.
        target: what was wanted.

    Example:
        >>> reaches_target("accuracy", 0.9, target=0.8), reaches_target("nll", 0.4, target=0.3)
        (True, False)
    """
    return bool(value <= target if lower_is_better(name) else value >= target)
