"""Asynchronous training: server steps in the order of a timeline, and training in the widest blocks possible.

A round of the loop is one server step in every world. Its uploads come from jobs that started from older versions of
their models. The starts of all jobs in flight are known, so one call of the runtime trains many of them, also some that
later steps will use: their sums are kept until then. A job is a pure function of the version it started from, the
client's data and its address; when it is computed never changes a bit.

Example:
    >>> [wave.tolist() for wave in split_turns(np.array([4, 7, 4]))]  # client 4's second job reads what its first left
    [[0, 1], [2]]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from fedray.core.errors import FedrayError
from fedray.core.exact_sum import merge_stats
from fedray.core.method import Phase
from fedray.core.types import Flight, IntArray, Plan, SizedPlan, State, Stats
from fedray.simulation import clock
from fedray.simulation.devices import Available
from fedray.simulation.flights import Group, Groups, Versions, join_groups
from fedray.simulation.interfaces import FlightTable, JobTable, Progress, Runtime
from fedray.simulation.rounds import RoundResult, count_bytes, job_traffic, size_jobs
from fedray.simulation.study import Study
from fedray.simulation.timeline import KEPT_TURNS, Job, Pace, ServerStep, Timeline, Wait
from fedray.training.block import samples_seen


class ClientCosts(NamedTuple):
    """What a job of each client costs: `[N]` each in a world, `[R, N]` in all worlds.

    Attributes:
        size: Training samples.
        steps: Optimizer steps, those of personal models included.
        up: Bytes that it sends.
        down: Bytes that it receives.
    """

    size: IntArray
    steps: IntArray
    up: IntArray
    down: IntArray


class AsyncTraining:
    """The server steps of a study whose clients do not wait for each other."""

    def __init__(self, study: Study, runtime: Runtime, phase: Phase, progress: Progress) -> None:
        """Goes to where a run stands.

        Args:
            study: What runs; it has an `AsyncRule`.
            runtime: Where its jobs run.
            phase: The training that the jobs belong to.
            progress: Where the run begins or resumes; from now on it knows which versions are in flight.
        """
        assert study.asynchronous is not None
        self.study, self.runtime, self.phase, self.rule = study, runtime, phase, study.asynchronous
        self._plan = lru_cache(KEPT_TURNS)(lambda turn: phase.schedule(turn, None))
        columns = zip(*(self._count_costs(world) for world in range(study.worlds)), strict=True)
        self._costs = ClientCosts(*(np.stack(column) for column in columns))
        self._lines = [self._make_timeline(world) for world in range(study.worlds)]
        self._versions = Versions(study.worlds, phase.models, progress.flight())
        self._sums: dict[Group, Stats] = {}
        for line in self._lines:
            self._versions.begin(line, progress.round)
        progress.flight = self._versions.tensors

    def _count_costs(self, world: int) -> ClientCosts:
        """What jobs cost in a world: it depends on the client alone."""
        client = np.arange(self.study.clients.number)
        plan = Plan(client, np.zeros_like(client), np.full_like(client, world))
        jobs = size_jobs(self.study, self.phase, plan)
        steps = jobs.steps * (1 + len(self.phase.personal))
        return ClientCosts(jobs.size, steps, *job_traffic(self.study, self.phase, plan))

    def _make_timeline(self, world: int) -> Timeline:
        study, client = self.study, np.arange(self.study.clients.number)
        each = ClientCosts(*(column[world] for column in self._costs))
        samples = samples_seen(each.size, each.steps, self.phase.local.batch_size)
        costs = clock.JobCosts(each.steps, each.up, each.down, samples)
        seed, zero = study.seeds[world], np.zeros(len(client))
        compute, transfer = clock.time_jobs(study.devices, np.full_like(client, seed), client, costs, zero)
        if not np.isfinite(compute + transfer).all():
            raise FedrayError("a job takes infinite virtual time: raise uplink and downlink of clients.tiers")
        return Timeline(
            self.rule,
            Pace(compute, transfer, study.devices.figure("side_by_side", client) > 0, each.steps > 0),
            self.phase.models,
            seed=int(seed),
            assign=partial(self._assign, world),
            wait=None if study.devices.available is None else self._make_wait(study.devices.available, world),
            world=world,
        )

    def _make_wait(self, available: Available, world: int) -> Wait:
        """When the clients of a world are available."""
        seed = self.study.seeds[world : world + 1]
        return lambda client, now: float(available(seed, np.array([client]), np.array([now]))[0])

    def _assign(self, world: int, turn: int) -> tuple[IntArray, IntArray]:
        """Which models every client of a world trains in one of its turns."""
        plan = self._plan(turn)
        mine = plan.world == world
        return plan.client[mine], plan.model[mine]

    def advance(self, progress: Progress) -> RoundResult:
        """The next server step of every world.

        Args:
            progress: Where the run stands; it is not changed.
        """
        t, state = progress.round, progress.state
        steps = [line.read(t, t + 1)[0] for line in self._lines]
        if not all(job.trained for step in steps for job in step.jobs):
            self._train(t, state)
        stats = self._collect(t, steps)
        after = self._mix(steps, state) if self.rule.mode == "async" else state
        after = self.phase.server.step(after, stats, t) if stats else after
        for line, step in zip(self._lines, steps, strict=True):
            self._versions.pass_step(line, step, state)
            line.forget(t)
        plan, table = self._describe([job for step in steps for job in chain(step.jobs, step.lost)])
        return RoundResult(plan, table, after, np.array([step.time for step in steps]) - progress.sim_seconds)

    def _collect(self, t: int, steps: list[ServerStep]) -> Stats:
        """The statistics of a server step; empty where all its jobs failed."""
        models, found = self.phase.models, dict[int, Stats]()
        for world, step in enumerate(steps):
            for k in step.models:
                part = self._sums.pop((world, k, t), None)
                if part is not None:
                    found[world * models + k] = part
        return join_groups(found, self.study.worlds * models, models)

    def _mix(self, steps: list[ServerStep], state: State) -> State:
        """FedAsync: `(1 - alpha s) w + alpha s w_start`, to which the server adds `alpha s delta`."""
        models = state.models.clone()
        for job in (job for step in steps for job in step.jobs if job.error is None):
            row = job.world * self.phase.models + job.model
            start = self._versions.find((job.world, job.model, job.version), state)[0].double()
            weight, now = float(self.rule.weigh(np.array([job.staleness]))[0]), models[row].double()
            models[row] = (now + weight * (start - now)).to(models.dtype)
        return state._replace(models=models)

    def _train(self, t: int, state: State) -> None:
        """Trains the jobs of the server step t, and with them those in flight that the next ones use."""
        for jobs in self._choose(t):
            groups = Groups(self.phase.groups)
            sized, rows = self._pack(jobs, groups, state)
            stats, left = self.runtime.train(t, sized, rows, self.phase)
            for j, job in enumerate(jobs):
                job.trained, job.loss, job.error = True, float(left.loss[j]), left.errors.get(j)
            for group, part in groups.split(stats):
                self._sums[group] = merge_stats([self._sums[group], part]) if group in self._sums else part

    def _choose(self, t: int) -> list[list[Job]]:
        """The jobs to be trained now, in calls one after another."""
        ahead = 1 if self.phase.own else self._count_ahead()
        now, chosen, groups = self._versions.now, list[Job](), set[Group]()
        for steps in zip(*(line.read(t, t + ahead) for line in self._lines), strict=True):
            ready = [
                job
                for step in steps
                for job in step.jobs
                if not job.trained and job.version <= now[job.world, job.model]
            ]
            groups |= {(job.world, job.model, job.step) for job in ready}
            if chosen and len(groups) > self.phase.groups:
                break
            chosen += ready
        if not self.phase.own:
            return [chosen]
        owner = np.array([job.world * self.study.clients.number + job.client for job in chosen])
        return [[chosen[j] for j in wave] for wave in split_turns(owner)]

    def _count_ahead(self) -> int:
        """How many server steps what is in flight may last for."""
        per_step = self.rule.goal if self.rule.mode == "buffered" else 1
        return max(1, min(-(-self.rule.concurrency // per_step), self.phase.groups // self.study.worlds))

    def _pack(self, jobs: list[Job], groups: Groups, state: State) -> tuple[SizedPlan, State]:
        """The jobs as a runtime takes them, and the versions that they start from, one a row."""
        columns = [(job.client, job.model, job.world, job.turn, job.version, job.staleness, job.copy) for job in jobs]
        client, model, world, turn, version, late, copy = np.array(columns, dtype=np.int64).T
        keys = [(job.world, job.model, job.version) for job in jobs]
        rows = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        flight = Flight(
            row=np.array([rows[key] for key in keys]),
            group=groups.number([(job.world, job.model, job.step) for job in jobs]),
            weight=self.rule.weigh(late),
            turn=turn,
            version=version,
            sender=client + copy * self.study.clients.number,
        )
        sized = size_jobs(self.study, self.phase, Plan(client, model, world))._replace(flight=flight)
        return sized, self._versions.rows(list(rows), state)

    def _describe(self, jobs: list[Job]) -> tuple[Plan, JobTable]:
        """The jobs that end at a server step: a plan and the rows of the table."""
        columns = [(job.client, job.model, job.world, job.version, job.staleness, job.status) for job in jobs]
        client, model, world, version, late, status = np.array(columns, dtype=np.int64).reshape(-1, 6).T
        times = np.array([(job.start, job.arrival, job.loss) for job in jobs], dtype=np.float64)
        start, arrival, loss = times.reshape(-1, 3).T
        error = np.array([job.error for job in jobs], dtype=object)
        size, steps, up, down = (column[world, client] for column in self._costs)
        failed = np.array([job.error is not None for job in jobs], dtype=bool)
        status = np.where(failed, clock.FAILED, status)
        steps = np.where(status == clock.OK, steps, 0)
        up, down = count_bytes(self.phase, status, up, down)
        flight = FlightTable(start, arrival, version, late)
        table = JobTable(size, steps, loss, up, down, arrival - start, status, error, flight)
        return Plan(client, model, world), table


def choose_advance(study: Study, runtime: Runtime, progress: Progress) -> Callable[[Progress], RoundResult] | None:
    """What computes the next server step of a study without rounds; None for a study in rounds.

    Args:
        study: What runs.
        runtime: Where its jobs run.
        progress: Where the run begins or resumes.
    """
    return None if study.asynchronous is None else AsyncTraining(study, runtime, study.method.phase, progress).advance


def split_turns(owner: IntArray) -> list[IntArray]:
    """Splits jobs into waves in which nobody has two: first everybody's first, then everybody's second, ...

    Args:
        owner: Whose each job is, `[J]`.
    """
    order = np.argsort(owner, kind="stable")
    same = np.r_[True, owner[order][1:] != owner[order][:-1]][: len(owner)]
    first = np.maximum.accumulate(np.where(same, np.arange(len(owner)), 0))
    rank = np.empty_like(owner)
    rank[order] = np.arange(len(owner)) - first
    return [np.flatnonzero(rank == wave) for wave in range(int(rank.max(initial=-1)) + 1)]
