"""Whole numbers that keep their sum, and the tie rules of those that use them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedray.components.schedule import share_out
from fedray.core.rounding import round_to_sum
from fedray.core.types import Clients, Tier
from fedray.scenario.clients import TierKeys
from fedray.scenario.rules import tier_counts


@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=8), total=st.integers(0, 10**6))
def test_the_largest_remainders_are_rounded_up_and_the_sum_stays(weights: list[int], total: int) -> None:
    share = np.array(weights) / sum(weights) * total
    whole = round_to_sum(share, total)
    assert whole.sum() == total
    up, remainder = whole > np.floor(share), share - np.floor(share)
    assert ((whole - np.floor(share) == 0) | (whole - np.floor(share) == 1)).all()
    assert remainder[up].min(initial=1.0) >= remainder[~up].max(initial=0.0)


def test_of_equal_remainders_the_first_participants_and_the_larger_tier_come_first() -> None:
    assert share_out(Clients((Tier("weak", 1), Tier("strong", 3))), 2) == [1, 1]
    assert tier_counts({"weak": TierKeys(share=0.25), "strong": TierKeys(share=0.75)}, 2) == {"weak": 0, "strong": 2}
