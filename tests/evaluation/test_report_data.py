"""The arrays behind the report's pictures."""

from __future__ import annotations

import numpy as np

from fedray.evaluation.report_data import MOST_COMPARED_MEMBERS, compare_members


def test_members_are_compared_pair_by_pair_up_to_as_many_as_are_drawn() -> None:
    """Each pair of uploads was compared by itself, however many there were."""
    members = np.random.default_rng(0).random((5, 40, 300))
    chosen = members.argmax(-1)
    assert np.array_equal(compare_members(members), [[(a != b).mean() for b in chosen] for a in chosen])
    assert compare_members(np.ones((MOST_COMPARED_MEMBERS + 1, 1, 2))).size == 0
