"""From a stack to its parts and back: jobs of a plan, rows of a state.

Example:
    >>> is_trained(torch.tensor([0, 7])), is_trained(torch.tensor([3, 7]))
    (False, True)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import IntArray, Plan, State
from fedray.simulation.study import Part


class PartJobs(NamedTuple):
    """The jobs of a plan that train one part of a stack.

    Attributes:
        number: The number of the part.
        part: The part.
        jobs: Places of the jobs in the plan of the whole, `[j]`.
        plan: The same jobs as the part's own study numbers them.
    """

    number: int
    part: Part
    jobs: IntArray
    plan: Plan


def split_plan(parts: Sequence[Part], plan: Plan) -> Iterator[PartJobs]:
    """Splits the plan of a stack by parts; parts without jobs are left out."""
    for number, part in enumerate(parts):
        own = plan.model - part.first
        jobs = np.flatnonzero((own >= 0) & (own < part.folds * part.models))
        if len(jobs):
            fold, model = np.divmod(own[jobs], part.models)
            yield PartJobs(number, part, jobs, Plan(plan.client[jobs], model, plan.world[jobs] * part.folds + fold))


def read_part(state: State, part: Part) -> State:
    """A part's own state, `[worlds * F * x, d_i]`, from the rows of the whole."""
    rows, number = state.models, part.folds * part.models * len(state.models)
    both = [rows[:, where].reshape(number, -1) for where in (part.trainable, part.buffers)]
    return State(torch.cat(both, dim=1), state.counters[:, part.counters].reshape(number, -1), {})


def write_part(state: State, part: Part, own: State) -> State:
    """The state of the whole with a part's own state in its place.

    Args:
        state: The state of the whole, `[worlds, d]`.
        part: The part.
        own: The part's own state, `[worlds * F * x, d_i]`; its `extra` is not read.
    """
    models, counters, worlds = state.models.clone(), state.counters.clone(), len(state.models)
    trainable = part.study.net.layout.trainable
    models[:, part.trainable] = own.models[:, :trainable].reshape(worlds, -1)
    models[:, part.buffers] = own.models[:, trainable:].reshape(worlds, -1)
    counters[:, part.counters] = own.counters.reshape(worlds, -1)
    return State(models, counters, state.extra)


def extra_of_part(state: State, number: int) -> dict[str, Tensor]:
    """What the server of part `number` keeps beside its models; the state of the whole calls it `number/...`."""
    own = f"{number}/"
    return {name.removeprefix(own): value for name, value in state.extra.items() if name.startswith(own)}


def is_trained(counters: Tensor) -> bool:
    """Whether the meta model answers: its rounds are the first of the `counters` `[c]` of one row."""
    return bool(counters[0] > 0)
