"""Virtual seconds of a plan, and which of its jobs count: pure functions of plan, devices and seed.

A job takes `steps * seconds_per_step * slowness` of computing and its transfers `latency + bytes / bandwidth`. A client
trains its models one after another or side by side (a tier setting); a synchronous round lasts as long as its slowest
counted client. Everything is known before training, so what does not count is not computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedray import rng
from fedray.core import FloatArray, IntArray, Plan
from fedray.devices import Devices

OK, NO_DATA, LATE, DROPPED, UNAVAILABLE, PAST_DEADLINE, FAILED = range(7)
STATUS = ("ok", "no data", "late", "dropped", "unavailable", "past deadline", "failed")


@dataclass(frozen=True)
class Rule:
    """Who counts. first: clients per tier that end a round (None: all that were chosen); dropout: probability that a
    participant never answers; deadline: virtual seconds after which nobody is waited for."""

    first: tuple[int, ...] | None = None
    dropout: float = 0.0
    deadline: float | None = None


class Timed(NamedTuple):
    """job `[J]`: virtual seconds of each job; status `[J]`; round `[R]`: virtual seconds of the round in each world."""

    job: FloatArray
    status: IntArray
    round: FloatArray


class Work(NamedTuple):
    """What the jobs of a plan do: optimiser steps, bytes up and down, `[J]` each."""

    steps: IntArray
    up: IntArray
    down: IntArray


def time_round(devices: Devices, rule: Rule, seeds: IntArray, t: int, plan: Plan, work: Work, now: FloatArray) -> Timed:
    """Times a round and says which jobs count.

    Args:
        seeds: `[R]`, one a world. now: `[R]` virtual seconds at the round's start.
    """
    seed = seeds[plan.replicate]
    compute = work.steps * devices.figure("seconds_per_step", plan.client) * devices.slowness(seed, plan.client)
    up, down = devices.figure("uplink", plan.client), devices.figure("downlink", plan.client)
    transfer = 2 * devices.figure("latency", plan.client) + work.up / up + work.down / down
    who, first, index = np.unique(
        plan.replicate * devices.clients.number + plan.client, return_index=True, return_inverse=True
    )
    side_by_side = devices.figure("side_by_side", plan.client[first]) > 0
    most = np.zeros(len(who))
    np.maximum.at(most, index, compute)
    busy = np.where(side_by_side, most, np.bincount(index, compute)) + np.bincount(index, transfer)
    status = _status(devices, rule, seeds, t, plan.take(first), busy, now)
    counted = status == OK
    rounds = np.zeros(len(seeds))
    np.maximum.at(rounds, plan.replicate[first][counted], busy[counted])
    if rule.deadline is not None:  # those who wait for somebody who never comes wait until the deadline
        waiting = np.isin(status, (DROPPED, PAST_DEADLINE))
        np.maximum.at(rounds, plan.replicate[first][waiting], rule.deadline)
    per_job = status[index]
    per_job[(per_job == OK) & (work.steps == 0)] = NO_DATA
    return Timed(compute + transfer, per_job, rounds)


def _status(
    devices: Devices, rule: Rule, seeds: IntArray, t: int, who: Plan, busy: FloatArray, now: FloatArray
) -> IntArray:
    """Status of each participant; `who` has one row a participant."""
    seed = seeds[who.replicate]
    status = np.full(len(busy), OK)
    if devices.available is not None:
        status[~devices.available(seed, who.client, now[who.replicate])] = UNAVAILABLE
    if rule.dropout:
        gone = rng.uniform(rng.keys(seed, "dropout", t, who.client), 1)[:, 0] < rule.dropout
        status[(status == OK) & gone] = DROPPED
    if rule.deadline is not None:
        status[(status == OK) & (busy > rule.deadline)] = PAST_DEADLINE
    if rule.first is not None:
        tier = devices.clients.tier_of(who.client)
        for world in np.unique(who.replicate):
            for c, n in enumerate(rule.first):
                mine = np.flatnonzero((who.replicate == world) & (tier == c) & (status == OK))
                order = mine[np.lexsort((who.client[mine], busy[mine]))]
                status[order[n:]] = LATE
    return status
