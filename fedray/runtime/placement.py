"""Which actors there are, which clients live where, and how a round's jobs are dealt: pure functions, no Ray."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import Clients, IntArray, Plan

MOST_ACTORS = 100_000  # a Ray cluster holds tens of thousands


class ActorSpec(NamedTuple):
    """One actor: the tier it hosts, and what it reserves."""

    tier: int
    num_cpus: float
    num_gpus: float
    resources: dict[str, float]


class Room(NamedTuple):
    """What a cluster has."""

    cpus: float
    gpus: float
    resources: dict[str, float]


def plan_actors(clients: Clients, room: Room, per_actor: int | str, actors: int | str) -> list[ActorSpec]:
    """The client actors of a run.

    `auto` fills the cluster: each tier gets a share of the actors that fit (CPUs, GPUs, custom resources) but at least
    one. `per_actor` gives `ceil(N / per_actor)` actors a tier, `actors` that many in all; where a tier leaves
    `num_cpus` open they share its CPUs.

    Raises:
        BadInput: the cluster cannot hold them; what was asked and what there is.
    """
    populated = [c for c, tier in enumerate(clients.tiers) if tier.number > 0]
    shares = _shares(clients, populated, room.cpus)
    out: list[ActorSpec] = []
    for c in populated:
        tier = clients.tiers[c]
        share = shares[c]
        if per_actor != "auto":
            count = math.ceil(tier.number / int(per_actor))
        elif actors != "auto":
            count = max(1, round(int(actors) * tier.number / clients.number))
        else:
            count = max(1, int(_fit(tier.num_cpus or 1.0, share)))
            if tier.num_gpus:
                count = max(1, int(_fit(tier.num_gpus, room.gpus * tier.number / clients.number)))
            count = min(count, _pinned(clients, c, room))
        count = min(count, tier.number)
        if len(out) + count > MOST_ACTORS:
            raise BadInput(
                f"clients.per_actor = {per_actor} makes {count:,} actors of tier {tier.name}: {MOST_ACTORS:,} at most; "
                "raise it, or write auto"
            )
        cpus = tier.num_cpus if tier.num_cpus is not None else min(1.0, math.floor(1e4 * share / count) / 1e4)
        out += [ActorSpec(c, cpus, tier.num_gpus, dict(tier.resources))] * count
    _check(out, room)
    return out


def _shares(clients: Clients, populated: list[int], cpus: float) -> dict[int, float]:
    """CPUs of each tier: by its clients, but never less than one of its actors needs."""
    left = list(populated)
    shares: dict[int, float] = {}
    while left:
        number = sum(clients.tiers[c].number for c in left)
        each = {c: cpus * clients.tiers[c].number / number for c in left}
        short = [c for c in left if (clients.tiers[c].num_cpus or 0.0) > each[c]]
        if not short:
            return shares | each
        for c in short:
            shares[c] = clients.tiers[c].num_cpus or 0.0
            cpus = max(0.0, cpus - shares[c])
            left.remove(c)
    return shares


def _pinned(clients: Clients, c: int, room: Room) -> int:
    """Actors of a tier that its custom resources hold, at least one; tiers that want the same one share it."""
    most = MOST_ACTORS
    for name, amount in clients.tiers[c].resources.items():
        wanted = sum(tier.number for tier in clients.tiers if tier.resources.get(name))
        share = room.resources.get(name, 0.0) * clients.tiers[c].number / max(1, wanted)
        most = min(most, int(_fit(amount, share)) if amount else most)
    return max(1, most)


def _fit(each: float, room: float) -> float:
    return math.floor(room / each + 1e-9) if each > 0 else 1


def _check(out: list[ActorSpec], room: Room) -> None:
    """One line where the actors do not fit into the cluster."""
    need = {"CPU": sum(s.num_cpus for s in out), "GPU": sum(s.num_gpus for s in out)}
    have = {"CPU": room.cpus, "GPU": room.gpus}
    for seat in out:
        for name, amount in seat.resources.items():
            need[name] = need.get(name, 0.0) + amount
            have[name] = room.resources.get(name, 0.0)
    for name, amount in need.items():
        if amount > have[name] + 1e-6:
            key = {"CPU": "num_cpus", "GPU": "num_gpus"}.get(name, f"resources.{name}")
            raise BadInput(
                f"clients.tiers: {len(out)} actors need {amount:g} {name}, but the cluster has {have[name]:g}: "
                f"lower clients.tiers.NAME.{key}, or raise clients.per_actor"
            )


def count_fitting(out: list[ActorSpec], room: Room) -> bool:
    """Whether a cluster can hold these actors."""
    try:
        _check(out, room)
    except BadInput:
        return False
    return True


def describe_missing(seat: ActorSpec, tier: str, room: Room) -> str:
    """What an actor that never came needs, and what there is."""
    return (
        f" of tier {tier} (needs {seat.num_cpus:g} CPU, {seat.num_gpus:g} GPU, {seat.resources or 'nothing else'}); "
        f"the cluster has {room.cpus:g} CPU, {room.gpus:g} GPU, {room.resources or 'nothing else'}: add nodes or lower "
        "the tier's needs"
    )


def assign_homes(clients: Clients, out: list[ActorSpec], client: IntArray) -> IntArray:
    """The actor on which each client lives, `[J]`: clients of a tier are dealt one by one to its actors."""
    starts = np.cumsum([0] + [tier.number for tier in clients.tiers])
    tier = clients.tier_of(client)
    first = np.array([next((a for a, s in enumerate(out) if s.tier == c), 0) for c in range(len(clients.tiers))])
    count = np.array([max(1, sum(s.tier == c for s in out)) for c in range(len(clients.tiers))])
    return (first[tier] + (client - starts[tier]) % count[tier]).astype(np.int64)


def deal_jobs(clients: Clients, out: list[ActorSpec], plan: Plan, work: IntArray, at_home: bool) -> list[IntArray]:
    """Indices of the plan's jobs for each actor.

    Jobs of clients with private state run where the client lives; others are dealt to the actors of their tier so that
    each gets the same work. How jobs are dealt never changes a bit of the result.

    Args:
        work: `[J]` expected cost of each job (its steps).
    """
    if at_home:
        home = assign_homes(clients, out, plan.client)
        return [np.flatnonzero(home == a) for a in range(len(out))]
    parts: list[list[int]] = [[] for _ in out]
    tier = clients.tier_of(plan.client)
    for c in np.unique(tier):
        mine = [a for a, seat in enumerate(out) if seat.tier == c]
        jobs = np.flatnonzero(tier == c)
        order = jobs[np.argsort(-work[jobs], kind="stable")]
        for n, a in enumerate(mine):  # a snake over jobs of falling cost: equal counts, near equal work
            forth, back = order[n :: 2 * len(mine)], order[2 * len(mine) - 1 - n :: 2 * len(mine)]
            parts[a] += sorted(np.concatenate([forth, back]).tolist())
    return [np.array(part, dtype=np.int64) for part in parts]
