"""Errors where actors do not fit into a cluster: what they need, what it has, and the remedy. Nothing here uses Ray.

Example:
    >>> describe_missing(ActorSpec(0, 2.0, 0.0, {}), "phones", [Node("a", {"CPU": 1.0})])
    ' of tier phones (needs 2 CPU); the cluster has 1 CPU: add nodes, or lower what the tier needs'
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fedray.core.errors import BadInput
from fedray.core.types import Clients
from fedray.runtime.seats import MEMORY, UNIT, ActorSpec, Cluster, Node, add_up, describe_amounts, find_seats

LEAST_CPUS = 0.01  # of an actor: a hundred on one CPU are more than its memory holds


def explain_misfit(clients: Clients, kinds: list[ActorSpec], counts: list[int], nodes: Sequence[Node]) -> BadInput:
    """The error where actors do not fit into a cluster: the resource that is short, or that no node has enough of.

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
    """The error where all nodes together have too little of a resource; None if they have enough."""
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
    """What a run waits for whose actors do not fit into what is free now.

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
    """
    needs, has = describe_amounts(spec.needs), describe_amounts(add_up(nodes))
    return f" of tier {tier} (needs {needs}); the cluster has {has}: add nodes, or lower what the tier needs"
