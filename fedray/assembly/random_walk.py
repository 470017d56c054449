"""The graph of a scenario without a server (made by networkx), what fails on it, and the walks over it.

An edge file (`graph.edges`, CSV or Parquet) has the columns `node` and `neighbour`, one row an edge; a failure table
(`graph.failures`) the columns `first`, `last` (steps, inclusive, from 0), `node` and, where only one edge is cut,
`neighbour`.

Example:
    >>> make_graph(GraphKeys(kind="ring"), nodes=4, seed=0).neighbor.tolist()
    [1, 3, 0, 2, 1, 3, 0, 2]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedray.components.random_walk import Graph, Outages, make_walks
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.random_walk import Walk
from fedray.core.types import FloatArray, IntArray
from fedray.files.plain import expand_user_path
from fedray.files.tables import read_number_table
from fedray.scenario.random_walk import GraphKeys
from fedray.scenario.schema import Scenario

MOST_EDGES = 200_000  # networkx holds an edge in about a kilobyte
TRIES = 100  # of random graphs that turn out not to be connected
DRAWN = ("erdos_renyi", "watts_strogatz")  # another graph in each replicate


def make_walk(scenario: Scenario, nodes: int, seeds: tuple[int, ...]) -> Walk:
    """Returns the walks of a scenario's models over N clients.

    Args:
        scenario: the scenario.
        nodes: clients N.
        seeds: `[R]`, one for each world.

    Raises:
        BadInput: the graph cannot be made, is not connected, or a file of it cannot be used.
    """
    keys = scenario.graph
    drawn: dict[int, Graph] = {}
    for seed in seeds if keys.kind in DRAWN else seeds[:1]:
        if seed not in drawn:
            drawn[seed] = make_graph(keys, nodes, seed)
    graphs = [drawn.get(seed, drawn[seeds[0]]) for seed in seeds]
    table = (
        read_failures(expand_user_path("graph.failures", keys.failures), nodes) if keys.failures else Outages().table
    )
    outages = Outages(keys.node_failure, keys.edge_failure, table)
    return make_walks(graphs, scenario.method.models, seeds, keys.transition, outages)


def make_graph(keys: GraphKeys, nodes: int, seed: int) -> Graph:
    """Returns the graph over N nodes; a random one is drawn again until it is connected.

    Args:
        keys: the section `graph` of the scenario.
        nodes: N.
        seed: of the random numbers.

    Raises:
        BadInput: the graph cannot be made, or is not connected.
    """
    import networkx as nx

    if keys.kind == "edges":
        if keys.edges is None:
            raise BadInput("graph.kind = edges, but graph.edges is missing: name a CSV or Parquet file")
        edges = _read_edges(expand_user_path("graph.edges", keys.edges), nodes)
        graph = nx.Graph(edges.tolist())
        graph.add_nodes_from(range(nodes))
        return _list_neighbors(graph, nodes) or _refuse(
            f"graph.edges = {keys.edges}: the graph is not connected: add edges"
        )
    if keys.edges is not None:
        raise BadInput(f"graph.edges = {keys.edges}, but graph.kind is {keys.kind}: set graph.kind to edges")
    _check_size(keys, nodes)
    for attempt in range(TRIES if keys.kind in DRAWN else 1):
        drawn = _make_with_networkx(keys, nodes, int(rng.keys(seed, "graph", attempt)) & 0xFFFFFFFF)
        if (lists := _list_neighbors(drawn, nodes)) is not None:
            return lists
    return _refuse(
        f"graph.kind = {keys.kind}: {TRIES} drawn graphs of {nodes} nodes were not connected: raise graph.probability"
        + (" or graph.neighbours" if keys.kind == "watts_strogatz" else "")
    )


def _make_with_networkx(keys: GraphKeys, nodes: int, seed: int) -> Any:
    import networkx as nx

    if keys.kind == "torus":
        return nx.convert_node_labels_to_integers(nx.grid_2d_graph(*_torus(nodes), periodic=True), ordering="sorted")
    if keys.kind == "erdos_renyi":
        return nx.fast_gnp_random_graph(nodes, _probability(keys, nodes), seed=seed)
    if keys.kind == "watts_strogatz":
        return nx.watts_strogatz_graph(nodes, keys.neighbours, _probability(keys, nodes), seed)
    plain = {"ring": nx.cycle_graph, "complete": nx.complete_graph, "star": lambda n: nx.star_graph(n - 1)}
    return plain[keys.kind](nodes)


def _probability(keys: GraphKeys, nodes: int) -> float:
    """Returns the probability of an edge, or of rewiring one: as the scenario says, else 2 log(N) / N, or 0.1.

    A large random graph is connected from log(N) / N on.
    """
    usual = min(1.0, 2 * float(np.log(nodes)) / nodes) if keys.kind == "erdos_renyi" else 0.1
    return usual if keys.probability is None else keys.probability


def _check_size(keys: GraphKeys, nodes: int) -> None:
    """Refuses graphs that cannot be, and those that would fill the memory."""
    if nodes < 2 or (keys.kind == "ring" and nodes < 3):
        raise BadInput(f"clients.number = {nodes}, but a {keys.kind} needs {3 if keys.kind == 'ring' else 2}: raise it")
    if keys.kind == "watts_strogatz" and keys.neighbours >= nodes:
        raise BadInput(f"graph.neighbours = {keys.neighbours}, but clients.number is {nodes}: lower it")
    if keys.kind == "torus":
        _torus(nodes)
    each = {"complete": nodes - 1, "erdos_renyi": _probability(keys, nodes) * (nodes - 1), "torus": 4, "star": 2}
    edges = nodes * each.get(keys.kind, keys.neighbours if keys.kind == "watts_strogatz" else 2) / 2
    if edges > MOST_EDGES:
        raise BadInput(
            f"clients.number = {nodes}: a {keys.kind} graph has about {edges:.2g} edges, {MOST_EDGES:.0e} at most: "
            "lower it, or choose another graph.kind"
        )


def _torus(nodes: int) -> tuple[int, int]:
    """Returns the squarest `a x b = N` with a, b >= 3."""
    for a in range(int(np.sqrt(nodes)), 2, -1):
        if nodes % a == 0:
            return a, nodes // a
    raise BadInput(f"clients.number = {nodes} does not fill a torus of 3 x 3 or more: take 9, 12, 15, 16, 18, ...")


def _list_neighbors(graph: Any, nodes: int) -> Graph | None:
    """Its neighbour lists, or None where a walk could not reach every node."""
    import networkx as nx

    if graph.number_of_nodes() != nodes or not nx.is_connected(graph):
        return None
    lists = [sorted(graph.neighbors(i)) for i in range(nodes)]
    start = np.cumsum([0] + [len(one) for one in lists]).astype(np.int64)
    return Graph(start, np.array([j for one in lists for j in one], dtype=np.int64))


def _refuse(line: str) -> Graph:
    raise BadInput(line)


def read_failures(path: Path, nodes: int) -> IntArray:
    """The failure table of a file: rows (first step, last step, node, neighbor or -1), as `Outages` takes them."""
    table = read_number_table("graph.failures", path, ("first", "last", "node"), ("neighbour",))
    first, last = (_read_whole("graph.failures", path, table, name) for name in ("first", "last"))
    if not ((first >= 0) & (first <= last)).all():
        raise BadInput(f"graph.failures = {path}: a row lacks 0 <= first <= last: correct it")
    neighbor = np.full(len(first), -1)
    if "neighbour" in table:
        given = ~np.isnan(table["neighbour"])  # an empty cell: the whole node fails
        neighbor[given] = _read_nodes(
            "graph.failures", path, {"neighbour": table["neighbour"][given]}, "neighbour", nodes
        )
    return np.stack([first, last, _read_nodes("graph.failures", path, table, "node", nodes), neighbor], axis=1)


def _read_edges(path: Path, nodes: int) -> IntArray:
    """Returns the edges of a file, `[E, 2]`."""
    table = read_number_table("graph.edges", path, ("node", "neighbour"), ())
    pairs = np.stack([_read_nodes("graph.edges", path, table, name, nodes) for name in ("node", "neighbour")], axis=1)
    edges: IntArray = pairs[pairs[:, 0] != pairs[:, 1]]
    return edges


def _read_whole(key: str, path: Path, table: dict[str, FloatArray], name: str) -> IntArray:
    """Returns a column as whole numbers; nothing is cut or rounded."""
    column = table[name]
    wrong = column[~((np.abs(column) < 2**53) & (column == np.floor(column)))]  # NaN and infinity are wrong too
    if len(wrong):
        value = "an empty cell" if np.isnan(wrong[0]) else f"{wrong[0]:g}"
        raise BadInput(f"{key} = {path}: column {name} holds {value}: give whole numbers")
    return column.astype(np.int64)


def _read_nodes(key: str, path: Path, table: dict[str, FloatArray], name: str, nodes: int) -> IntArray:
    """Returns a column as ids of nodes, 0 to N - 1."""
    named = _read_whole(key, path, table, name)
    unknown = named[(named < 0) | (named >= nodes)]
    if len(unknown):
        raise BadInput(
            f"{key} = {path}: it names node {unknown[0]}, but clients.number is {nodes}: ids are 0 to {nodes - 1}"
        )
    return named
