"""Which clients stand out: z-scores do not depend on the unit, and clients that are all alike have none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedray.metrics.unknown import ANOMALY_Z, score_drift, z_scores

RNG = np.random.default_rng(0)


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
