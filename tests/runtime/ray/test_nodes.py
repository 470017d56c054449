"""Seats on two nodes of two CPUs each, of Ray's own: all or none, waited for where they are taken, and found again."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from on_ray import open_nodes
from ray.util.placement_group import placement_group_table, remove_placement_group

from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import Clients, Tier
from fedray.runtime.placement import ActorSpec, choose_seats
from fedray.runtime.ray import tasks
from fedray.runtime.ray.connection import worker_environment

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    """A head and a node of two CPUs each."""
    with open_nodes([2, 2]) as cluster:
        yield cluster


@pytest.fixture
def seats(two: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module under test, impatient; nothing is reserved before and after."""
    assert len(two.list_all_nodes()) == 2
    import ray.util

    from fedray.runtime.ray import cluster as module

    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.2)
    yield module
    for group in placement_group_table().values():  # of a test that failed
        if group["state"] != "REMOVED":
            remove_placement_group(ray.util.get_placement_group(group["name"]))
    assert wait_until(lambda: free_cpus(module) == 4.0)


def free_cpus(module: Any) -> float:
    return float(sum(node.has.get("CPU", 0.0) for node in module.read_cluster().free))


def wait_until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def ask(number: int | str = "auto", cpus: float | None = None, parts: int = 1) -> Any:
    """What a run of fifty clients chooses."""
    tiers = Clients((Tier("all", 50, num_cpus=cpus),))
    return partial(choose_seats, tiers, "auto", number, parts)


@pytest.mark.parametrize(("number", "share"), [(5, 0.5), (3, 1.0), ("auto", 1.0)])
def test_all_actors_have_seats_on_two_nodes_of_two_cpus(seats: Any, number: int | str, share: float) -> None:
    """Five actors of 0.8 CPU hung: each node holds two. Ray itself confirms every seat."""
    taken = seats.take_seats(ask(number), waits=False)
    assert taken.is_ready()
    assert len(taken.specs) == (4 if number == "auto" else number)
    assert {one.num_cpus for one in taken.specs} == {share}
    assert {one.node for one in taken.find_nodes()} == {node.name for node in seats.read_cluster().whole}
    taken.release()


def test_two_runs_never_hold_half_a_cluster_each(seats: Any) -> None:
    """Both want three of four CPUs at the same moment; one begins, and the other when that one ends."""
    with ThreadPoolExecutor(2) as both:
        asked: list[Future[Any]] = [both.submit(seats.take_seats, ask(3, 1.0), waits=False) for _ in range(2)]
        while not any(one.done() for one in asked):
            time.sleep(0.05)
        time.sleep(1.0)
        assert sum(one.done() for one in asked) == 1
        assert free_cpus(seats) == 1.0, "the one that waits holds nothing"
        for one in sorted(asked, key=lambda one: not one.done()):
            one.result(60).release()


def test_a_busy_cluster_is_waited_for_and_said(seats: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It was taken for free: the second run hung for half an hour, and died."""
    other = seats.take_seats(ask("auto"), waits=False)
    released = threading.Event()

    def release() -> None:
        released.set()
        other.release()

    threading.Timer(1.5, release).start()
    with caplog.at_level(logging.INFO, logger="fedray"):
        mine = seats.take_seats(ask(4), waits=False)
    assert released.is_set()
    assert "waiting for 4 CPU: other jobs leave 0 CPU" in caplog.messages
    mine.release()


def test_runs_that_fill_what_is_left_or_a_part_share_a_cluster(seats: Any) -> None:
    """As the cells of `fedray table --jobs 2`: each takes a half, and a third run would wait."""
    taken = [seats.take_seats(ask(parts=2), waits=False) for _ in range(2)]
    assert [len(one.specs) for one in taken] == [2, 2]
    taken[0].release()
    assert wait_until(lambda: free_cpus(seats) == 2.0)
    rest = seats.take_seats(ask(), waits=False)
    assert len(rest.specs) == 2, "what nobody holds"
    for one in (taken[1], rest):
        one.release()


def test_what_no_node_has_is_refused_at_once_and_what_a_run_has_lost_is_waited_for(
    seats: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hpc` was on a node that is gone, when the run had begun."""
    with pytest.raises(BadInput, match="2 nodes do not hold all actors .1 of 3 CPU"):
        seats.take_seats(ask("auto", 3.0), waits=False)
    monkeypatch.setattr(seats, "PATIENCE", 0.5)
    pinned = Clients((Tier("all", 50, resources={"hpc": 1.0}),))
    with pytest.raises(FedrayError, match="waited 0.5 s for 1 hpc"):
        seats.take_seats(partial(choose_seats, pinned, "auto", "auto"), waits=True)
    time.sleep(1)  # what was asked for is given back
    assert all(one["state"] == "REMOVED" for one in placement_group_table().values())


@pytest.mark.usefixtures("two")
def test_a_sweep_whose_folder_a_node_does_not_see_is_refused_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trained everything, and then lost it. `/proc/self/cwd` is another folder in each process."""
    tasks.confirm_shared(tmp_path, worker_environment())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"out = /proc/self/cwd: node \S+ \(and 1 more\) does not see it"):
        tasks.confirm_shared(Path("/proc/self/cwd"), worker_environment())
    assert list(tmp_path.iterdir()) == []


def test_a_run_begins_when_the_nodes_are_there(two: Any, seats: Any, caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1) as beside, caplog.at_level(logging.INFO, logger="fedray"):
        done = beside.submit(seats.wait_for_resources, {"lab": 3.0, "nodes": 3.0})
        time.sleep(0.5)
        assert not done.done()
        groups = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
        assert [(one["state"], len(one["bundles"])) for one in groups] == [("PENDING", 3)], "an autoscaler sees it"
        node = two.add_node(num_cpus=0, resources={"lab": 3})  # nodes are started from the main thread only
        done.result(60)
    assert "waiting for 3 lab, 3 nodes: the cluster has 0 lab, 2 nodes" in caplog.messages
    two.remove_node(node)


@pytest.mark.slow
def test_seats_of_a_coordinator_that_was_killed_are_given_back(seats: Any) -> None:
    """Ray keeps what a dead actor had reserved until its job ends, in which a new coordinator waits for it."""
    import ray

    class Coordinator:
        def take(self) -> int:
            from fedray.runtime.ray.cluster import reserve

            self.held = reserve([ActorSpec(0, 1.0, 0.0, {})] * 4)
            return int(self.held.is_ready(30))

    remote: Any = ray.remote(Coordinator)
    coordinator = remote.options(num_cpus=0).remote()
    assert ray.get(coordinator.take.remote())
    ray.kill(coordinator)
    time.sleep(1.0)
    assert free_cpus(seats) == 0.0
    mine = seats.take_seats(ask(4, 1.0), waits=False)
    mine.release()
