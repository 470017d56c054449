"""Virtual seconds of a plan, and which of its jobs count: pure functions of plan, devices and seed.

A job takes `steps * (seconds_per_step + batch * seconds_per_sample) * slowness` of computing, a batch counted with the
samples it really holds, and its transfers `latency + bytes / bandwidth`. A client trains its models one after another
or side by side (a tier setting; they share its link, so each takes all its transfers); a synchronous round lasts as
long as its slowest counted client. Everything is known before training, so what does not count is not computed. A
client that drops out is missed at once, or at the deadline if there is one; whether a client is there is asked at the
round's start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.types import FloatArray, IntArray, Plan
from fedray.simulation.devices import Devices

OK, NO_DATA, LATE, DROPPED, UNAVAILABLE, PAST_DEADLINE, FAILED = range(7)
STATUS = ("ok", "no data", "late", "dropped", "unavailable", "past deadline", "failed")


@dataclass(frozen=True)
class CountingRule:
    """Who counts. first: clients per tier that end a round (None: all that were chosen); dropout: probability that a
    participant never answers; deadline: virtual seconds after which nobody is waited for."""

    first: tuple[int, ...] | None = None
    dropout: float = 0.0
    deadline: float | None = None


class RoundTiming(NamedTuple):
    """job `[J]`: virtual seconds of each job; status `[J]`; round `[R]`: virtual seconds of the round in each world."""

    job: FloatArray
    status: IntArray
    round: FloatArray


class JobCosts(NamedTuple):
    """What the jobs of a plan do: optimiser steps, bytes up and down, samples in all batches (None: 0), `[J]` each."""

    steps: IntArray
    up: IntArray
    down: IntArray
    samples: IntArray | None = None


class Participants(NamedTuple):
    """Those who were asked to take part, `[P]`: world, client, tier, the seconds each needs, the seconds until it is
    there, and whether it has no data."""

    world: IntArray
    client: IntArray
    tier: IntArray
    busy: FloatArray
    wait: FloatArray
    empty: NDArray[np.bool_]


def time_round(
    devices: Devices, rule: CountingRule, seeds: IntArray, t: int, plan: Plan, work: JobCosts, now: FloatArray
) -> RoundTiming:
    """Times a round and says which jobs count.

    Args:
        seeds: `[R]`, one a world. now: `[R]` virtual seconds at the round's start.
    """
    clients, seed = devices.clients, seeds[plan.world]
    compute = work.steps * devices.figure("seconds_per_step", plan.client)
    if work.samples is not None:
        compute = compute + work.samples * devices.figure("seconds_per_sample", plan.client)
    compute = compute * devices.slowness(seed, plan.client)
    up, down = devices.figure("uplink", plan.client), devices.figure("downlink", plan.client)
    transfer = 2 * devices.figure("latency", plan.client) + work.up / up + work.down / down
    _, first, index = np.unique(plan.world * clients.number + plan.client, return_index=True, return_inverse=True)
    world, client = plan.world[first], plan.client[first]
    most, moving = np.zeros(len(first)), np.bincount(index, transfer).astype(np.float64)
    np.maximum.at(most, index, compute)
    together = devices.figure("side_by_side", client) > 0
    busy = moving + np.where(together, most, np.bincount(index, compute))
    job = compute + np.where(together[index], moving[index], transfer)
    wait = np.zeros(len(first))
    if devices.available is not None:
        wait = devices.available(seeds[world], client, now[world])
    asked = Participants(world, client, clients.tier_of(client), busy, wait, work.steps[first] == 0)
    status = _status(rule, seeds, t, asked)
    return RoundTiming(job, status[index], _lasting(rule, asked, status, len(seeds)))


def _status(rule: CountingRule, seeds: IntArray, t: int, asked: Participants) -> IntArray:
    """Status of each participant, `[P]`."""
    status = np.where(asked.wait > 0, UNAVAILABLE, np.where(asked.empty, NO_DATA, OK))
    if rule.dropout:
        gone = rng.uniform(rng.keys(seeds[asked.world], "dropout", t, asked.client), 1)[:, 0] < rule.dropout
        status[(status == OK) & gone] = DROPPED
    if rule.deadline is not None:
        status[(status == OK) & (asked.busy > rule.deadline)] = PAST_DEADLINE
    if rule.first is not None:
        for world in np.unique(asked.world):
            for c, n in enumerate(rule.first):
                mine = np.flatnonzero((asked.world == world) & (asked.tier == c) & (status == OK))
                order = mine[np.lexsort((asked.client[mine], asked.busy[mine]))]
                status[order[n:]] = LATE
    return status


def _lasting(rule: CountingRule, asked: Participants, status: IntArray, worlds: int) -> FloatArray:
    """Virtual seconds of the round in each world, `[R]`."""
    counted, rounds = status == OK, np.zeros(worlds)
    np.maximum.at(rounds, asked.world[counted], asked.busy[counted])
    if rule.deadline is not None:  # those who wait for somebody who never comes wait until the deadline
        waiting = np.isin(status, (DROPPED, PAST_DEADLINE))
        if rule.first is not None:  # a tier that has as many as it wants waits for nobody
            group = asked.world * len(rule.first) + asked.tier
            enough = np.bincount(group, counted, worlds * len(rule.first)) >= np.tile(rule.first, worlds)
            waiting &= ~enough[group]
        rounds[asked.world[waiting]] = rule.deadline
    soonest = np.full(worlds, np.inf)
    np.minimum.at(soonest, asked.world[~asked.empty], asked.wait[~asked.empty])
    asleep = (rounds == 0) & np.isfinite(soonest)  # nobody who has data is there: the next one to come ends the round
    return np.where(asleep, soonest, rounds)
