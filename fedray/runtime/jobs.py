"""The jobs of a block, as a worker trains them, and which jobs share a block.

Example:
    >>> key, row = np.array([7], dtype=np.uint64), np.array([0])
    >>> jobs = Jobs(Plan(*np.array([[3], [0], [0]])), np.array([20]), np.array([5]), key, row)
    >>> jobs.doubled().plan.client.tolist()
    [3, 3]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import Phase
from fedray.core.types import Flight, FloatArray, IntArray, Plan, SizedPlan
from fedray.runtime import flights
from fedray.runtime.mixture import Shares
from fedray.simulation.study import Study
from fedray.training.block import choose_batch_width, split_into_blocks
from fedray.training.choice import Engine, count_block_jobs


class Jobs(NamedTuple):
    """Some jobs of a round.

    Attributes:
        plan: Client, model and world of each job, `[J]`.
        size: Training samples of each job, `[J]`.
        steps: Optimizer steps of each job, `[J]`.
        key: Address of each job's random numbers, `[J]`.
        row: The row of the broadcast that each job starts from, `[J]`.
        flight: Where they start and where their uploads go in asynchronous training; None: in rounds.
        shares: How the clients weigh their samples by all models; None: all samples weigh the same.
        losses: What the clients have told before: the losses of all models on their rows, `[J, K]`; None: nothing.
    """

    plan: Plan
    size: IntArray
    steps: IntArray
    key: rng.Keys
    row: IntArray
    flight: Flight | None = None
    shares: Shares | None = None
    losses: FloatArray | None = None

    def doubled(self) -> Jobs:
        """The first job and a copy of it."""
        first = np.array([0, 0])
        flight = None if self.flight is None else self.flight.take(first)
        size, steps, key, row = self.size[first], self.steps[first], self.key[first], self.row[first]
        return Jobs(self.plan.take(first), size, steps, key, row, flight, self.shares)


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
        kind = kind * len(kind) + flights.group_versions(phase.local, jobs.flight.version)
    numbers = int((jobs.steps * width).max(initial=0)) * int(np.prod(study.input_shape))
    most, together = count_block_jobs(engine, numbers, study.client_timeout is not None), count_together(phase)
    if together == 1:
        return split_into_blocks(jobs.steps, kind, most)
    _check_together(jobs.plan, together)
    blocks = split_into_blocks(jobs.steps[::together], kind[::together], max(1, most // together))
    return [(together * block[:, None] + np.arange(together)).ravel() for block in blocks]


def count_together(phase: Phase) -> int:
    """Jobs of a client that must share a block: its K models, where they move together; else 1."""
    return 1 if phase.local.particles is None else phase.models


def batch_address(phase: Phase, plan: Plan) -> IntArray:
    """What stands for the model in the address of each job's batches, `[J]`: one number where models move together."""
    return plan.model if phase.local.particles is None else np.zeros_like(plan.model)


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
