"""Which jobs of a round share a block."""

from __future__ import annotations

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.method import Phase
from fedray.core.types import IntArray, Plan, SizedPlan
from fedray.runtime import flights
from fedray.simulation.study import Study
from fedray.training.block import choose_batch_width, split_into_blocks
from fedray.training.choice import Engine, count_block_jobs


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
        kind = kind * len(kind) + flights.group_versions(phase, jobs.flight.version)
    numbers = int((jobs.steps * width).max(initial=0)) * int(np.prod(study.input_shape))
    most, together = count_block_jobs(engine, numbers, study.client_timeout is not None), phase.together
    if together == 1:
        return split_into_blocks(jobs.steps, kind, most)
    _check_together(jobs.plan, together)
    blocks = split_into_blocks(jobs.steps[::together], kind[::together], max(1, most // together))
    return [(together * block[:, None] + np.arange(together)).ravel() for block in blocks]


def batch_address(phase: Phase, plan: Plan) -> IntArray:
    """Returns what stands for the model in each job's batch address, `[J]`: one number if models move together."""
    return plan.model if phase.together == 1 else np.zeros_like(plan.model)


def _check_together(plan: Plan, together: int) -> None:
    """Refuses a plan in which a client does not train all models that move together, one after another."""
    whole = len(plan.client) // together * together
    columns = (column[:whole].reshape(-1, together) for column in plan)
    client, model, world = columns
    alike = (client == client[:, :1]).all() and (world == world[:, :1]).all() and (model == np.arange(together)).all()
    if whole < len(plan.client) or not alike:
        raise BadInput(
            f"the {together} models of a client move together, but the schedule does not give all of them to it, one "
            "after another: leave schedule.kind out"
        )
