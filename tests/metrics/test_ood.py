"""AUROC and FPR95 of out-of-distribution detection: probabilities of pairs, whatever the scale of the uncertainty."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedray.core.types import FloatArray
from fedray.metrics.unknown import auroc, fpr95

RNG = np.random.default_rng(0)
TIED: tuple[FloatArray, FloatArray] = (RNG.integers(2, 9, 60) / 8, RNG.integers(0, 7, 45) / 8)


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    unknown, known = TIED
    pairs = unknown[:, None] - known
    assert auroc(unknown, known) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2, abs=1e-12)


def test_auroc_of_swapped_inputs_is_the_rest_to_one_and_of_the_same_inputs_a_half() -> None:
    unknown, known = TIED
    assert auroc(unknown, known) + auroc(known, unknown) == pytest.approx(1.0, abs=1e-12)
    assert auroc(known, known) == 0.5


def test_only_the_order_of_the_uncertainties_counts() -> None:
    unknown, known = TIED
    for score in (auroc, fpr95):
        assert score(np.exp(3 * unknown), np.exp(3 * known)) == score(unknown, known)


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
