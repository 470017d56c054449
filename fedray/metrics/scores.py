"""The names of fedray's scores, the tasks and units that they belong to, and the input of a user's own metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedray.core import scores
from fedray.core.scores import find_score
from fedray.core.types import FloatArray
from fedray.files.tables import COLUMNS, Column, ColumnKind
from fedray.metrics.classification import classification_scores
from fedray.metrics.regression import regression_scores
from fedray.own_code.contract import contract
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# The meaning of a score's name: which task has the score, and whether lower values are better.


def fits_task(name: str, classes: int) -> bool:
    """Returns whether a task can have a score: a regression has no accuracy, and a classification has no rmse.

    Args:
        name: Name of the score, with or without `hold_out_`.
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
    """Returns whether lower values of a score are better; the score may also be of members, or of held-out samples.

    For a user's own metric, lower values are better if its name ends with `_error` or `_loss`.

    Example:
        >>> [lower_is_better(name) for name in ("accuracy", "nll_residual", "hold_out_rmse_mean", "entropy")]
        [False, True, True, False]
    """
    found = find_score(name)
    return name.endswith(("_error", "_loss")) if found is None else bool(found.lower)


def has_direction(name: str) -> bool:
    """Returns whether a score has a better direction: more entropy is neither better nor worse, nor is more coverage.

    Example:
        >>> [has_direction(name) for name in ("accuracy", "hold_out_entropy", "coverage_90", "a_metric_of_mine")]
        [True, False, False, True]
    """
    found = find_score(name)
    return found is None or found.lower is not None


def reaches_target(name: str, value: float, target: float) -> bool:
    """Returns whether the value of a score is at least as good as a target.

    Args:
        name: Name of the score, which determines whether lower values are better.
        value: The measured value.
        target: The required value.

    Example:
        >>> reaches_target("accuracy", 0.9, target=0.8), reaches_target("nll", 0.4, target=0.3)
        (True, False)
    """
    return bool(value <= target if lower_is_better(name) else value >= target)


# ---------------------------------------------------------------------------------------------------------------------
# The scores in `rounds.parquet` and `summary.json`, with their units.

PREFIXES = ("hold_out_", "member_", "tier_")  # beginnings of names that fedray writes itself
_COURSE = ("rounds_to_target", "seconds_to_target", "bytes_to_target")  # scores of a summary
_LISTS = ("conformal_coverage_class",)
SCORES: Mapping[str, Column] = {
    name: Column("numbers" if name in _LISTS else "number", one.unit, one.text) for name, one in scores.SCORES.items()
}


def describe_score(name: str) -> Column | None:
    """Returns unit and meaning of a score; None where no evaluation of fedray makes a score of this name.

    Args:
        name: Name of the score in `rounds.parquet`. It begins with `hold_out_` for held-out samples and with `member_`
            for a list over the members; it ends with `_min`, `_mean` or `_max` for a summary over the members.

    Example:
        >>> describe_score("hold_out_rmse_mean")[1:3]
        ('target units', 'mean over the members: root mean squared error; on held-out rows')
        >>> describe_score("nothing_of_ours") is None  # a metric of your own, or a mistake
        True
    """
    inner = name.removeprefix("hold_out_")
    where = "; on held-out rows" if inner != name else ""
    listed = inner.startswith("member_")
    inner = inner.removeprefix("member_")
    kind: ColumnKind = "numbers" if listed or inner in _LISTS else "number"
    each = "of each member, a list: " if listed else ""
    found = scores.find_score(inner)
    return None if found is None else Column(kind, found.unit, f"{each}{found.text}{where}")


def is_fedrays(name: str) -> bool:
    """Returns whether a name in `rounds.parquet` or `summary.json` is fedray's own; no user's metric may have it.

    Example:
        >>> [is_fedrays(name) for name in ("round", "nll", "rounds_to_target", "hold_out_margin", "margin")]
        [True, True, True, True, False]
    """
    known = name in COLUMNS["rounds"] or name in _COURSE or describe_score(name) is not None
    return known or name.startswith(PREFIXES)


# ---------------------------------------------------------------------------------------------------------------------
# The input of a user's own metric: the predictions of an ensemble for the samples of a split.


class Scored(NamedTuple):
    """The predictions of the models of one world for the samples of a split.

    Attributes:
        prediction: Prediction of the ensemble: probabilities `[n, C]`, or the mean of the target `[n]` in the target's
            unit.
        targets: True classes `[n]`, or true targets `[n]` in the target's unit.
        members: Predictions of each model: probabilities `[K, n, C]`, or means `[K, n]`. Models of weight 0 are left
            out; of a stack the members are its sub models.
        inputs: Inputs of the samples as the data set stores them, `[n, ...]`.
        split: The split, `test` or `hold_out`.
        replicate: Number of the replicate, from 0.
        fold: Number of the fold, from 0.
        variance: For regression: variance of the ensemble's prediction, `[n]`, in the target's unit squared. It is the
            one that the score `nll` uses, with its noise. None for classes.

    Example:
        >>> import numpy as np
        >>> scored = Scored(np.array([[0.2, 0.8]]), np.array([1]), np.zeros((1, 1, 2)), None, "test", 0, 0)
        >>> read_metric("certainty", lambda scored: scored.prediction.max(), scored)
        0.8
        >>> read_metric("nothing", lambda scored: None, scored)
        Traceback (most recent call last):
        fedray.core.errors.BadInput: metric nothing returned None: return a number
    """

    prediction: FloatArray
    targets: Any
    members: FloatArray
    inputs: Any
    split: str
    replicate: int
    fold: int
    variance: FloatArray | None = None


def read_metric(name: str, function: Callable[[Scored], Any], scored: Scored) -> float:
    """Returns the value of a user's own metric.

    Args:
        name: Name of the metric's column in `rounds.parquet`.
        function: The user's function, which computes the metric.
        scored: The predictions and targets that the function takes.

    Raises:
        FedrayError: The function raises an error.
        BadInput: The function returns no number.
    """
    return float(contract(f"metric {name}", function, _check_number)(scored))


def _check_number(found: Any, _scored: Scored) -> str | None:
    """Returns a description of what is wrong with the value of a metric; None if it is a number."""
    try:
        float(found)
    except (TypeError, ValueError):
        made = f"shape {list(found.shape)}" if isinstance(found, np.ndarray) else name_type(found)
        return f"{made}: return a number"
    return None
