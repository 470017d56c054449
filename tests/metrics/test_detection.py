"""Inputs of another kind and clients that drift: only ranks and z-scores count."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedray.core.types import FloatArray
from fedray.metrics.classification import ANOMALY_Z, auroc, fpr95, score_drift, z_scores

RNG = np.random.default_rng(0)
TIED: tuple[FloatArray, FloatArray] = (RNG.integers(2, 9, 60) / 8, RNG.integers(0, 7, 45) / 8)


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    unknown, known = TIED
    pairs = unknown[:, None] - known
    assert auroc(unknown, known) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2, abs=1e-12)


def test_fpr95_is_the_least_share_of_false_alarms_that_finds_95_percent() -> None:
    unknown, known = TIED
    alarms = [(known >= t).mean() for t in np.unique(np.concatenate(TIED)) if (unknown >= t).mean() >= 0.95]
    assert fpr95(unknown, known) == min(alarms)


@pytest.mark.parametrize("m", [1, 19, 20, 21, 100])
def test_fpr95_misses_exactly_one_of_twenty_unknown_inputs_where_their_number_allows_it(m: int) -> None:
    unknown = np.arange(m) + 0.5  # untied, with a known input between two
    known = np.arange(m + 1.0)
    alarms = [(known >= t).mean() for t in unknown if 20 * (unknown >= t).sum() >= 19 * m]
    assert fpr95(unknown, known) == min(alarms)


@pytest.mark.parametrize("score", [auroc, fpr95])
def test_uncertainties_that_are_no_numbers_give_none(score: object) -> None:
    assert callable(score)
    assert math.isnan(score([math.nan, 1.0], [0.5]))
    assert math.isnan(score([], [0.5]))


def test_z_scores_are_scipys_and_do_not_depend_on_the_unit() -> None:
    values = RNG.gamma(2.0, size=40)
    np.testing.assert_allclose(z_scores(values), stats.zscore(values))
    np.testing.assert_allclose(z_scores(1000.0 * values + 7.0), z_scores(values))


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_clients_that_differ_by_rounding_have_the_same_score(noise: float) -> None:
    """A model answers in float32: what its rounding leaves is no drift."""
    values = 0.3 + noise * RNG.normal(size=30)
    assert z_scores(values).tolist() == [0.0] * 30
    assert not score_drift(values, values).anomaly.any()


def test_a_client_without_data_has_no_score_and_changes_nobody_elses() -> None:
    knowledge = np.append(RNG.gamma(2.0, size=20), np.nan)
    drift = score_drift(2 * knowledge, knowledge)
    assert np.isnan([drift.total[20], drift.knowledge[20], drift.z_total[20], drift.z_knowledge[20]]).all()
    assert not drift.anomaly[20]
    np.testing.assert_allclose(drift.z_knowledge[:20], z_scores(knowledge[:20]))
    assert np.isnan(z_scores([np.nan])).all()


@given(st.integers(2, 200).filter(lambda clients: clients != 10))
def test_one_moved_client_is_flagged_from_eleven_clients_on(clients: int) -> None:
    """The largest z-score that is possible among N clients is sqrt(N - 1), exactly 3 for N = 10."""
    knowledge = np.zeros(clients)
    knowledge[0] = 1.0
    drift = score_drift(knowledge, knowledge)
    assert drift.z_knowledge[0] == pytest.approx((clients - 1) ** 0.5)
    assert drift.anomaly.tolist() == [clients >= 11, *[False] * (clients - 1)]
    assert ANOMALY_Z == 3.0
