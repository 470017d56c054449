"""The round loop: plan, train, step, record, evaluate, checkpoint. One loop for every method."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedray import clock, rng
from fedray.core import FloatArray, IntArray, JobRows, Phase, Plan, State, Stats
from fedray.study import Study


class Runtime(Protocol):
    """Where jobs run. Both runtimes give the same bits."""

    def train(self, t: int, plan: Plan, state: State, phase: Phase) -> tuple[Stats, JobRows]: ...

    def outputs(self, state: State, split: str, models: int) -> dict[tuple[int, int], Tensor]: ...

    def losses(self, state: State, models: int) -> dict[tuple[int, int], Tensor]: ...

    def uncertainty(self, state: State, models: int) -> dict[tuple[int, int], Tensor]: ...

    def private(self) -> dict[str, Tensor]: ...

    def restore(self, private: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...


@dataclass
class Progress:
    """Where a run stands after `round` completed rounds: the server's state and the running totals per world."""

    round: int
    state: State
    up_bytes: IntArray
    down_bytes: IntArray
    sim_seconds: FloatArray
    wall_seconds: float = 0.0
    metrics: list[dict[str, Any]] = field(default_factory=list)


class Jobs(Protocol):
    """Where finished jobs and evaluated rounds go."""

    def jobs(self, round: int, plan: Plan, rows: JobRows, down: IntArray, seconds: FloatArray) -> None: ...

    def evaluated(self, progress: Progress, rows: list[dict[str, Any]]) -> None: ...

    def checkpoint(self, progress: Progress) -> None: ...


def first_state(study: Study, phase: Phase) -> State:
    """The initial models: every (world, model) drawn at its own address."""
    rows = [study.net.init(int(rng.keys(seed, "init", k))) for seed in study.seeds for k in range(phase.models)]
    models = torch.stack(rows).to(study.dtype)
    counters = torch.zeros(len(models), len(study.net.layout.counters), dtype=torch.int64)
    return State(models, counters, phase.server.init(models))


def begin(study: Study, phase: Phase) -> Progress:
    """Progress before the first round."""
    zero = np.zeros(study.worlds, dtype=np.int64)
    return Progress(0, first_state(study, phase), zero, zero.copy(), np.zeros(study.worlds))


def run(
    study: Study,
    runtime: Runtime,
    record: Jobs,
    evaluate: Callable[[Progress], list[dict[str, Any]]],
    progress: Progress,
) -> Progress:
    """Runs a study from `progress` to its end (or to its target metric) and returns where it stands."""
    phase = study.method.phases[0]
    down_each = 4 * study.net.layout.d + 8 * len(study.net.layout.counters)
    began = time.perf_counter() - progress.wall_seconds
    if progress.round == 0:
        _measure(study, record, evaluate, progress)
    while progress.round < study.rounds and not _reached(study, progress):
        t = progress.round
        plan = phase.schedule(t, progress.state)
        stats, rows = runtime.train(t, plan, progress.state, phase)
        state = phase.server.step(progress.state, stats, t)
        down = np.full(len(plan.client), down_each, dtype=np.int64)
        cost = clock.cost(study.clients, study.seeds, plan, rows.steps, rows.up_bytes, down)
        progress.state = _remember(state, plan, rows)
        progress.round = t + 1
        np.add.at(progress.up_bytes, plan.replicate, rows.up_bytes)
        np.add.at(progress.down_bytes, plan.replicate, down)
        progress.sim_seconds = progress.sim_seconds + cost.round
        progress.wall_seconds = time.perf_counter() - began
        record.jobs(t + 1, plan, rows, down, cost.job)
        last = progress.round == study.rounds
        if last or progress.round % study.evaluation.every == 0:
            _measure(study, record, evaluate, progress)
        if last or progress.round % study.checkpoint_every == 0:
            record.checkpoint(progress)
    return progress


def _measure(
    study: Study, record: Jobs, evaluate: Callable[[Progress], list[dict[str, Any]]], progress: Progress
) -> None:
    progress.metrics = evaluate(progress)
    record.evaluated(progress, progress.metrics)


def _reached(study: Study, progress: Progress) -> bool:
    """Whether every world has reached the target metric."""
    target = study.evaluation.stop_at
    if target is None or not progress.metrics:
        return False
    name, value = target
    lower = name in LOWER_IS_BETTER
    return all(row[name] <= value if lower else row[name] >= value for row in progress.metrics)


LOWER_IS_BETTER = ("nll", "nll_none", "nll_residual", "rmse", "brier", "ece", "crps")


def _remember(state: State, plan: Plan, rows: JobRows) -> State:
    """Keeps each job's loss for the adaptive schedule, where the state has room for it."""
    if "job_loss" in state.extra:
        seen = state.extra["job_loss"].clone()
        seen[plan.replicate, plan.client, plan.model] = torch.from_numpy(rows.loss).float()
        return state._replace(extra={**state.extra, "job_loss": seen})
    return state
