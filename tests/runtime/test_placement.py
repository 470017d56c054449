"""How many actors the tiers get, and what they may ask of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from fedray.core.errors import BadInput
from fedray.core.types import Clients, Tier
from fedray.runtime.placement import Room, plan_actors


def test_a_tier_of_few_clients_leaves_the_others_what_it_does_not_need() -> None:
    """A fifth of four CPUs holds no actor of two: it gets two, and the other tier the rest."""
    few, many = Tier("few", 20, num_cpus=2.0), Tier("many", 80, num_cpus=1.0)
    planned = plan_actors(Clients((few, many)), Room(4.0, 0.0, {}), "auto", "auto")
    assert [spec.tier for spec in planned] == [0, 1, 1]


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"num_cpus": 100}, "1 actors need 100 CPU, but the cluster has 12: lower clients.tiers.NAME.num_cpus"),
        ({"num_gpus": 3}, "1 actors need 3 GPU, but the cluster has 0: lower clients.tiers.NAME.num_gpus"),
        ({"resources": {"moon": 1}}, "1 actors need 1 moon, but the cluster has 0: lower clients.tiers.NAME.resources"),
        ({"resources": {"lab": 2}}, "1 actors need 2 lab, but the cluster has 1"),
    ],
)
def test_more_than_the_cluster_has_is_one_line(needs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan_actors(Clients((Tier("all", 10, **needs),)), Room(12.0, 0.0, {"lab": 1.0}), "auto", 1)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
