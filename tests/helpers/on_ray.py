"""Scenarios of the Ray tests, and their runs; images of 6 x 6 pixels, made here, travel to the actors as an object."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from small_data import pictures

import fedray
from fedray.runtime import environment
from fedray.scenario.nested import merge_keys

BASE: dict[str, Any] = {
    "rounds": 4,
    "method": {"models": 3},
    "data": {"partition": {"name": "dirichlet", "alpha": 1.0}},
    "model": {"name": "mlp", "hidden": [6]},
    "clients": {"number": 10},
    "local": {"lr": 0.1, "batch_size": 8, "epochs": 1},
    "checkpoint": {"every": 2},
    "report": False,
}
CNN: dict[str, Any] = {"model": {"name": "cnn", "channels": [3, 4], "hidden": [8], "kernel": 3, "padding": 1}}
PRIVATE: dict[str, Any] = {"compress": {"kind": "topk", "ratio": 0.2, "error_feedback": True}}
WALK: dict[str, Any] = {"method": {"name": "random_walk"}, "graph": {"node_failure": 0.1}}
IDLE: dict[str, Any] = {  # steps in which nobody trains, and models that move on untrained
    "rounds": 16, "method": {"name": "random_walk", "models": 1}, "graph": {"node_failure": 0.4},
    "clients": {"availability": "diurnal"}, "evaluate": {"every": 9}, "checkpoint": {"every": 9},
}  # fmt: skip
TIERS: dict[str, Any] = {"strong": {"number": 4, "models_per_round": "all", "num_cpus": 2}, "weak": {"num_cpus": 0.5}}


def run(*changes: dict[str, Any], **options: Any) -> fedray.Run:
    scenario = BASE
    for change in changes:
        scenario = merge_keys(scenario, change)
    return fedray.run(scenario, data=pictures(), **{"runtime": "ray", **options})


def hashes(done: fedray.Run) -> tuple[str, str]:
    return done.summary["model_hash"], done.summary["state_hash"]


KNOWN: dict[str, tuple[str, str]] = {}


def inline(*changes: dict[str, Any]) -> tuple[str, str]:
    """Returns the hashes of the inline runtime, computed once for each scenario."""
    key = repr(changes)
    if key not in KNOWN:
        KNOWN[key] = hashes(run(*changes, runtime="inline"))
    return KNOWN[key]


@contextmanager
def open_nodes(cpus: Sequence[int], head: int | None = None) -> Iterator[Any]:
    """Starts a Ray cluster on this machine, to which this process is connected while the block runs.

    `cpus` has the CPUs of each node; the n-th node also has 8 of a resource `node{n}`. `head` has those of a further
    first node, on which this process is; None: it is on the first one of `cpus`.
    """
    environment.prepare_process()  # before Ray is loaded
    os.environ.setdefault("RAY_worker_niceness", "0")  # as on a Ray that a run starts: other tests take the cores, too
    import ray
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    given = {"object_store_memory": 300 << 20, "include_dashboard": False}
    if head is not None:
        cluster.add_node(num_cpus=head, **given)
    for node, number in enumerate(cpus):
        cluster.add_node(num_cpus=number, resources={f"node{node}": 8}, **given)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
