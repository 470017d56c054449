"""How many actors the tiers get of a cluster, also where others use it too or nodes have yet to come."""

import itertools
from collections.abc import Mapping

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fedray.core.errors import BadInput
from fedray.core.types import Clients, Tier
from fedray.runtime.placement import ACTOR_GB, MEMORY, ActorSpec, Cluster, Node, choose_seats, plan_actors, seat


def nodes(number: int, **has: float) -> list[Node]:
    """Equal nodes."""
    return [Node(str(n), has) for n in range(number)]


def test_the_order_in_which_tiers_are_seated_does_not_decide_whether_they_fit() -> None:
    """Of actors of 2, 2, 3 and 3 CPUs on two nodes of 5 the first two must not share a node."""
    tiers = [Tier(f"{n}", 10, num_cpus=cpus) for n, cpus in enumerate((2.0, 2.0, 3.0, 3.0))]
    planned = plan_actors(Clients(tuple(tiers)), nodes(2, CPU=5.0), "auto", "auto")
    assert sorted(one.num_cpus for one in planned if one.node == "0") == [2.0, 3.0]


AMOUNTS = {"GPU": st.sampled_from([0.0, 1.0, 2.0]), "lab": st.sampled_from([0.0, 1.0, 3.0])}
NODES = st.lists(
    st.builds(Node, st.just(""), st.fixed_dictionaries({"CPU": st.integers(0, 6).map(float), **AMOUNTS})),
    min_size=1,
    max_size=4,
).map(lambda found: [Node(str(n), node.has) for n, node in enumerate(found)])
TIERS = st.builds(
    Tier,
    st.just("any"),
    st.integers(1, 12),
    num_cpus=st.sampled_from([None, 0.5, 1.0, 3.0, 4.0]),
    num_gpus=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    resources=st.sampled_from([{}, {"lab": 0.25}, {"lab": 1.0}]),
)


def needs_of(tier: Tier, cpus: float) -> dict[str, float]:
    """What one actor takes."""
    return {"CPU": cpus, "GPU": tier.num_gpus, **tier.resources}


def holds(has: Mapping[str, float], needs: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount - 1e-6 for name, amount in needs.items() if amount > 0)


@given(tiers=st.lists(TIERS, min_size=1, max_size=3), there=NODES)
def test_actors_fit_their_nodes_and_no_further_one_does(tiers: list[Tier], there: list[Node]) -> None:
    try:
        planned = plan_actors(Clients(tuple(tiers)), there, "auto", "auto")
    except BadInput:
        return
    left = [dict(node.has) for node in there]
    for one in planned:
        for name, amount in one.needs.items():
            left[int(one.node)][name] -= amount
    assert all(amount >= -1e-6 for has in left for amount in has.values())
    for c, tier in enumerate(tiers):
        count = sum(one.tier == c for one in planned)
        assert 1 <= count <= tier.number
        further = any(holds(has, needs_of(tier, 1.0 if tier.num_cpus is None else tier.num_cpus)) for has in left)
        assert count == tier.number or not further


def fits_somehow(sizes: list[float], free: list[float]) -> bool:
    """Whether any packing exists: tries each node for the first actor."""
    if not sizes:
        return True
    places = {n: has for n, has in enumerate(free) if has >= sizes[0] and has not in free[:n]}
    return any(fits_somehow(sizes[1:], [*free[:n], has - sizes[0], *free[n + 1 :]]) for n, has in places.items())


KINDS = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.integers(1, 4)), min_size=1, max_size=3)


@given(kinds=KINDS, free=st.lists(st.integers(1, 8).map(float), min_size=1, max_size=4), more=st.integers(0, 9))
@example(kinds=[(2.0, 1), (4.0, 4)], free=[8.0, 8.0, 2.0, 2.0], more=0)  # the smaller kind took the place of the other
def test_actors_whose_sizes_divide_each_other_fit_wherever_any_packing_holds_them(
    kinds: list[tuple[float, int]], free: list[float], more: int
) -> None:
    """Counted over all packings, and none holds more than its node has."""
    cpus, least = [size for size, _ in kinds], [count for _, count in kinds]
    there = [Node(str(n), {"CPU": has}) for n, has in enumerate(free)]
    most = [count + more for count in least]
    seats = seat([ActorSpec(0, size, 0.0, {}) for size in cpus], least, most, there)
    assert (seats is not None) == fits_somehow([size for size, count in kinds for _ in range(count)], free)
    if seats is not None:
        assert (np.array(cpus) @ seats <= free).all()
        assert (seats.sum(axis=1) >= least).all() and (seats.sum(axis=1) <= most).all()


def test_room_for_more_actors_does_not_decide_whether_the_required_ones_fit() -> None:
    """The plan fitted one actor of each kind; filling the cluster began in another order and failed."""
    kinds = [ActorSpec(0, 3.0, 0.5, {}), ActorSpec(1, 4.0, 0.1, {"lab": 0.25}), ActorSpec(2, 3.0, 0.1, {"lab": 1.0})]
    there = [Node("0", {"CPU": 6.0, "GPU": 1.0, "lab": 1.0}), Node("1", {"CPU": 5.0, "GPU": 2.0, "lab": 3.0})]
    for order in itertools.permutations(kinds):
        least, whole = (seat(order, [1] * 3, [most] * 3, there) for most in (1, 12))
        assert (least is None) == (whole is None)


@given(tier=TIERS, there=NODES, actors=st.integers(1, 12))
def test_a_tier_has_as_many_seats_as_its_nodes_hold_and_the_largest_share(
    tier: Tier, there: list[Node], actors: int
) -> None:
    """Counted by hand, node by node; of a given number each has the largest part of a CPU with which all fit."""

    def count(cpus: float) -> int:
        needs = {name: amount for name, amount in needs_of(tier, cpus).items() if amount}
        each = (min(int(node.has.get(name, 0.0) / amount + 1e-6) for name, amount in needs.items()) for node in there)
        return sum(each)

    most = count(1.0 if tier.num_cpus is None else tier.num_cpus)
    if most:
        assert len(plan_actors(Clients((tier,)), there, "auto", "auto")) == min(most, tier.number)
    wanted = min(actors, tier.number)
    try:
        share = plan_actors(Clients((tier,)), there, "auto", actors)[0].num_cpus
    except BadInput:
        assert count(tier.num_cpus or 0.01) < wanted
        return
    assert count(share) >= wanted
    if tier.num_cpus is None and share < 1:
        assert count(1.0 / (round(1 / share) - 1)) < wanted


def test_ray_admits_as_many_actors_as_a_nodes_memory_holds() -> None:
    """Actors were counted by CPUs alone, and Ray's memory monitor killed what a node could not hold."""
    clients = Clients((Tier("phones", 100),))
    small, large = {"CPU": 8.0, MEMORY: 1.3}, {"CPU": 8.0, MEMORY: 2.0}
    specs = plan_actors(clients, [Node("a", small), Node("b", large)], "auto", "auto")
    assert sorted(spec.node for spec in specs) == ["a"] * 3 + ["b"] * 5
    assert {spec.memory for spec in specs} == {ACTOR_GB}


ONE = Clients((Tier("all", 50),))
AUTO, FOUR = ("auto", "auto"), ("auto", 4)


def cluster(whole: list[float], free: list[float]) -> Cluster:
    return Cluster(*([Node(str(n), {"CPU": cpus}) for n, cpus in enumerate(each)] for each in (whole, free)))


def test_a_given_number_of_actors_waits_for_all_its_seats_and_an_open_one_takes_what_is_left() -> None:
    """Three of four CPUs are free; a fourth actor never gets less than a CPU because somebody else is there."""
    busy = cluster([2.0, 2.0], [2.0, 1.0])
    assert len(choose_seats(ONE, *AUTO, cluster=busy, waits=False).specs) == 3
    waits = choose_seats(ONE, *FOUR, cluster=busy, waits=False)
    assert (waits.specs, waits.why, waits.coming) == ([], "waiting for 4 CPU: other jobs leave 3 CPU", False)


def test_nodes_that_are_waited_for_are_to_bring_a_cpu_an_actor() -> None:
    """What has come is used as soon as it is enough; actors share one CPU if that is all there is."""
    asked = choose_seats(ONE, *FOUR, cluster=cluster([0.0], [0.0]), waits=True)
    assert [(one.num_cpus, one.node) for one in asked.specs] == [(1.0, "")] * 4
    assert (asked.why, asked.coming) == ("waiting for 4 CPU: the cluster has 0 CPU", True)
    assert {one.node for one in choose_seats(ONE, *FOUR, cluster=cluster([4.0], [4.0]), waits=True).specs} == {"0"}
    shared = choose_seats(ONE, *FOUR, cluster=cluster([1.0], [1.0]), waits=True)
    assert [one.num_cpus for one in shared.specs] == [0.25] * 4
    assert len(choose_seats(ONE, *AUTO, cluster=cluster([0.0], [0.0]), waits=True).specs) == 1


def test_a_cluster_without_room_waits_for_nodes() -> None:
    pinned, none = Clients((Tier("all", 50, resources={"hpc": 1.0}),)), cluster([4.0], [4.0])
    later = choose_seats(pinned, *AUTO, cluster=none, waits=True)
    assert (later.why, later.coming) == ("waiting for 1 hpc: the cluster has 0 hpc", True)
    assert [one.resources for one in later.specs] == [{"hpc": 1.0}]
