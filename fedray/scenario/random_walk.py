"""The keys of a graph of clients, for methods without a server."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, PlainValidator
from pydantic.dataclasses import dataclass

from fedray.core.spec import Needs
from fedray.core.validators import maybe, one_of, real, text, whole

_V = PlainValidator
_RANDOM = Needs("graph.kind", ("erdos_renyi", "watts_strogatz"))
_SMALL_WORLD = Needs("graph.kind", ("watts_strogatz",))


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
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

    kind: Annotated[str, _V(one_of("ring", "complete", "torus", "erdos_renyi", "watts_strogatz", "star", "edges"))] = (
        "ring"
    )
    transition: Annotated[str, _V(one_of("uniform", "lazy", "metropolis"))] = "uniform"
    probability: Annotated[float | None, _V(maybe(real("[0, 1]"))), _RANDOM] = None
    neighbours: Annotated[int, _V(whole(2, 10_000)), _SMALL_WORLD] = 4
    edges: Annotated[str | None, _V(maybe(text)), Needs("graph.kind", ("edges",))] = None
    node_failure: Annotated[float, _V(real("[0, 1)"))] = 0.0
    edge_failure: Annotated[float, _V(real("[0, 1)"))] = 0.0
    failures: Annotated[str | None, _V(maybe(text))] = None
