"""The sketch of scores: its error is bounded and one-sided, and sketches merge in any order to the same bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedray.core.errors import BadInput
from fedray.metrics.sketch import (
    LEAST,
    find_ranked_score,
    merge_sketches,
    pack_sketch,
    sketch_scores,
)

scores = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)
errors = st.sampled_from([0.001, 0.01, 0.2])


@given(scores, errors)
def test_every_rank_is_answered_from_above_within_the_relative_error(given_scores: list[float], error: float) -> None:
    sketch = sketch_scores(np.array(given_scores), error)
    for rank, score in enumerate(sorted(given_scores), 1):
        true = max(score, LEAST)
        assert true <= find_ranked_score(sketch, rank) <= true * (1 + error) * (1 + 1e-12)
    assert find_ranked_score(sketch, len(given_scores) + 1) == math.inf


@pytest.mark.parametrize("error", [0.001, 0.01, 0.2])
def test_the_end_of_a_bucket_is_its_own_answer_and_a_score_above_it_is_in_the_next(error: float) -> None:
    """Where a logarithm that is rounded puts a score into the bucket beside its own."""
    ends = (1.0 + error) ** np.arange(-100.0, 100.0)
    below, at, above = ([find_ranked_score(sketch_scores(near, error), rank) for rank in range(1, 201)]
                        for near in (np.nextafter(ends, 0), ends, np.nextafter(ends, np.inf)))  # fmt: skip
    assert below == at == ends.tolist()
    assert above[:-1] == ends[1:].tolist()


@given(st.lists(scores, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_any_order_of_merging_gives_the_bits_of_all_scores_at_once(parts: list[list[float]], order: Any) -> None:
    whole = sketch_scores(np.concatenate([np.array(part) for part in parts]), 0.01)
    each = [sketch_scores(np.array(part), 0.01) for part in parts]
    order.shuffle(each)
    nested = each[0]
    for one in each[1:]:
        nested = merge_sketches([one, nested])
    for merged in (merge_sketches(each), nested):
        assert pack_sketch(merged) == pack_sketch(whole)


def test_a_message_is_eight_bytes_for_each_filled_bucket_and_holds_everything() -> None:
    sketch = sketch_scores(np.array([0.5, 0.5, 0.9]), 0.01)
    message = pack_sketch(sketch)
    assert len(message) == 16
    entries = np.frombuffer(message, "<i4, <u4").tolist()
    assert entries == list(zip(sketch.bucket.tolist(), [2, 1], strict=True))


def test_many_scores_take_fewer_bytes_than_the_scores_themselves() -> None:
    sketch = sketch_scores(np.linspace(0.05, 1, 10_000), 0.01)
    assert len(pack_sketch(sketch)) < 0.05 * 8 * 10_000


def test_scores_that_are_no_numbers_are_above_all_others() -> None:
    sketch = sketch_scores(np.array([0.5, np.nan, np.inf]), 0.01)
    assert find_ranked_score(sketch, 1) < 1 < 1e299 < find_ranked_score(sketch, 2)


def test_sketches_of_different_errors_are_not_merged() -> None:
    with pytest.raises(BadInput, match=r"relative errors \[0.01, 0.1\]"):
        merge_sketches([sketch_scores(np.ones(1), error) for error in (0.1, 0.01)])
