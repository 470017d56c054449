"""A compiled graph of Ray: one call of all client actors over shared memory, for small messages and short rounds.

It needs all actors on one node. An ordinary call costs more for each round, but over longer rounds it is cheaper,
because the readers of a graph wait by spinning.

Example:
    >>> CompiledGraph().is_slow
    False
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import ray
from ray.dag import InputNode, MultiOutputNode

from fedray.runtime.messages import Reply, Round
from fedray.runtime.ray.seats import PATIENCE

GRAPH_BYTES = 256 << 10  # larger broadcasts are faster through the object store (Ray 2.60: 31 ms at 0.4 MB)
LONG_ROUND = 0.03  # seconds: over longer rounds ordinary calls are cheaper
TIMED_ROUNDS = 4  # the newest rounds, which tell how long a round takes


class CompiledGraph:
    """The graph, which is compiled by its first call, and the durations of the newest rounds."""

    def __init__(self) -> None:
        self._graph: Any = None
        self._seconds: deque[float] = deque(maxlen=TIMED_ROUNDS)

    @property
    def is_slow(self) -> bool:
        """Whether rounds take so long that ordinary calls are cheaper."""
        return len(self._seconds) == TIMED_ROUNDS and min(self._seconds) > LONG_ROUND

    def call(self, actors: list[Any], message: Round) -> list[Reply]:
        """Sends a round to all actors and returns their replies; the actors are the same until `close`."""
        if self._graph is None:
            with InputNode() as source:
                dag = MultiOutputNode([actor.train.bind(source) for actor in actors])
            self._graph = dag.experimental_compile(_buffer_size_bytes=4 * GRAPH_BYTES)
        began = time.perf_counter()
        answer = self._graph.execute(message)
        time.sleep(0.5 * min(self._seconds, default=0.0))  # waiting for the answer takes a whole core from the actors
        replies: list[Reply] = ray.get(answer, timeout=PATIENCE)
        self._seconds.append(time.perf_counter() - began)
        return replies

    def close(self) -> None:
        """Releases the channels of the graph; the next call compiles it again."""
        if self._graph is not None:
            self._graph.teardown()
            self._graph = None
