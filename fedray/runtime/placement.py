"""Where actors stand and which clients live on them, and what is said where they do not fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import Clients, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# Seats of actors on the nodes of a cluster: an actor needs one node that has all it asks for. Nothing here uses Ray.
#
# Amounts are counted in ten thousandths, as Ray counts them, so that no sum is off by a rounding error.

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

    Example:
        >>> nodes = [Node("a", {"CPU": 2.0}), Node("b", {"CPU": 2.0})]
        >>> find_seats([{"CPU": 0.8}], [5], nodes) is None  # 4 CPUs, but each node holds two
        True
        >>> find_seats([{"CPU": 0.8}], [3], nodes).tolist()
        [[2, 1]]
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
    """Returns how many actors that need `[R]` each node `[nodes, R]` holds, at most `most`."""
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
    """Returns the kinds of actors, without their nodes, and how many there are of each.

    Example:
        >>> group_kinds([ActorSpec(0, 1.0, 0.0, {}, "a"), ActorSpec(0, 1.0, 0.0, {}, "b")])
        ([ActorSpec(tier=0, num_cpus=1.0, num_gpus=0.0, resources={}, node='', memory=0.0)], [2])
    """
    counts = Counter((one.tier, one.num_cpus) for one in specs)
    first = {(one.tier, one.num_cpus): one._replace(node="") for one in reversed(specs)}
    return [first[key] for key in counts], list(counts.values())


def list_actors(kinds: list[ActorSpec], seats: IntArray, nodes: Sequence[Node]) -> list[ActorSpec]:
    """Returns the actors of `find_seats`, kind by kind.

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
    """Returns what is reserved for actors: one bundle for each node, and one for each actor without a node.

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
    """Returns a line of amounts.

    Example:
        >>> describe_amounts({"CPU": 4.0, "hpc": 2.0})
        '4 CPU, 2 hpc'
    """
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"


def add_up(nodes: Sequence[Node]) -> dict[str, float]:
    """Returns what all nodes have together, by name.

    Example:
        >>> add_up([Node("a", {"CPU": 2.0}), Node("b", {"CPU": 1.5, "lab": 1.0})])
        {'CPU': 3.5, 'lab': 1.0}
    """
    names = dict.fromkeys(name for node in nodes for name in node.has)
    return {name: sum(node.has.get(name, 0.0) for node in nodes) for name in names}


# ---------------------------------------------------------------------------------------------------------------------
# Errors where actors do not fit into a cluster: what they need, what it has, and the remedy. Nothing here uses Ray.

LEAST_CPUS = 0.01  # of an actor: a hundred on one CPU are more than its memory holds


def explain_misfit(clients: Clients, kinds: list[ActorSpec], counts: list[int], nodes: Sequence[Node]) -> BadInput:
    """Returns the error if actors do not fit into a cluster: the resource that is short in all, or on every node.

    Args:
        clients: The tiers.
        kinds: An actor of each tier that has clients.
        counts: How many actors of each.
        nodes: The nodes.
    """
    least = [
        kind._replace(num_cpus=LEAST_CPUS) if clients.tiers[kind.tier].num_cpus is None else kind for kind in kinds
    ]
    shortage = _explain_shortage(least, counts, nodes)
    if shortage is not None:
        return shortage
    for kind in least:
        if find_seats([kind.needs], [1], nodes) is None:
            most = {name: max(node.has.get(name, 0.0) for node in nodes) for name in kind.needs}
            short = {name: amount for name, amount in kind.needs.items() if amount > most[name]} or kind.needs
            return BadInput(
                f"clients.tiers.{clients.tiers[kind.tier].name}: an actor needs {describe_amounts(short)} on one "
                "node, which no node has: lower its needs, or add larger nodes"
            )
    each = ", ".join(f"{count} of {describe_amounts(k.needs)}" for k, count in zip(least, counts, strict=True))
    return BadInput(
        f"clients.tiers: {len(nodes)} nodes do not hold all actors ({each}), each of which needs one node: lower "
        "clients.actors or what an actor needs, or raise clients.per_actor"
    )


def _explain_shortage(least: list[ActorSpec], counts: list[int], nodes: Sequence[Node]) -> BadInput | None:
    """Returns the error if all nodes together have too little of a resource; None if they have enough."""
    asked: Counter[str] = Counter()
    for kind, count in zip(least, counts, strict=True):
        asked.update({name: count * amount for name, amount in kind.needs.items()})
    have = add_up(nodes)
    for name, amount in asked.items():
        has = have.get(name, 0.0)
        if round(UNIT * amount) <= round(UNIT * has):
            continue
        if name == MEMORY:
            return BadInput(
                f"clients.actors: {sum(counts)} actors need {amount:g} GB of memory, but Ray's nodes have {has:g}: "
                "lower it, raise clients.per_actor, or add nodes (`ray start --memory` says what a node has)"
            )
        key = {"CPU": "num_cpus", "GPU": "num_gpus"}.get(name, f"resources.{name}")
        return BadInput(
            f"clients.tiers: {sum(counts)} actors need {amount:g} {name}, but the cluster has {has:g}: lower "
            f"clients.tiers.NAME.{key}, or raise clients.per_actor; --wait-for {name}={math.ceil(amount)} waits "
            "for nodes that are still to come"
        )
    return None


def describe_wait(least: Sequence[ActorSpec], cluster: Cluster) -> str:
    """Says what a run waits for if its actors do not fit into what is free now.

    Args:
        least: The actors with which it can begin.
        cluster: The nodes.

    Example:
        >>> busy = Cluster(whole=[Node("a", {"CPU": 4.0})], free=[Node("a", {"CPU": 0.0})])
        >>> describe_wait([ActorSpec(0, 2.0, 0.0, {})] * 2, busy)
        'waiting for 4 CPU: all are taken by other jobs'
    """
    asked: Counter[str] = Counter()
    for one in least:
        asked.update(one.needs)
    now, there = add_up(cluster.free), add_up(cluster.whole)
    lacking = {name: amount for name, amount in asked.items() if amount > now.get(name, 0.0) + 0.5 / UNIT}
    absent = {name: amount for name, amount in lacking.items() if amount > there.get(name, 0.0) + 0.5 / UNIT}
    if absent:
        has = describe_amounts({name: there.get(name, 0.0) for name in absent})
        return f"waiting for {describe_amounts(absent)}: the cluster has {has}"
    if lacking and not any(now.get(name, 0.0) for name in lacking):
        return f"waiting for {describe_amounts(lacking)}: all are taken by other jobs"
    wanted, place = (lacking, "") if lacking else (asked, ", each actor's on one node")
    left = describe_amounts({name: now.get(name, 0.0) for name in wanted})
    return f"waiting for {describe_amounts(wanted)}{place}: other jobs leave {left}"


def describe_missing(spec: ActorSpec, tier: str, nodes: Sequence[Node]) -> str:
    """Says what an actor that never started needs, and what the cluster has.

    Args:
        spec: The actor.
        tier: Name of its tier.
        nodes: The nodes of the cluster.

    Example:
        >>> describe_missing(ActorSpec(0, 2.0, 0.0, {}), "phones", [Node("a", {"CPU": 1.0})])
        ' of tier phones (needs 2 CPU); the cluster has 1 CPU: add nodes, or lower what the tier needs'
    """
    needs, has = describe_amounts(spec.needs), describe_amounts(add_up(nodes))
    return f" of tier {tier} (needs {needs}); the cluster has {has}: add nodes, or lower what the tier needs"


# ---------------------------------------------------------------------------------------------------------------------
# Decides which actors there are, which clients live on which, and which actor trains which job. Nothing here uses
# Ray.

MOST_ACTORS = 100_000  # a Ray cluster holds tens of thousands


def plan_actors(clients: Clients, nodes: Sequence[Node], per_actor: int | str, actors: int | str) -> list[ActorSpec]:
    """Plans the client actors of a run for a cluster that it has for itself.

    Args:
        clients: The tiers and their numbers of clients.
        nodes: The nodes of the cluster.
        per_actor: Clients of each actor: a tier gets `ceil(N / per_actor)` actors. `auto` leaves this open.
        actors: Actors of the run, shared among the tiers by their clients. Where both are `auto`, the actors fill the
            cluster: one for each tier, then further ones for the tier with the fewest CPUs a client, until no other
            one fits on any node.

    Returns:
        The actors, tier by tier. Where a tier leaves `num_cpus` open, an actor gets a CPU, or the largest share of one
        with which all actors fit.

    Raises:
        BadInput: The cluster cannot hold the actors. The message says what they need and what there is.

    Example:
        >>> from fedray.core.types import Tier
        >>> clients = Clients((Tier("phones", 90), Tier("servers", 10)))
        >>> nodes = [Node("a", {"CPU": 2.0}), Node("b", {"CPU": 2.0})]
        >>> [(spec.tier, spec.num_cpus, spec.node) for spec in plan_actors(clients, nodes, "auto", "auto")]
        [(0, 1.0, 'a'), (0, 1.0, 'b'), (0, 1.0, 'b'), (1, 1.0, 'a')]
        >>> specs = plan_actors(clients, nodes, per_actor="auto", actors=5)
        >>> sorted({round(spec.num_cpus, 3) for spec in specs})  # three are on one node: a third of its two CPUs each
        [0.667]
        >>> assign_homes(clients, specs, np.array([0, 1, 2, 3, 99])).tolist()
        [0, 1, 2, 3, 4]
    """
    says = any(MEMORY in node.has for node in nodes)
    kinds = _list_kinds(clients, memory=ACTOR_GB if says else 0.0)
    counts = _count_actors(clients, kinds, per_actor, actors)
    sized = _size_shares(clients, kinds, counts, nodes)
    seats = find_seats([kind.needs for kind in sized], counts, nodes) if sized else None
    if seats is None:
        raise explain_misfit(clients, kinds, counts, nodes)
    if per_actor == actors == "auto":
        number = [clients.tiers[kind.tier].number for kind in kinds]
        whole = [kind.needs for kind in kinds]
        weights = [n / need.get("CPU", 1.0) for n, need in zip(number, whole, strict=True)]
        seats = fill_seats(whole, weights, number, nodes, seats)
    return list_actors(sized, seats, nodes)


def want_actors(clients: Clients, per_actor: int | str, actors: int | str) -> list[ActorSpec]:
    """Returns the actors that a run asks for before its nodes come: one a tier, or as many as the scenario says.

    They have no nodes yet. An actor of a tier that leaves `num_cpus` open wants a CPU.
    """
    kinds = _list_kinds(clients)
    counts = _count_actors(clients, kinds, per_actor, actors)
    return [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]


def _list_kinds(clients: Clients, memory: float = 0.0) -> list[ActorSpec]:
    """Lists an actor of each tier that has clients; with a CPU if the tier leaves that open."""
    cpus = [1.0 if tier.num_cpus is None else tier.num_cpus for tier in clients.tiers]
    return [
        ActorSpec(c, cpus[c], tier.num_gpus, dict(tier.resources), memory=memory)
        for c, tier in enumerate(clients.tiers)
        if tier.number > 0
    ]


def _count_actors(clients: Clients, kinds: list[ActorSpec], per_actor: int | str, actors: int | str) -> list[int]:
    """Actors of each tier, at least one and at most its clients; one where the cluster will decide."""
    number = [clients.tiers[kind.tier].number for kind in kinds]
    if per_actor != "auto":
        counts = [math.ceil(n / int(per_actor)) for n in number]
    elif actors != "auto":
        counts = [min(n, max(1, round(int(actors) * n / clients.number))) for n in number]
    else:
        counts = [1 for _ in number]
    if sum(counts) > MOST_ACTORS:
        raise BadInput(
            f"clients.per_actor = {per_actor} makes {sum(counts):,} actors: {MOST_ACTORS:,} at most; raise it, or "
            "write auto"
        )
    return counts


def _size_shares(clients: Clients, kinds: list[ActorSpec], counts: list[int], nodes: Sequence[Node]) -> list[ActorSpec]:
    """Gives actors whose tier leaves `num_cpus` open the largest share of a CPU with which all fit; none if none do.

    First all such tiers get the same share, then each in turn as much more as fits: one that is pinned to scarce nodes
    does not hold back the others.
    """
    open_ = [k for k, kind in enumerate(kinds) if clients.tiers[kind.tier].num_cpus is None]
    sized = _give_share(kinds, open_, round(UNIT * LEAST_CPUS))
    for group in (open_, *([k] for k in open_)):
        least = [round(UNIT * sized[k].num_cpus) for k in group[:1]] or [UNIT]
        found = _find_largest(least[0], UNIT, partial(_fits, sized, group, counts, nodes))
        if found is None:
            return []
        sized = _give_share(sized, group, found)
    return sized


def _give_share(kinds: list[ActorSpec], group: list[int], units: int) -> list[ActorSpec]:
    """Gives the kinds of a group so many ten thousandths of a CPU."""
    return [kind._replace(num_cpus=units / UNIT) if k in group else kind for k, kind in enumerate(kinds)]


def _fits(kinds: list[ActorSpec], group: list[int], counts: list[int], nodes: Sequence[Node], units: int) -> bool:
    return find_seats([kind.needs for kind in _give_share(kinds, group, units)], counts, nodes) is not None


def _find_largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """Finds the largest number that fits; None if not even the lowest does."""
    if fits(high):
        return high
    if not fits(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def list_serving(clients: Clients, specs: Sequence[ActorSpec]) -> list[tuple[int, ...]]:
    """Lists the actors that may serve each tier: those of every tier with the same reservation for an actor.

    Where tiers differ only in simulated speed, so that one has most of the work, no actor idles.

    Args:
        clients: The tiers.
        specs: The actors of the run.

    Returns:
        For each tier the numbers of the actors, ascending; none for a tier without clients that reserves like no other.

    Example:
        >>> from fedray.core.types import Tier
        >>> clients = Clients((Tier("fast", 5), Tier("slow", 5), Tier("gpu", 5, num_gpus=0.5)))
        >>> list_serving(clients, [ActorSpec(0, 1.0, 0.0, {}), ActorSpec(1, 1.0, 0.0, {}), ActorSpec(2, 1.0, 0.5, {})])
        [(0, 1), (0, 1), (2,)]
    """
    reserved = [(tier.num_cpus, tier.num_gpus, dict(tier.resources)) for tier in clients.tiers]
    kind = [reserved.index(one) for one in reserved]  # the first tier that reserves the same
    return [tuple(a for a, spec in enumerate(specs) if kind[spec.tier] == k) for k in kind]


def assign_homes(clients: Clients, specs: Sequence[ActorSpec], client: IntArray) -> IntArray:
    """Assigns clients to actors: the clients of a tier are dealt one by one to the actors that may serve it.

    Args:
        clients: The tiers.
        specs: The actors of the run.
        client: Ids of clients, `[J]`.

    Returns:
        The number of the actor on which each of these clients lives, `[J]`.
    """
    tier, serving = clients.tier_of(client), list_serving(clients, specs)
    home: IntArray = np.zeros(len(client), np.int64)
    for c in np.unique(tier).tolist():
        home[tier == c] = np.array(serving[c])[client[tier == c] % len(serving[c])]
    return home


# ---------------------------------------------------------------------------------------------------------------------
# Which actors a run gets on a cluster that others use too. Nothing here uses Ray.


class ActorKeys(NamedTuple):
    """How many actors a run is to have.

    Attributes:
        per_actor: Clients of each actor, or `auto`.
        actors: Actors of the run, or `auto`.
        parts: Where both are `auto`: into how many parts the cluster is divided, of which the run takes one.
    """

    per_actor: int | str
    actors: int | str
    parts: int = 1

    @property
    def fixed(self) -> bool:
        """Whether the number of actors is given; otherwise they fill the cluster."""
        return (self.per_actor, self.actors) != ("auto", "auto")


def seat_actors(planned: list[ActorSpec], free: Sequence[Node], *, all_of_them: bool) -> list[ActorSpec]:
    """Seats planned actors on what is free now.

    Args:
        planned: As of `plan_actors`, for the whole cluster.
        free: The nodes, with what no other job holds.
        all_of_them: Whether every actor is needed; otherwise as many as fit, but one of each kind.

    Returns:
        The actors; none where they have to wait.
    """
    kinds, counts = group_kinds(planned)
    needs = [kind.needs for kind in kinds]
    seats = find_seats(needs, counts if all_of_them else [1] * len(kinds), free)
    if seats is None:
        return []
    return list_actors(kinds, seats if all_of_them else fill_seats(needs, counts, counts, free, seats), free)


class Choice(NamedTuple):
    """What a run does about its seats now.

    Attributes:
        specs: The actors for which seats are reserved; none where it can only wait.
        why: What is waited for.
        coming: Whether nodes are waited for, and not other jobs: then `specs` is what they should bring.
    """

    specs: list[ActorSpec]
    why: str
    coming: bool


def choose_seats(clients: Clients, cluster: Cluster, keys: ActorKeys, *, waits: bool) -> Choice:
    """Chooses the actors for which seats are reserved, on a cluster that others use too.

    Args:
        clients: The tiers and their numbers of clients.
        cluster: Its nodes.
        keys: How many actors there are to be.
        waits: Whether nodes are waited for that the least of the run needs: a CPU an actor, or what its tier says.

    Raises:
        BadInput: The cluster cannot hold the actors, and no nodes are waited for.

    Example:
        >>> from fedray.core.types import Tier
        >>> clients = Clients((Tier("phones", 90),))
        >>> busy = Cluster(whole=[Node("a", {"CPU": 4.0})], free=[Node("a", {"CPU": 1.0})])
        >>> len(choose_seats(clients, busy, ActorKeys("auto", "auto"), waits=False).specs)
        1
        >>> choose_seats(clients, busy, ActorKeys("auto", 4), waits=False).why
        'waiting for 4 CPU: other jobs leave 1 CPU'
    """
    try:
        fits = plan_actors(clients, cluster.whole, keys.per_actor, keys.actors)
        planned = take_part(fits, 1 if keys.fixed else keys.parts)
    except BadInput:
        if not waits:
            raise
        planned = want_actors(clients, keys.per_actor, keys.actors)
    seated = seat_actors(planned, cluster.free, all_of_them=keys.fixed)
    if seated:
        return Choice(seated, "waiting for Ray to seat the actors", coming=False)
    least = planned if keys.fixed else group_kinds(planned)[0]
    coming = not seat_actors(least, cluster.whole, all_of_them=True)
    return Choice(least if coming else [], describe_wait(least, cluster), coming)


def take_part(planned: list[ActorSpec], parts: int) -> list[ActorSpec]:
    """Returns a run's share of the actors if several runs share the cluster: of each kind a part, but at least one.

    Example:
        >>> len(take_part([ActorSpec(0, 1.0, 0.0, {})] * 5 + [ActorSpec(1, 1.0, 0.0, {})], parts=2))
        3
    """
    kinds, counts = group_kinds(planned)
    return [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(max(1, count // parts))]
