"""Trains without a server: models walk over a graph of clients (Fed-ensemble, section V-H).

`make_walks` computes which client has each model in each step, and `walk_schedule` makes the plans. A *hop* is the move
of a model from one client to the next. `handover_server` computes the models after a hop. If hops are compressed,
clients send the difference between a model and its random initial values. Every client can compute the initial values
from the seed. A *world* is one combination of a seed and a fold of the data.

Example:
    >>> ring = Graph(np.array([0, 2, 4, 6]), np.array([1, 2, 0, 2, 0, 1]))
    >>> walk = make_walks([ring], 2, [0], "uniform", Outages())
    >>> walk.at(0).shape, bool((walk.at(0) != walk.at(1)).all())
    ((1, 2), True)
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedray.components.servers import Rows, group_totals, keep_uploads, merge_counters
from fedray.core import rng
from fedray.core.method import Compress, Schedule, Server, Traffic, Walk
from fedray.core.types import BoolArray, Clients, FloatArray, IntArray, Plan, State, Stats, Uploads

FIRST = "first"  # name of the tensor in `State.extra` with the initial models, if hops are compressed


def handover_server(
    rows: Rows, walk: Walk, clients: Clients, seeds: Sequence[int], compress: Compress | None
) -> Server:
    """Returns a server that computes each model after its move to the next client.

    A model that moves is compressed by `compress`. If `compress` is None, models are sent without compression. A model
    that stays with its client is not compressed.
    """
    world_seed = np.array(seeds, dtype=np.int64)

    def init(models: torch.Tensor) -> dict[str, torch.Tensor]:
        return {} if compress is None else {FIRST: models.clone()}

    def reduce(uploads: Uploads) -> Stats:
        weight = torch.ones(len(uploads.size), dtype=torch.int64)
        both = group_totals(uploads, rows.of(uploads), weight, rows.number)
        return {"uploads": keep_uploads(uploads, uploads.delta), **both}

    def step(state: State, stats: Stats, t: int) -> State:
        if "uploads" not in stats:  # no model was trained in this step
            return state
        kept = stats["uploads"].rows
        world, model, client = np.array(sorted(kept), dtype=np.int64).reshape(-1, 3).T
        row = torch.from_numpy(world * rows.models + model)
        after = state.models[row] + torch.stack([kept[key] for key in sorted(kept)])
        leaves = walk.at(t + 1)[world, model] != client
        if compress is not None and leaves.any():
            first = state.extra[FIRST][row[leaves]]
            key = rng.keys(world_seed[world[leaves]], "hop_entries", t, client[leaves], model[leaves])
            whole = Uploads(
                after[leaves] - first, client[leaves], model[leaves], world[leaves], clients.tier_of(client[leaves]),
                np.ones(int(leaves.sum()), dtype=np.int64), key=key,
            )  # fmt: skip
            sent = compress.apply(whole).delta
            after[leaves] = torch.where(sent == whole.delta, after[leaves], first + sent)
        models = state.models.index_copy(0, row, after)
        return State(models, merge_counters(state.counters, stats), state.extra)

    return Server(init, reduce, step, keeps=True)


KEPT = 16  # number of the newest steps of a path that are cached


class Graph(NamedTuple):
    """An undirected graph of N nodes and E edges. Node i has the neighbors `neighbor[start[i] : start[i + 1]]`.

    Attributes:
        start: For each node, the position of its first neighbor in `neighbor`, `[N + 1]`. The last entry is the length
            of `neighbor`.
        neighbor: The neighbors of all nodes, `[2 E]`, in ascending order for each node.
    """

    start: IntArray
    neighbor: IntArray

    @property
    def degree(self) -> IntArray:
        """Returns the number of neighbors of each node, `[N]`."""
        return np.diff(self.start)

    @property
    def edges(self) -> IntArray:
        """Returns the two nodes of each of E edges, `[E, 2]`. The node with the smaller index comes first."""
        a = np.repeat(np.arange(len(self.start) - 1), self.degree)
        return np.stack([a, self.neighbor], axis=1)[a < self.neighbor]


class Outages(NamedTuple):
    """The failures of nodes and edges of a graph. They happen at random in each step, or are planned in a table.

    Attributes:
        node: Probability that a node fails in a step, in [0, 1).
        edge: Probability that an edge fails in a step, in [0, 1).
        table: Planned failures, `[n, 4]`. The columns are the first step, the last step, a node and its neighbor. The
            edge between node and neighbor fails. If the neighbor is -1, the node itself fails.
    """

    node: float = 0.0
    edge: float = 0.0
    table: IntArray = np.empty((0, 4), dtype=np.int64)

    def nodes(self, seed: IntArray, t: int, node: IntArray) -> BoolArray:
        """Returns for each node in `node` whether it has failed in step t.

        `seed` holds the seeds of the nodes' worlds. It is broadcast to the shape of `node`.
        """
        out = np.zeros(node.shape, dtype=np.bool_)
        if self.node:
            out |= rng.uniform(rng.keys(seed, "node_failure", t, node), 1)[..., 0] < self.node
        now = self.table[(self.table[:, 0] <= t) & (t <= self.table[:, 1])]
        return out | np.isin(node, now[now[:, 3] < 0, 2])

    def edges(self, seed: IntArray, t: int, a: IntArray, b: IntArray) -> BoolArray:
        """Returns for each edge between a and b whether it has failed in step t. The direction does not matter.

        `seed` holds the seeds of the edges' worlds. It is broadcast to the shape of `a` and `b`.
        """
        low, high = np.minimum(a, b), np.maximum(a, b)
        out = np.zeros(a.shape, dtype=np.bool_)
        if self.edge:
            out |= rng.uniform(rng.keys(seed, "edge_failure", t, low, high), 1)[..., 0] < self.edge
        now = self.table[(self.table[:, 0] <= t) & (t <= self.table[:, 1]) & (self.table[:, 3] >= 0), 2:]
        for u, v in now.tolist():
            out |= (low == min(u, v)) & (high == max(u, v))
        return out


# (degree of the current node, degree of the next node, uniform random number) -> whether the model moves
Accept = Callable[[IntArray, IntArray, FloatArray], BoolArray]
TRANSITIONS: dict[str, Accept] = {  # the comments give the stationary distribution of the chain
    "uniform": lambda _here, _there, u: np.ones(u.shape, dtype=np.bool_),  # degree / 2 E (the paper)
    "lazy": lambda _here, _there, u: u < 0.5,  # degree / 2 E, and the chain is not periodic
    "metropolis": lambda here, there, u: u * there < here,  # uniform on any connected graph
}


def make_walks(graphs: Sequence[Graph], models: int, seeds: Sequence[int], transition: str, outages: Outages) -> Walk:
    """Returns K independent random walks in each world (combination of a seed and a fold).

    The first positions are drawn uniformly, so several walks may start at the same client.

    Args:
        graphs: The graph of each world. Several worlds may share a graph.
        models: Number of models, K.
        seeds: The seed of each world.
        transition: The rule by which a model moves. The next client is a random neighbor. With `uniform`, the model
            always moves. With `lazy`, it moves with probability 1/2. With `metropolis`, all clients are visited equally
            often in the long run.
        outages: The nodes and edges that fail.
    """
    accept, nodes = TRANSITIONS[transition], len(graphs[0].start) - 1
    # All graphs become one, whose nodes are numbered on. World w begins at `offset[w]`.
    different = list({id(graph): graph for graph in graphs}.values())
    offset = np.array([[next(g for g, one in enumerate(different) if one is graph)] for graph in graphs]) * nodes
    ends = np.cumsum([0] + [len(graph.neighbor) for graph in different])
    start = np.concatenate([graph.start[:-1] + end for graph, end in zip(different, ends, strict=False)])
    neighbor = np.concatenate([graph.neighbor for graph in different])
    degree = np.concatenate([graph.degree for graph in different])
    seed, model = np.array(seeds, dtype=np.int64)[:, None], np.arange(models)[None]
    first = rng.uniform(rng.keys(seed, "walk", model), 1)[..., 0]
    path = {0: (first * nodes).astype(np.int64)}  # the newest steps

    def hop(t: int, at: IntArray) -> IntArray:
        u = rng.uniform(rng.keys(seed, "hop", t, model), 2)
        here = degree[at + offset]
        place = start[at + offset] + np.minimum((u[..., 0] * here).astype(np.int64), here - 1)
        goal = neighbor[place]
        goes = accept(here, degree[goal + offset], u[..., 1]) & ~outages.edges(seed, t, at, goal)
        goes &= ~outages.nodes(seed, t, at) & ~outages.nodes(seed, t + 1, goal)
        return np.where(goes, goal, at)

    def holders(t: int) -> IntArray:
        if t < min(path):
            path.clear()
            path[0] = (first * nodes).astype(np.int64)
        for step in range(max(path), t):
            path[step + 1] = hop(step, path[step])
            path.pop(step - KEPT, None)
        return path[t]

    return Walk(holders, lambda t: outages.nodes(seed, t, holders(t)), graphs[0].edges)


def walk_schedule(walk: Walk) -> Schedule:
    """Returns a schedule in which the client that holds a model trains it. A client that has failed does not train."""

    def plan(t: int, _state: object) -> Plan:
        at = walk.at(t)
        world, model = np.nonzero(~walk.down(t))
        return Plan(at[world, model], model.astype(np.int64), world.astype(np.int64))

    return plan


def walk_traffic(walk: Walk, clients: Clients, compress: Compress) -> Traffic:
    """Returns a function that computes how many bytes each of J jobs sends, and how many it receives.

    A model that stays with its client is neither sent nor received. Tiers (classes of devices) may compress
    differently.
    """

    def traffic(t: int, plan: Plan) -> tuple[IntArray, IntArray]:
        before, after = walk.at(max(0, t - 1))[plan.world, plan.model], walk.at(t + 1)[plan.world, plan.model]
        sent = compress.bytes(plan.client, clients.tier_of(plan.client))
        received = compress.bytes(before, clients.tier_of(before))
        return np.where(after == plan.client, 0, sent), np.where(before == plan.client, 0, received)

    return traffic
