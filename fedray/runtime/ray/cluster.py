"""Reads the resources of a Ray cluster, reserves seats for actors, makes actors, and explains errors of Ray.

A *seat* is the resources that Ray reserves on a node for one actor.
"""

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
from ray import exceptions
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedray.core.errors import BadInput, FedrayError
from fedray.core.types import Clients
from fedray.runtime import environment, placement
from fedray.runtime.ray.connection import worker_environment

# ---------------------------------------------------------------------------------------------------------------------
# The names of actors in `ray list actors`, in the dashboard and before printed lines.


def name_options(run: str, actors: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the options with which Ray names the actors of a run, in a new namespace.

    The namespace is new, because earlier actors of the run may still have the same names. The names have only printable
    ASCII characters, because Ray's metrics accept no others.
    """
    space = f"fedray {ascii(run)[1:-1]} {secrets.token_hex(4)}"
    return [{"name": f"{ascii(run)[1:-1]} / {ascii(actor)[1:-1]}", "namespace": space} for actor in actors]


# ---------------------------------------------------------------------------------------------------------------------
# The seats of a run's actors on a Ray cluster. One placement group holds all seats, and a run waits until there is room
# for the whole group. So it never happens that each of two runs holds one half of a cluster and waits for the other
# half.

log = logging.getLogger("fedray")
PATIENCE = environment.read_patience()  # seconds to wait for nodes before giving up
LOOK_SECONDS = 0.5  # time between two checks of the cluster
SILENT_SECONDS = 8.0  # only after this time the user is told that a run waits
MOST_LOOKS = 6  # most checks of whether the free resources still change
MOST_BUNDLES = 10_000  # most bundles of one resource that a run requests
GB = 1e9  # bytes
OWN = "fedray seats"  # beginning of the names of placement groups


def keep_plain(resources: Mapping[str, float]) -> dict[str, float]:
    """Returns the resources that an actor can request, by name.

    Ray's object store is left out. Resources that stand for nodes and placement groups are left out, too.

    Example:
        >>> keep_plain({"CPU": 4.0, "memory": 1.5e9, "node:10.0.0.1": 1.0, "CPU_group_0_ab": 2.0, "hpc": 4.0})
        {'CPU': 4.0, 'hpc': 4.0, 'GB of memory': 1.5}
    """
    plain = {
        name: amount
        for name, amount in resources.items()
        if name not in ("memory", "object_store_memory") and ":" not in name and "_group_" not in name
    }
    if "memory" in resources:  # rounded down, so that the actors together never request more than Ray has
        plain[placement.MEMORY] = math.floor(resources["memory"] / GB * placement.UNIT) / placement.UNIT
    return plain


def read_cluster() -> placement.Cluster:
    """Returns all resources, and the free resources, of each node of the cluster."""
    untyped: Any = ray  # these functions of Ray have no annotations
    state: Any = ray_state
    free = state.available_resources_per_node()
    alive = [node for node in untyped.nodes() if node["Alive"]]
    return placement.Cluster(
        [placement.Node(node["NodeID"], keep_plain(node["Resources"])) for node in alive],
        [placement.Node(node["NodeID"], keep_plain(free.get(node["NodeID"], {}))) for node in alive],
    )


class Reservation(NamedTuple):
    """The resources that Ray has reserved, or will reserve, for some actors.

    The resources of one actor are its *seat*. They are on one node.

    Attributes:
        specs: The actors.
        group: Ray's placement group. None means that the actors need no resources.
        places: For each actor, the index of its resources (a bundle) in the group. It is -1 for an actor that needs
            nothing.
        own: Whether the group belongs to the run. In a sweep, the group belongs to the trial that makes the run.
    """

    specs: list[placement.ActorSpec]
    group: Any
    places: list[int]
    own: bool = True

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Waits until Ray has reserved the resources of all actors. Returns whether this happened in time.

        Args:
            seconds: Longest time to wait.
        """
        deadline = time.monotonic() + seconds  # Ray's own `wait` takes whole seconds only
        while self.group is not None and placement_group_table(self.group).get("state") != "CREATED":
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def find_nodes(self) -> list[placement.ActorSpec]:
        """Returns the actors, each with the node on which Ray has reserved its resources."""
        if self.group is None or all(one.node for one in self.specs):
            return list(self.specs)
        where = placement_group_table(self.group)["bundles_to_node_id"]
        each = zip(self.specs, self.places, strict=True)
        return [one._replace(node=where[place] if place >= 0 else "") for one, place in each]

    def strategy(self, actor: int) -> Any:
        """Returns the scheduling strategy with which Ray starts an actor on the resources that are reserved for it."""
        if self.places[actor] < 0:
            return "DEFAULT"
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.places[actor])

    def release(self) -> None:
        """Releases the reserved resources, if the placement group belongs to the run."""
        if self.group is not None and self.own:
            with suppress(Exception):  # Ray itself may be gone
                remove_placement_group(self.group)


def reserve(specs: list[placement.ActorSpec], strategy: str = "SPREAD") -> Reservation:
    """Asks Ray to reserve the resources of all given actors (their seats) together.

    If an actor has a node, its resources are reserved there.

    `strategy` is Ray's strategy for actors without a known node, `SPREAD` or `PACK`.
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
    """Reserves the resources of a run's actors (their seats).

    The function waits as long as other jobs use these resources, or nodes are missing.

    Args:
        choose: A function with the keyword arguments `cluster` (the cluster's resources) and `waits`. It chooses the
            actors, and returns a `Choice`, as `choose_seats` does.
        waits: Whether to wait for missing nodes, as a run does after it has lost a node. During the wait, the resources
            of all actors are requested from Ray, so that an autoscaler starts nodes.

    Raises:
        BadInput: The cluster cannot hold the actors.
        FedrayError: Missing nodes did not appear within `FEDRAY_PATIENCE` seconds.
    """
    # First releases the seats of this job's killed coordinators, because Ray keeps these seats until the job ends
    state: Any = ray_state
    for entry in placement_group_table().values():
        words = entry["name"].split()
        if entry["state"] == "REMOVED" or words[:2] != OWN.split() or words[2] == str(None):  # no actor made this group
            continue
        actor = state.actors(words[2])
        if not actor or actor["State"] == "DEAD":
            with suppress(ValueError):  # the group belongs to a different job
                remove_placement_group(ray.util.get_placement_group(entry["name"]))
    began, said, looks, before = time.monotonic(), "", 0, None
    held: Reservation | None = None
    try:
        while True:
            cluster, looks = read_cluster(), looks + 1
            if cluster not in (before, placement.Cluster(cluster.whole, cluster.whole)) and looks < MOST_LOOKS:
                before = cluster  # jobs that have just ended release their resources with a delay
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
    """Waits until the nodes of a cluster have the required resources. Logs which resources are still missing.

    During the wait, these resources are requested from Ray in bundles of at most one unit, so that an autoscaler starts
    nodes.

    Args:
        wanted: Required total amounts, by Ray's names of resources. The amount of `nodes` is the number of nodes.

    Raises:
        FedrayError: The resources did not appear within `FEDRAY_PATIENCE` seconds.
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
# Actors of Ray, and the errors of Ray.

MOST_DEATHS = 5  # if an actor dies so often during a call, the call is the cause
GONE = (  # an actor died (perhaps killed by Ray's memory monitor), or the node that held its reply died
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.WorkerCrashedError,
    exceptions.LocalRayletDiedError,
)
MORE_MEMORY = (
    "give the node more memory or fewer actors (clients.actors), or lower method.models, replicates or the model's size"
)


def find_address_of(node: str) -> str:
    """Returns the network address of the node with this id, even if the node has died."""
    untyped: Any = ray
    return next((str(one["NodeManagerAddress"]) for one in untyped.nodes() if one["NodeID"] == node), node)


def describe_cluster() -> str:
    """Describes the resources of the cluster for a message."""
    nodes = read_cluster().whole
    return f"the cluster has {len(nodes)} nodes, {placement.describe_amounts(placement.add_up(nodes))}"


def make_actors(kind: Any, seats: Reservation, shared: tuple[Any, ...], *, run: str, tiers: list[str]) -> list[Any]:
    """Makes an actor of a class for each seat (the resources that Ray has reserved for one actor).

    Args:
        kind: The class. Its arguments are `shared`, then the index, GPUs, CPUs and name of the actor.
        seats: The reserved resources of the actors.
        shared: The first arguments, which are the same for all actors.
        run: Name of the run.
        tiers: The name of each actor's tier. The name of an actor begins with the name of its tier.
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
    """Raised if the cluster has lost the node of an actor. The run then needs new actors."""


def explain_error(error: exceptions.RayError, who: str) -> FedrayError:
    """Turns an error of Ray, or of the actor `who`, into an error of fedray whose message is one line.

    If the cause is an error of fedray, returns the cause.

    Example:
        >>> explain_error(ray.exceptions.RayTaskError("train", "...", ValueError("bad row")), "client actor 3").args[0]
        'client actor 3 failed: ValueError: bad row'
    """
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, FedrayError):
        return cause
    name, text = type(cause).__name__, " ".join(str(cause).split())[:300]
    return FedrayError(f"{who} failed: {name}: {text}{f': {MORE_MEMORY}' * (name == 'OutOfMemoryError')}")


def raise_if_refused(error: Exception, who: str) -> None:
    """Raises an error if an actor failed while Ray made it. A new attempt to make it would fail in the same way."""
    if isinstance(error, exceptions.RayActorError) and error.actor_init_failed:
        reasons = [line for line in str(error).splitlines() if "Error: " in line] or [str(error)]
        raise FedrayError(f"{who} could not start: {reasons[-1].strip()[:300]}") from error


# ---------------------------------------------------------------------------------------------------------------------
# The seats of trials of a sweep. The placement group of a trial with actors has a bundle of one CPU for each of them.
# The trial's own process takes no CPU. It begins on the node of its first actor as soon as all its actors have seats.
# So no trial holds seats while it waits for seats that other trials hold.

RELEASE_SECONDS = 5.0  # longest wait until seats are released, because Ray may have died


def plan_trial(clients: Clients, actors: int) -> Reservation:
    """Assigns the actors of a trial (one run of a sweep) to the last bundles of this process's placement group.

    A bundle is a set of resources on one node. An earlier bundle may belong to the trial's own process. If this process
    is in no placement group, only the actors have bundles.

    Args:
        clients: The tiers and their numbers of clients.
        actors: Number of bundles for the actors. Each bundle has one CPU.

    Example:
        >>> from fedray.core.types import Tier
        >>> plan_trial(Clients((Tier("phones", 8), Tier("servers", 2))), actors=2).places
        [1, 1, 0]
    """
    untyped: Any = ray.util
    group = untyped.get_current_placement_group() if ray.is_initialized() else None
    first = 0 if group is None else group.bundle_count - actors
    specs = placement.plan_actors(
        clients, [placement.Node(str(b), {"CPU": 1.0}) for b in range(actors)], "auto", actors
    )
    places = [first + int(one.node) for one in specs]
    return Reservation([one._replace(node="") for one in specs], group, places, own=False)


def list_needs(actors: int, cluster: placement.Cluster) -> list[placement.ActorSpec]:
    """Returns the actors of a trial (one run of a sweep).

    Each actor needs one CPU. It also needs memory if nodes report their memory.

    Raises:
        BadInput: The cluster cannot hold the actors.
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
    """Reserves resources (seats) for the trials of a sweep.

    Attributes:
        actors: Number of actors of each trial. It may be 0.
    """

    def __init__(self, actors: int) -> None:
        self.actors = actors
        self._releases: list[threading.Thread] = []

    def place(self, gpus: float) -> tuple[dict[str, Any], Callable[[Any], None]]:
        """Reserves the resources of a trial (its seats).

        Returns Ray's options for the process of the trial, and a function that releases the seats. When the process has
        ended, the caller must call this function with one argument, which is ignored.

        Args:
            gpus: Number of GPUs of a trial without actors. Such a trial also takes one CPU.
        """
        if not self.actors:
            return {"num_cpus": 1, "num_gpus": gpus}, lambda _done: None
        seats = reserve(list_needs(self.actors, read_cluster()), "PACK")
        beside = PlacementGroupSchedulingStrategy(seats.group, placement_group_bundle_index=0)
        return {"num_cpus": 0, "scheduling_strategy": beside}, lambda _done: self._release(seats)

    def _release(self, seats: Reservation) -> None:
        """Releases the resources of a trial in a new thread, because the calling thread belongs to Ray."""
        self._releases.append(threading.Thread(target=seats.release, daemon=True))
        self._releases[-1].start()

    def close(self) -> None:
        """Waits until the resources of all trials are released.

        Must be called while Ray runs, because a later call of Ray would start a new Ray.
        """
        for thread in self._releases:
            thread.join(RELEASE_SECONDS)
