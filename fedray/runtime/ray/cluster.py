"""The Ray cluster: its resources, its actors and their errors."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import ray
import ray._private.state as ray_state
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    WorkerCrashedError,
)
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import Clients
from fedray.runtime import environment, placement
from fedray.runtime.ray.connection import worker_environment

# ---------------------------------------------------------------------------------------------------------------------
# What actors are called in Ray's own tools: `ray list actors`, the dashboard, the prefix of what they print.


def name_options(run: str, actors: Iterable[str]) -> list[dict[str, Any]]:
    """Options of Ray that name the actors of a run, in a new namespace: those there were may still have theirs.

    Names are spelled in printable ASCII, which is all that Ray takes for the tags of its gauges.

    Args:
        run: Name of the run.
        actors: Name of each actor.
    """
    space = f"fedray {ascii(run)[1:-1]} {secrets.token_hex(4)}"
    return [{"name": f"{ascii(run)[1:-1]} / {ascii(actor)[1:-1]}", "namespace": space} for actor in actors]


# ---------------------------------------------------------------------------------------------------------------------
# The seats of a run's actors on a Ray cluster: one placement group for all of them, and waiting until there is room.
#
# Seats are reserved all or none, so that two runs never hold half of a cluster each and wait for the other half.

log = logging.getLogger("fedray")
PATIENCE = environment.read_patience()  # seconds to wait for nodes before giving up
LOOK_SECONDS = 0.5  # between two looks at the cluster
SILENT_SECONDS = 8.0  # of waiting before it is said
MOST_LOOKS = 6  # at a cluster where other jobs begin and end all the time
MOST_BUNDLES = 10_000  # that are asked for of a resource
GB = 1e9  # bytes
OWN = "fedray seats"  # how the names of placement groups begin


def keep_plain(resources: Mapping[str, float]) -> dict[str, float]:
    """Keeps the resources that an actor can ask for: not the object store, marks of nodes, or those of groups.

    Example:
        >>> keep_plain({"CPU": 4.0, "memory": 1.5e9, "node:10.0.0.1": 1.0, "CPU_group_0_ab": 2.0, "hpc": 4.0})
        {'CPU': 4.0, 'hpc': 4.0, 'GB of memory': 1.5}
    """
    plain = {
        name: amount
        for name, amount in resources.items()
        if name not in ("memory", "object_store_memory") and ":" not in name and "_group_" not in name
    }
    if "memory" in resources:  # rounded down: a sum of actors is never more than Ray has
        plain[placement.MEMORY] = math.floor(resources["memory"] / GB * placement.UNIT) / placement.UNIT
    return plain


def read_cluster() -> placement.Cluster:
    """Reads what the nodes of the cluster have, and what of it is free."""
    untyped: Any = ray  # these functions of Ray have no annotations
    state: Any = ray_state
    free = state.available_resources_per_node()
    alive = [node for node in untyped.nodes() if node["Alive"]]
    return placement.Cluster(
        [placement.Node(node["NodeID"], keep_plain(node["Resources"])) for node in alive],
        [placement.Node(node["NodeID"], keep_plain(free.get(node["NodeID"], {}))) for node in alive],
    )


class Reservation(NamedTuple):
    """Seats that are reserved, or will be.

    Attributes:
        specs: The actors.
        group: Ray's placement group; None where the actors need nothing.
        places: The bundle of each actor.
        own: Whether the group is the run's own, and not that of a trial in which it runs.
    """

    specs: list[placement.ActorSpec]
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

    def find_nodes(self) -> list[placement.ActorSpec]:
        """Returns the actors, with the nodes on which their seats are."""
        if self.group is None or all(one.node for one in self.specs):
            return list(self.specs)
        where = placement_group_table(self.group)["bundles_to_node_id"]
        each = zip(self.specs, self.places, strict=True)
        return [one._replace(node=where[place] if place >= 0 else "") for one, place in each]

    def strategy(self, actor: int) -> Any:
        """Returns how Ray is told where an actor goes."""
        if self.places[actor] < 0:
            return "DEFAULT"
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.places[actor])

    def release(self) -> None:
        """Gives the seats back."""
        if self.group is not None and self.own:
            with suppress(Exception):  # Ray itself may be gone
                remove_placement_group(self.group)


def reserve(specs: list[placement.ActorSpec], strategy: str = "SPREAD") -> Reservation:
    """Asks Ray for the seats of actors, all or none; where they have nodes, on these.

    Args:
        specs: The actors.
        strategy: Ray's name for how actors without nodes lie: `SPREAD` or `PACK`.
    """
    bundles, nodes, places = placement.bundle_seats(specs)
    for bundle in bundles:
        if placement.MEMORY in bundle:
            bundle["memory"] = round(bundle.pop(placement.MEMORY) * GB)
    if not bundles:
        return Reservation(specs, None, places)
    options = {"bundle_label_selector": [{"ray.io/node-id": node} for node in nodes]} if all(nodes) else {}
    name = f"{OWN} {ray.get_runtime_context().get_actor_id()} {uuid.uuid4().hex}"
    return Reservation(specs, placement_group(bundles, strategy=strategy, name=name, **options), places)


def take_seats(choose: Callable[..., placement.Choice], *, waits: bool) -> Reservation:
    """Reserves the seats of a run's actors, and waits where other jobs hold them or nodes have yet to come.

    Args:
        choose: As `choose_seats`, of (cluster, waits).
        waits: Whether nodes are waited for, since the run had begun. Ray is asked for their seats meanwhile, so that an
            autoscaler starts them.

    Raises:
        BadInput: The cluster cannot hold the actors.
        FedrayError: Nodes did not come.
    """
    # Gives back the seats of coordinators of this job that were killed: Ray keeps them until the job ends
    state: Any = ray_state
    for entry in placement_group_table().values():
        words = entry["name"].split()
        if entry["state"] == "REMOVED" or words[:2] != OWN.split() or words[2] == str(None):  # of no actor
            continue
        actor = state.actors(words[2])
        if not actor or actor["State"] == "DEAD":
            with suppress(ValueError):  # of another job
                remove_placement_group(ray.util.get_placement_group(entry["name"]))
    began, said, looks, before = time.monotonic(), "", 0, None
    held: Reservation | None = None
    try:
        while True:
            cluster, looks = read_cluster(), looks + 1
            if cluster not in (before, placement.Cluster(cluster.whole, cluster.whole)) and looks < MOST_LOOKS:
                before = cluster  # what has just ended gives back late
                time.sleep(LOOK_SECONDS)
                continue
            choice = choose(cluster=cluster, waits=waits)
            if held is not None and held.specs != choice.specs:
                held.release()
                held = None
            held = held or (reserve(choice.specs) if choice.specs else None)
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
    except BaseException:
        if held is not None:
            held.release()
        raise


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
        placement.ActorSpec(0, 0.0, 0.0, {name: min(1.0, amount)})
        for name, amount in wanted.items()
        if name != "nodes"
        for _ in range(min(MOST_BUNDLES, math.ceil(amount)))
    ]
    try:
        while True:
            cluster = read_cluster()
            has = {**placement.add_up(cluster.whole), "nodes": float(len(cluster.whole))}
            short = {name: has.get(name, 0.0) for name, amount in wanted.items() if has.get(name, 0.0) < amount}
            if not short:
                return
            held = held or reserve(bundles)
            lacking = placement.describe_amounts({name: wanted[name] for name in short})
            why = f"{lacking}: the cluster has {placement.describe_amounts(short)}"
            if why != said:
                said = why
                log.info("waiting for %s", why)
            if time.monotonic() - began > PATIENCE:
                raise FedrayError(f"waited {PATIENCE:g} s for {why}")
            time.sleep(LOOK_SECONDS)
    finally:
        if held is not None:
            held.release()


# ---------------------------------------------------------------------------------------------------------------------
# The Ray cluster: its resources, its actors and their errors.

MOST_DEATHS = 5  # of one actor over one call: then it is the call that kills the actor
GONE = (  # an actor died (also by Ray's memory monitor), or an answer with the node that held it
    RayActorError,
    ObjectLostError,
    NodeDiedError,
    OutOfMemoryError,
    WorkerCrashedError,
    LocalRayletDiedError,
)
REMEDIES = {  # of what is full, by the type of the error
    "ObjectStoreFullError": "give nodes a larger object store (`ray start --object-store-memory`), or lower "
    "method.models, replicates or the model's size",
    "OutOfDiskError": "free space where Ray keeps its files, or set RAY_TMPDIR to another disk",
    "OutOfMemoryError": "give the node more memory or fewer actors (clients.actors), or lower method.models, "
    "replicates or the model's size",
}


def pin_to_this_node() -> NodeAffinitySchedulingStrategy:
    """Makes an actor start on this node, which has the run directory on its disk."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def describe_cluster() -> str:
    """Says what the cluster has, for a message."""
    nodes = read_cluster().whole
    return f"the cluster has {len(nodes)} nodes, {placement.describe_amounts(placement.add_up(nodes))}"


def make_actors(kind: Any, seats: Reservation, shared: tuple[Any, ...], *, run: str, tiers: list[str]) -> list[Any]:
    """Makes actors of a class.

    Args:
        kind: The class. Its arguments are `shared`, then the number, GPUs, CPUs and name of the actor.
        seats: What each actor reserves, and where.
        shared: First arguments of every actor.
        run: Name of the run.
        tiers: The tier of each actor, after which it is called.
    """
    remote: Any = ray.remote
    actor, names = remote(kind), [f"{tier} - {tiers[:a].count(tier)}" for a, tier in enumerate(tiers)]
    return [
        actor.options(
            num_cpus=spec.num_cpus,
            num_gpus=spec.num_gpus,
            resources=spec.resources,
            memory=round(spec.memory * GB) or None,
            max_restarts=-1,
            runtime_env=worker_environment(),
            scheduling_strategy=seats.strategy(a),
            **named,
        ).remote(*shared, a, spec.num_gpus, spec.num_cpus, name=name)
        for a, (spec, name, named) in enumerate(zip(seats.specs, names, name_options(run, names), strict=True))
    ]


class ClusterChanged(FedrayError):
    """The actors no longer fit into what is left of the cluster, so that others have to be made."""


def explain_error(error: RayError, who: str) -> FedrayError:
    """Makes one line of what the actor `who` raised, or Ray itself; errors of fedray itself stay as they are.

    Example:
        >>> explain_error(ray.exceptions.RayTaskError("train", "...", ValueError("bad row")), "client actor 3").args[0]
        'client actor 3 failed: ValueError: bad row'
    """
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, FedrayError):
        return cause
    name, text = type(cause).__name__, " ".join(str(cause).split())[:300]
    return FedrayError(f"{who} failed: {name}: {text}{f': {REMEDIES[name]}' if name in REMEDIES else ''}")


def raise_if_refused(error: Exception, who: str) -> None:
    """Raises if an actor could not be made: waiting for it, or making it again, would end in the same way."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        reasons = [line for line in str(error).splitlines() if "Error: " in line] or [str(error)]
        raise FedrayError(f"{who} could not start: {reasons[-1].strip()[:300]}") from error


# ---------------------------------------------------------------------------------------------------------------------
# The seats of trials that span several actors: bundles of a CPU each, reserved all or none together with the trial.
#
# A trial's own process takes no CPU. It begins on the node of its first actor once all its actors have their seats,
# so that trials never hold what others wait for.

RELEASE_SECONDS = 5.0  # for giving seats back to a Ray that may have died


def plan_trial(clients: Clients, actors: int, group: Any = None) -> Reservation:
    """Plans the seats of a trial's actors in its last bundles; the first bundle may be its process's own.

    Args:
        clients: The tiers.
        actors: How many bundles of one CPU there are for them.
        group: The trial's placement group; None: nothing but these bundles.

    Example:
        >>> from fedray.core.types import Tier
        >>> plan_trial(Clients((Tier("phones", 8), Tier("servers", 2))), actors=2).places
        [1, 1, 0]
    """
    first = 0 if group is None else group.bundle_count - actors
    specs = placement.plan_actors(
        clients, [placement.Node(str(b), {"CPU": 1.0}) for b in range(actors)], "auto", actors
    )
    places = [first + int(one.node) for one in specs]
    return Reservation([one._replace(node="") for one in specs], group, places, own=False)


def find_group() -> Any:
    """Returns the placement group in which this trial runs."""
    untyped: Any = ray.util
    return untyped.get_current_placement_group()


def list_needs(actors: int, cluster: placement.Cluster) -> list[placement.ActorSpec]:
    """Returns what is reserved for a trial: a CPU for each actor, and memory where nodes say what they have.

    Args:
        actors: How many it spans.
        cluster: The nodes.

    Raises:
        BadInput: The cluster cannot hold them.
    """
    says = any(placement.MEMORY in node.has for node in cluster.whole)
    need = placement.ActorSpec(0, 1.0, 0.0, {}, memory=placement.ACTOR_GB if says else 0.0)
    if actors and placement.seat([need], [actors], [actors], cluster.whole) is None:
        wanted, has = map(placement.describe_amounts, (need.needs, placement.add_up(cluster.whole)))
        raise BadInput(
            f"trial.actors = {actors}: each needs {wanted}, but the cluster has {has}: lower it, or add nodes; "
            f"--wait-for CPU={actors} waits for them"
        )
    return [need] * actors


class TrialSeats:
    """The seats of the trials of a sweep.

    Attributes:
        actors: How many each trial spans; 0: none.
    """

    def __init__(self, actors: int) -> None:
        self.actors = actors
        self._releases: list[threading.Thread] = []

    def place(self, gpus: float) -> tuple[dict[str, Any], Callable[[Any], None]]:
        """Ray's options for the process of a trial, and what is called with anything when the process has ended.

        Args:
            gpus: Of a trial that spans no actors, which takes a CPU itself.
        """
        if not self.actors:
            return {"num_cpus": 1, "num_gpus": gpus}, lambda _done: None
        seats = reserve(list_needs(self.actors, read_cluster()), "PACK")
        beside = PlacementGroupSchedulingStrategy(seats.group, placement_group_bundle_index=0)
        return {"num_cpus": 0, "scheduling_strategy": beside}, lambda _done: self._release(seats)

    def _release(self, seats: Reservation) -> None:
        """Gives the seats of a trial back, in a thread: that of Ray, which calls this, must not wait for Ray."""
        self._releases.append(threading.Thread(target=seats.release, daemon=True))
        self._releases[-1].start()

    def close(self) -> None:
        """Waits until all seats are given back, while Ray is there: asking it later would start another one."""
        for thread in self._releases:
            thread.join(RELEASE_SECONDS)
