"""How many actors the tiers get, and what they may ask of a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_share_of_a_gpu_does_not_overwrite_the_number_of_actors_that_fit_the_cpus() -> None:
    """Ten actors fit the GPU and two the CPUs; it was refused, because ten need 40 CPUs."""
    planned = plan_actors(Clients((Tier("all", 50, num_cpus=4.0, num_gpus=0.1),)), Room(8.0, 1.0, {}), "auto", "auto")
    assert len(planned) == 2


def test_a_tier_without_gpus_takes_no_share_of_them() -> None:
    """The GPU's tier has a tenth of the clients, but both GPUs are its own."""
    tiers = Tier("gpu", 10, num_cpus=1.0, num_gpus=1.0), Tier("cpu", 90, num_cpus=1.0)
    planned = plan_actors(Clients(tiers), Room(20.0, 2.0, {}), "auto", "auto")
    assert sum(spec.tier == 0 for spec in planned) == 2


TIERS = st.builds(
    Tier,
    st.just("any"),
    st.integers(1, 40),
    num_cpus=st.sampled_from([None, 0.5, 1.0, 3.0, 4.0]),
    num_gpus=st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]),
    resources=st.dictionaries(st.sampled_from(["lab", "disk"]), st.sampled_from([0.25, 1.0, 2.0]), max_size=2),
)
ROOMS = st.builds(
    Room,
    st.integers(1, 40).map(float),
    st.integers(0, 6).map(float),
    st.fixed_dictionaries({"lab": st.integers(0, 9).map(float), "disk": st.integers(0, 9).map(float)}),
)


def needs_of(tier: Tier, cpus: float) -> dict[str, float]:
    """What one actor takes."""
    return {"CPU": cpus, "GPU": tier.num_gpus, "lab": 0.0, "disk": 0.0, **tier.resources}


@given(tiers=st.lists(TIERS, min_size=1, max_size=4), room=ROOMS)
def test_actors_never_exceed_a_resource_and_are_never_fewer_than_possible(tiers: list[Tier], room: Room) -> None:
    """Any cluster: refused only where one actor of each tier does not fit, else no further actor of any tier fits."""
    have = {"CPU": room.cpus, "GPU": room.gpus, **room.resources}
    one_each = {name: sum(needs_of(tier, tier.num_cpus or 0.0)[name] for tier in tiers) for name in have}
    possible = all(one_each[name] <= have[name] + 1e-9 for name in have)
    try:
        planned = plan_actors(Clients(tuple(tiers)), room, "auto", "auto")
    except BadInput:
        assert not possible
        return
    assert possible
    counts = [sum(spec.tier == c for spec in planned) for c in range(len(tiers))]
    assert all(1 <= count <= tier.number for count, tier in zip(counts, tiers, strict=True))
    used = {name: sum(needs_of(tiers[spec.tier], spec.num_cpus)[name] for spec in planned) for name in have}
    assert all(used[name] <= have[name] + 1e-6 for name in have)
    whole = {  # where a tier leaves its CPUs open, an actor is meant to have one
        name: sum(n * needs_of(tier, tier.num_cpus or 1.0)[name] for n, tier in zip(counts, tiers, strict=True))
        for name in have
    }
    for count, tier in zip(counts, tiers, strict=True):
        more = needs_of(tier, tier.num_cpus or 1.0)
        further = all(whole[name] + more[name] <= have[name] for name in have if more[name] > 0)
        assert count == tier.number or not further


@given(tier=TIERS, room=ROOMS)
def test_a_single_tier_has_as_many_actors_as_its_scarcest_resource_holds(tier: Tier, room: Room) -> None:
    have, needs = {"CPU": room.cpus, "GPU": room.gpus, **room.resources}, needs_of(tier, tier.num_cpus or 1.0)
    most = min(tier.number, *(int(have[name] / need + 1e-9) for name, need in needs.items() if need))
    if most:
        assert len(plan_actors(Clients((tier,)), room, "auto", "auto")) == most
