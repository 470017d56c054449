"""Which actors a run gets on a cluster that others use too. Nothing here uses Ray.

Example:
    >>> from fedray.core.types import Tier
    >>> clients = Clients((Tier("phones", 90),))
    >>> busy = Cluster(whole=[Node("a", {"CPU": 4.0})], free=[Node("a", {"CPU": 1.0})])
    >>> len(choose_seats(clients, busy, ActorKeys("auto", "auto"), waits=False).specs)
    1
    >>> choose_seats(clients, busy, ActorKeys("auto", 4), waits=False).why
    'waiting for 4 CPU: other jobs leave 1 CPU'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedray.core.errors import BadInput
from fedray.core.types import Clients
from fedray.runtime.misfit import describe_wait
from fedray.runtime.placement import plan_actors, want_actors
from fedray.runtime.seats import ActorSpec, Cluster, Node, fill_seats, find_seats, group_kinds, list_actors


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
    """The actors that a run gets where several runs share the cluster: of each kind a part, but at least one.

    Example:
        >>> len(take_part([ActorSpec(0, 1.0, 0.0, {})] * 5 + [ActorSpec(1, 1.0, 0.0, {})], parts=2))
        3
    """
    kinds, counts = group_kinds(planned)
    return [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(max(1, count // parts))]
