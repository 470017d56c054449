"""Cuts the jobs of a round into chunks that actors take one after the other. Nothing here uses Ray.

Exact sums do not depend on who trains what, so an actor that is quick may take more chunks than one that is slow. The
chunks of a queue lie in the order of their models, so that most actors train, receive and send few of them. Tiers whose
actors reserve the same share a queue: a device's speed is simulated, and any of these actors can train its jobs.

Example:
    Six jobs of two models, for two actors: each gets one model, and nearly the same work.

    >>> from fedray.runtime.seats import ActorSpec
    >>> from fedray.core.types import Plan, Tier
    >>> specs = [ActorSpec(0, 1.0, 0.0, {})] * 2
    >>> jobs = SizedPlan(Plan(*np.array([[0, 1, 2, 3, 4, 5], [1, 0, 1, 0, 1, 0], [0] * 6])), np.ones(6), np.ones(6))
    >>> [queue] = cut_chunks(Clients((Tier("all", 9),)), specs, jobs, models=2)
    >>> [(chunk.places.tolist(), chunk.rows.tolist()) for chunk in queue.chunks]
    [([1, 3, 5], [0]), ([0, 2, 4], [1])]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedray.core.types import Clients, IntArray, SizedPlan
from fedray.runtime import flights
from fedray.runtime.placement import assign_homes, list_serving
from fedray.runtime.seats import ActorSpec

LEAST_JOBS = 2  # of a chunk where actors take several: engines train a lone job beside a copy of itself


class Chunk(NamedTuple):
    """Jobs that one actor trains in one call.

    Attributes:
        places: Their places in the plan, `[j]`, ascending.
        rows: The rows of the state that they start from, ascending.
    """

    places: IntArray
    rows: IntArray


class Queue(NamedTuple):
    """Chunks, and the actors that may take them: those that reserve the same, or the home of private vectors.

    Attributes:
        actors: Numbers of the actors.
        chunks: In the order in which actors should take them.
    """

    actors: list[int]
    chunks: list[Chunk]


def cut_chunks(
    clients: Clients,
    specs: Sequence[ActorSpec],
    jobs: SizedPlan,
    models: int,
    *,
    at_home: bool = False,
    laps: int = 1,
    mixed: bool = True,
) -> list[Queue]:
    """Cuts the jobs of a round. How they are cut never changes a bit of the result.

    Args:
        clients: The tiers.
        specs: The actors of the run.
        jobs: The jobs, `[J]`; their optimizer steps are their cost.
        models: Models of a world, K.
        at_home: Whether jobs run where their client lives, because it has private vectors there: a chunk an actor.
        laps: Chunks of each actor's share: 1, or the first has half of it, the next a quarter, and so on, so that what
            is taken last is small.
        mixed: Whether a chunk may have jobs of several rows of the state; not where rows are large.

    Returns:
        Queues without common actors; an actor may have none.
    """
    row = flights.rows_of_state(jobs.plan, jobs.flight, models)
    if at_home:
        home = assign_homes(clients, specs, jobs.plan.client)
        each = [(a, np.flatnonzero(home == a)) for a in np.unique(home).tolist()]
        return [Queue([a], [_chunk(places, row)]) for a, places in each]
    serving, queues = list_serving(clients, specs), []
    kind = np.array([serving.index(actors) for actors in serving])[clients.tier_of(jobs.plan.client)]
    for k in np.unique(kind).tolist():
        actors, of_kind = list(serving[k]), np.flatnonzero(kind == k)
        order = of_kind[np.lexsort((-jobs.steps[of_kind], row[of_kind]))]
        begins, lap = _share_work(jobs.steps[order], len(actors), laps)
        kept = _keep_apart(begins, len(order), 1 if laps == 1 else LEAST_JOBS)
        parts = np.split(order, begins[kept][1:])
        inside = [np.empty(0, np.int64) if mixed else np.flatnonzero(np.diff(row[part])) + 1 for part in parts]
        first = np.argsort(lap[kept], kind="stable").tolist()
        chunks = [_chunk(one, row) for n in first for one in np.split(parts[n], inside[n])]
        queues.append(Queue(actors, chunks))
    return queues


def _chunk(places: IntArray, row: IntArray) -> Chunk:
    return Chunk(np.sort(places), np.unique(row[places]))


def _share_work(work: IntArray, actors: int, laps: int) -> tuple[IntArray, IntArray]:
    """Cuts jobs in a given order into an equal share for each actor, and each share into laps.

    Args:
        work: Cost of each job, `[J]`.
        actors: A.
        laps: As in `cut_chunks`.

    Returns:
        Where each part begins, ascending, and its lap, `[A * laps]`.
    """
    done = np.cumsum(np.maximum(work, 1)) / np.maximum(work, 1).sum()
    within = 1.0 - 0.5 ** np.arange(laps)  # 0, 1/2, 3/4
    starts = (np.arange(actors)[:, None] + within).ravel() / actors
    return np.searchsorted(done, starts + 1e-9), np.tile(np.arange(laps), actors)


def _keep_apart(begins: IntArray, jobs: int, least: int) -> list[int]:
    """Which parts stay, so that each has so many jobs at least; the others join the one before them."""
    kept = [0]
    for n, begin in enumerate(begins.tolist()):
        if begin - begins[kept[-1]] >= least and jobs - begin >= least:
            kept.append(n)
    return kept
