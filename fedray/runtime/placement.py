"""Decides which actors there are, which clients live on which, and which actor trains which job. Nothing here uses Ray.

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

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import Clients, IntArray
from fedray.runtime.misfit import LEAST_CPUS, explain_misfit
from fedray.runtime.seats import ACTOR_GB, MEMORY, UNIT, ActorSpec, Node, fill_seats, find_seats, list_actors

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
    """The actors that a run asks for where nodes have yet to come: one a tier, or as many as the scenario says.

    They have no nodes yet. An actor of a tier that leaves `num_cpus` open wants a CPU.
    """
    kinds = _list_kinds(clients)
    counts = _count_actors(clients, kinds, per_actor, actors)
    return [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]


def _list_kinds(clients: Clients, memory: float = 0.0) -> list[ActorSpec]:
    """An actor of each tier that has clients; with a CPU where the tier leaves that open."""
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
    """The largest number that fits; None where not even the lowest does."""
    if fits(high):
        return high
    if not fits(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def list_serving(clients: Clients, specs: Sequence[ActorSpec]) -> list[tuple[int, ...]]:
    """The actors that may serve each tier: those of every tier that reserves the same for an actor.

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
