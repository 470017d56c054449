"""Conformal sets: scores, quantiles of several clients, and the coverage that they promise."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedray.core import rng
from fedray.core.types import FloatArray, ScoreKind
from fedray.metrics.conformal import (
    ConformalRule,
    choose_ranks,
    compute_coverage,
    cover_labels,
    cover_targets,
    find_pooled_rank,
    find_threshold,
    list_ranks,
    score_labels,
    weigh_clients,
)

TRIALS = 2000
SIZES = np.array([3, 6, 12, 1, 8])  # N = 30 rows of K = 5 clients


def draw_probabilities(rows: int = 200, classes: int = 6) -> tuple[FloatArray, FloatArray]:
    """Probabilities, some of them tied, and uniform numbers."""
    draw = rng.stream(0, "probabilities")
    probs = draw.dirichlet(np.full(classes, 0.5), rows)
    probs[::4, :3] = probs[::4, :3].mean(axis=1, keepdims=True)
    return probs, draw.random(rows)


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_a_score_is_its_definition_label_by_label(score: ScoreKind) -> None:
    probs, u = draw_probabilities()
    found = score_labels(probs, lambda: u, ConformalRule(score=score, penalty=0.3, k_reg=2))
    for i, p in enumerate(probs):
        for y, own in enumerate(p):
            above = p[p > own]
            wanted = 1 - own if score == "lac" else above.sum() + u[i] * own
            wanted += 0.3 * max(0, len(above) + 1 - 2) if score == "raps" else 0
            assert found[i, y] == pytest.approx(wanted, abs=1e-12)


def simulate(rule: ConformalRule, shift: float) -> FloatArray:
    """Whether a new score lies inside, `[trials]`; client k's scores are moved by k * shift, the new one's is drawn."""
    draw, inside = rng.stream(1, "trials"), np.empty(TRIALS)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    for t in range(TRIALS):
        scores = draw.random(len(owner)) + shift * owner
        mine = draw.choice(len(SIZES), p=weigh_clients(SIZES))
        threshold = find_threshold(np.split(scores, np.cumsum(SIZES)[:-1]), rule).value
        inside[t] = draw.random() + shift * mine <= threshold
    return inside


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_pooled_quantile_covers_the_mixture_of_the_clients_as_promised(shift: float) -> None:
    """1 - alpha <= coverage <= 1 - alpha + K / (N + K), whether the clients are alike or not."""
    rows, clients = int(SIZES.sum()), len(SIZES)
    inside = simulate(ConformalRule(alpha=0.2), shift)
    error = 2 * inside.std() / np.sqrt(TRIALS)
    assert 0.8 - error <= inside.mean() <= 0.8 + clients / (rows + clients) + error
    if not shift:  # exchangeable rows: the coverage is known exactly
        exact = find_pooled_rank(0.2, rows, clients) / (rows + 1)
        assert abs(inside.mean() - exact) < error


def test_the_rank_is_that_of_exact_arithmetic() -> None:
    """`(1 - 0.7) * 10` is 3.0000000000000004 in floats, and its rank is 3."""
    for percent in range(1, 100):
        for total in range(2, 201):
            exact = math.ceil(Fraction(100 - percent, 100) * total)
            assert find_pooled_rank(percent / 100, total - 1, 1) == exact, (percent, total)


def test_one_number_a_client_covers_what_its_integral_says() -> None:
    inside = simulate(ConformalRule(alpha=0.2, quantile="qq"), 0.0)
    wanted = choose_ranks(tuple(SIZES.tolist()), 0.2).coverage
    assert abs(inside.mean() - wanted) < 2 * inside.std() / np.sqrt(TRIALS)


@pytest.mark.parametrize("quantile", ["exact", "qq"])
@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_sets_grow_as_alpha_falls(quantile: Any, score: Any) -> None:
    probs, u = draw_probabilities()
    sizes = []
    for alpha in (0.5, 0.3, 0.2, 0.1):
        rule = ConformalRule(alpha, score, quantile)
        found = score_labels(probs, lambda: u, rule)
        own = np.split(found[:, 0], [50, 110])
        sizes.append(cover_labels(found, np.zeros(200, np.int64), find_threshold(own, rule).value)[1])
    assert all((small <= large).all() for small, large in pairwise(sizes))
    assert sizes[0].sum() < sizes[-1].sum()


def test_too_few_rows_let_everything_in() -> None:
    rule = ConformalRule(alpha=0.1)
    assert find_threshold([np.zeros(3), np.zeros(0)], rule).value == math.inf
    assert find_threshold([np.zeros(0)], rule).value == math.inf
    assert cover_labels(np.ones((2, 4)), np.array([0, 3]), math.inf)[1].tolist() == [4, 4]


def test_an_interval_is_as_many_deviations_wide_as_the_threshold_says() -> None:
    sets = cover_targets(np.zeros(3), np.array([1.0, 2.0, 1.0]), np.array([1.0, 3.0, -1.6]), threshold=1.5)
    assert sets.tolist() == [[1, 1, 0], [3, 6, 3]]


QQ_TRIALS = 8000
CASES = {
    "ten clients": ((20,) * 10, 19, 5),
    "many clients": ((9,) * 40, 9, 14),
    "different sizes": ((3, 20, 50, 1, 7), 45, 3),
    "a large one": ((150, 2, 5), 140, 2),
}


@pytest.mark.parametrize(("sizes", "k", "r"), CASES.values(), ids=CASES)
def test_the_coverage_is_that_of_a_simulation(sizes: tuple[int, ...], k: int, r: int) -> None:
    """Uniform scores are drawn and ranked; the mean of the threshold is the probability of a new score below it."""
    draw = rng.stream(0, "simulation", k, r)
    ranks = list_ranks(sizes, k)
    sent = [np.partition(draw.random((QQ_TRIALS, n)), rank - 1, axis=1)[:, rank - 1] for n, rank in zip(sizes, ranks)]
    threshold = np.sort(np.stack(sent), axis=0)[r - 1]
    error = threshold.std() / np.sqrt(QQ_TRIALS)
    assert abs(compute_coverage(sizes, k, r) - threshold.mean()) < 3 * error


def test_the_example_of_the_paper_s_setting() -> None:
    """K = 10 clients of n = 20 rows at alpha = 0.1."""
    found = choose_ranks((20,) * 10, 0.1)
    assert (found.k, found.r) == (19, 5)
    assert round(found.coverage, 5) == 0.90791


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("sizes", [(8,) * 6, (20,), (12, 12, 12), (5, 9, 14)])
def test_no_other_pair_has_a_smaller_coverage_that_is_enough(sizes: tuple[int, ...], alpha: float) -> None:
    found = choose_ranks(sizes, alpha)
    pairs = [compute_coverage(sizes, k, r) for k in range(1, max(sizes) + 1) for r in range(1, len(sizes) + 1)]
    enough = [each for each in pairs if each >= 1 - alpha]
    if enough:
        assert found.coverage == pytest.approx(min(enough), abs=1e-12)
    else:
        assert found.r == len(sizes) + 1


def test_one_client_is_split_conformal_prediction() -> None:
    assert all(compute_coverage((19,), k, 1) == pytest.approx(k / 20) for k in range(1, 20))
