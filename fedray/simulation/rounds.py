"""The round loop: plan, train, step, record, evaluate, checkpoint. One loop for every method.

The loop knows no method and no feature by name. What is particular about a method is in its `Phase`: the schedule that
plans a round, the server that steps, and, where they differ from the usual, the samples and bytes of its jobs
(`Phase.sizes`, `Phase.traffic`) and what its state keeps of them (`Phase.remember`).

Example:
    >>> meets_target({"accuracy": 0.9, "nll": 0.4}, ("accuracy", 0.8)), meets_target({"nll": 0.4}, ("nll", 0.3))
    (True, False)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import Phase
from fedray.core.types import FloatArray, IntArray, Plan, SizedPlan, State
from fedray.metrics.names import reaches_target
from fedray.simulation import clock
from fedray.simulation.interfaces import JobTable, Progress, Recorder, Runtime
from fedray.simulation.study import Study
from fedray.training.block import count_steps, samples_seen


def draw_first_state(study: Study, phase: Phase) -> State:
    """The initial models: every (world, model) drawn at its own address."""
    rows = [study.net.init(int(rng.keys(seed, "init", k))) for seed in study.init_seeds for k in range(phase.models)]
    models = torch.stack(rows).to(study.dtype)
    counters = torch.zeros(len(models), len(study.net.layout.counters), dtype=torch.int64)
    return State(models, counters, phase.server.init(models))


def begin_progress(study: Study, phase: Phase) -> Progress:
    """Progress before the first round."""
    zero = np.zeros(study.worlds, dtype=np.int64)
    state = draw_first_state(study, phase)
    if study.method.prepare is not None:
        state = study.method.prepare(state, study.pooled)
    return Progress(0, state, zero, zero.copy(), np.zeros(study.worlds))


def run_rounds(
    study: Study,
    runtime: Runtime,
    record: Recorder,
    evaluate: Callable[[Progress], list[dict[str, Any]]],
    progress: Progress,
) -> Progress:
    """Runs a study from `progress` to its end (or to its target metric) and returns where it stands."""
    phase = study.method.phase
    began = time.perf_counter() - progress.wall_seconds
    if progress.round == 0:
        _measure(study, record, evaluate, progress)
    done = progress.round >= study.rounds or has_reached_target(study, progress)
    if done and progress.round == 0:
        record.checkpoint(progress)
    while not done:
        plan, table, state, seconds = run_round(study, runtime, phase, progress)
        progress.state = state
        progress.round += 1
        np.add.at(progress.up_bytes, plan.world, table.up_bytes)
        np.add.at(progress.down_bytes, plan.world, table.down_bytes)
        progress.sim_seconds = progress.sim_seconds + seconds
        progress.wall_seconds = time.perf_counter() - began
        progress.failed += int((table.status == clock.FAILED).sum())
        record.jobs(progress.round, plan, table)
        done = progress.round >= study.rounds
        measured = done or progress.round % study.evaluation.every == 0
        kept = done or progress.round % study.checkpoint_every == 0
        if measured or kept:
            progress.state = runtime.gather(progress.state)
        if measured:
            _measure(study, record, evaluate, progress)
            done = done or has_reached_target(study, progress)
        if done or kept:
            record.checkpoint(progress)
    return progress


def run_round(
    study: Study, runtime: Runtime, phase: Phase, progress: Progress
) -> tuple[Plan, JobTable, State, FloatArray]:
    """Plans a round, times it, trains the jobs that count, and steps the server."""
    t = progress.round
    plan = phase.schedule(t, progress.state)
    sized = size_jobs(study, phase, plan)
    size, steps = sized.size, sized.steps * (1 + len(phase.personal))
    up, down = job_traffic(study, phase, plan, t)
    work = clock.JobCosts(steps, up, down, samples_seen(size, steps, phase.local.batch_size))
    timed = clock.time_round(study.devices, study.rule, study.seeds, t, plan, work, progress.sim_seconds)
    loss, error = np.full(len(size), np.nan), np.full(len(size), None, dtype=object)
    state, status, counted = progress.state, timed.status, timed.status == clock.OK
    if counted.any():
        stats, rows = runtime.train(t, sized if counted.all() else sized.take(counted), state, phase)
        loss[counted] = rows.loss
        for job, text in rows.errors.items():
            at = np.flatnonzero(counted)[job]
            status[at], error[at] = clock.FAILED, text
        counted = status == clock.OK
        if counted.any():
            state = phase.server.step(state, stats, t)
            if phase.remember is not None:
                state = phase.remember(state, plan.take(counted), loss[counted])
    if not counted.all():
        up, steps = np.where(counted, up, 0), np.where(counted, steps, 0)
        down = np.where(np.isin(status, (clock.NO_DATA, clock.DROPPED, clock.UNAVAILABLE, clock.FAILED)), 0, down)
    return plan, JobTable(size, steps, loss, up, down, timed.job, status, error), state, timed.round


def size_jobs(study: Study, phase: Phase, plan: Plan) -> SizedPlan:
    """A plan with the training samples and the optimizer steps of each job.

    Args:
        study: What runs.
        phase: The training that the jobs belong to.
        plan: Its jobs, `[J]`.
    """
    size = study.shards.sizes(plan.world, plan.client) if phase.sizes is None else phase.sizes(plan)
    return SizedPlan(plan, size, count_steps(size, phase.local))


def job_traffic(study: Study, phase: Phase, plan: Plan, t: int = 0) -> tuple[IntArray, IntArray]:
    """Bytes that each job sends and receives, `[J]` each: by `phase.traffic`, or from the server to the client and back.

    Args:
        study: What runs.
        phase: The training that the jobs belong to.
        plan: Its jobs, `[J]`.
        t: The round, from 0.
    """
    if phase.traffic is not None:
        return phase.traffic(t, plan)
    layout = study.net.layout
    stays = int(layout.mask(phase.private).sum()) if phase.private else 0  # with the client: it is never sent
    vector = 4 * (layout.d - stays)
    up = phase.compress.bytes(plan.client, study.clients.tier_of(plan.client)) + vector * phase.up_vectors
    counters = sum(name.rpartition(".")[0] not in phase.private for name in layout.counters)
    each = vector * phase.down_vectors + 8 * counters
    return up, np.full(len(plan.client), each, dtype=np.int64)


def _measure(
    study: Study, record: Recorder, evaluate: Callable[[Progress], list[dict[str, Any]]], progress: Progress
) -> None:
    progress.metrics = evaluate(progress)
    if study.evaluation.target is not None and progress.metrics:  # said at once if there is no such metric
        meets_target(progress.metrics[0], study.evaluation.target, "target")
    record.evaluated(progress, progress.metrics)


def has_reached_target(study: Study, progress: Progress) -> bool:
    """Whether every world has reached the target metric."""
    target = study.evaluation.stop_at
    if target is None or not progress.metrics:
        return False
    return all(meets_target(row, target) for row in progress.metrics)


def meets_target(row: Mapping[str, Any], target: tuple[str, float], key: str = "stop_at") -> bool:
    """Whether a row of metrics has reached a target. key: which of `evaluate`.

    Raises:
        BadInput: there is no such metric in this run.
    """
    name, value = target
    if name not in row:
        known = ", ".join(k for k, v in row.items() if isinstance(v, float))
        raise BadInput(f"evaluate.{key}.metric = {name}: this run has no such metric: choose one of {known}")
    if row[name] is None:  # not measured in this round
        return False
    return reaches_target(name, row[name], value)
