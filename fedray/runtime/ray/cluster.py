"""The Ray cluster: reached or started here, what it has, what its workers need, and tasks for sweeps.

This file, `ray.py`, `coordinator.py` and `walks.py` (holders that call their neighbours) are the only ones that import
ray.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import ray
from ray._private import ray_constants
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.core.errors import BadInput, FedrayError
from fedray.runtime import environment, placement

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE = float(os.environ.get("FEDRAY_PATIENCE", "1800"))  # seconds to wait for an actor before giving up
GONE = (RayActorError, ObjectLostError, NodeDiedError)  # an actor, or an answer with the node that held it
POST = "post"
PASSED = ("FEDRAY_PATIENCE",)  # variables of the driver that every worker gets


def free_room() -> placement.Room:
    """What the cluster has, right now."""
    has = ray.cluster_resources()
    plain = {k: v for k, v in has.items() if k not in ("CPU", "GPU", "memory", "object_store_memory") and ":" not in k}
    return placement.Room(has.get("CPU", 0.0), has.get("GPU", 0.0), plain)


def live_nodes() -> int:
    """How many nodes the cluster has, right now."""
    return sum(bool(node["Alive"]) for node in ray.nodes())


def this_node() -> NodeAffinitySchedulingStrategy:
    """On this node: the run directory is on its disk, and an actor without CPUs may start anywhere else."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def has_resources() -> str:
    """What the cluster has, for a message."""
    there = free_room()
    return f"the cluster has {live_nodes()} nodes, {there.cpus:g} CPU, {there.gpus:g} GPU"


def make_actors(kind: Any, seats: list[placement.ActorSpec], posts: bool, *shared: Any) -> list[Any]:
    """Actors in their seats; `shared` are their first arguments. posts: whether they take calls of each other (in the
    concurrency group POST) while they work."""
    remote: Any = ray.remote
    made = remote(concurrency_groups={POST: 2})(kind) if posts else remote(kind)
    return [
        made.options(
            num_cpus=seat.num_cpus,
            num_gpus=seat.num_gpus,
            resources=seat.resources,
            max_restarts=-1,
            runtime_env=worker_environment(),
        ).remote(*shared, index, seat.num_gpus, seat.num_cpus)
        for index, seat in enumerate(seats)
    ]


class ClusterChanged(FedrayError):
    """The actors no longer fit into what is left of the cluster: others are made."""


def retry_when_moved(method: Callable[P, T]) -> Callable[P, T]:
    """A method of the runtime that begins anew once the actors were seated anew under it."""

    @wraps(method)
    def again(*arguments: P.args, **named: P.kwargs) -> T:
        while True:
            try:
                return method(*arguments, **named)
            except ClusterChanged:
                arguments[0].reseat()  # type: ignore[attr-defined]  # itself

    return again


def explain_error(error: RayTaskError, who: str) -> FedrayError:
    """What an actor raised: one of ours as it is, anything else in one line (the report of Ray is chained to it)."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, FedrayError):
        return cause
    return FedrayError(f"{who} failed: {type(cause).__name__}: {' '.join(str(cause).split())[:300]}")


def raise_if_refused(error: Exception, who: str) -> None:
    """Raises if an actor could not even be made: waiting for it, or making it again, would end the same way."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        told = [line for line in str(error).splitlines() if "Error: " in line] or [str(error)]
        raise FedrayError(f"{who} could not start: {told[-1].strip()[:300]}") from error


def worker_environment() -> dict[str, Any]:
    """The runtime environment of every worker: its variables, and the driver's own import path.

    A class from a user's own folder is sent by its name, so the worker has to find its module where the driver did.
    """
    own = [path for path in sys.path if path and Path(path).is_dir() and not Path(path).is_relative_to(sys.prefix)]
    own = [path for path in own if not Path(path).is_relative_to(sys.base_prefix)]
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    return {"env_vars": environment.WORKER | passed | {"PYTHONPATH": os.pathsep.join(own)}}


def _visible(outside: bool) -> None:
    """Whether Ray listens on the machine's network address, as the nodes of a cluster must, or on loopback only.

    Its own choice is the network address on Linux, also for a Ray that serves one process; this switch is the only one.
    """
    if sys.platform == "linux":
        os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = str(int(outside))  # for the processes that Ray starts
        ray_constants.ENABLE_RAY_CLUSTER = outside  # for this one, which read the variable when it imported Ray


def connect_to_ray(address: str | None, actors: int) -> bool:
    """Connects to a cluster, or starts a local one that only this machine can reach; True if the caller has to end it
    (`ray.shutdown` leaves a cluster that was there before).

    Raises:
        BadInput: the cluster cannot be reached, or this process is connected to another one.
    """
    if ray.is_initialized():
        known = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", known):
            raise BadInput(
                f"--address {address}: this process is connected to {known}: leave it out, or call ray.shutdown()"
            )
        return False
    environment.prepare_process()
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # its notice at every start
    if address is not None:
        environment.reach(address)
        _visible(True)
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            why = " ".join(str(error).split())[:200]
            raise BadInput(f"--address {address}: {why}: start Ray there first") from error
        return True
    start_local_ray(max(os.cpu_count() or 1, actors))
    return True


def start_local_ray(cpus: int, resources: dict[str, float] | None = None) -> None:
    """Starts a Ray of one machine: no dashboard, and every port on loopback."""
    _visible(False)
    ray.init(
        address="local", include_dashboard=False, log_to_driver=False, configure_logging=False,
        num_cpus=cpus, resources=resources,
    )  # fmt: skip


@contextmanager
def run_as_tasks(address: str | None, number: int, gpus: float) -> Iterator[Callable[..., Any]]:
    """A function (function, *arguments) -> future that runs them as tasks of one CPU each on a cluster, for sweeps.

    Args:
        number: how many run at once; a local cluster is made large enough. gpus: of each task.
    """
    started = connect_to_ray(address, number)

    def send(function: Callable[..., Any], *arguments: Any) -> Any:
        task = ray.remote(function).options(num_cpus=1, num_gpus=gpus, runtime_env=worker_environment())
        return task.remote(*arguments).future()

    try:
        yield send
    finally:
        if started:
            ray.shutdown()
