"""The engine of each block of a round: that of the network, or of the part of it that the clients of a tier train.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> tiers = {"strong": {"number": 2}, "weak": {"number": 2, "width": 0.5}}
    >>> scenario = {"method": "heterofl", "clients": {"tiers": tiers}, "lanes": "torch"}
    >>> study = build_study(read_scenario(scenario))
    >>> strong, weak = choose_tier_engines(study, torch.device("cpu"))
    >>> strong is None, weak.engine.why
    (True, 'linear layers only, 1,885 parameters')
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Phase
from fedray.core.types import IntArray, Net, SizedPlan
from fedray.runtime.jobs import split_jobs
from fedray.simulation.study import Study, choose_study_engine
from fedray.training.choice import Engine
from fedray.training.slices import for_slice


class TierEngine(NamedTuple):
    """What trains the clients of a tier.

    Attributes:
        net: The network of the tier's slice, on the worker's device.
        engine: What trains it, for rows of the slice.
    """

    net: Net
    engine: Engine


def choose_tier_engines(study: Study, device: torch.device) -> tuple[TierEngine | None, ...]:
    """Chooses what trains the clients of each tier, None for the whole network; empty if all train it.

    Args:
        study: What is trained.
        device: Where tensors are computed.
    """
    found: list[TierEngine | None] = []
    for net in study.method.phase.nets:
        if net is study.net:
            found.append(None)
            continue
        moved = net if device.type == "cpu" else replace(net, module=copy.deepcopy(net.module).to(device))
        found.append(TierEngine(moved, choose_study_engine(replace(study, net=moved), device.type)))
    return tuple(found)


class BlockEngine(NamedTuple):
    """What trains a block.

    Attributes:
        engine: For rows of the whole network.
        columns: Places of the numbers that it trains, `[s]`; None: all of them.
    """

    engine: Engine
    columns: Tensor | None = None


def find_engine(whole: Engine, tiers: Sequence[TierEngine | None], phase: Phase, t: int, tier: IntArray) -> BlockEngine:
    """Returns what trains a block of clients of a tier.

    Args:
        whole: What trains the whole network.
        tiers: What trains the clients of each tier.
        phase: The training that the block belongs to.
        t: The round, from 0.
        tier: The tier of each client, `[W]`: it is the same for all.
    """
    one = tiers[tier[0]] if tiers and phase.nets else None
    if one is None:
        return BlockEngine(whole)
    columns = phase.columns(t, int(tier[0]))
    return BlockEngine(for_slice(one.engine, one.net, columns), columns)


def split_by_tier(
    study: Study, phase: Phase, jobs: SizedPlan, whole: Engine, tiers: Sequence[TierEngine | None]
) -> list[IntArray]:
    """Places of the jobs of each block; where tiers train slices, a block has the clients of one of them.

    Args:
        study: What is trained.
        phase: The training that the jobs belong to.
        jobs: The jobs, `[J]`, with samples and steps.
        whole: What trains the whole network.
        tiers: What trains the clients of each tier; empty: all train the whole network.
    """
    if not any(tiers):
        return split_jobs(study, phase, jobs, whole)
    tier = study.clients.tier_of(jobs.plan.client)
    blocks: list[IntArray] = []
    for i, one in enumerate(tiers):
        places = np.flatnonzero(tier == i)
        engine = whole if one is None else one.engine
        blocks += [places[block] for block in split_jobs(study, phase, jobs.take(places), engine)]
    return blocks
