"""The jobs of a round: where they start, which share a block, and which engine trains it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fedray.core.errors import BadInput
from fedray.core.method import Phase
from fedray.core.types import Flight, IntArray, Net, Plan, SizedPlan, Uploads
from fedray.simulation.study import Study, choose_study_engine
from fedray.training.block import choose_batch_width, split_into_blocks
from fedray.training.choice import Engine, count_block_jobs

# ---------------------------------------------------------------------------------------------------------------------
# What a worker does for jobs of asynchronous training: where they start, which train together, how they are added up.


def rows_of_state(plan: Plan, flight: Flight | None, models: int) -> IntArray:
    """Returns the row of the broadcast that each job starts from, `[J]`.

    Args:
        plan: The jobs.
        flight: Of asynchronous training; None: in rounds.
        models: K.
    """
    return plan.world * models + plan.model if flight is None else flight.row


def group_versions(phase: Phase, version: IntArray) -> IntArray:
    """Returns a number below J for each job, `[J]`, equal for jobs of different versions that may share a block.

    They may where their learning rates are equal and their pieces do alike; code in local training may read the round
    itself.

    Args:
        phase: How the clients train.
        version: The version of its model from which each job starts, `[J]`.

    Example:
        >>> from fedray.core.method import Local
        >>> local = Local(lr=0.1, lr_decay=0.5, lr_decay_every=2)
        >>> group_versions(Phase(1, None, local, None, None), np.array([0, 1, 2])).tolist()
        [0, 0, 1]
    """
    versions, place = np.unique(version, return_inverse=True)  # few, where there are many jobs
    code, rate = phase.local.has_code or phase.couples, phase.local.lr_at
    kinds = [v if code else (rate(v), *(piece.group(v) for piece in phase.pieces)) for v in versions.tolist()]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    found: IntArray = np.array([numbers[kind] for kind in kinds], dtype=np.int64)[place]
    return found


def to_groups(uploads: Uploads, flight: Flight) -> Uploads:
    """Uploads as the server of asynchronous training adds them up: weighted in place, one world for each group."""
    if (flight.weight != 1).any():
        uploads.delta.mul_(torch.from_numpy(flight.weight).to(uploads.delta)[:, None])
    return uploads._replace(client=flight.sender, world=flight.group, model=np.zeros_like(flight.group))


# ---------------------------------------------------------------------------------------------------------------------
# Which jobs of a round share a block.


def split_jobs(study: Study, phase: Phase, jobs: SizedPlan, engine: Engine) -> list[IntArray]:
    """Places of the jobs of each block; a block has one learning rate and one width of its batches.

    Args:
        study: What is trained.
        phase: The training that the jobs belong to.
        jobs: The jobs, `[J]`, with samples and steps.
        engine: What trains them.
    """
    width = choose_batch_width(jobs.size, phase.local.batch_size)
    kind = width + (width.max(initial=0) + 1) * study.rate_group(jobs.plan.world)
    if jobs.flight is not None:
        kind = kind * len(kind) + group_versions(phase, jobs.flight.version)
    numbers = int((jobs.steps * width).max(initial=0)) * int(np.prod(study.input_shape))
    most, together = count_block_jobs(engine, numbers, study.client_timeout is not None), phase.together
    if together == 1:
        return split_into_blocks(jobs.steps, kind, most)
    client, model, world = (column[: len(kind) // together * together].reshape(-1, together) for column in jobs.plan)
    alike = (client == client[:, :1]).all() and (world == world[:, :1]).all() and (model == np.arange(together)).all()
    if client.size < len(kind) or not alike:
        raise BadInput(
            f"the {together} models of a client move together, but the schedule does not give all of them to it, one "
            "after another: leave schedule.kind out"
        )
    blocks = split_into_blocks(jobs.steps[::together], kind[::together], max(1, most // together))
    return [(together * block[:, None] + np.arange(together)).ravel() for block in blocks]


def batch_address(phase: Phase, plan: Plan) -> IntArray:
    """Returns what stands for the model in each job's batch address, `[J]`: one number if models move together."""
    return plan.model if phase.together == 1 else np.zeros_like(plan.model)


# ---------------------------------------------------------------------------------------------------------------------
# The engine of each block of a round: that of the network, or of the part of it that the clients of a tier train.


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
    found: list[TierEngine | None] = []
    for net in study.method.phase.nets:
        if net is study.net:
            found.append(None)
            continue
        moved = net if device.type == "cpu" else replace(net, module=copy.deepcopy(net.module).to(device))
        found.append(TierEngine(moved, choose_study_engine(replace(study, net=moved), device.type)))
    return tuple(found)


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
