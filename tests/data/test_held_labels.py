"""Labels are counted as the clients hold them."""

from __future__ import annotations

import numpy as np
import pytest

from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.data.shards import count_held_labels
from fedray.scenario.loader import read_scenario


def test_a_client_with_flipped_labels_holds_the_next_classes() -> None:
    partition = {"name": "dirichlet", "alpha": 0.3, "flipped": 0.5}
    keys = {"clients": 4, "data": {"name": "digits", "limit": 200, "hold_out": 0.2, "partition": partition}}
    shards = build_study(read_scenario({**keys, "replicates": 2})).shards
    for world in range(2):
        true, held = shards.label_counts(world), count_held_labels(shards, world)
        rolled = [np.array_equal(held[i], np.roll(true[i], 1)) for i in range(4)]
        same = [np.array_equal(held[i], true[i]) for i in range(4)]
        assert sorted(rolled) == sorted(same) == [False, False, True, True]
        assert rolled == [not one for one in same]


def test_real_targets_have_no_classes() -> None:
    shards = build_study(read_scenario({"clients": 4, "data": {"name": "sine"}, "method": "fedavg"})).shards
    with pytest.raises(BadInput, match="has real targets, of which no classes can be counted: choose other data"):
        count_held_labels(shards, 0)
