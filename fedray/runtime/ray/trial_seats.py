"""The seats of trials that span several actors: bundles of a CPU each, reserved all or none together with the trial.

A trial's own process takes no CPU. It begins on the node of its first actor once all its actors have their seats, so
that trials never hold what others wait for.

Example:
    >>> from fedray.core.types import Tier
    >>> plan_trial(Clients((Tier("phones", 8), Tier("servers", 2))), actors=2).places
    [1, 1, 0]
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedray.core.errors import BadInput
from fedray.core.types import Clients
from fedray.runtime.misfit import describe_wait
from fedray.runtime.placement import plan_actors
from fedray.runtime.ray.seats import SILENT_SECONDS, Reservation, read_cluster, reserve
from fedray.runtime.seats import ACTOR_GB, MEMORY, ActorSpec, Cluster, Node, add_up, describe_amounts, find_seats

log = logging.getLogger("fedray")
RELEASE_SECONDS = 5.0  # for giving seats back to a Ray that may have died


def plan_trial(clients: Clients, actors: int, group: Any = None) -> Reservation:
    """The seats of a trial's actors in the last bundles that are reserved for it; a first one may be its process's own.

    Args:
        clients: The tiers.
        actors: How many bundles of one CPU there are for them.
        group: The trial's placement group; None: nothing but these bundles.
    """
    first = 0 if group is None else group.bundle_count - actors
    specs = plan_actors(clients, [Node(str(b), {"CPU": 1.0}) for b in range(actors)], "auto", actors)
    places = [first + int(one.node) for one in specs]
    return Reservation([one._replace(node="") for one in specs], group, places, own=False)


def find_group() -> Any:
    """The placement group in which this trial runs."""
    untyped: Any = ray.util
    return untyped.get_current_placement_group()


def list_needs(actors: int, cluster: Cluster) -> list[ActorSpec]:
    """What is reserved for a trial: a CPU for each actor, and memory where nodes say what they have.

    Args:
        actors: How many it spans.
        cluster: The nodes.

    Example:
        >>> list_needs(1, Cluster([Node("a", {"CPU": 4.0})], []))[0].needs
        {'CPU': 1.0}
    """
    says = any(MEMORY in node.has for node in cluster.whole)
    return [ActorSpec(0, 1.0, 0.0, {}, memory=ACTOR_GB if says else 0.0)] * actors


def confirm_room(actors: int) -> None:
    """Refuses trials of so many actors on a cluster that cannot hold one of them.

    Raises:
        BadInput: Says what there is.
    """
    cluster = read_cluster()
    [need] = list_needs(1, cluster)
    if actors and find_seats([need.needs], [actors], cluster.whole) is None:
        each, there = need.needs, add_up(cluster.whole)
        has = describe_amounts({name: there.get(name, 0.0) for name in each})
        raise BadInput(
            f"trial.actors = {actors}: each needs {describe_amounts(each)}, but the cluster has {has}: lower it, or "
            f"add nodes; --wait-for CPU={actors} waits for them"
        )


class TrialSeats:
    """The seats of the trials of a sweep.

    Attributes:
        actors: How many each trial spans; 0: none.
    """

    def __init__(self, actors: int) -> None:
        self.actors = actors
        self._asked: list[tuple[float, Reservation]] = []
        self._said = ""
        self._releases: list[threading.Thread] = []

    def place(self, gpus: float) -> tuple[dict[str, Any], Callable[[Any], None]]:
        """Ray's options for the process of a trial, and what is called with anything when the process has ended.

        Args:
            gpus: Of a trial that spans no actors, which takes a CPU itself.
        """
        if not self.actors:
            return {"num_cpus": 1, "num_gpus": gpus}, lambda _done: None
        seats = reserve(list_needs(self.actors, read_cluster()), "PACK")
        self._asked.append((time.monotonic(), seats))
        beside = PlacementGroupSchedulingStrategy(seats.group, placement_group_bundle_index=0)
        return {"num_cpus": 0, "scheduling_strategy": beside}, lambda _done: self._release(seats)

    def _release(self, seats: Reservation) -> None:
        """Gives the seats of a trial back, in a thread: that of Ray, which calls this, must not wait for Ray."""
        self._asked = [one for one in self._asked if one[1] is not seats]
        self._releases.append(threading.Thread(target=seats.release, daemon=True))
        self._releases[-1].start()

    def close(self) -> None:
        """Waits until all seats are given back, while Ray is there: asking it later would start another one."""
        for thread in self._releases:
            thread.join(RELEASE_SECONDS)

    def look(self) -> None:
        """Says what is waited for where no trial has got its seats for some seconds."""
        asked = list(self._asked)
        waited = time.monotonic() - max((at for at, _ in asked), default=time.monotonic())
        if waited > SILENT_SECONDS and not any(seats.is_ready() for _, seats in asked):
            why = describe_wait(asked[0][1].specs, read_cluster())
            if why != self._said:
                log.info("%s", why)
            self._said = why
