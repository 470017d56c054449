"""Paired differences: against scipy's t test, and what a pair is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedray.metrics.scores import compare_paired

SCORES = st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=12)


@given(SCORES)
def test_the_interval_is_that_of_scipys_paired_t_test(scores: list[tuple[float, float]]) -> None:
    first = {(seed, 0): a for seed, (a, _) in enumerate(scores)}
    second = {(seed, 0): b for seed, (_, b) in enumerate(scores)}
    found = compare_paired(first, second)
    differences = np.array([a - b for a, b in scores])
    assert found is not None and found.n == len(scores) and found.over == "seeds"
    assert found.mean == pytest.approx(differences.mean())
    if differences.std() > 1e-6:
        wanted = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
        assert found.p == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue, rel=1e-6)
        assert found.differs == (stats.ttest_1samp(differences, 0.0).pvalue < 0.05)


def test_only_shared_seeds_count_and_none_is_said() -> None:
    assert compare_paired({(0, 0): 1.0}, {(1, 0): 1.0}) is None
    assert compare_paired({(0, 0): math.nan}, {(0, 0): 1.0}) is None
    found = compare_paired({(0, 0): 1.0, (1, 0): 9.0}, {(0, 0): 0.5, (2, 0): -9.0})
    assert found is not None and (found.mean, found.n) == (0.5, 1)
    assert math.isnan(found.low) and not found.differs  # one pair has no interval


def test_a_seed_counts_once_however_many_folds_it_has() -> None:
    first = {(seed, fold): float(seed + fold) for seed in (0, 1) for fold in (0, 1, 2)}
    second = dict.fromkeys(first, 0.0)
    many, one = compare_paired(first, second), compare_paired({(0, f): first[0, f] for f in range(3)}, second)
    assert many is not None and (many.n, many.over, many.mean) == (2, "seeds", 1.5)
    assert one is not None and (one.n, one.over, one.mean) == (3, "folds", 1.0)


def test_a_difference_of_rounding_is_none() -> None:
    """The mean of three times 0.7 is a little less: without spread over the seeds, an interval without zero."""
    mean = float(np.mean([0.7] * 3))
    assert mean != 0.7
    found = compare_paired({(seed, 0): mean for seed in range(4)}, {(seed, 0): 0.7 for seed in range(4)})
    assert found is not None and (found.mean, found.low, found.high, found.differs) == (0.0, 0.0, 0.0, False)
    small = compare_paired({(seed, 0): 3e-9 + seed * 1e-11 for seed in range(4)}, {(s, 0): 2e-9 for s in range(4)})
    equal = compare_paired({(seed, 0): 0.75 for seed in range(4)}, {(seed, 0): 0.5 for seed in range(4)})
    assert small is not None and small.differs and equal is not None and equal.missing_interval == "equal differences"


def test_an_infinite_score_is_in_the_difference_as_it_is_in_the_mean() -> None:
    """Of five seeds, two with infinite intervals, the three others said: 0.1 narrower."""
    first = {(seed, 0): width for seed, width in enumerate((1.9, 2.0, 2.1, math.inf, math.inf))}
    second = {(seed, 0): width for seed, width in enumerate((2.0, 2.1, 2.2, 2.0, 2.1))}
    found, back = compare_paired(first, second), compare_paired(second, first)
    assert found is not None and back is not None
    assert (found.mean, found.n, found.differs) == (math.inf, 5, False) and math.isnan(found.low)
    assert (back.mean, back.n, back.differs) == (-math.inf, 5, False)
    both = compare_paired(first, first)
    assert both is not None and math.isnan(both.mean) and both.n == 5 and not both.differs
