"""The Ray cluster: its resources, its actors and their errors.

Example:
    >>> explain_error(ray.exceptions.RayTaskError("train", "...", ValueError("bad row")), "client actor 3").args[0]
    'client actor 3 failed: ValueError: bad row'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.core.errors import FedrayError
from fedray.runtime.ray.driver_world import worker_environment
from fedray.runtime.ray.naming import name_options
from fedray.runtime.ray.seats import GB, Reservation, read_cluster
from fedray.runtime.seats import add_up, describe_amounts

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
PEER_CALLS = "peer_calls"  # the concurrency group in which an actor takes calls of other actors while it works


def count_nodes() -> int:
    """Counts the nodes that are alive now."""
    untyped: Any = ray
    return sum(bool(node["Alive"]) for node in untyped.nodes())


def pin_to_this_node() -> NodeAffinitySchedulingStrategy:
    """Makes an actor start on this node, which has the run directory on its disk."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def describe_cluster() -> str:
    """Says what the cluster has, for a message."""
    return f"the cluster has {count_nodes()} nodes, {describe_amounts(add_up(read_cluster().whole))}"


def make_actors(
    kind: Any, seats: Reservation, shared: tuple[Any, ...], *, run: str, names: list[str], peers: bool
) -> list[Any]:
    """Makes actors of a class.

    Args:
        kind: The class. Its arguments are `shared`, then the number, GPUs, CPUs and name of the actor.
        seats: What each actor reserves, and where.
        shared: First arguments of every actor.
        run: Name of the run.
        names: What each actor is called.
        peers: Whether actors take calls of each other (in the concurrency group PEER_CALLS) while they work.
    """
    remote: Any = ray.remote
    actor = remote(concurrency_groups={PEER_CALLS: 2})(kind) if peers else remote(kind)
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


class RestartsActors(Protocol):
    """A runtime that can replace its actors."""

    def restart_actors(self) -> None:
        """Makes new actors that fit into what is left of the cluster."""


_P = ParamSpec("_P")
_T = TypeVar("_T")
_Runtime = TypeVar("_Runtime", bound=RestartsActors)


def retry_on_cluster_change(method: Callable[Concatenate[_Runtime, _P], _T]) -> Callable[Concatenate[_Runtime, _P], _T]:
    """Makes a method of a runtime start again after the runtime had to replace its actors."""

    @wraps(method)
    def repeat(runtime: _Runtime, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        while True:
            try:
                return method(runtime, *arguments, **named)
            except ClusterChanged:
                runtime.restart_actors()

    return repeat


def explain_error(error: RayError, who: str) -> FedrayError:
    """Makes one line of what the actor `who` raised, or Ray itself; errors of fedray itself stay as they are."""
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
