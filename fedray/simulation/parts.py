"""A stack as parts of one study: which jobs, rows and bytes belong to which base."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import IntArray, Plan, State
from fedray.data.stacking import LeaveOut
from fedray.simulation.study import Part, Study


class Share(NamedTuple):
    """The jobs of a plan that train part number `at`: which they are, and as the part's own study numbers them."""

    at: int
    part: Part
    jobs: IntArray
    plan: Plan


def split_plan(study: Study, plan: Plan) -> Iterator[Share]:
    """A plan, part by part."""
    for at, part in enumerate(study.parts):
        own = plan.model - part.first
        jobs = np.flatnonzero((own >= 0) & (own < part.folds * part.models))
        if len(jobs):
            fold, k = np.divmod(own[jobs], part.models)
            yield Share(at, part, jobs, Plan(plan.client[jobs], k, plan.world[jobs] * part.folds + fold))


def job_sizes(study: Study, plan: Plan) -> IntArray:
    """Training samples of each job, `[J]`."""
    if not study.parts:
        return study.shards.sizes(plan.world, plan.client)
    size = np.zeros(len(plan.client), dtype=np.int64)
    for share in split_plan(study, plan):
        size[share.jobs] = share.part.study.shards.sizes(share.plan.world, share.plan.client)
    return size


def read_part(state: State, part: Part) -> State:
    """A part's own state, `[worlds * F * x, d_i]`, from the rows of the whole."""
    rows, number = state.models, part.folds * part.models * len(state.models)
    both = [rows[:, where].reshape(number, -1) for where in (part.trainable, part.buffers)]
    return State(torch.cat(both, dim=1), state.counters[:, part.counters].reshape(number, -1), {})


def write_part(state: State, part: Part, own: State) -> State:
    """The whole with a part's own state in its place."""
    models, counters, worlds = state.models.clone(), state.counters.clone(), len(state.models)
    trainable = part.study.net.layout.trainable
    models[:, part.trainable] = own.models[:, :trainable].reshape(worlds, -1)
    models[:, part.buffers] = own.models[:, trainable:].reshape(worlds, -1)
    counters[:, part.counters] = own.counters.reshape(worlds, -1)
    return State(models, counters, state.extra)


def is_trained(counters: Tensor) -> bool:
    """Whether the meta model answers: `counters` `[c]` of one row begin with its rounds."""
    return bool(counters[0] > 0)


def stack_downloads(study: Study, t: int, plan: Plan) -> IntArray:
    """Bytes of the sub models that each job's client fetches to compute its features, `[J]`: once, when it first trains
    the meta model."""
    need = np.zeros(len(plan.client), dtype=np.int64)
    meta = study.parts[-1] if study.parts else None
    if meta is None or meta.met is None or t < meta.begins:
        return need
    fresh = ~np.isin(plan.world * study.clients.number + plan.client, meta.met(t))
    bases = [(part, part.study.net.layout, part.study.shards) for part in study.parts[:-1]]
    each = [
        part.models * (4 * layout.d + 8 * len(layout.counters)) * (part.folds if shards.within else 1)
        for part, layout, shards in bases
        if isinstance(shards, LeaveOut)
    ]
    return np.where(fresh, sum(each), need)
