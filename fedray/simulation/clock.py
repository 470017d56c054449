"""Virtual seconds of a round, and which uploads the server will use: pure functions of plan, devices and seed.

A job computes for `steps * (seconds_per_step + batch * seconds_per_sample) * slowness` seconds, where `batch` counts
the samples that a batch really holds. A job that trains a slice of the network needs only the slice's share of this
time. Each of the two transfers takes `latency + bytes / bandwidth`, with the link as it is when the round begins.
A client trains its models one after another or side by side (a setting of its tier). Models that are trained side by
side share the client's link: each upload finishes only when all of the client's uploads have finished.

The server uses the uploads of the clients that are available when the round starts and are neither late nor dropped
out. A synchronous round lasts as long as the slowest of these clients. It does not wait for a client that drops out,
but with a deadline it then lasts until the deadline. All this is known before training, so no jobs of other clients are
computed. The upload of a job that fails in training is not used either.

Example:
    Two clients with steps of 0.5 s; the round waits for the first one to finish.

    >>> from fedray.core.types import Clients, Tier
    >>> devices = Devices(Clients((Tier("phone", 2, seconds_per_step=0.5, uplink=100.0, downlink=100.0),)))
    >>> plan = Plan(client=np.array([0, 1]), model=np.zeros(2, int), world=np.zeros(2, int))
    >>> costs = JobCosts(steps=np.array([4, 6]), up=np.array([100, 100]), down=np.array([100, 100]))
    >>> rule, zero = CountingRule(first=(1,)), np.zeros(1, int)
    >>> timing = time_round(devices, rule, plan, costs, seeds=zero, t=0, now=np.zeros(1))
    >>> timing.job.tolist(), [STATUS[s] for s in timing.status], timing.round.tolist()
    ([4.0, 5.0], ['ok', 'late'], [4.0])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.types import FloatArray, IntArray, Plan
from fedray.simulation.devices import LINK, Devices

OK, NO_DATA, LATE, DROPPED, UNAVAILABLE, PAST_DEADLINE, FAILED = range(7)
STATUS = ("ok", "no data", "late", "dropped", "unavailable", "past deadline", "failed")


@dataclass(frozen=True)
class CountingRule:
    """The rule that decides which uploads of a round the server uses.

    Attributes:
        first: For each tier, how many of its clients a round waits for: the fastest ones. The others are `late`. None:
            the round waits for all clients that were chosen.
        dropout: Probability that a participant drops out and sends nothing, in [0, 1).
        deadline: Virtual seconds after which the round waits for no client any more; None: no deadline.
    """

    first: tuple[int, ...] | None = None
    dropout: float = 0.0
    deadline: float | None = None


class RoundTiming(NamedTuple):
    """When the jobs of a round end, and which uploads the server will use.

    Attributes:
        job: Virtual seconds that each job takes, `[J]`.
        status: Whether the upload of each job will be used, and if not, why: an index into `STATUS`, `[J]`.
        round: Virtual seconds that the round takes in each world, `[R]`.
    """

    job: FloatArray
    status: IntArray
    round: FloatArray


class JobCosts(NamedTuple):
    """The work and the traffic of the jobs of a plan, `[J]` each.

    Attributes:
        steps: Number of optimizer steps.
        up: Bytes sent.
        down: Bytes received.
        samples: Number of samples in all batches; None: samples take no time.
        work: Arithmetic of the job's network, as a share of the arithmetic of the whole network, above 0; None: 1.
    """

    steps: IntArray
    up: IntArray
    down: IntArray
    samples: IntArray | None = None
    work: FloatArray | None = None


def time_round(
    devices: Devices, rule: CountingRule, plan: Plan, costs: JobCosts, *, seeds: IntArray, t: int, now: FloatArray
) -> RoundTiming:
    """Returns how long a round and its jobs take, and which uploads the server will use.

    Args:
        devices: What the clients' devices are like.
        rule: Decides which uploads the server uses.
        plan: The jobs, `[J]`.
        costs: The costs of the jobs, `[J]`.
        seeds: Seed of each world, `[R]`.
        t: The round, from 0.
        now: Virtual seconds at the start of the round in each world, `[R]`.
    """
    clients = devices.clients
    compute, transfer = time_jobs(devices, seeds[plan.world], plan.client, costs, now[plan.world])
    member = plan.world * clients.number + plan.client
    if (np.diff(member) > 0).all():  # one job a client, in order
        first = index = np.arange(len(member))
        job = busy = compute + transfer
    else:
        _, first, index = np.unique(member, return_index=True, return_inverse=True)
        parallel = devices.figure("side_by_side", plan.client[first]) > 0  # of each participant, `[P]`
        longest, transfers = np.zeros(len(first)), np.bincount(index, transfer).astype(np.float64)
        np.maximum.at(longest, index, compute)
        busy = transfers + np.where(parallel, longest, np.bincount(index, compute))
        job = compute + np.where(parallel[index], transfers[index], transfer)
    world, client = plan.world[first], plan.client[first]
    wait = np.zeros(len(first))
    if devices.available is not None:
        wait = devices.available(seeds[world], client, now[world])
    tier, empty = clients.tier_of(client), costs.steps[first] == 0  # of each participant, `[P]`, as wait and busy
    status = np.where(wait > 0, UNAVAILABLE, np.where(empty, NO_DATA, OK))
    if rule.dropout:
        dropped = rng.uniform(rng.keys(seeds[world], "dropout", t, client), 1)[:, 0] < rule.dropout
        status[(status == OK) & dropped] = DROPPED
    if rule.deadline is not None:
        status[(status == OK) & (busy > rule.deadline)] = PAST_DEADLINE
    if rule.first is not None:
        for w in np.unique(world):
            for k, number in enumerate(rule.first):
                ready = np.flatnonzero((world == w) & (tier == k) & (status == OK))
                status[ready[np.lexsort((client[ready], busy[ready]))][number:]] = LATE
    counted, seconds = status == OK, np.zeros(len(seeds))
    np.maximum.at(seconds, world[counted], busy[counted])
    if rule.deadline is not None:  # a world in which a client is missing waits until the deadline
        missing = np.isin(status, (DROPPED, PAST_DEADLINE))
        if rule.first is not None:  # a tier that has its required number of clients waits for no more
            group = world * len(rule.first) + tier
            enough = np.bincount(group, counted, len(seeds) * len(rule.first)) >= np.tile(rule.first, len(seeds))
            missing &= ~enough[group]
        seconds[world[missing]] = rule.deadline
    soonest = np.full(len(seeds), np.inf)
    np.minimum.at(soonest, world[~empty], wait[~empty])
    absent = (seconds == 0) & np.isfinite(soonest)  # no client with data is available: the round ends when one is
    return RoundTiming(job, status[index], np.where(absent, soonest, seconds))


def time_jobs(
    devices: Devices, seed: IntArray, client: IntArray, costs: JobCosts, now: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns the virtual seconds that each job computes, `[J]`, and that its two transfers take, `[J]`.

    Args:
        devices: What the clients' devices are like.
        seed: Seed of each job's world, `[J]`.
        client: Client of each job, `[J]`.
        costs: The costs of the jobs, `[J]`.
        now: Virtual second at which each job starts, `[J]`.
    """
    compute = costs.steps * devices.figure("seconds_per_step", client)
    if costs.samples is not None:
        compute = compute + costs.samples * devices.figure("seconds_per_sample", client)
    compute = compute * devices.slowness(seed, client)
    if costs.work is not None:
        compute = compute * costs.work
    return compute, time_transfers(devices, client, costs.up, costs.down, now)


def time_transfers(devices: Devices, client: IntArray, up: IntArray, down: IntArray, now: FloatArray) -> FloatArray:
    """Returns the virtual seconds of the two transfers of each job together, `[J]`.

    Args:
        devices: What the clients' devices are like.
        client: Client of each job, `[J]`.
        up: Bytes that each job sends, `[J]`.
        down: Bytes that each job receives, `[J]`.
        now: Virtual second at which each job starts, `[J]`.
    """
    uplink, downlink, latency = (devices.figure(name, client, now) for name in LINK)
    return 2 * latency + up / uplink + down / downlink
