"""Describes fedray's scores, computes a user's own metric, and compares the scores of two runs."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedray.core import scores
from fedray.core.types import FloatArray
from fedray.files.run_files import COLUMNS, Column
from fedray.metrics.classification import classification_scores
from fedray.metrics.regression import regression_scores
from fedray.own_code.user_code import name_type

# ---------------------------------------------------------------------------------------------------------------------
# Compares two runs by the differences of their scores over the seeds that both have, with a confidence interval.
#
# Two runs with the same seed give the same samples to the same clients and begin with the same models. So chance has
# similar effects on both runs, and the difference of their scores varies less than either score. A seed counts once.
# With folds, the difference of a seed is the mean over the folds that both runs have. If the runs share a single seed,
# its folds are the pairs. Folds share most of their training samples, so the interval may then be too narrow.

WorldScores = Mapping[tuple[int, int], float]  # (seed, fold) -> score
LEVEL = 0.95  # confidence level of the interval
ROUNDING = 1e-12  # relative to the scores: a smaller difference comes from rounding


class PairedDifference(NamedTuple):
    """The difference of two runs' scores, averaged over the seeds or folds that both runs have.

    Attributes:
        mean: Mean of the differences (first minus second), in the score's unit. It is infinite or NaN if one of the
            differences is infinite or NaN.
        low: Lower end of the confidence interval. It is NaN if there is no interval: for a single pair, for
            infinite scores, and if all differences are the same and not 0.
        high: Upper end of the confidence interval, or NaN.
        n: Number of pairs.
        over: Kind of the pairs: `seeds`, or `folds` if the runs have only one seed in common.
        p: Two-sided p-value of the paired t test, whose null hypothesis is no difference. It is NaN if there is no
            interval.
    """

    mean: float
    low: float
    high: float
    n: int
    over: str
    p: float = math.nan

    @property
    def missing_interval(self) -> str:
        """Returns the reason why there is no interval, in two words, or an empty text if there is an interval."""
        if self.n == 1:
            return "one pair"
        if not math.isnan(self.low):
            return ""
        return "equal differences" if math.isfinite(self.mean) else "infinite scores"

    @property
    def differs(self) -> bool:
        """Returns whether the interval excludes zero. Without an interval, the result is False."""
        return self.low > 0 or self.high < 0


def compare_paired(first: WorldScores, second: WorldScores) -> PairedDifference | None:
    """Compares the scores of two runs in pairs of equal seed and fold.

    The interval is Student's, mean +- t(n - 1) * sd / sqrt(n) over n differences.

    A difference of at most 1e-12 times the larger score counts as 0, because it comes from rounding.

    Args:
        first: Scores of the first run, by seed and fold. A score that is NaN is left out. If a score is infinite, there
            is no interval.
        second: Scores of the second run.

    Returns:
        The difference, first minus second. It is None if the runs have no seed and fold in common.

    Source: Student, "The probable error of a mean", Biometrika 6 (1908).

    Example:
        >>> first = {(0, 0): 0.80, (1, 0): 0.84, (2, 0): 0.90}  # (seed, fold) -> score
        >>> second = {(0, 0): 0.78, (1, 0): 0.81, (2, 0): 0.86, (3, 0): 0.99}
        >>> found = compare_paired(first, second)
        >>> found.n, found.over, round(found.mean, 4), round(found.low, 4), round(found.high, 4)
        (3, 'seeds', 0.03, 0.0052, 0.0548)
        >>> found.differs, round(found.p, 4)
        (True, 0.0351)
    """
    of_seed: dict[int, list[float]] = defaultdict(list)
    for seed, fold in sorted(first.keys() & second.keys()):
        a, b = first[seed, fold], second[seed, fold]
        if not (math.isnan(a) or math.isnan(b)):
            of_seed[seed].append(0.0 if abs(a - b) <= ROUNDING * max(abs(a), abs(b)) < math.inf else a - b)
    if not of_seed:
        return None
    (one, *others), over = list(of_seed.values()), "seeds"
    with np.errstate(invalid="ignore"):  # infinity less infinity
        pairs = np.array([np.mean(each) for each in (one, *others)])
        if not others and len(one) > 1:
            pairs, over = np.array(one), "folds"
        mean, n = float(pairs.mean()), len(pairs)
    if abs(mean) <= ROUNDING * np.abs(pairs).max() < math.inf:
        mean = 0.0
    finite = n > 1 and math.isfinite(mean)
    error = float(pairs.std(ddof=1) / math.sqrt(n)) if finite else 0.0
    if not finite or error <= ROUNDING * abs(mean) > 0:  # equal differences say nothing of their spread
        return PairedDifference(mean, math.nan, math.nan, n, over)
    from scipy.special import stdtr, stdtrit  # this import takes half a second

    half = float(stdtrit(n - 1, 0.5 + LEVEL / 2) * error)
    p = float(2 * stdtr(n - 1, -abs(mean) / error)) if error else float(mean == 0)
    return PairedDifference(mean, mean - half, mean + half, n, over, p)


# ---------------------------------------------------------------------------------------------------------------------
# The score of a run at a budget, interpolated between the evaluations around it if they are near enough. A budget is a
# number of bytes, seconds or rounds. Two evaluations that are far apart say little about the scores between them. So a
# score is interpolated only if the later evaluation cost at most twice as much as the earlier evaluation. Otherwise the
# earlier evaluation counts if it had used 90 % of the budget, and else there is no score.

LEAST_USED = 0.9  # share of a budget that an evaluation must have used to count alone
MOST_APART = 2.0  # largest cost of the later evaluation, as a multiple of the cost of the earlier evaluation


class BudgetScore(NamedTuple):
    """The score of a run at the end of a budget, such as a number of bytes or rounds.

    Attributes:
        value: The score.
        used: Share of the budget that was used at the last evaluation within the budget, in (0, 1].
        after: If the score is interpolated, the cost at the first evaluation beyond the budget, as a multiple of the
            budget. Otherwise `after` equals `used`.
    """

    value: float
    used: float
    after: float


def read_at_budget(cost: Sequence[float], score: Sequence[float], budget: float) -> BudgetScore | None:
    """Returns the score of a run at the end of a budget, or None if no evaluation is near enough.

    Args:
        cost: Cost up to each evaluation in ascending order, such as a number of bytes, `[n]`. The evaluation before
            training is left out. Of several evaluations with the same cost, the last is used.
        score: Score of each evaluation, `[n]`.
        budget: The budget in the unit of the cost, at least 0. Infinity means that the last evaluation is used.

    Example:
        A run that ended below the budget has a score only if it had used at least 90 % of the budget.

        >>> [read_at_budget([9], [0.8], budget) is None for budget in (10.0, 11.0)]
        [False, True]
        >>> read_at_budget([10, 20], [0.75, 1.0], 16.0)
        BudgetScore(value=0.9, used=0.625, after=1.25)
        >>> read_at_budget([10, 30], [0.75, 1.0], 16.0) is None  # nothing is known between 62 % and 188 % of it
        True
    """
    inside = [i for i, at in enumerate(cost) if at <= budget]
    if not inside:
        return None
    i, further = inside[-1], [i for i, at in enumerate(cost) if at > budget]
    used = cost[i] / budget if 0 < budget < math.inf else 1.0
    if used < 1 and further and cost[further[0]] <= MOST_APART * cost[i]:
        j = further[0]
        share = (budget - cost[i]) / (cost[j] - cost[i])
        return BudgetScore((1 - share) * score[i] + share * score[j], used, cost[j] / budget)
    return BudgetScore(score[i], used, used) if used >= LEAST_USED else None


# ---------------------------------------------------------------------------------------------------------------------
# The meaning of a score's name, with the task that has the score, and whether lower values are better.


def fits_task(name: str, classes: int) -> bool:
    """Returns whether a score exists for a task. A regression has no accuracy, for example.

    `classes` is 0 for a regression. The name may begin with `hold_out_` or `train_`.

    Example:
        >>> [fits_task(name, classes=10) for name in ("rmse", "hold_out_rmse", "nll", "hold_out_nll")]
        [False, False, True, True]
    """
    tasks = classification_scores(np.full((1, 1, 2), 0.5), [0]), regression_scores(np.zeros((1, 1)), [0.0])
    own, other = tasks if classes else tasks[::-1]
    score = scores.cut_split(name)[1]
    return score in own or score not in other


def lower_is_better(name: str) -> bool:
    """Returns whether lower values of the score `name` are better.

    For a user's own metric, lower values are better if its name ends with `_error` or `_loss`. For a scorer of
    scikit-learn, higher values are always better, because its errors are negated (`neg_..._error`).

    Example:
        >>> [lower_is_better(name) for name in ("accuracy", "hold_out_rmse_mean", "neg_log_loss", "my_loss_min")]
        [False, True, False, True]
    """
    found = scores.find_score(name)
    for of_members in ("_min", "_mean", "_max"):
        name = name.removesuffix(of_members)
    return name.endswith(("_error", "_loss")) and "neg_" not in name if found is None else bool(found.lower)


def has_direction(name: str) -> bool:
    """Returns whether either high or low values of a score are better. For entropy and coverage, neither is true.

    Example:
        >>> [has_direction(name) for name in ("accuracy", "hold_out_entropy", "coverage_90", "a_metric_of_mine")]
        [True, False, False, True]
    """
    found = scores.find_score(name)
    return found is None or found.lower is not None


def reaches_target(name: str, value: float, target: float) -> bool:
    """Returns whether the value of a score is at least as good as a target.

    Example:
        >>> reaches_target("accuracy", 0.9, target=0.8), reaches_target("nll", 0.4, target=0.3)
        (True, False)
    """
    return bool(value <= target if lower_is_better(name) else value >= target)


# ---------------------------------------------------------------------------------------------------------------------
# The scores in `rounds.parquet` and `summary.json`, with their units.

PREFIXES = (*scores.SPLITS, "member_", "tier_")  # beginnings of names that fedray writes itself
_COURSE = ("rounds_to_target", "seconds_to_target", "bytes_to_target")  # scores of a summary
_LISTS = ("conformal_coverage_class",)
SCORES: Mapping[str, Column] = {
    name: Column("numbers" if name in _LISTS else "number", one.unit, one.text) for name, one in scores.SCORES.items()
}


def is_fedrays(name: str) -> bool:
    """Returns whether fedray uses a name in `rounds.parquet` or `summary.json`.

    A user's metric must not have such a name.

    Example:
        >>> [is_fedrays(name) for name in ("round", "nll", "rounds_to_target", "hold_out_margin", "margin")]
        [True, True, True, True, False]
    """
    known = name in COLUMNS["rounds"] or name in _COURSE or scores.find_score(name) is not None
    return known or name.startswith(PREFIXES)


# ---------------------------------------------------------------------------------------------------------------------
# The input of a user's own metric, which is the predictions of an ensemble for the samples of a split.


class Scored(NamedTuple):
    """The predictions of one replicate (a seed of the run) and fold for the samples of a split.

    Attributes:
        prediction: Prediction of the ensemble. In a classification, this is probabilities `[n, C]`. In a regression, it
            is the predicted mean `[n]` in the target's unit.
        targets: True classes `[n]`, or true targets `[n]` in the target's unit.
        members: Predictions of each model: probabilities `[K, n, C]` or means `[K, n]`. Models with the weight 0 are
            left out. In stacking, the models are the sub models, without the meta model.
        inputs: Inputs of the samples, as they are in the data set, `[n, ...]`.
        split: The split, `test`, `hold_out` or `train`.
        replicate: Index of the replicate, from 0.
        fold: Index of the fold, from 0.
        variance: Variance of the ensemble's prediction in a regression, `[n]`, in the target's unit squared. The
            variance includes the noise that the score `nll` assumes. In a classification, `variance` is None.

    Example:
        >>> import numpy as np
        >>> scored = Scored(np.array([[0.2, 0.8]]), np.array([1]), np.zeros((1, 1, 2)), None, "test", 0, 0)
        >>> float(scored.prediction.max())
        0.8
    """

    prediction: FloatArray
    targets: Any
    members: FloatArray
    inputs: Any
    split: str
    replicate: int
    fold: int
    variance: FloatArray | None = None


def check_number(found: Any, *_: Any, **_given: Any) -> str | None:
    """Returns what is wrong with the value of a metric, or None if it is a number."""
    try:
        float(found)
    except (TypeError, ValueError):
        made = f"shape {list(found.shape)}" if isinstance(found, np.ndarray) else name_type(found)
        return f"{made}: return a number"
    return None
