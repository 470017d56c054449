"""Several nodes on this machine, and how long a broadcast to them takes: for `python -m fedray.bench.scale`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.cluster_utils import Cluster

from fedray.runtime import environment

OBJECT_STORE = 300 << 20  # bytes of each node


class Reader:
    """An actor that reads the models of a broadcast.

    Example:
        >>> Reader().read(np.ones(8192, dtype=np.float32))
        2.0
    """

    def read(self, models: NDArray[np.float32]) -> float:
        """Touches a number of every page, so that all of the models must be there."""
        return float(models[::4096].sum())


def time_broadcasts(nodes: int, actors: Sequence[int], megabytes: int, laps: int) -> list[float]:
    """Seconds until every actor has read one broadcast, on a cluster of several nodes on this machine.

    Args:
        nodes: nodes of the cluster.
        actors: actors on each node, one measurement for each entry.
        megabytes: size of the broadcast, in 2^20 bytes.
        laps: broadcasts of each measurement.

    Returns:
        The best of the laps for each entry of `actors`.
    """
    with open_nodes([8] * nodes):
        kind: Any = ray.remote(Reader)
        models = np.zeros(megabytes << 18, dtype=np.float32)
        best = []
        for each in actors:
            options = [{"num_cpus": 0.1, "resources": {f"node{node}": 1}} for node in range(nodes) for _ in range(each)]
            readers = [kind.options(**one).remote() for one in options]
            ray.get([reader.read.remote(models[:1]) for reader in readers])
            best.append(min(_time_broadcast(readers, models) for _ in range(laps)))
            for reader in readers:
                ray.kill(reader)
    return best


@contextmanager
def open_nodes(cpus: Sequence[int], head: int | None = None) -> Iterator[Any]:
    """A Ray cluster on this machine, to which this process is connected while the block runs.

    Args:
        cpus: CPUs of each node; the n-th one also has 8 of a resource `node{n}`.
        head: CPUs of a further first node, on which this process is; None: it is on the first one of `cpus`.
    """
    environment.prepare_process()
    cluster: Any = Cluster()
    given = {"object_store_memory": OBJECT_STORE, "include_dashboard": False}
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


def _time_broadcast(readers: list[Any], models: NDArray[np.float32]) -> float:
    """Seconds until all readers have read the models."""
    start = time.perf_counter()
    shared = ray.put(models)
    ray.get([reader.read.remote(shared) for reader in readers])
    return time.perf_counter() - start
