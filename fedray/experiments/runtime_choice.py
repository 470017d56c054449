"""Where a run trains with `runtime: auto`: in this process, unless a cluster, a GPU or the amount of work asks for Ray.

Both runtimes give the same bits, so the choice is one of time alone. Ray takes seconds to start and milliseconds a
round.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from fedray.models.net import count_forward_flops
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study
from fedray.training.block import count_steps, samples_seen

FLOPS = 1e10  # floating-point operations a second of small networks on a core (measured 9e9 to 6e10)
JOB_SECONDS = 5e-5  # of a core for a job besides its arithmetic (measured 28 to 73 us)
SHORT_ROUND = 0.03  # seconds: of shorter rounds Ray's own milliseconds take too much
START_SECONDS = 20.0  # of Ray on two cores, with the processes that import torch


class RuntimeChoice(NamedTuple):
    """A runtime, and why it was chosen.

    Attributes:
        name: `ray` or `inline`.
        why: The reason in words.
    """

    name: str
    why: str


def choose_runtime(scenario: Scenario, study: Study, address: str | None) -> RuntimeChoice:
    """Returns the runtime of a scenario: its own, or for `auto` the one that is sooner done.

    Args:
        scenario: The scenario.
        study: The same as plain objects.
        address: Of a cluster; None: there is none.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"clients": {"number": 10}, "rounds": 2})
        >>> choose_runtime(scenario, build_study(scenario), address=None).name
        'inline'
    """
    if scenario.runtime != "auto":
        return RuntimeChoice(scenario.runtime, "the scenario says so")
    if address is not None:
        return RuntimeChoice("ray", "a cluster was given")
    keys, tiers = scenario.clients, study.clients.tiers
    if any(tier.num_gpus or tier.resources for tier in tiers):
        return RuntimeChoice("ray", "its tiers reserve resources")
    if (keys.actors, keys.per_actor) != ("auto", "auto"):
        return RuntimeChoice("ray", "its actors are given")
    cores, seconds = os.cpu_count() or 1, estimate_seconds(study)
    saved = seconds * study.rounds * (1 - 1 / cores)
    work = f"about {_describe(seconds)} of one core a round"
    if seconds < SHORT_ROUND or saved < START_SECONDS or scenario.client_timeout is not None:
        return RuntimeChoice("inline", work)
    return RuntimeChoice("ray", f"{work}, on {cores} cores")


def _describe(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:,.1f} s"


def estimate_seconds(study: Study) -> float:
    """Seconds of one core that the training of a round takes, to within a factor of a few.

    Of a study that trains one part after another it is the mean over all rounds.
    """
    if study.parts:
        return sum(estimate_seconds(p.study) * (p.ends - p.begins) for p in study.parts) / max(1, study.rounds)
    phase = study.method.phase
    plan = phase.schedule(0, None)
    size = study.shards.sizes(plan.world, plan.client)
    samples = samples_seen(size, count_steps(size, phase.local), phase.local.batch_size)
    flops = 3.0 * count_forward_flops(study.net, study.example[None])  # the backward pass takes twice the forward one
    return float(np.sum(samples) * flops / FLOPS + len(plan.client) * JOB_SECONDS)
