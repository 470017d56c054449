"""Seats of actors on the nodes of a cluster: an actor needs one node that has all it asks for. Nothing here uses Ray.

Amounts are counted in ten thousandths, as Ray counts them, so that no sum is off by a rounding error.

Example:
    >>> nodes = [Node("a", {"CPU": 2.0}), Node("b", {"CPU": 2.0})]
    >>> find_seats([{"CPU": 0.8}], [5], nodes) is None  # 4 CPUs, but each node holds two
    True
    >>> find_seats([{"CPU": 0.8}], [3], nodes).tolist()
    [[2, 1]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np

from fedray.core.types import IntArray

UNIT = 10_000  # of Ray's own arithmetic
MEMORY = "GB of memory"  # of 10^9 bytes, as a resource beside Ray's names
ACTOR_GB = 0.4  # that an actor takes which has imported torch and trains (measured 333 to 400 MB)
MOST_PERMUTED = 4  # kinds of actors whose orders are all tried
Needs = Mapping[str, float]


class Node(NamedTuple):
    """A node of a cluster.

    Attributes:
        name: Ray's id of the node; empty where it does not matter.
        has: Its resources by Ray's names: `CPU`, `GPU`, and custom ones; and `MEMORY`.
    """

    name: str
    has: Needs


class Cluster(NamedTuple):
    """What a cluster has now.

    Attributes:
        whole: Its nodes, with all that they have.
        free: Its nodes, with what nobody holds.
    """

    whole: list[Node]
    free: list[Node]


class ActorSpec(NamedTuple):
    """One client actor: the tier of its clients, what it reserves, and where.

    Attributes:
        tier: Index of the tier.
        num_cpus: CPUs, possibly a fraction.
        num_gpus: GPUs, possibly a fraction.
        resources: Custom resources of Ray by name.
        node: Ray's id of the node; empty for a node that has yet to come.
        memory: GB that Ray admits it for; 0 where nodes do not say what they have.
    """

    tier: int
    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    node: str = ""
    memory: float = 0.0

    @property
    def needs(self) -> dict[str, float]:
        """What it reserves, by Ray's names; nothing that it needs none of."""
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources, MEMORY: self.memory}
        return {name: amount for name, amount in amounts.items() if amount > 0}


class _Table(NamedTuple):
    """Needs and nodes in ten thousandths of the resources that somebody asks for: `[kinds, R]` and `[nodes, R]`."""

    needs: IntArray
    nodes: IntArray


def _tabulate(needs: Sequence[Needs], nodes: Sequence[Node]) -> _Table:
    names = sorted({name for need in needs for name, amount in need.items() if amount > 0})
    rows = [[round(UNIT * each.get(name, 0.0)) for name in names] for each in (*needs, *(node.has for node in nodes))]
    table = np.array(rows, np.int64).reshape(len(rows), len(names))
    return _Table(table[: len(needs)], table[len(needs) :])


def _count_fitting(need: IntArray, free: IntArray, most: int) -> IntArray:
    """How many actors that need `[R]` each node `[nodes, R]` holds, at most `most`."""
    asked = need > 0
    fitting: IntArray = np.full(len(free), most, np.int64)
    if asked.any():
        fitting = np.clip((free[:, asked] // need[asked]).min(axis=1), 0, most)
    return fitting


def find_seats(needs: Sequence[Needs], counts: Sequence[int], nodes: Sequence[Node]) -> IntArray | None:
    """Seats actors of several kinds: evenly over the nodes where that works, otherwise node after node (first fit).

    One kind is seated wherever that is possible, and so is one actor of each of up to four kinds. Else there may be a
    packing that is not found.

    Args:
        needs: What one actor of each kind takes.
        counts: How many actors of each kind.
        nodes: The nodes, with what is free there.

    Returns:
        How many of each kind are on each node, `[kinds, nodes]`; None where they do not fit.
    """
    table = _tabulate(needs, nodes)
    for evenly in (True, False):
        for order in _list_orders(table):
            free, seats = table.nodes.copy(), np.zeros((len(needs), len(nodes)), np.int64)
            for k in order:
                fitting = _count_fitting(table.needs[k], free, counts[k])
                if fitting.sum() < counts[k]:
                    break
                seats[k] = _level(fitting, counts[k]) if evenly else _pour(fitting, counts[k])
                free -= seats[k][:, None] * table.needs[k]
            else:
                return seats
    return None


def _list_orders(table: _Table) -> Iterator[Sequence[int]]:
    """Orders in which kinds are seated; first the one that begins with those that the fewest nodes can hold."""
    holding = [int(_count_fitting(need, table.nodes, 1).sum()) for need in table.needs]
    first = sorted(range(len(holding)), key=holding.__getitem__)
    return permutations(first) if len(first) <= MOST_PERMUTED else iter([first])


def _pour(fitting: IntArray, count: int) -> IntArray:
    """Fills node after node."""
    before = np.cumsum(fitting) - fitting
    poured: IntArray = np.clip(count - before, 0, fitting)
    return poured


def _level(fitting: IntArray, count: int) -> IntArray:
    """As many on each node, as far as it holds them."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(fitting, middle).sum() <= count else (low, middle - 1)
    seats = np.minimum(fitting, low)
    seats[np.flatnonzero(fitting > low)[: count - int(seats.sum())]] += 1
    return seats


def fill_seats(
    needs: Sequence[Needs], weights: Sequence[float], most: Sequence[int], nodes: Sequence[Node], seats: IntArray
) -> IntArray:
    """Seats further actors, one by one, until no other one fits.

    The next one is of the kind that has the fewest actors for its weight. It goes to a node that has nothing which only
    others ask for, and of these to the one with most room.

    Args:
        needs: What one actor of each kind takes.
        weights: How the kinds share the cluster.
        most: Actors of each kind, those of `seats` included.
        nodes: The nodes, with what is free there.
        seats: Actors whose seats are taken of that, `[kinds, nodes]`.

    Returns:
        The seats of all, `[kinds, nodes]`.
    """
    table, seats = _tabulate(needs, nodes), seats.copy()
    free, counts = table.nodes - seats.T @ table.needs, seats.sum(axis=1)
    spared = [((free > 0) & (need == 0)).sum(axis=1) for need in table.needs]  # nodes with what others need
    left = set(range(len(needs)))
    while left:
        k = min(left, key=lambda one: (counts[one] / weights[one], one))
        fitting = _count_fitting(table.needs[k], free, int(most[k] - counts[k]))
        if not fitting.any():
            left.remove(k)
            continue
        n = int(np.lexsort((-fitting, spared[k], fitting == 0))[0])
        seats[k, n] += 1
        counts[k] += 1
        free[n] -= table.needs[k]
    return seats


def group_kinds(specs: list[ActorSpec]) -> tuple[list[ActorSpec], list[int]]:
    """The kinds of actors, without their nodes, and how many there are of each.

    Example:
        >>> group_kinds([ActorSpec(0, 1.0, 0.0, {}, "a"), ActorSpec(0, 1.0, 0.0, {}, "b")])
        ([ActorSpec(tier=0, num_cpus=1.0, num_gpus=0.0, resources={}, node='', memory=0.0)], [2])
    """
    counts = Counter((one.tier, one.num_cpus) for one in specs)
    first = {(one.tier, one.num_cpus): one._replace(node="") for one in reversed(specs)}
    return [first[key] for key in counts], list(counts.values())


def list_actors(kinds: list[ActorSpec], seats: IntArray, nodes: Sequence[Node]) -> list[ActorSpec]:
    """The actors of `find_seats`, kind by kind.

    Example:
        >>> nodes, seats = [Node("a", {}), Node("b", {})], np.array([[1, 2]])
        >>> [one.node for one in list_actors([ActorSpec(0, 1.0, 0.0, {})], seats, nodes)]
        ['a', 'b', 'b']
    """
    return [
        kind._replace(node=nodes[n].name)
        for kind, row in zip(kinds, seats.tolist(), strict=True)
        for n, count in enumerate(row)
        for _ in range(count)
    ]


def bundle_seats(specs: Sequence[ActorSpec]) -> tuple[list[dict[str, float]], list[str], list[int]]:
    """What is reserved for actors: all actors of a node together, and each one for itself that has no node yet.

    Args:
        specs: The actors.

    Returns:
        The bundles, the node of each of them, and the bundle of each actor; -1 for one that needs nothing.

    Example:
        >>> bundle_seats([ActorSpec(0, 0.1, 0.0, {}, "a")] * 3 + [ActorSpec(0, 1.0, 0.0, {})])
        ([{'CPU': 0.3}, {'CPU': 1.0}], ['a', ''], [0, 0, 0, 1])
    """
    units: list[Counter[str]] = []
    nodes: list[str] = []
    places: list[int] = []
    for one in specs:
        if not one.needs:
            places.append(-1)
            continue
        if not one.node or one.node not in nodes:
            units.append(Counter())
            nodes.append(one.node)
        places.append(nodes.index(one.node) if one.node else len(nodes) - 1)
        units[places[-1]].update({name: round(UNIT * amount) for name, amount in one.needs.items()})
    return [{name: amount / UNIT for name, amount in one.items()} for one in units], nodes, places


def describe_amounts(amounts: Needs) -> str:
    """A line of amounts.

    Example:
        >>> describe_amounts({"CPU": 4.0, "hpc": 2.0})
        '4 CPU, 2 hpc'
    """
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"


def add_up(nodes: Sequence[Node]) -> dict[str, float]:
    """What all nodes have together, by name.

    Example:
        >>> add_up([Node("a", {"CPU": 2.0}), Node("b", {"CPU": 1.5, "lab": 1.0})])
        {'CPU': 3.5, 'lab': 1.0}
    """
    names = dict.fromkeys(name for node in nodes for name in node.has)
    return {name: sum(node.has.get(name, 0.0) for node in nodes) for name in names}
