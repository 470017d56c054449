"""The seats of a run's actors on a Ray cluster: one placement group for all of them, and waiting until there is room.

Seats are reserved all or none, so that two runs never hold half of a cluster each and wait for the other half.

Example:
    >>> keep_plain({"CPU": 4.0, "memory": 1.5e9, "node:10.0.0.1": 1.0, "CPU_group_0_ab": 2.0, "hpc": 4.0})
    {'CPU': 4.0, 'hpc': 4.0, 'GB of memory': 1.5}
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import ray
import ray._private.state as ray_state
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedray.core.errors import FedrayError
from fedray.runtime import environment
from fedray.runtime.busy import Choice
from fedray.runtime.seats import MEMORY, UNIT, ActorSpec, Cluster, Node, add_up, bundle_seats, describe_amounts

log = logging.getLogger("fedray")
PATIENCE = environment.read_patience()  # seconds to wait for nodes before giving up
LOOK_SECONDS = 0.5  # between two looks at the cluster
SILENT_SECONDS = 8.0  # of waiting before it is said; what is said is shown two seconds later
SETTLE_SECONDS = 0.5  # in which Ray learns what a run that has just ended gives back
MOST_LOOKS = 6  # at a cluster where other jobs begin and end all the time
MOST_BUNDLES = 10_000  # that are asked for of a resource
GB = 1e9  # bytes
OWN = "fedray seats"  # how the names of placement groups begin


def keep_plain(resources: Mapping[str, float]) -> dict[str, float]:
    """The resources that an actor can ask for: without the object store, marks of nodes, and those of groups."""
    plain = {
        name: amount
        for name, amount in resources.items()
        if name not in ("memory", "object_store_memory") and ":" not in name and "_group_" not in name
    }
    if "memory" in resources:  # rounded down: a sum of actors is never more than Ray has
        plain[MEMORY] = math.floor(resources["memory"] / GB * UNIT) / UNIT
    return plain


def read_cluster() -> Cluster:
    """Reads what the nodes of the cluster have, and what of it is free."""
    untyped: Any = ray  # these functions of Ray have no annotations
    state: Any = ray_state
    free = state.available_resources_per_node()
    alive = [node for node in untyped.nodes() if node["Alive"]]
    return Cluster(
        [Node(node["NodeID"], keep_plain(node["Resources"])) for node in alive],
        [Node(node["NodeID"], keep_plain(free.get(node["NodeID"], {}))) for node in alive],
    )


def read_settled_cluster() -> Cluster:
    """As `read_cluster`; where something is taken, once two looks see the same: what has just ended gives back late."""
    now, before = read_cluster(), None
    for _ in range(MOST_LOOKS):
        if now in (before, Cluster(now.whole, now.whole)):
            break
        time.sleep(SETTLE_SECONDS)
        before, now = now, read_cluster()
    return now


class Reservation(NamedTuple):
    """Seats that are reserved, or will be.

    Attributes:
        specs: The actors.
        group: Ray's placement group; None where the actors need nothing.
        places: The bundle of each actor.
        own: Whether the group is the run's own, and not that of a trial in which it runs.
    """

    specs: list[ActorSpec]
    group: Any
    places: list[int]
    own: bool = True

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Whether all seats are there, after some seconds at most."""
        deadline = time.monotonic() + seconds  # Ray's own `wait` knows whole seconds only
        while self.group is not None and placement_group_table(self.group).get("state") != "CREATED":
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def find_nodes(self) -> list[ActorSpec]:
        """The actors, with the nodes on which their seats are."""
        if self.group is None or all(one.node for one in self.specs):
            return list(self.specs)
        where = placement_group_table(self.group)["bundles_to_node_id"]
        each = zip(self.specs, self.places, strict=True)
        return [one._replace(node=where[place] if place >= 0 else "") for one, place in each]

    def strategy(self, actor: int) -> Any:
        """How Ray is told where an actor goes."""
        if self.places[actor] < 0:
            return "DEFAULT"
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.places[actor])

    def release(self) -> None:
        """Gives the seats back."""
        if self.group is not None and self.own:
            with suppress(Exception):  # Ray itself may be gone
                remove_placement_group(self.group)


def reserve(specs: list[ActorSpec], strategy: str = "SPREAD") -> Reservation:
    """Asks Ray for the seats of actors, all or none; where they have nodes, on these.

    Args:
        specs: The actors.
        strategy: Ray's name for how actors without nodes lie: `SPREAD` or `PACK`.
    """
    bundles, nodes, places = bundle_seats(specs)
    for bundle in bundles:
        if MEMORY in bundle:
            bundle["memory"] = round(bundle.pop(MEMORY) * GB)
    if not bundles:
        return Reservation(specs, None, places)
    options = {"bundle_label_selector": [{"ray.io/node-id": node} for node in nodes]} if all(nodes) else {}
    name = f"{OWN} {ray.get_runtime_context().get_actor_id()} {uuid.uuid4().hex}"
    return Reservation(specs, placement_group(bundles, strategy=strategy, name=name, **options), places)


def release_orphans() -> None:
    """Gives back the seats of coordinators of this job that were killed: Ray keeps them until the job ends."""
    state: Any = ray_state
    for entry in placement_group_table().values():
        words = entry["name"].split()
        if entry["state"] == "REMOVED" or words[:2] != OWN.split() or words[2] == str(None):  # of no actor
            continue
        actor = state.actors(words[2])
        if not actor or actor["State"] == "DEAD":
            with suppress(ValueError):  # of another job
                remove_placement_group(ray.util.get_placement_group(entry["name"]))


def take_seats(choose: Callable[..., Choice], *, waits: bool) -> Reservation:
    """Reserves the seats of a run's actors, and waits where other jobs hold them or nodes have yet to come.

    Args:
        choose: As `choose_seats`, of (cluster, waits).
        waits: Whether nodes are waited for, since the run had begun. Ray is asked for their seats meanwhile, so that an
            autoscaler starts them.

    Raises:
        BadInput: The cluster cannot hold the actors.
        FedrayError: Nodes did not come.
    """
    release_orphans()
    began = time.monotonic()
    held, said, cluster = None, "", read_settled_cluster()
    try:
        while True:
            choice = choose(cluster=cluster, waits=waits)
            held = _replace_reservation(held, choice.specs)
            if held is not None and held.is_ready(LOOK_SECONDS) and not choice.coming:
                return held
            if held is None:
                time.sleep(LOOK_SECONDS)
            waited = time.monotonic() - began
            if choice.why != said and waited > SILENT_SECONDS:
                said = choice.why
                log.info("%s", said)
            if choice.coming and waited > PATIENCE:
                raise FedrayError(choice.why.replace("waiting for", f"waited {PATIENCE:g} s for"))
            cluster = read_cluster()
    except BaseException:
        _replace_reservation(held, [])
        raise


def _replace_reservation(held: Reservation | None, specs: list[ActorSpec]) -> Reservation | None:
    """Reserves seats in place of those that were asked for before, unless these are the same."""
    if held is not None and held.specs == specs:
        return held
    if held is not None:
        held.release()
    return reserve(specs) if specs else None


def wait_for_resources(wanted: Mapping[str, float]) -> None:
    """Waits until the nodes of a cluster have what they are waited for, and says what is still missing.

    Ray is asked for it meanwhile in bundles of one each, so that an autoscaler starts nodes.

    Args:
        wanted: Amounts by Ray's names, all nodes together; `nodes` are counted.

    Raises:
        FedrayError: They did not come in time.
    """
    began, said, held = time.monotonic(), "", None
    bundles = [
        ActorSpec(0, 0.0, 0.0, {name: min(1.0, amount)})
        for name, amount in wanted.items()
        if name != "nodes"
        for _ in range(min(MOST_BUNDLES, math.ceil(amount)))
    ]
    try:
        while True:
            cluster = read_cluster()
            has = {**add_up(cluster.whole), "nodes": float(len(cluster.whole))}
            short = {name: has.get(name, 0.0) for name, amount in wanted.items() if has.get(name, 0.0) < amount}
            if not short:
                return
            held = held or reserve(bundles)
            lacking = describe_amounts({name: wanted[name] for name in short})
            why = f"{lacking}: the cluster has {describe_amounts(short)}"
            if why != said:
                said = why
                log.info("waiting for %s", why)
            if time.monotonic() - began > PATIENCE:
                raise FedrayError(f"waited {PATIENCE:g} s for {why}")
            time.sleep(LOOK_SECONDS)
    finally:
        if held is not None:
            held.release()
