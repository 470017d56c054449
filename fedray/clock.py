"""Virtual seconds and bytes of a plan: pure functions of plan, tiers and seed, the same on any machine.

A job takes `steps * seconds_per_step * spread` of computing, where the spread is lognormal per client (by address), and
its transfers `latency + bytes / bandwidth`. A client trains its models one after another or side by side (a tier
setting); a synchronous round lasts as long as its slowest counted client.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedray import rng
from fedray.core import Clients, FloatArray, IntArray, Plan


class Cost(NamedTuple):
    """job `[J]`: virtual seconds of each job alone; round `[R]`: of the round, in each world."""

    job: FloatArray
    round: FloatArray


def cost(clients: Clients, seeds: IntArray, plan: Plan, steps: IntArray, up: IntArray, down: IntArray) -> Cost:
    """What a round takes.

    Args:
        seeds: `[R]`, one a world.
        steps, up, down: `[J]` optimiser steps, bytes sent and received.
    """
    tier = clients.tier_of(plan.client)
    column = {
        name: np.array([float(getattr(one, name)) for one in clients.tiers])[tier]
        for name in ("seconds_per_step", "spread", "uplink", "downlink", "latency", "side_by_side")
    }
    slow = np.ones(len(tier))
    if column["spread"].any():
        key = rng.keys(seeds[plan.replicate], "speed", plan.client)
        slow = np.exp(column["spread"] * rng.normal(key, 1)[:, 0])
    compute = steps * column["seconds_per_step"] * slow
    transfer = 2 * column["latency"] + up / column["uplink"] + down / column["downlink"]
    who = plan.replicate * clients.number + plan.client
    _, index = np.unique(who, return_inverse=True)
    total = np.bincount(index, compute)
    most = np.zeros(len(total))
    np.maximum.at(most, index, compute)
    busy = np.where(column["side_by_side"] > 0, most[index], total[index]) + np.bincount(index, transfer)[index]
    rounds = np.zeros(len(seeds))
    np.maximum.at(rounds, plan.replicate, busy)
    return Cost(compute + transfer, rounds)
