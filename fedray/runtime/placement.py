"""Decides which actors there are, which clients live on which, and which actor trains which job. Nothing here uses Ray.

Example:
    >>> from fedray.core.types import Tier
    >>> clients = Clients((Tier("phones", 90), Tier("servers", 10)))
    >>> specs = plan_actors(clients, Room(cpus=4.0, gpus=0.0, resources={}), per_actor="auto", actors="auto")
    >>> [(spec.tier, spec.num_cpus) for spec in specs]
    [(0, 1.0), (0, 1.0), (0, 1.0), (1, 0.4)]
    >>> assign_homes(clients, specs, np.array([0, 1, 2, 3, 99])).tolist()
    [0, 1, 2, 0, 3]
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import Clients, IntArray, Plan, Tier

MOST_ACTORS = 100_000  # a Ray cluster holds tens of thousands


class ActorSpec(NamedTuple):
    """One client actor: the tier of its clients, and what it reserves.

    Attributes:
        tier: Index of the tier.
        num_cpus: CPUs, possibly a fraction.
        num_gpus: GPUs, possibly a fraction.
        resources: Custom resources of Ray by name.
    """

    tier: int
    num_cpus: float
    num_gpus: float
    resources: dict[str, float]


class Room(NamedTuple):
    """The resources of a cluster.

    Attributes:
        cpus: CPUs of all nodes.
        gpus: GPUs of all nodes.
        resources: Custom resources of Ray by name, all nodes together.
    """

    cpus: float
    gpus: float
    resources: dict[str, float]


def plan_actors(clients: Clients, room: Room, per_actor: int | str, actors: int | str) -> list[ActorSpec]:
    """Plans the client actors of a run.

    Args:
        clients: The tiers and their numbers of clients.
        room: The resources of the cluster.
        per_actor: Clients of each actor: a tier gets `ceil(N / per_actor)` actors. `auto` leaves this open.
        actors: Actors of the run, shared among the tiers by their clients. Where both are `auto`, the actors fill the
            cluster: each tier gets its share of the CPUs, GPUs and custom resources that it asks for, at least one
            actor, and what these shares leave over goes to further actors until no other one fits.

    Returns:
        The actors, tier by tier. Where a tier leaves `num_cpus` open, its actors share its CPUs.

    Raises:
        BadInput: The cluster cannot hold the actors. The message says what they need and what there is.
    """
    populated = [c for c, tier in enumerate(clients.tiers) if tier.number > 0]
    shares = _share_cpus(clients, populated, room.cpus)
    counts = _count_actors(clients, populated, room, per_actor, actors)
    specs: list[ActorSpec] = []
    for c in populated:
        tier, count = clients.tiers[c], counts[c]
        if len(specs) + count > MOST_ACTORS:
            raise BadInput(
                f"clients.per_actor = {per_actor} makes {count:,} actors of tier {tier.name}: {MOST_ACTORS:,} at most; "
                "raise it, or write auto"
            )
        cpus = tier.num_cpus if tier.num_cpus is not None else min(1.0, math.floor(1e4 * shares[c] / count) / 1e4)
        specs += [ActorSpec(c, cpus, tier.num_gpus, dict(tier.resources))] * count
    _check_room(specs, room)
    return specs


def _count_actors(
    clients: Clients, populated: list[int], room: Room, per_actor: int | str, actors: int | str
) -> dict[int, int]:
    """Actors of each tier, at least one and at most its clients."""
    number = {c: clients.tiers[c].number for c in populated}
    if per_actor != "auto":
        return {c: math.ceil(number[c] / int(per_actor)) for c in populated}
    if actors != "auto":
        return {c: min(number[c], max(1, round(int(actors) * number[c] / clients.number))) for c in populated}
    have = {"CPU": room.cpus, "GPU": room.gpus, **room.resources}
    needs = {c: _list_needs(clients.tiers[c]) for c in populated}
    fits = {c: [number[c]] for c in populated}
    for name in {name for need in needs.values() for name in need}:
        asking = [c for c in populated if name in needs[c]]
        least = {c: 0.0 if name == "CPU" and not clients.tiers[c].num_cpus else needs[c][name] for c in asking}
        for c, share in _share_out(number, least, have.get(name, 0.0)).items():
            fits[c].append(_fit(needs[c][name], share))
    counts = {c: max(1, min(fits[c])) for c in populated}
    return _fill_rest(counts, number, needs, have)


def _list_needs(tier: Tier) -> dict[str, float]:
    """What one actor of a tier takes of each resource; a whole CPU where the tier leaves that open."""
    needs = {"CPU": tier.num_cpus or 1.0, "GPU": tier.num_gpus, **tier.resources}
    return {name: need for name, need in needs.items() if need > 0}


def _fill_rest(
    counts: dict[int, int], number: dict[int, int], needs: dict[int, dict[str, float]], have: dict[str, float]
) -> dict[int, int]:
    """Gives what the shares left over to further actors, those of the tiers with fewest actors a client first."""
    counts = dict(counts)
    free = dict(have)
    for c, count in counts.items():
        for name, need in needs[c].items():
            free[name] = free.get(name, 0.0) - count * need
    open_tiers = set(counts)
    while open_tiers and sum(counts.values()) < MOST_ACTORS:
        c = min(open_tiers, key=lambda one: (counts[one] / number[one], one))
        if counts[c] == number[c] or any(need > free[name] + 1e-9 for name, need in needs[c].items()):
            open_tiers.remove(c)
            continue
        counts[c] += 1
        for name, need in needs[c].items():
            free[name] -= need
    return counts


def _share_cpus(clients: Clients, populated: list[int], cpus: float) -> dict[int, float]:
    """CPUs of each tier: in proportion to its clients, but never less than one of its actors needs."""
    number = {c: clients.tiers[c].number for c in populated}
    return _share_out(number, {c: clients.tiers[c].num_cpus or 0.0 for c in populated}, cpus)


def _share_out(number: dict[int, int], least: dict[int, float], total: float) -> dict[int, float]:
    """Shares of a resource for the tiers of `least`: in proportion to their clients, but never less than that."""
    left = list(least)
    shares: dict[int, float] = {}
    while left:
        clients = sum(number[c] for c in left)
        each = {c: total * number[c] / clients for c in left}
        short = [c for c in left if least[c] > each[c]]
        if not short:
            return shares | each
        for c in short:
            shares[c] = least[c]
            total = max(0.0, total - shares[c])
            left.remove(c)
    return shares


def _fit(each: float, room: float) -> int:
    """How many actors that need `each` fit into `room`."""
    return math.floor(room / each + 1e-9)


def _check_room(specs: list[ActorSpec], room: Room) -> None:
    """Raises one line where the actors do not fit into the cluster."""
    need = {"CPU": sum(spec.num_cpus for spec in specs), "GPU": sum(spec.num_gpus for spec in specs)}
    have = {"CPU": room.cpus, "GPU": room.gpus}
    for spec in specs:
        for name, amount in spec.resources.items():
            need[name] = need.get(name, 0.0) + amount
            have[name] = room.resources.get(name, 0.0)
    for name, amount in need.items():
        if amount > have[name] + 1e-6:
            key = {"CPU": "num_cpus", "GPU": "num_gpus"}.get(name, f"resources.{name}")
            raise BadInput(
                f"clients.tiers: {len(specs)} actors need {amount:g} {name}, but the cluster has {have[name]:g}: "
                f"lower clients.tiers.NAME.{key}, or raise clients.per_actor"
            )


def fits_room(specs: list[ActorSpec], room: Room) -> bool:
    """Tells whether a cluster can hold these actors."""
    try:
        _check_room(specs, room)
    except BadInput:
        return False
    return True


def describe_missing(spec: ActorSpec, tier: str, room: Room) -> str:
    """Says what an actor that never started needs, and what the cluster has.

    Args:
        spec: The actor.
        tier: Name of its tier.
        room: The resources of the cluster.
    """
    return (
        f" of tier {tier} (needs {spec.num_cpus:g} CPU, {spec.num_gpus:g} GPU, {spec.resources or 'nothing else'}); "
        f"the cluster has {room.cpus:g} CPU, {room.gpus:g} GPU, {room.resources or 'nothing else'}: add nodes or lower "
        "the tier's needs"
    )


def assign_homes(clients: Clients, specs: list[ActorSpec], client: IntArray) -> IntArray:
    """Assigns clients to actors: the clients of a tier are dealt one by one to the actors of that tier.

    Args:
        clients: The tiers.
        specs: The actors of the run.
        client: Ids of clients, `[J]`.

    Returns:
        The number of the actor on which each of these clients lives, `[J]`.
    """
    starts = np.cumsum([0] + [tier.number for tier in clients.tiers])
    tier = clients.tier_of(client)
    first = np.array([next((a for a, s in enumerate(specs) if s.tier == c), 0) for c in range(len(clients.tiers))])
    count = np.array([max(1, sum(s.tier == c for s in specs)) for c in range(len(clients.tiers))])
    home: IntArray = first[tier] + (client - starts[tier]) % count[tier]
    return home


def deal_jobs(clients: Clients, specs: list[ActorSpec], plan: Plan, work: IntArray, *, at_home: bool) -> list[IntArray]:
    """Deals the jobs of a round to the actors. How they are dealt never changes a bit of the result.

    Args:
        clients: The tiers.
        specs: The actors of the run.
        plan: The jobs, `[J]`.
        work: Expected cost of each job, `[J]`: its optimizer steps.
        at_home: Whether jobs run where their client lives, because it has private vectors there. Otherwise the jobs of
            a tier are dealt to its actors so that each gets nearly the same work.

    Returns:
        For each actor, the places of its jobs in the plan.
    """
    if at_home:
        home = assign_homes(clients, specs, plan.client)
        return [np.flatnonzero(home == a) for a in range(len(specs))]
    parts: list[list[int]] = [[] for _ in specs]
    tier = clients.tier_of(plan.client)
    for c in np.unique(tier):
        actors = [a for a, spec in enumerate(specs) if spec.tier == c]
        jobs = np.flatnonzero(tier == c)
        order = jobs[np.argsort(-work[jobs], kind="stable")]
        lap = 2 * len(actors)
        for n, a in enumerate(actors):  # back and forth over jobs of falling cost: equal counts, nearly equal work
            forth, back = order[n::lap], order[lap - 1 - n :: lap]
            parts[a] += sorted(np.concatenate([forth, back]).tolist())
    return [np.array(part, dtype=np.int64) for part in parts]
