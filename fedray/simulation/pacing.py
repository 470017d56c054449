"""What jobs of asynchronous training cost, and how long they take: the timelines of all worlds.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = {"data": {"name": "cubic"}, "clients": {"number": 2}, "participation": {"mode": "async"}}
    >>> study = build_study(read_scenario(scenario | {"rounds": 3}))
    >>> costs = count_costs(study, study.method.phase)
    >>> costs.size.tolist(), make_timelines(study, study.method.phase, costs)[0].take(2).time.tolist()
    ([[16, 16]], [0.1006644, 0.1006644])
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from fedray.core.errors import FedrayError
from fedray.core.method import Phase
from fedray.core.types import IntArray, Plan
from fedray.simulation import clock
from fedray.simulation.rounds import job_traffic, size_jobs
from fedray.simulation.study import Study
from fedray.simulation.timeline import KEPT_TURNS, Pace, Timeline
from fedray.training.block import samples_seen


class ClientCosts(NamedTuple):
    """What a job of each client costs, `[R, N]` each.

    Attributes:
        size: Training samples.
        steps: Optimizer steps, without those of personal models.
        up: Bytes that it sends.
        down: Bytes that it receives.
    """

    size: IntArray
    steps: IntArray
    up: IntArray
    down: IntArray


def count_costs(study: Study, phase: Phase) -> ClientCosts:
    """What jobs cost in each world: it depends on the client alone.

    Args:
        study: What runs.
        phase: The training that the jobs belong to.
    """
    client, columns = np.arange(study.clients.number), []
    for world in range(study.worlds):
        plan = Plan(client, np.zeros_like(client), np.full_like(client, world))
        jobs = size_jobs(study, phase, plan)
        columns.append((jobs.size, jobs.steps, *job_traffic(study, phase, plan)))
    return ClientCosts(*map(np.stack, zip(*columns, strict=True)))


def make_timelines(study: Study, phase: Phase, costs: ClientCosts) -> list[Timeline]:
    """What happens in each world.

    Args:
        study: What runs; it has an `AsyncRule`.
        phase: The training that the jobs belong to.
        costs: What its jobs cost.

    Raises:
        FedrayError: A job takes infinite virtual time.
    """
    assert study.asynchronous is not None
    plan_turn = lru_cache(KEPT_TURNS)(lambda turn: phase.schedule(turn, None))

    def assign(world: int, turn: int) -> tuple[IntArray, IntArray]:
        plan = plan_turn(turn)
        mine = plan.world == world
        return plan.client[mine], plan.model[mine]

    paces = [_find_pace(study, phase, costs, world) for world in range(study.worlds)]
    return [
        Timeline(study.asynchronous, pace, phase.models, seed=int(seed), assign=partial(assign, world))
        for world, (seed, pace) in enumerate(zip(study.seeds, paces, strict=True))
    ]


def _find_pace(study: Study, phase: Phase, costs: ClientCosts, world: int) -> Pace:
    """How long the clients of a world take."""
    devices, client, seeds = study.devices, np.arange(study.clients.number), study.seeds[world : world + 1]
    size, steps, up, down = (column[world] for column in costs)
    passes = 1 + len(phase.personal)  # each deals its batches anew
    samples = samples_seen(size, steps, phase.local.batch_size) * passes
    job = clock.JobCosts(steps * passes, up, down, samples)
    compute, transfer = clock.time_jobs(devices, np.repeat(seeds, len(client)), client, job, np.zeros(len(client)))
    if not np.isfinite(compute + transfer).all():
        raise FedrayError("a job takes infinite virtual time: raise uplink and downlink of clients.tiers")
    available = devices.available

    def wait(one: int, now: float) -> float:
        assert available is not None
        return float(available(seeds, np.array([one]), np.array([now]))[0])

    def link(one: int, now: float) -> float:
        place = np.array([one])
        return float(clock.time_transfers(devices, place, up[place], down[place], np.array([now]))[0])

    return Pace(
        compute,
        transfer,
        devices.figure("side_by_side", client) > 0,
        steps > 0,
        wait=None if available is None else wait,
        link=None if devices.links is None else link,
    )
