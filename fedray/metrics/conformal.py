"""Makes conformal prediction sets. They hold the labels whose scores do not exceed a threshold."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy  # loads `scipy.special`, a quarter of a second, where it is first used

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, IntArray, QuantileKind, ScoreKind

# ---------------------------------------------------------------------------------------------------------------------
# FedCP-QQ, which computes a conformal threshold from one score per client, as a quantile of quantiles.
#
# Client j sends the k_j-th smallest of its n_j scores, and the server takes the r-th smallest of the K received scores
# as the threshold. If all scores come from one distribution, a new score is at most the threshold with probability
#
#     M = integral over t from 0 to 1 of P(at most r - 1 of the received scores lie below t),
#
# where score j lies below t with probability `I_t(k_j, n_j - k_j + 1)` (I: regularized incomplete beta function). If
# all clients have n samples, the number of scores below t is binomial. Otherwise it is Poisson-binomial. FedCP-QQ takes
# the pair (k, r) with the smallest M that is at least 1 - alpha.
#
# Source: Humbert, Le Bars, Bellet, Arlot, *One-Shot Federated Conformal Prediction*, ICML 2023.
#
# Deviations: 1. Clients may hold different numbers of samples. Client j then sends the score of rank `ceil(k (n_j + 1)
# / (n + 1))` (at most its largest score), where n is the largest n_j. M is exact for these ranks. 2. Of more than 64
# ranks k, 64 evenly spread ranks are tried (16 if the numbers of samples differ).

MOST_LEVELS, MOST_UNEQUAL_LEVELS = 64, 16  # ranks k that are tried
MOST_UNEQUAL = 300  # most clients with different numbers of samples
_GRID = 256  # places of the window
_TAIL = 1e-13  # a tail of the window
_REACH = 9.0  # standard deviations beyond which the window is empty


class Ranks(NamedTuple):
    """Two ranks (places in ascending order) of FedCP-QQ, which computes a threshold from one score of each client.

    Attributes:
        k: Rank of the score that the client with the most samples sends, from 1.
        r: Rank of the threshold among the scores that the server receives, from 1. If no pair (k, r) reaches the
            requested coverage, r is one more than the number of clients, and the threshold is infinite.
        coverage: The probability that a new score is at most the threshold. It is 1 if no pair reaches the requested
            coverage.
    """

    k: int
    r: int
    coverage: float


def list_ranks(sizes: tuple[int, ...], k: int) -> IntArray:
    """Returns the rank (place in ascending order) of the score that each of K clients sends, `[K]`.

    `sizes` has the number of samples of each client, `[K]`, at least 1. `k` is the rank that the client with the most
    samples uses.

    Example:
        >>> list_ranks((20, 10, 1), 19).tolist()
        [19, 10, 1]
    """
    n = np.array(sizes, dtype=np.int64)
    return np.minimum(-(-k * (n + 1) // (max(sizes) + 1)), n)


@lru_cache(maxsize=256)
def choose_ranks(sizes: tuple[int, ...], alpha: float) -> Ranks:
    """Returns the pair of ranks (k, r) with the smallest coverage (`compute_coverage`) of at least 1 - alpha.

    Args:
        sizes: Number of samples of each client, `[K]`, at least 1.
        alpha: Share of the samples whose label may lie outside of the sample's set, 0 to 1.

    Raises:
        BadInput: There are more than 300 clients, and their numbers of samples differ.

    Example:
        >>> choose_ranks((20,) * 10, alpha=0.1)
        Ranks(k=19, r=5, coverage=0.90791...)
    """
    if len(set(sizes)) > 1 and len(sizes) > MOST_UNEQUAL:
        raise BadInput(
            f"predict.conformal.quantile = qq, but {len(sizes)} clients withhold different numbers of rows, and "
            f"{MOST_UNEQUAL} are the most for it: choose exact"
        )
    n, best = max(sizes), Ranks(max(sizes), len(sizes) + 1, 1.0)
    most = MOST_LEVELS if len(set(sizes)) == 1 else MOST_UNEQUAL_LEVELS
    for k in range(1, n + 1) if n <= most else np.unique(np.linspace(1, n, most).round().astype(int)):
        mean = _moments(sizes, int(k), np.array([1.0 - alpha]))[0][0]
        r = int(np.clip(np.round(mean), 1, len(sizes)))
        found = compute_coverage(sizes, int(k), r)
        while found < 1.0 - alpha and r < len(sizes):
            r, found = r + 1, compute_coverage(sizes, int(k), r + 1)
        while r > 1 and (less := compute_coverage(sizes, int(k), r - 1)) >= 1.0 - alpha:
            r, found = r - 1, less
        if 1.0 - alpha <= found < best.coverage:
            best = Ranks(int(k), r, found)
    return best


def compute_coverage(sizes: tuple[int, ...], k: int, r: int) -> float:
    """Returns the probability that a new score is at most the threshold of a pair of ranks (k, r).

    `sizes` has the number of samples of each client, `[K]`, at least 1. `k` and `r` are as in `Ranks`.

    Example:
        >>> round(compute_coverage((9,), k=9, r=1), 6)  # one client: k / (n + 1)
        0.9
    """
    # Finds where the integrand leaves 1 and where it reaches 0, to 12 digits
    n = np.unique(np.array(sizes))
    rank = list_ranks(tuple(n.tolist()), k)
    first, last = (scipy.special.betaincinv(rank, n - rank + 1, tail) for tail in (_TAIL, 1.0 - _TAIL))
    grid = np.linspace(first.min(), last.max(), _GRID)
    mean, variance = _moments(sizes, k, grid)
    reach = _REACH * (np.sqrt(variance) + 1.0)
    inside = np.flatnonzero((mean + reach > r - 0.5) & (mean - reach < r - 0.5))
    low, high = float(grid[max(0, inside[0] - 1)]), float(grid[min(_GRID - 1, inside[-1] + 1)])
    places, weights = _list_nodes(4 if len(sizes) >= 30 else 20)
    t = low + (high - low) * places
    return float(low + (high - low) * (weights * _fewer_than(sizes, k, r, t)).sum())


@lru_cache(maxsize=2)
def _list_nodes(pieces: int) -> tuple[FloatArray, FloatArray]:
    """Returns the nodes and weights of an integral over [0, 1]: 24 Gauss-Legendre nodes in each of `pieces` parts."""
    x, w = scipy.special.roots_legendre(24)
    places = [(i + (x + 1) / 2) / pieces for i in range(pieces)]
    return np.concatenate(places), np.tile(w / (2 * pieces), pieces)


def _shares(sizes: tuple[int, ...], k: int, t: FloatArray) -> tuple[FloatArray, IntArray]:
    """Returns the probability that a client sends a score below t, `[groups, T]`, and the size of each group.

    The clients of a group have the same number of samples, and T is the number of values of `t`.
    """
    n, number = np.unique(np.array(sizes), return_counts=True)
    rank = list_ranks(tuple(n.tolist()), k)
    return scipy.special.betainc(rank[:, None], (n - rank + 1)[:, None], t), number


def _moments(sizes: tuple[int, ...], k: int, t: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns mean and variance of the number of clients that send a score below t, `[T]` each, for T values of `t`.

    Each client sends one of its scores: the rank follows from its number of samples in `sizes`, and k (`list_ranks`).
    """
    share, number = _shares(sizes, k, t)
    return number @ share, number @ (share * (1.0 - share))


def _fewer_than(sizes: tuple[int, ...], k: int, r: int, t: FloatArray) -> FloatArray:
    """Returns the probability that fewer than r of the received scores are below each of T values `t`, `[T]`."""
    share, number = _shares(sizes, k, t)
    if len(number) == 1:  # P(Bin(K, p) <= r - 1) = I_(1 - p)(K - r + 1, r)
        return np.asarray(scipy.special.betainc(int(number[0]) - r + 1, r, 1.0 - share[0]))
    below = np.zeros((len(t), r))  # of the clients so far, 0 to r - 1 lie below
    below[:, 0] = 1.0
    for p in np.repeat(share, number, axis=0):
        moved = below[:, :-1] * p[:, None]
        below *= (1.0 - p)[:, None]
        below[:, 1:] += moved
    return np.asarray(below.sum(axis=1))


# ---------------------------------------------------------------------------------------------------------------------
# A score measures how badly a label (or a target) fits a prediction. The set of a sample contains every label whose
# score is at most the threshold. The threshold is a quantile of the scores of samples that clients withhold from
# training. Suppose that K clients withhold N samples, n_k of these at client k, and that a test sample belongs to
# client k with probability (n_k + 1) / (N + K). With the pooled quantile, its label is inside its set with a
# probability between 1 - alpha and 1 - alpha + K / (N + K). This holds for any model, if no scores are equal.
#
# | score | of a label y, given probabilities p |
# | --- | --- |
# | `lac` | 1 - p_y |
# | `aps` | sum of the p_j above p_y, and u p_y with u uniform on 0 to 1 |
# | `raps` | `aps` + penalty * max(0, rank_y - k_reg), where rank_y counts from 1, the most probable label |
# | `regression` | of a target: distance to the mean, in predicted standard deviations |
#
# Source: Lu, Yu, Karimireddy, Jordan, Raskar, *Federated Conformal Predictors for Distributed Uncertainty
# Quantification*, ICML 2023 (FCP); scores: Sadinle et al. 2019 (LAC), Romano et al. 2020 (APS), Angelopoulos et al.
# 2021 (RAPS), Lei et al. 2018 (regression). FedCP-QQ, above, needs one number per client.

NUMBER_BYTES = 8  # bytes of a score that a client sends


class ConformalRule(NamedTuple):
    """Settings of the rule that makes conformal sets.

    Attributes:
        alpha: Share of the samples whose label may lie outside of the sample's set, between 0 and 1.
        score: Name of the score. A score measures how badly a label fits a prediction.
        quantile: `exact` computes the threshold from all scores of all clients. `qq` computes it from one score of each
            client.
        penalty: Amount by which the score `raps` of a label grows for each rank beyond `k_reg`. The most probable label
            has rank 1.
        k_reg: The number of most probable labels that get no penalty in the score `raps`.

    Example:
        >>> rule = ConformalRule(alpha=0.5, score="lac")
        >>> scores = score_labels(np.array([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]]), lambda: np.zeros(2), rule)
        >>> threshold = find_threshold([np.array([0.3, 0.5]), np.array([0.4, 0.8])], rule)
        >>> threshold
        Threshold(value=0.5, bytes=32)
        >>> (scores <= threshold.value).tolist()
        [[True, False, False], [True, False, False]]
    """

    alpha: float = 0.1
    score: ScoreKind = "lac"
    quantile: QuantileKind = "exact"
    penalty: float = 0.01
    k_reg: int = 1


class Threshold(NamedTuple):
    """The largest score that a label in a conformal set may have, and the bytes that are sent to find this threshold.

    Attributes:
        value: The threshold. If there are too few withheld samples, it is infinite, and every set contains every label.
        bytes: Number of bytes that all clients together send for the threshold.
    """

    value: float
    bytes: int


def score_labels(probs: FloatArray, draw: Callable[[], FloatArray], rule: ConformalRule) -> FloatArray:
    """Returns the conformal score of each label for each sample, `[n, C]`.

    `draw` returns a uniform random number from 0 to 1 for each sample, `[n]`. The score `lac` does not call it.
    """
    if rule.score == "lac":
        return 1.0 - probs
    order = np.argsort(-probs, axis=1, kind="stable")
    falling = np.take_along_axis(probs, order, axis=1)
    place = np.broadcast_to(np.arange(probs.shape[1]), probs.shape)
    first = np.ones(probs.shape, np.bool_)
    first[:, 1:] = falling[:, 1:] < falling[:, :-1]  # equal probabilities have the same rank
    start = np.maximum.accumulate(np.where(first, place, 0), axis=1)
    above = np.take_along_axis(np.cumsum(falling, axis=1) - falling, start, axis=1)
    sorted_scores = above + draw()[:, None] * falling
    if rule.score == "raps":
        sorted_scores += rule.penalty * np.maximum(0, start + 1 - rule.k_reg)
    scores = np.empty_like(sorted_scores)
    np.put_along_axis(scores, order, sorted_scores, axis=1)
    return scores


def find_threshold(scores: Sequence[FloatArray], rule: ConformalRule) -> Threshold:
    """Returns the threshold that follows from the conformal scores of clients.

    `scores` has the scores of each client's withheld samples, `[n_k]`. A client without samples sends nothing and is
    left out.
    """
    each = [one for one in scores if len(one)]
    if not each:
        return Threshold(math.inf, 0)
    if rule.quantile == "qq":
        sizes = tuple(len(one) for one in each)
        ranks = choose_ranks(sizes, rule.alpha)
        sent = [np.sort(one)[rank - 1] for one, rank in zip(each, list_ranks(sizes, ranks.k), strict=True)]
        return Threshold(_pick_rank(np.array(sent), ranks.r), NUMBER_BYTES * len(sent))
    pooled = np.concatenate(each)
    rank = find_pooled_rank(rule.alpha, len(pooled), len(each))
    return Threshold(_pick_rank(pooled, rank), NUMBER_BYTES * len(pooled))


def find_pooled_rank(alpha: float, rows: int, clients: int) -> int:
    """Returns the rank, from 1, of the threshold among the scores of all clients.

    The rank is `ceil((1 - alpha) (N + K))` for N withheld samples and K clients.

    Example:
        >>> find_pooled_rank(0.1, rows=90, clients=10)
        90
    """
    return math.ceil((1.0 - alpha) * (rows + clients) - 1e-9)  # (1 - 0.7) * 10 is above 3


def withholds_enough(sizes: Sequence[int], rule: ConformalRule) -> bool:
    """Returns whether clients withhold enough samples. If not, the threshold is infinite.

    `sizes` has the number of withheld samples of each client, `[K]`.

    Example:
        >>> [withholds_enough([rows], ConformalRule(alpha=0.1)) for rows in (8, 9)]
        [False, True]
    """
    each = tuple(size for size in sizes if size)
    if rule.quantile == "qq":
        return choose_ranks(each, rule.alpha).r <= len(each)
    return find_pooled_rank(rule.alpha, sum(each), len(each)) <= sum(each)


def _pick_rank(scores: FloatArray, rank: int) -> float:
    """Returns the score at a rank (place in ascending order, from 1).

    The result is infinity if the score is NaN or if there is no such rank.
    """
    if rank > len(scores):
        return math.inf
    found = float(np.partition(scores, rank - 1)[rank - 1])
    return math.inf if math.isnan(found) else found


def cover_labels(scores: FloatArray, y: IntArray, threshold: float) -> FloatArray:
    """Returns for each sample whether its conformal set holds the true label (1 or 0), and the set's size, `[2, n]`.

    The size is the number of labels in the set.
    """
    inside = ~(scores > threshold)  # predictions of a diverged model are NaN, and then every label is inside
    return np.stack([inside[np.arange(len(y)), y], inside.sum(axis=1)]).astype(np.float64)


def cover_targets(mean: FloatArray, sd: FloatArray, y: FloatArray, threshold: float) -> FloatArray:
    """Returns for each sample whether its interval holds the target (1 or 0), and the interval's width, `[2, n]`.

    The interval is `mean +- threshold * sd`, and its width is in the target's unit.

    Args:
        mean: Predicted mean, `[n]`.
        sd: Predicted standard deviation, above 0, `[n]`.
        y: Targets, `[n]`.
        threshold: Half the width of an interval, in standard deviations.
    """
    return np.stack([(np.abs(y - mean) / sd <= threshold).astype(np.float64), 2.0 * threshold * sd])


def weigh_clients(sizes: IntArray) -> FloatArray:
    """Returns the share (n_k + 1) / (N + K) of each of K clients, `[K]`. Client k withholds n_k samples.

    N is the sum of the n_k. The guarantee of conformal sets holds if this share is the probability that a new sample
    comes from client k.

    Args:
        sizes: Number n_k of withheld samples of each client, `[K]`. A client without withheld samples has share 0.

    Example:
        >>> weigh_clients(np.array([2, 0, 0, 4])).tolist()
        [0.375, 0.0, 0.0, 0.625]
    """
    parts = np.where(sizes > 0, sizes + 1.0, 0.0)
    return parts / max(float(parts.sum()), 1.0)


def summarize_classes(covered: FloatArray, y: IntArray, classes: int) -> FloatArray:
    """Returns the coverage of the conformal sets for each class, `[C]`. A class without samples has NaN.

    `covered` is 1 for a sample whose set holds the true label, and 0 for all other samples, `[n]`.

    Example:
        >>> summarize_classes(np.array([1.0, 0.0, 1.0]), np.array([0, 0, 2]), 3).tolist()
        [0.5, nan, 1.0]
    """
    rows = np.bincount(y, minlength=classes)
    hits = np.bincount(y, weights=covered, minlength=classes)
    return np.asarray(np.where(rows > 0, hits / np.maximum(rows, 1), np.nan))
