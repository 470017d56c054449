"""FedCP-QQ's coverage is that of a simulation, and its pair of ranks is the best one."""

from __future__ import annotations

import numpy as np
import pytest

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.metrics import conformal
from fedray.metrics.conformal import choose_ranks, compute_coverage, list_ranks

TRIALS = 8000
CASES = {
    "ten clients": ((20,) * 10, 19, 5),
    "one client": ((9,), 9, 1),
    "many clients": ((9,) * 40, 9, 14),
    "different sizes": ((3, 20, 50, 1, 7), 45, 3),
    "a large one": ((150, 2, 5), 140, 2),
}


@pytest.mark.parametrize(("sizes", "k", "r"), CASES.values(), ids=CASES)
def test_the_coverage_is_that_of_a_simulation(sizes: tuple[int, ...], k: int, r: int) -> None:
    """Uniform scores are drawn and ranked; the mean of the threshold is the probability of a new score below it."""
    draw = rng.stream(0, "simulation", k, r)
    ranks = list_ranks(sizes, k)
    sent = [np.partition(draw.random((TRIALS, n)), rank - 1, axis=1)[:, rank - 1] for n, rank in zip(sizes, ranks)]
    threshold = np.sort(np.stack(sent), axis=0)[r - 1]
    error = threshold.std() / np.sqrt(TRIALS)
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


def test_too_many_clients_of_different_sizes_are_refused() -> None:
    with pytest.raises(BadInput, match=r"quantile = qq, but 301 clients .*: choose exact"):
        choose_ranks((*(2,) * 300, 3), 0.1)
    assert conformal.MOST_UNEQUAL == 300
