"""The round loop: plan, train, step, record, evaluate, checkpoint. One loop for every method.

The loop knows no method and no feature by name. What is particular about a method is in its `Phase`: the schedule that
plans a round, the server that steps, and, where they differ from the usual, the samples and bytes of its jobs
(`Phase.sizes`, `Phase.traffic`), what participants say about it (`Phase.choose`), and what its state keeps of them
(`Phase.remember`).

Example:
    >>> status = np.array([clock.OK, clock.LATE, clock.DROPPED])
    >>> phase = Phase(models=1, schedule=lambda t, state: None, local=None, server=None, compress=None)
    >>> [each.tolist() for each in count_bytes(phase, status, up=np.full(3, 7), down=np.full(3, 5))]
    [[7, 0, 0], [5, 5, 0]]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.errors import FedrayError, warn_user
from fedray.core.local import count_shared, reads_ensemble
from fedray.core.measured import ClientSums
from fedray.core.method import JobRows, Phase
from fedray.core.types import FloatArray, IntArray, Plan, SizedPlan, State, Stats
from fedray.simulation import clock
from fedray.simulation.interfaces import JobTable, Progress, Recorder, Runtime
from fedray.simulation.measuring import CountRounds, Measuring
from fedray.simulation.stopping import find_stop
from fedray.simulation.study import Study
from fedray.training.block import count_steps, samples_seen

NOT_REACHED = (clock.NO_DATA, clock.DROPPED, clock.UNAVAILABLE)  # clients that download nothing
_REACHED = np.isin(np.arange(len(clock.STATUS)), NOT_REACHED, invert=True)


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
        state = study.method.prepare(state, study.pool_rows)
    return Progress(0, state, zero, zero.copy(), np.zeros(study.worlds))


class RoundResult(NamedTuple):
    """What a round leaves.

    Attributes:
        plan: Its jobs, `[J]`, also those that did not count.
        table: What is kept of them, `[J]`.
        state: What the server knows afterwards.
        now: Virtual seconds at its end, `[worlds]`.
        rounds: How many rounds it stands for: several server steps of asynchronous training.
        at: Of several rounds: that of each job, from 1, `[J]`; None: it is one round.
    """

    plan: Plan
    table: JobTable
    state: State
    now: FloatArray
    rounds: int = 1
    at: IntArray | None = None


Advance = Callable[[Progress, CountRounds], RoundResult]  # (where the run stands, how many may pass) -> rounds


def run_rounds(
    study: Study,
    runtime: Runtime,
    recorder: Recorder,
    evaluate: Callable[[Progress], list[dict[str, Any]]],
    progress: Progress,
    *,
    advance: Advance | None = None,
) -> Progress:
    """Runs a study from `progress` to its end, or until a rule or a callback ends it, and returns where it stands.

    Args:
        study: What runs.
        runtime: Where its jobs run.
        recorder: Keeps finished jobs, metrics and checkpoints.
        evaluate: A function of the progress that returns a row of metrics for each world.
        progress: Where the run begins or resumes; it is changed in place.
        advance: Computes the next rounds; None: `run_round` does.
    """
    if advance is None:
        advance = partial(run_round, study, runtime, study.method.phase)
    run = Measuring(study, runtime, recorder, evaluate, progress, time.perf_counter() - progress.wall_seconds)
    if progress.round == 0 and not progress.metrics:  # with metrics it was measured, and the run is made longer
        run.measure()
    rules = study.evaluation
    if progress.round == 0 or (rules.every_seconds is None and progress.round % rules.every == 0):  # it was measured
        progress.stopped = progress.stopped or find_stop(study, progress)
    done = progress.round >= study.rounds or bool(progress.stopped)
    if done and progress.round == 0:
        recorder.checkpoint(progress)
    while not done:
        result, before = advance(progress, run.count_rounds), progress.sim_seconds
        add_round(progress, result)
        progress.wall_seconds = time.perf_counter() - run.began
        recorder.jobs(progress.round if result.at is None else result.at, result.plan, result.table)
        done = run.finish_round(before)
    return progress


def add_round(progress: Progress, result: RoundResult) -> None:
    """Adds what was computed to the totals of a run."""
    progress.state = result.state
    progress.round += result.rounds
    np.add.at(progress.up_bytes, result.plan.world, result.table.up_bytes)
    np.add.at(progress.down_bytes, result.plan.world, result.table.down_bytes)
    progress.sim_seconds = result.now
    progress.failed += int((result.table.status == clock.FAILED).sum())


def run_round(
    study: Study, runtime: Runtime, phase: Phase, progress: Progress, _count_rounds: CountRounds | None = None
) -> RoundResult:
    """Plans a round, times it, trains the jobs that count, and steps the server.

    Args:
        study: What runs.
        runtime: Where its jobs run.
        phase: The training that the round belongs to.
        progress: Where the run stands; it is not changed.
    """
    t = progress.round
    plan, losses = ask_participants(runtime, phase, phase.schedule(t, progress.state), progress.state)
    if t == 0 and not len(plan.client):
        warn_user("the schedule has no job in the first round, in which nobody trains: let it return some")
    jobs = size_jobs(study, phase, plan)._replace(losses=losses)
    passes = 1 + len(phase.personal)  # each deals its batches anew
    steps = jobs.steps * passes
    up, down = job_traffic(study, phase, plan, t)
    if phase.steps is None:
        samples = samples_seen(jobs.size, jobs.steps, phase.local.batch_size) * passes
    else:
        samples = phase.steps(plan, jobs.size)[1]
    work = None if phase.slices is None else phase.slices.work[study.clients.tier_of(plan.client)]
    costs = clock.JobCosts(steps, up, down, samples, work)
    now = progress.sim_seconds
    with np.errstate(over="ignore"):  # what follows from it is one line, below
        timing = clock.time_round(study.devices, study.rule, plan, costs, seeds=study.seeds, t=t, now=now)
    if not np.isfinite(now + timing.round).all():
        raise FedrayError(
            f"round {t + 1} takes infinite virtual time: raise uplink and downlink, or lower seconds_per_step, "
            "seconds_per_sample and latency of clients.tiers"
        )
    state, trained = _train_counted(runtime, phase, t, jobs, state=progress.state, status=timing.status)
    steps = np.where(trained.status == clock.OK, steps, 0)
    up, down = count_bytes(phase, trained.status, up, down)
    table = JobTable(jobs.size, steps, trained.loss, up, down, timing.job, trained.status, trained.error)
    return RoundResult(plan, table, state, now + timing.round)


def ask_participants(runtime: Runtime, phase: Phase, plan: Plan, state: State) -> tuple[Plan, FloatArray | None]:
    """The plan of a round, after its participants were asked which models they train, where the method asks them.

    Beside it are the losses that they have told, `[J, K]`; None where nobody was asked.

    Args:
        runtime: Where the participants are.
        phase: The training that the plan belongs to.
        plan: The jobs that the schedule has written, `[J]`.
        state: What the server knows before the round.
    """
    if phase.choose is None or not len(plan.client):
        return plan, None
    each = [plan.client[plan.world == world] for world in range(int(plan.world.max()) + 1)]
    pieces = runtime.losses(state, phase.models, clients=each)
    losses = np.empty((len(plan.client), phase.models))
    for world in range(len(each)):
        told = [pieces[piece].double().numpy() for piece in sorted(pieces) if piece[0] == world]
        losses[plan.world == world] = np.concatenate([np.empty((phase.models, 0)), *told], axis=1).T
    return phase.choose(plan, losses), losses


class _TrainedJobs(NamedTuple):
    """What training changed in the table of jobs, `[J]` each: see `JobTable`."""

    status: IntArray
    loss: FloatArray
    error: NDArray[np.object_]


def _train_counted(
    runtime: Runtime, phase: Phase, t: int, jobs: SizedPlan, *, state: State, status: IntArray
) -> tuple[State, _TrainedJobs]:
    """Trains the jobs whose status is OK and steps the server on those of them that did not fail."""
    counted = status == clock.OK
    trained = _TrainedJobs(status.copy(), np.full(len(status), np.nan), np.full(len(status), None, dtype=object))
    if counted.any():
        some = jobs if counted.all() else jobs.take(counted)
        stats, rows = _ask_clients(runtime, phase, t, some, state=state, sent=runtime.train(t, some, state, phase))
        trained.loss[counted] = rows.loss
        for job, text in rows.errors.items():
            place = np.flatnonzero(counted)[job]
            trained.status[place], trained.error[place] = clock.FAILED, text
        counted = trained.status == clock.OK
        if counted.any():
            state = phase.server.step(state, stats, t)
            if phase.remember is not None:
                state = phase.remember(t, state, jobs.plan.take(counted), trained.loss[counted])
    return state, trained


def _ask_clients(
    runtime: Runtime, phase: Phase, t: int, jobs: SizedPlan, *, state: State, sent: tuple[Stats, JobRows]
) -> tuple[Stats, JobRows]:
    """What jobs have sent, and what those that did not fail answer to what `phase.ask` asks them about it."""
    stats, rows = sent
    asked = None if phase.ask is None or len(rows.errors) == len(jobs.size) else phase.ask(state, stats)
    if asked is None:
        return sent
    there = np.setdiff1d(np.arange(len(jobs.size)), list(rows.errors))
    answers, later = runtime.train(t, jobs.take(there), asked, phase)
    failed = {int(there[job]): text for job, text in later.errors.items()}
    return {**stats, **answers}, rows._replace(errors={**rows.errors, **failed})


def size_jobs(study: Study, phase: Phase, plan: Plan) -> SizedPlan:
    """A plan with the training samples and the optimizer steps of each job.

    Args:
        study: What runs.
        phase: The training that the jobs belong to.
        plan: Its jobs, `[J]`.
    """
    size = study.shards.sizes(plan.world, plan.client) if phase.sizes is None else phase.sizes(plan)
    steps = count_steps(size, phase.local) if phase.steps is None else phase.steps(plan, size)[0]
    return SizedPlan(plan, size, steps)


def job_traffic(study: Study, phase: Phase, plan: Plan, t: int = 0) -> tuple[IntArray, IntArray]:
    """Bytes that each job sends and receives, `[J]` each.

    They are what `phase.traffic` says; without it models go from the server to the client and back. A client that is
    asked which model it trains gets all of them. Where the loss reads all models, the first job of a client brings
    those that it does not train.

    Args:
        study: What runs.
        phase: The training that the jobs belong to.
        plan: Its jobs, `[J]`.
        t: The round, from 0.
    """
    if phase.traffic is not None:
        return phase.traffic(t, plan)
    layout, tier = study.net.layout, study.clients.tier_of(plan.client)
    stays = int(layout.mask(phase.private).sum()) if phase.private else 0  # with the client: it is never sent
    numbers = np.full(len(tier), layout.d - stays) if phase.slices is None else phase.slices.numbers[tier]
    vector = 4 * numbers
    sums = phase.measure.numbers if isinstance(phase.measure, ClientSums) else 0
    up = phase.compress.bytes(plan.client, tier) + vector * phase.up_vectors + 4 * sums
    counters = sum(name.rpartition(".")[0] not in phase.private for name in layout.counters)
    sent = 8 * counters * (phase.down_vectors > 0)  # they come with a model
    down = (vector * phase.down_vectors + sent) * (1 if phase.choose is None else phase.models)
    down = down + 4 * count_shared(phase.local.loss)
    if reads_ensemble(phase.local.loss) and phase.choose is None:
        _, first, jobs = np.unique(
            plan.world * study.clients.number + plan.client, return_index=True, return_counts=True
        )
        down[first] += (phase.models - jobs) * (vector[first] + 8 * counters)
    return up, down


def count_bytes(phase: Phase, status: IntArray, up: IntArray, down: IntArray) -> tuple[IntArray, IntArray]:
    """Bytes that count as sent and as received, `[J]` each.

    With a server an upload counts where the server used it: it does not wait for late clients and tells them to stop. A
    download counts where the client was reached, also where it is late or fails. Where clients hand models on there are
    no other messages: what a client sends the next one receives in the same round, also when its training failed.

    Args:
        phase: The training that the jobs belong to.
        status: How each job ended: an index into `fedray.simulation.clock.STATUS`, `[J]`.
        up: Bytes that each client sends if its job counts, `[J]`.
        down: Bytes that each client receives before it trains, `[J]`.
    """
    if phase.hands_on:
        return up, up
    return np.where(status == clock.OK, up, 0), np.where(_REACHED[status], down, 0)
