"""Which actors a run gets where others use the cluster too, and where nodes have yet to come."""

from __future__ import annotations

import pytest

from fedray.core.errors import BadInput
from fedray.core.types import Clients, Tier
from fedray.runtime.environment import read_share
from fedray.runtime.placement import ActorKeys, Cluster, Node, choose_seats

ONE = Clients((Tier("all", 50),))
AUTO, FOUR = ActorKeys("auto", "auto"), ActorKeys("auto", 4)


def cluster(whole: list[float], free: list[float]) -> Cluster:
    return Cluster(*([Node(str(n), {"CPU": cpus}) for n, cpus in enumerate(each)] for each in (whole, free)))


def test_a_given_number_of_actors_waits_for_all_its_seats_and_an_open_one_takes_what_is_left() -> None:
    """Three of four CPUs are free; a fourth actor never gets less than a CPU because somebody else is there."""
    busy = cluster([2.0, 2.0], [2.0, 1.0])
    assert len(choose_seats(ONE, busy, AUTO, waits=False).specs) == 3
    waits = choose_seats(ONE, busy, FOUR, waits=False)
    assert (waits.specs, waits.why, waits.coming) == ([], "waiting for 4 CPU: other jobs leave 3 CPU", False)


def test_nodes_that_are_waited_for_are_to_bring_a_cpu_an_actor() -> None:
    """What has come is used as soon as it is enough; actors share one CPU if that is all there is."""
    asked = choose_seats(ONE, cluster([0.0], [0.0]), FOUR, waits=True)
    assert [(one.num_cpus, one.node) for one in asked.specs] == [(1.0, "")] * 4
    assert (asked.why, asked.coming) == ("waiting for 4 CPU: the cluster has 0 CPU", True)
    assert {one.node for one in choose_seats(ONE, cluster([4.0], [4.0]), FOUR, waits=True).specs} == {"0"}
    shared = choose_seats(ONE, cluster([1.0], [1.0]), FOUR, waits=True)
    assert [one.num_cpus for one in shared.specs] == [0.25] * 4
    assert len(choose_seats(ONE, cluster([0.0], [0.0]), AUTO, waits=True).specs) == 1


def test_a_cluster_without_room_is_refused_unless_nodes_are_waited_for() -> None:
    pinned, none = Clients((Tier("all", 50, resources={"hpc": 1.0}),)), cluster([4.0], [4.0])
    with pytest.raises(BadInput, match="1 actors need 1 hpc, but the cluster has 0"):
        choose_seats(pinned, none, AUTO, waits=False)
    later = choose_seats(pinned, none, AUTO, waits=True)
    assert (later.why, later.coming) == ("waiting for 1 hpc: the cluster has 0 hpc", True)
    assert [one.resources for one in later.specs] == [{"hpc": 1.0}]


@pytest.mark.parametrize("text", ["0", "-1", "half", "1.5", "", "²", "9" * 12])
def test_a_part_of_a_cluster_that_is_no_number_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRAY_PARTS", text)
    with pytest.raises(BadInput, match="FEDRAY_PARTS = .*: give a number of runs from 1, or unset it"):
        read_share()
