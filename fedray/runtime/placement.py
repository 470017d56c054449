"""Assigns actors to nodes of a cluster, assigns clients to actors, and explains why actors do not fit."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import Clients, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# Seats. A seat is the resources that a node of a cluster reserves for one actor. An actor needs one node with all the
# resources that it reserves. Nothing here uses Ray. Amounts are counted in ten thousandths, as Ray counts them, to
# avoid rounding errors in sums.

UNIT = 10_000  # number of counted units in an amount of 1
MEMORY = "GB of memory"  # fedray's own name of a resource; a GB is 10^9 bytes
ACTOR_GB = 0.4  # memory of an actor that has imported torch and trains (measured: 333 to 400 MB)
Needs = Mapping[str, float]


class Node(NamedTuple):
    """A node of a cluster.

    Attributes:
        name: Ray's id of the node. It may be empty.
        has: Amounts of the node's resources by name: `CPU`, `GPU`, `GB of memory`, and custom resources.

    Example:
        >>> nodes, actor = [Node("a", {"CPU": 2.0}), Node("b", {"CPU": 2.0})], ActorSpec(0, 0.8, 0.0, {})
        >>> seat([actor], [5], [5], nodes) is None  # 4 CPUs, but each node holds two
        True
        >>> seat([actor], [3], [3], nodes).tolist()
        [[2, 1]]
    """

    name: str
    has: Needs


class Cluster(NamedTuple):
    """The resources of a cluster at one moment, by node.

    Attributes:
        whole: The nodes with all of their resources.
        free: The nodes with those resources that no job has reserved.
    """

    whole: list[Node]
    free: list[Node]


class ActorSpec(NamedTuple):
    """The tier and the resources of a client actor, which trains the jobs of many clients.

    Attributes:
        tier: Index of the tier.
        num_cpus: CPUs, possibly a fraction.
        num_gpus: GPUs, possibly a fraction.
        resources: Custom resources of Ray by name.
        node: Ray's id of the actor's node. It is empty if the node is not known yet.
        memory: GB of memory that the actor reserves. It is 0 if nodes do not report their memory.
    """

    tier: int
    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    node: str = ""
    memory: float = 0.0

    @property
    def needs(self) -> dict[str, float]:
        """The amounts above 0 that this actor reserves, by name of the resource."""
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources, MEMORY: self.memory}
        return {name: amount for name, amount in amounts.items() if amount > 0}


def seat(
    kinds: Sequence[ActorSpec], least: Sequence[int], most: Sequence[int], nodes: Sequence[Node]
) -> IntArray | None:
    """Chooses nodes for actors of several kinds, one actor after the other. Actors of a kind have equal needs.

    Each actor goes to a node with room for it. Nodes with resources that only other kinds need are chosen last. Among
    equal nodes, the node with room for the most actors of the kind is chosen first. If the required actors (`least`) do
    not fit in this way, each of them goes to the first node with room for it.

    The nodes of the required actors do not depend on `most`. For several kinds, this function may find no solution
    although one exists.

    Args:
        kinds: One actor of each kind.
        least: Number of required actors of each kind.
        most: Largest number of actors of each kind. After the required actors, the next actor is always of the kind
            with the lowest ratio of actors to `most`.
        nodes: The nodes with their free resources.

    Returns:
        The number of actors of each kind on each node, `[kinds, nodes]`, or None if the required actors do not fit.
    """
    names = sorted({name for kind in kinds for name in kind.needs})
    amounts = [*(kind.needs for kind in kinds), *(node.has for node in nodes)]
    rows = [[round(UNIT * has.get(name, 0.0)) for name in names] for has in amounts]
    table = np.array(rows, np.int64).reshape(len(rows), len(names))
    needs, whole = table[: len(kinds)], table[len(kinds) :]

    def count_fitting(k: int, free: IntArray, wanted: int) -> IntArray:
        asked = needs[k] > 0
        return np.asarray((free[:, asked] // needs[k][asked]).min(axis=1, initial=wanted))

    def put(k: int, free: IntArray, seats: IntArray, wanted: int, evenly: bool) -> bool:
        fitting = count_fitting(k, free, wanted)
        if not (fitting > 0).any():
            return False
        spared = ((free > 0) & (needs[k] == 0)).sum(axis=1)
        order = (seats.sum(axis=0), -fitting, spared, fitting <= 0) if evenly else (fitting <= 0,)
        n = int(np.lexsort(order)[0])
        seats[k, n] += 1
        free[n] -= needs[k]
        return True

    scarce = sorted(range(len(kinds)), key=lambda k: int(count_fitting(k, whole, UNIT**2).sum()))
    for evenly in (True, False):
        free, seats = whole.copy(), np.zeros((len(kinds), len(nodes)), np.int64)
        if all(put(k, free, seats, least[k], evenly) for k in scarce for _ in range(least[k])):
            break
    else:
        return None
    left = set(range(len(kinds)))
    while left:
        k = min(left, key=lambda one: (seats[one].sum() / most[one], one))
        if seats[k].sum() >= most[k] or not put(k, free, seats, most[k], True):
            left.remove(k)
    return seats


def list_actors(kinds: Sequence[ActorSpec], seats: IntArray, nodes: Sequence[Node]) -> list[ActorSpec]:
    """Lists the actors with the nodes that `seat` has chosen, kind by kind.

    `seats` is the result of `seat`: the number of actors of each kind on each node, `[kinds, nodes]`.

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
    """Returns the bundles that Ray must reserve for actors. A bundle is a set of resources on one node.

    There is one bundle for each node, and one for each actor whose node is not known.

    Returns:
        The bundles, the node of each bundle, and the index of each actor's bundle. The index is -1 for an actor that
        needs nothing.

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
    """Writes amounts of resources in one line.

    Example:
        >>> describe_amounts({"CPU": 4.0, "hpc": 2.0})
        '4 CPU, 2 hpc'
    """
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"


def add_up(nodes: Sequence[Node]) -> dict[str, float]:
    """Adds up the resources of all nodes, by name.

    Example:
        >>> add_up([Node("a", {"CPU": 2.0}), Node("b", {"CPU": 1.5, "lab": 1.0})])
        {'CPU': 3.5, 'lab': 1.0}
    """
    names = dict.fromkeys(name for node in nodes for name in node.has)
    return {name: sum(node.has.get(name, 0.0) for node in nodes) for name in names}


# ---------------------------------------------------------------------------------------------------------------------
# Messages for actors that do not fit into a cluster. They name the needs, the resources of the cluster, and the remedy.


def explain_capacity(least: Sequence[ActorSpec], counts: Sequence[int], nodes: Sequence[Node]) -> BadInput:
    """Returns the error for actors that do not fit into a cluster.

    The message names the resources of which the cluster has too little. If the cluster has enough in total, the message
    says that the nodes do not hold all actors. An actor needs all its resources on one node.

    Args:
        least: One actor of each tier that has clients. If the tier does not set `num_cpus`, the actor needs only the
            smallest possible share of a CPU.
        counts: Number of actors that each of these tiers needs.
        nodes: The nodes of the cluster.
    """
    asked, have = Counter[str](), add_up(nodes)
    for kind, count in zip(least, counts, strict=True):
        asked.update({name: count * amount for name, amount in kind.needs.items()})
    short = {name: amount for name, amount in asked.items() if round(UNIT * (amount - have.get(name, 0.0))) > 0}
    if short:
        has = describe_amounts({name: have.get(name, 0.0) for name in short})
        why = f"{sum(counts)} actors need {describe_amounts(short)}, but the cluster has {has}"
    else:
        each = ", ".join(f"{count} of {describe_amounts(k.needs)}" for k, count in zip(least, counts, strict=True))
        why = f"{len(nodes)} nodes do not hold all actors ({each}), each of which needs one node"
    return BadInput(
        f"clients.tiers: {why}: lower what a tier needs (num_cpus, num_gpus, resources) or clients.actors, raise "
        "clients.per_actor, or add nodes (--wait-for waits for those that are still to come)"
    )


def describe_wait(least: Sequence[ActorSpec], cluster: Cluster) -> str:
    """Describes in one line the resources for which a run waits until the actors in `least` fit into a cluster.

    Example:
        >>> busy = Cluster(whole=[Node("a", {"CPU": 4.0})], free=[Node("a", {"CPU": 0.0})])
        >>> describe_wait([ActorSpec(0, 2.0, 0.0, {})] * 2, busy)
        'waiting for 4 CPU: other jobs leave 0 CPU'
    """
    asked: Counter[str] = Counter()
    for one in least:
        asked.update(one.needs)
    now, there = add_up(cluster.free), add_up(cluster.whole)
    wanted = {name: amount for name, amount in asked.items() if amount > now.get(name, 0.0) + 0.5 / UNIT} or asked
    absent = any(amount > there.get(name, 0.0) + 0.5 / UNIT for name, amount in wanted.items())
    has = describe_amounts({name: (there if absent else now).get(name, 0.0) for name in wanted})
    return f"waiting for {describe_amounts(wanted)}: {'the cluster has' if absent else 'other jobs leave'} {has}"


# ---------------------------------------------------------------------------------------------------------------------
# The actors of a run. The actor that holds a client's private vectors is the client's *home*. Nothing here uses Ray.

LEAST_CPUS = 0.01  # smallest share of a CPU for an actor: memory holds fewer than 100 actors per CPU


def plan_actors(clients: Clients, nodes: Sequence[Node], per_actor: int | str, actors: int | str) -> list[ActorSpec]:
    """Plans the client actors of a run that has a whole cluster for itself.

    Args:
        clients: The tiers and their numbers of clients.
        nodes: The nodes of the cluster.
        per_actor: Number of clients of each actor. A tier of N clients gets `ceil(N / per_actor)` actors. `auto` means
            that `actors` decides.
        actors: Number of actors of the run. The tiers get actors in proportion to their numbers of clients. If
            `per_actor` and `actors` are both `auto`, the actors fill the cluster. Each tier first gets one actor. Then
            the tier with the fewest actors per client gets one more, until no node has room.

    Returns:
        The actors, tier by tier. If a tier does not set `num_cpus`, the share of a CPU per actor is the largest of 1,
        1/2, 1/3, ... with which all actors fit.

    Raises:
        BadInput: The cluster cannot hold the actors.

    Example:
        >>> from fedray.core.types import Tier
        >>> clients = Clients((Tier("phones", 90), Tier("servers", 10)))
        >>> nodes = [Node("a", {"CPU": 2.0}), Node("b", {"CPU": 2.0})]
        >>> [(spec.tier, spec.num_cpus, spec.node) for spec in plan_actors(clients, nodes, "auto", "auto")]
        [(0, 1.0, 'a'), (0, 1.0, 'a'), (0, 1.0, 'b'), (1, 1.0, 'b')]
        >>> specs = plan_actors(clients, nodes, per_actor="auto", actors=5)
        >>> [spec.num_cpus for spec in specs]
        [0.5, 0.5, 0.5, 0.5, 1.0]
        >>> assign_homes(clients, specs, np.array([0, 1, 2, 3, 99])).tolist()
        [0, 1, 2, 3, 4]
    """
    return list_actors(*_plan(clients, nodes, per_actor, actors), nodes)


def _plan(
    clients: Clients, nodes: Sequence[Node], per_actor: int | str, actors: int | str
) -> tuple[list[ActorSpec], IntArray]:
    """Plans the actors of a run.

    Returns:
        One actor of each tier that has clients (a kind), and an array `[kinds, nodes]` with the number of actors of
        each kind on each node.
    """
    kinds, counts = list_kinds(clients, per_actor, actors)
    if any(MEMORY in node.has for node in nodes):
        kinds = [kind._replace(memory=ACTOR_GB) for kind in kinds]
    open_ = [k for k, kind in enumerate(kinds) if clients.tiers[kind.tier].num_cpus is None]
    asked, there = sum(counts[k] for k in open_), add_up(nodes).get("CPU", 0.0)

    def share(kinds: list[ActorSpec], among: Sequence[int], parts: int) -> list[ActorSpec]:
        cpus = UNIT // parts / UNIT
        return [kind._replace(num_cpus=cpus) if k in among else kind for k, kind in enumerate(kinds)]

    for parts in range(max(1, int(asked // max(there, LEAST_CPUS))), round(1 / LEAST_CPUS) + 1 if open_ else 2):
        sized = share(kinds, open_, parts)
        if seat(sized, counts, counts, nodes) is not None:
            break
    else:
        raise explain_capacity(share(kinds, open_, round(1 / LEAST_CPUS)), counts, nodes)
    for k in open_:  # a tier that fits on few nodes only must not lower the CPUs of other tiers
        each = (share(sized, [k], more) for more in range(1, parts))
        sized = next((one for one in each if seat(one, counts, counts, nodes) is not None), sized)
    most = [clients.tiers[kind.tier].number for kind in kinds] if per_actor == actors == "auto" else counts
    seats = seat(sized, counts, most, nodes)
    assert seats is not None
    return sized, seats


def list_kinds(clients: Clients, per_actor: int | str, actors: int | str) -> tuple[list[ActorSpec], list[int]]:
    """Returns one actor of each tier (class of devices) with clients, and the number of actors of each of these tiers.

    An actor gets one CPU if its tier does not set `num_cpus`. A tier has at least one actor, and at most one per
    client. If `per_actor` and `actors` are both `auto`, each tier has one actor.
    """
    tiers = [(c, tier) for c, tier in enumerate(clients.tiers) if tier.number]
    kinds = [
        ActorSpec(c, 1.0 if tier.num_cpus is None else tier.num_cpus, tier.num_gpus, dict(tier.resources))
        for c, tier in tiers
    ]
    if per_actor != "auto":
        return kinds, [math.ceil(tier.number / int(per_actor)) for _, tier in tiers]
    if actors == "auto":
        return kinds, [1] * len(kinds)
    return kinds, [min(t.number, max(1, round(int(actors) * t.number / clients.number))) for _, t in tiers]


def list_serving(clients: Clients, specs: Sequence[ActorSpec]) -> list[tuple[int, ...]]:
    """Returns the actors that may train the jobs of each tier (class of devices).

    Tiers whose actors reserve the same resources share their actors. No actor is then idle if one of these tiers has
    most of the work.

    Returns:
        The indexes of the actors of each tier, in ascending order. A tier without clients has actors only if a tier
        with clients reserves the same resources.

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
    """Assigns each of J clients to an actor, its home. The home holds the client's data between rounds.

    The clients of a tier are divided evenly among the actors that `list_serving` names.

    Returns:
        The index of each client's actor, `[J]`.
    """
    tier, serving = clients.tier_of(client), list_serving(clients, specs)
    home: IntArray = np.zeros(len(client), np.int64)
    for c in np.unique(tier).tolist():
        home[tier == c] = np.array(serving[c])[client[tier == c] % len(serving[c])]
    return home


# ---------------------------------------------------------------------------------------------------------------------
# The actors of a run on a cluster that other jobs use, too. Nothing here uses Ray.


class Choice(NamedTuple):
    """The actors that a run can reserve on a cluster now, and the reason why the run waits.

    Attributes:
        specs: The actors for which Ray must reserve resources. The list is empty while the run waits for other jobs to
            end.
        why: Description of what the run waits for.
        coming: Whether the run waits for new nodes. If so, `specs` has all required actors.
    """

    specs: list[ActorSpec]
    why: str
    coming: bool


def choose_seats(
    clients: Clients, per_actor: int | str, actors: int | str, parts: int = 1, *, cluster: Cluster, waits: bool
) -> Choice:
    """Chooses the actors for which a run reserves resources on a cluster that other jobs may use, too.

    Args:
        clients: The tiers and their numbers of clients.
        per_actor: Number of clients of each actor, or `auto`.
        actors: Number of actors of the run, or `auto`.
        parts: Number of runs that share the cluster. This run takes one share. The number has no effect if `per_actor`
            or `actors` is a number.
        cluster: The resources of the cluster.
        waits: Whether the run waits for more nodes if the cluster is too small for its actors. An actor then needs one
            CPU, or the resources that its tier sets.

    Raises:
        BadInput: The cluster cannot hold the actors, and the run does not wait for nodes.

    Example:
        >>> from fedray.core.types import Tier
        >>> clients = Clients((Tier("phones", 90),))
        >>> busy = Cluster(whole=[Node("a", {"CPU": 4.0})], free=[Node("a", {"CPU": 1.0})])
        >>> len(choose_seats(clients, "auto", "auto", cluster=busy, waits=False).specs)
        1
        >>> choose_seats(clients, "auto", 4, cluster=busy, waits=False).why
        'waiting for 4 CPU: other jobs leave 1 CPU'
    """
    try:
        kinds, planned = _plan(clients, cluster.whole, per_actor, actors)
    except BadInput:
        if not waits:
            raise
        kinds, least = list_kinds(clients, per_actor, actors)
        wanted = [kind for kind, count in zip(kinds, least, strict=True) for _ in range(count)]
        return Choice(wanted, describe_wait(wanted, cluster), coming=True)
    fixed = (per_actor, actors) != ("auto", "auto")
    most = [max(1, count // (1 if fixed else parts)) for count in planned.sum(axis=1).tolist()]
    least = most if fixed else [1] * len(kinds)
    seats = seat(kinds, least, most, cluster.free)
    if seats is not None:
        return Choice(list_actors(kinds, seats, cluster.free), "waiting for Ray to seat the actors", coming=False)
    wanted = [kind for kind, count in zip(kinds, least, strict=True) for _ in range(count)]
    return Choice([], describe_wait(wanted, cluster), coming=False)
