"""Scores of regressions against scikit-learn, scipy, and integrals done by number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn import metrics as sk

from fedray.metrics import regression

RNG = np.random.default_rng(3)
MEAN, VARIANCE = RNG.normal(size=300), RNG.uniform(0.1, 4, size=300)
TARGET = MEAN + RNG.normal(size=300) * np.sqrt(VARIANCE)
reals = st.floats(-5, 5)


def test_regression_scores_are_scipys() -> None:
    density = stats.norm(MEAN, np.sqrt(VARIANCE))
    assert regression.rmse(MEAN, TARGET) == pytest.approx(sk.root_mean_squared_error(TARGET, MEAN))
    assert regression.gaussian_nll(MEAN, VARIANCE, TARGET) == pytest.approx(-density.logpdf(TARGET).mean())
    for level in regression.INTERVAL_LEVELS:
        lower, upper = density.interval(level)
        assert regression.coverage(MEAN, VARIANCE, TARGET, level) == ((lower <= TARGET) & (upper >= TARGET)).mean()
        assert regression.width(VARIANCE, level) == pytest.approx((upper - lower).mean())


@given(reals, st.floats(0.05, 3), reals)
@settings(deadline=None, max_examples=25)
def test_crps_is_the_integral_of_its_definition(mean: float, sd: float, y: float) -> None:
    below, _ = integrate.quad(lambda t: stats.norm.cdf(t, mean, sd) ** 2, min(mean, y) - 12 * sd, y, limit=200)
    above, _ = integrate.quad(lambda t: stats.norm.sf(t, mean, sd) ** 2, y, max(mean, y) + 12 * sd, limit=200)
    assert regression.crps([mean], [sd**2], [y]) == pytest.approx(below + above, abs=1e-6)
    assert regression.crps([mean], [1e-18], [y]) == pytest.approx(abs(y - mean), abs=1e-8)  # the limit sd -> 0


def test_sharpness_was_the_geometric_mean_over_test_points() -> None:
    """DS of FedAG is det(Sigma)^(1 / 2d) of each prediction, d = 1 for a scalar target, averaged over the points."""
    assert regression.sharpness(VARIANCE) == pytest.approx(np.mean([np.sqrt(v) for v in VARIANCE.reshape(-1)]))
    for name in ("sharpness", "sharpness_geometric"):
        assert getattr(regression, name)(4.0 * VARIANCE) == pytest.approx(2 * getattr(regression, name)(VARIANCE))
        assert getattr(regression, name)(np.full(10**6, 9.0)) == pytest.approx(3)
    scores = regression.regression_scores(np.zeros((1, 2)), np.ones(2), variances=np.array([[1.0, 16.0]]))
    assert (scores["sharpness"], scores["sharpness_geometric"]) == pytest.approx((2.5, 2.0))


def test_geometric_sharpness_is_the_root_of_the_determinant_of_all_points() -> None:
    """And the one that bounds the NLL: 0.919 + log of it + half the mean squared standardised error."""
    few = VARIANCE[:9]
    assert regression.sharpness_geometric(few) == pytest.approx(np.linalg.det(np.diag(few)) ** (1 / 18))
    y = RNG.normal(size=9)
    bound = 0.5 * np.log(2 * np.pi) + np.log(regression.sharpness_geometric(few)) + 0.5 * (y**2 / few).mean()
    assert regression.gaussian_nll(np.zeros(9), few, y) == pytest.approx(bound)


def test_calibrated_predictions_have_a_flat_pit() -> None:
    mean, variance = np.zeros(20_000), np.full(20_000, 4.0)
    y = RNG.normal(size=20_000) * 2
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


def test_answers_that_are_nan_cover_no_share_of_the_targets() -> None:
    some, all_ = np.where(np.arange(300) == 7, np.nan, 1.0), np.full(300, np.nan)
    for level in regression.INTERVAL_LEVELS:
        for mark in (some, all_):
            assert np.isnan(regression.coverage(MEAN * mark, VARIANCE, TARGET, level))
            assert np.isnan(regression.coverage(MEAN, VARIANCE * mark, TARGET, level))
    infinite = regression.coverage([0.0, 0.0], [np.inf, 1.0], [1.0, 9.0], 0.95)
    assert infinite == 0.5
