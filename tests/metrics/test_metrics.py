"""Scores against scikit-learn, scipy, and integrals done by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn import metrics as sk

from fedray.metrics import classification, regression
from fedray.metrics.ensemble import probabilities

RNG = np.random.default_rng(3)
MEMBERS = probabilities(RNG.normal(size=(4, 200, 5)) * 2)
PROBS, Y = MEMBERS.mean(0), RNG.integers(5, size=200)
MEAN, VARIANCE = RNG.normal(size=300), RNG.uniform(0.1, 4, size=300)
TARGET = MEAN + RNG.normal(size=300) * np.sqrt(VARIANCE)
reals = st.floats(-5, 5)


def test_classification_scores_are_scikit_learns() -> None:
    predicted, labels = PROBS.argmax(-1), list(range(5))
    assert classification.accuracy(PROBS, Y) == sk.accuracy_score(Y, predicted)
    assert classification.nll(PROBS, Y) == pytest.approx(sk.log_loss(Y, PROBS, labels=labels))
    assert classification.brier(PROBS, Y) == pytest.approx(((PROBS - np.eye(5)[Y]) ** 2).sum(1).mean())
    assert classification.confusion(PROBS, Y).tolist() == sk.confusion_matrix(Y, predicted, labels=labels).tolist()
    assert classification.weighted_f1(PROBS, Y) == pytest.approx(sk.f1_score(Y, predicted, average="weighted"))


def test_two_classes_have_twice_scikit_learns_brier_score() -> None:
    p = RNG.uniform(size=50)
    y = RNG.integers(2, size=50)
    assert classification.brier(np.stack([1 - p, p], 1), y) == pytest.approx(2 * sk.brier_score_loss(y, p))


def test_f1_of_a_class_that_is_never_true_or_given_counts_nothing() -> None:
    probs = np.eye(3)[[0, 1, 1]]
    assert classification.weighted_f1(probs, [0, 1, 0]) == pytest.approx(
        sk.f1_score([0, 1, 0], [0, 1, 1], average="weighted")
    )


def test_a_confident_mistake_costs_much_but_not_infinity() -> None:
    assert classification.nll([[1.0, 0.0]], [1]) == pytest.approx(-np.log(np.finfo(float).eps))


def test_calibration_table_adds_up() -> None:
    table = classification.calibration(PROBS, Y)
    assert len(table.lower) == 15
    assert table.samples.sum() == 200
    filled = table.samples > 0
    assert (table.samples * table.accuracy)[filled].sum() / 200 == pytest.approx(classification.accuracy(PROBS, Y))
    assert (table.samples * table.confidence)[filled].sum() / 200 == pytest.approx(PROBS.max(-1).mean())
    assert (table.confidence[filled] > table.lower[filled]).all()
    assert (table.confidence[filled] <= table.upper[filled]).all()


def test_ece_with_one_bin_is_the_gap_and_is_zero_when_calibrated() -> None:
    gap = abs(classification.accuracy(PROBS, Y) - PROBS.max(-1).mean())
    assert classification.ece(PROBS, Y, bins=1) == pytest.approx(gap)
    assert classification.ece(PROBS, Y) >= gap - 1e-12
    assert classification.ece(np.tile([0.75, 0.25], (4, 1)), [0, 0, 0, 1]) == pytest.approx(0)
    assert classification.ece([[1.0, 0.0], [0.0, 1.0]], [0, 1]) == 0  # the edge: confidence 1 lies in the last bin


def test_disagreement_is_the_mean_over_pairs() -> None:
    votes = MEMBERS.argmax(-1)
    pairs = [(votes[i] != votes[j]).mean() for i in range(4) for j in range(i)]
    assert classification.disagreement(MEMBERS) == pytest.approx(np.mean(pairs))
    assert classification.disagreement(MEMBERS[:1]) == 0
    assert classification.disagreement(np.stack([MEMBERS[0]] * 3)) == 0


def test_classification_in_one_call() -> None:
    scores = classification.classification_scores(torch.from_numpy(MEMBERS), torch.from_numpy(Y))
    alone = [classification.accuracy(member, Y) for member in MEMBERS]
    assert scores["accuracy"] == classification.accuracy(PROBS, Y)
    assert (scores["accuracy_min"], scores["accuracy_max"]) == (min(alone), max(alone))
    assert scores["accuracy_min"] <= scores["accuracy_mean"] <= scores["accuracy_max"]
    assert scores["entropy"] == pytest.approx(stats.entropy(PROBS, axis=-1).mean())
    assert set(scores) == {
        *("accuracy", "f1_weighted", "nll", "brier", "ece", "entropy", "disagreement"),
        *("accuracy_min", "accuracy_mean", "accuracy_max"),
    }
    assert classification.classification_scores(MEMBERS, Y, answer=MEMBERS[2])["accuracy"] == alone[2]
    assert all(type(value) is float for value in scores.values())


def test_an_ensemble_is_no_worse_than_its_members_on_average() -> None:
    scores = classification.classification_scores(MEMBERS, Y)
    assert scores["nll"] <= np.mean([classification.nll(member, Y) for member in MEMBERS])  # Jensen
    assert scores["brier"] <= np.mean([classification.brier(member, Y) for member in MEMBERS])


def test_regression_scores_are_scipys() -> None:
    density = stats.norm(MEAN, np.sqrt(VARIANCE))
    assert regression.rmse(MEAN, TARGET) == pytest.approx(sk.root_mean_squared_error(TARGET, MEAN))
    assert regression.gaussian_nll(MEAN, VARIANCE, TARGET) == pytest.approx(-density.logpdf(TARGET).mean())
    for level in regression.LEVELS:
        lower, upper = density.interval(level)
        assert regression.coverage(MEAN, VARIANCE, TARGET, level) == ((lower <= TARGET) & (upper >= TARGET)).mean()
        assert regression.width(VARIANCE, level) == pytest.approx((upper - lower).mean())


@given(reals, st.floats(0.05, 3), reals)
@settings(deadline=None, max_examples=25)
def test_crps_is_the_integral_of_its_definition(mean: float, sd: float, y: float) -> None:
    below, _ = integrate.quad(lambda t: stats.norm.cdf(t, mean, sd) ** 2, min(mean, y) - 12 * sd, y, limit=200)
    above, _ = integrate.quad(lambda t: stats.norm.sf(t, mean, sd) ** 2, y, max(mean, y) + 12 * sd, limit=200)
    assert regression.crps([mean], [sd**2], [y]) == pytest.approx(below + above, abs=1e-6)


def test_crps_tends_to_the_absolute_error() -> None:
    assert regression.crps([1.0, 2.0], [1e-18, 1e-18], [4.0, 2.0]) == pytest.approx(1.5)


def test_sharpness_is_the_root_of_the_determinant() -> None:
    assert regression.sharpness(VARIANCE[:9]) == pytest.approx(np.linalg.det(np.diag(VARIANCE[:9])) ** (1 / 18))
    factor = RNG.normal(size=(4, 4))
    full = factor @ factor.T
    assert regression.sharpness(full) == pytest.approx(np.linalg.det(full) ** (1 / 8))
    assert regression.sharpness(np.full(10**6, 9.0)) == pytest.approx(3)  # the determinant itself would overflow
    assert regression.sharpness(4.0 * VARIANCE) == pytest.approx(2 * regression.sharpness(VARIANCE))


def test_calibrated_predictions_cover_and_have_a_flat_pit() -> None:
    mean, variance = np.zeros(20_000), np.full(20_000, 4.0)
    y = RNG.normal(size=20_000) * 2
    for level in regression.LEVELS:
        assert regression.coverage(mean, variance, y, level) == pytest.approx(level, abs=0.02)
    shares = regression.pit(mean, variance, y)
    assert shares.sum() == pytest.approx(1)
    assert shares == pytest.approx(np.full(10, 0.1), abs=0.015)
    assert regression.pit(mean, variance / 100, y)[0] > 0.3  # overconfident: everything in the tails


def test_regression_in_one_call_gives_both_readings_of_the_noise() -> None:
    members, y = RNG.normal(size=(5, 40)), RNG.normal(size=40)
    plain = regression.regression_scores(members, y)
    both = regression.regression_scores(members, y, noise=0.5, residual=0.5)
    mean, spread = members.mean(0), members.var(0)
    assert plain["nll"] == both["nll_none"] == pytest.approx(regression.gaussian_nll(mean, spread, y))
    assert both["nll"] == both["nll_residual"] == pytest.approx(regression.gaussian_nll(mean, spread + 0.5, y))
    assert "nll_none" not in plain
    assert plain["rmse"] == both["rmse"] <= plain["rmse_mean"]  # noise moves no mean; Jensen
    assert plain["rmse_min"] <= plain["rmse_mean"] <= plain["rmse_max"]
    assert both["sharpness"] > plain["sharpness"]
    assert {"rmse", "nll", "crps", "coverage_50", "coverage_90", "coverage_95", "sharpness"} <= plain.keys()


def test_one_member_without_noise_meets_the_floor() -> None:
    scores = regression.regression_scores(np.zeros((1, 3)), np.ones(3), floor=0.25)
    assert scores["sharpness"] == pytest.approx(0.5)
    assert np.isfinite(scores["nll"])


def test_members_with_their_own_variance_are_a_mixture() -> None:
    members, y = np.array([[0.0], [2.0]]), np.array([1.0])
    scores = regression.regression_scores(members, y, variances=np.array([[1.0], [3.0]]))
    assert scores["sharpness"] == pytest.approx(np.sqrt(3.0))  # mean variance 2 + variance of the means 1


def test_scores_of_clients_in_three_numbers() -> None:
    values = np.append(np.linspace(0, 1, 11), np.nan)
    assert classification.per_client(values) == pytest.approx({"mean": 0.5, "p10": 0.1, "worst": 0.0})
    assert classification.per_client(values, higher_is_better=False) == pytest.approx(
        {"mean": 0.5, "p10": 0.9, "worst": 1.0}
    )
    assert np.isnan(classification.per_client([np.nan])["worst"])
