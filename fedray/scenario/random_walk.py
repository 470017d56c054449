"""The keys of a graph of clients, for methods without a server."""

from __future__ import annotations

from dataclasses import dataclass

from fedray.core.spec import Needs, key
from fedray.core.validators import maybe, one_of, real, text, whole

_RANDOM = Needs("graph.kind", ("erdos_renyi", "watts_strogatz"))
_SMALL_WORLD = Needs("graph.kind", ("watts_strogatz",))


@dataclass(frozen=True)
class GraphKeys:
    """Where models walk when there is no server.

    Attributes:
        kind: kind of the graph.
        transition: which neighbor is next: uniform, lazy, metropolis.
        probability: probability of an edge (erdos_renyi; default: 2 log(N) / N), or that an edge is rewired
            (watts_strogatz; default: 0.1).
        neighbours: neighbors of each node before rewiring (watts_strogatz).
        edges: file of a graph of your own, CSV or Parquet: the columns `node` and `neighbour`, a row for each edge.
        node_failure: probability that a node is out of order in a step.
        edge_failure: probability that an edge is cut in a step.
        failures: file of a table of failures, CSV or Parquet: the columns `first` and `last` (steps, from 0), `node`,
            and `neighbour` where only the edge to it is cut.
    """

    kind: str = key("ring", one_of("ring", "complete", "torus", "erdos_renyi", "watts_strogatz", "star", "edges"))
    transition: str = key("uniform", one_of("uniform", "lazy", "metropolis"))
    probability: float | None = key(None, maybe(real("[0, 1]")), _RANDOM)
    neighbours: int = key(4, whole(2, 10_000), _SMALL_WORLD)
    edges: str | None = key(None, maybe(text), Needs("graph.kind", ("edges",)))
    node_failure: float = key(0.0, real("[0, 1)"))
    edge_failure: float = key(0.0, real("[0, 1)"))
    failures: str | None = key(None, maybe(text))
