"""Starts and arrivals of asynchronous training, in virtual time, of one world."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.method import Phase
from fedray.core.types import FloatArray, IntArray, Plan
from fedray.simulation import clock
from fedray.simulation.async_rule import AsyncRule
from fedray.simulation.rounds import job_traffic, size_jobs
from fedray.simulation.study import Study
from fedray.training.block import samples_seen

# ---------------------------------------------------------------------------------------------------------------------
# Jobs of asynchronous training: a row each when they start, columns when they have ended.


class StartedJob(NamedTuple):
    """What is known of a job when it starts; `KnownJobs` says what the words mean."""

    client: int
    model: int
    turn: int
    version: int
    born: int
    start: float
    arrival: float
    status: int


class KnownJobs(NamedTuple):
    """Jobs that end at known server steps, `[J]` each: step by step, model by model, in the order of their arrival.

    Attributes:
        client: Their clients.
        model: Their models.
        turn: How many turns the client had before: in the address of the job it stands for the round.
        version: How many steps its model had taken when it started.
        born: After how many server steps that version existed.
        start: Virtual seconds at which it started.
        arrival: Virtual seconds at which it arrived, or would have.
        status: How it ended: an index into `clock.STATUS`.
        step: The server step that uses it; of a job without an upload, the first one after its end.
        staleness: How many steps its model took between its start and that step; -1 without an upload.
        copy: How many uploads of its client that step has of the same model before it.
        world: Their worlds.
        row: Their models' rows of the state: `world * K + model`.
        loss: Mean loss over the steps; NaN until it is trained. It is changed in place, as the next two are.
        error: Traceback of a job that failed, else None.
        trained: Whether nothing is left to be trained.
    """

    client: IntArray
    model: IntArray
    turn: IntArray
    version: IntArray
    born: IntArray
    start: FloatArray
    arrival: FloatArray
    status: IntArray
    step: IntArray
    staleness: IntArray
    copy: IntArray
    world: IntArray
    row: IntArray
    loss: FloatArray
    error: NDArray[np.object_]
    trained: NDArray[np.bool_]

    def take(self, index: IntArray | slice) -> KnownJobs:
        """Some of the jobs."""
        columns: list[Any] = [column[index] for column in self]
        return KnownJobs(*columns)


def count_earlier(who: IntArray) -> IntArray:
    """Counts for each entry the equal entries before it, `[J]`.

    Example:
        >>> count_earlier(np.array([4, 7, 4, 4])).tolist()
        [0, 0, 1, 2]
    """
    order = np.argsort(who, kind="stable")
    first = np.r_[True, who[order][1:] != who[order][:-1]][: len(who)]
    began = np.maximum.accumulate(np.where(first, np.arange(len(who)), 0))
    rank = np.empty_like(who)
    rank[order] = np.arange(len(who)) - began
    return rank


# ---------------------------------------------------------------------------------------------------------------------
# Starts and arrivals of asynchronous training, in virtual time, of one world.

# ---------------------------------------------------------------------------------------------------------------------
# The length of a job follows from its steps, its bytes and its device, and none of it from training. So the whole
# sequence of starts, arrivals and server steps is known before anything is trained. A heap (`heapq`) holds what will
# happen next: there are no processes that wait for each other, for which a library such as simpy would be of use.
#
# What happens at one instant happens in this order: arrivals by client, with the server steps that they cause; then
# idle clients start, with the newest models. A client without data is never asked. One that is not available when it
# is drawn comes back when it is.

Assign = Callable[[int], tuple[IntArray, IntArray]]  # turn -> (client, model) of everyone's jobs, sorted by client
Moment = Callable[[int, float], float]  # (client, virtual seconds) -> seconds: until it is available, or of its link
MOST_VAIN = 100  # jobs without an upload, and draws of clients that are not there, a client, one after another
KEPT_TURNS = 64  # of which the models of every client are kept
_DRAWS = 1024  # random numbers that are drawn at once


class Pace(NamedTuple):
    """How long a client takes for a job, `[N]` each.

    Attributes:
        compute: Virtual seconds of its training.
        transfer: Virtual seconds of its two transfers, where links do not change.
        parallel: Whether the client trains its models of a turn side by side.
        ready: Whether it has data.
        wait: When clients are available; None: always.
        link: The seconds of the two transfers of a job that starts at a moment; None: links do not change.

    Example:
        Two clients, one twice as fast; the server steps after every second arrival.

        >>> rule = AsyncRule("buffered", concurrency=2, goal=2)
        >>> pace = Pace(np.array([1.0, 2.0]), transfer=np.zeros(2), parallel=np.zeros(2, bool), ready=np.ones(2, bool))
        >>> line = Timeline(rule, pace, 1, seed=0, assign=lambda turn: (np.arange(2), np.zeros(2, int)))
        >>> steps = line.take(3)
        >>> steps.time.tolist()
        [2.0, 3.0, 4.0]
        >>> jobs = steps.jobs
        >>> [(int(s), int(c), int(late)) for s, c, late in zip(jobs.step, jobs.client, jobs.staleness)]
        [(0, 0, 0), (0, 0, 0), (1, 1, 1), (1, 0, 0), (2, 0, 0), (2, 1, 1)]
    """

    compute: FloatArray
    transfer: FloatArray
    parallel: NDArray[np.bool_]
    ready: NDArray[np.bool_]
    wait: Moment | None = None
    link: Moment | None = None


class ServerSteps(NamedTuple):
    """Some steps of the server, one after another.

    Attributes:
        time: Virtual seconds of each, `[S]`.
        models: The models that step in each.
        jobs: The jobs whose uploads they use, and behind those of a step the ones that ended without an upload.
    """

    time: FloatArray
    models: list[tuple[int, ...]]
    jobs: KnownJobs


class Timeline:
    """All that happens in one world. It keeps what is in flight, and nothing of what was taken."""

    def __init__(self, rule: AsyncRule, pace: Pace, models: int, *, seed: int, assign: Assign, world: int = 0) -> None:
        """Starts at time 0, with every client idle.

        Args:
            rule: When the server steps.
            pace: How long the clients take.
            models: K.
            seed: Of the world.
            assign: Which models each client trains in its turns.
            world: Its number.
        """
        self.rule, self._pace = rule, pace
        self._models, self._seed, self._clients, self._world = models, seed, len(pace.compute), world
        self._compute, self._transfer = pace.compute.tolist(), pace.transfer.tolist()
        self._parallel = pace.parallel.tolist()
        self._goal = {"buffered": rule.goal, "async": 1, "semi": math.inf}[rule.mode]
        self._turns = [0] * self._clients
        self._table = lru_cache(KEPT_TURNS)(self._make_table)
        self._assign = assign
        self._idle: list[int] = np.flatnonzero(pace.ready).tolist()
        # time, client, number, job, whether it is the last one of its turn
        self._queue: list[tuple[float, int, int, StartedJob | None, bool]] = []
        self._versions, self._born = [0] * models, [0] * models
        self._buffer: list[list[StartedJob]] = [[] for _ in range(models)]
        self._training, self._count, self._draws = 0, 0, 0
        self._numbers, self._lost = list[float](), list[StartedJob]()
        self._vain = 0  # lost jobs and draws of clients that were not there since the last upload
        self._known = 0  # server steps
        self._times: list[float] = []  # of the steps that were not taken
        self._stepping: list[tuple[int, ...]] = []
        self._flown: list[StartedJob] = []
        self._parts: list[tuple[int, int, int]] = []  # of them: their step, the version of their model then, how many
        self._fill(0.0)

    def take(self, steps: int) -> ServerSteps:
        """The next steps of the server.

        Args:
            steps: How many.

        Raises:
            FedrayError: No upload arrives any more.
        """
        end = self._known - len(self._times) + steps
        self._extend(end)
        parts = bisect_left(self._parts, (end,))  # arrivals of one instant may cause more steps: they wait
        step, now, number = np.array(self._parts[:parts], dtype=np.int64).reshape(-1, 3).T
        flown = int(number.sum())
        names = StartedJob._fields
        flat = np.fromiter(chain.from_iterable(self._flown[:flown]), np.float64, flown * len(names))
        rows = flat.reshape(-1, len(names)).T
        kinds = [float if name in ("start", "arrival") else int for name in names]
        columns: dict[str, Any] = {n: row.astype(kind) for n, row, kind in zip(names, rows, kinds, strict=True)}
        part, now = np.repeat(np.arange(len(number)), number), np.repeat(now, number)
        staleness = np.where(now < 0, -1, now - columns["version"])
        copy = count_earlier(part * self._clients + columns["client"])
        jobs = KnownJobs(
            **columns,
            step=step[part],
            staleness=staleness,
            copy=copy,
            world=np.full(flown, self._world),
            row=self._world * self._models + columns["model"],
            loss=np.full(flown, np.nan),
            error=np.full(flown, None, dtype=object),
            trained=columns["status"] != clock.OK,
        )
        times, stepping = self._times[:steps], self._stepping[:steps]
        del self._times[:steps], self._stepping[:steps], self._flown[:flown], self._parts[:parts]
        return ServerSteps(np.array(times), stepping, jobs)

    def list_open(self) -> list[tuple[int, int]]:
        """Lists model and version of each started job whose upload no server step has used."""
        flying = [entry[3] for entry in self._queue] + [job for buffer in self._buffer for job in buffer] + self._flown
        return [(job.model, job.version) for job in flying if job is not None and job.status == clock.OK]

    def _extend(self, steps: int) -> None:
        """Goes on until so many steps of the server are known."""
        semi, queue, buffers, goal = self.rule.mode == "semi", self._queue, self._buffer, self._goal
        ok, pop = clock.OK, heapq.heappop
        while self._known < steps:
            if not queue or self._vain > MOST_VAIN * (1 + self._clients):
                raise FedrayError(
                    f"after {self._known} server steps no upload arrives any more: look at deadline, dropout and tick "
                    "of participation, at the windows of clients.trace, and at the clients' data"
                )
            now = queue[0][0]
            if semi:
                tick = max(1, math.ceil(now / self.rule.tick - 1e-9)) * self.rule.tick
                now = max(now, tick)  # 3 * 0.1 s is a little later than a tick of 0.3 s
            while queue and queue[0][0] <= now:
                _, client, _, job, last = pop(queue)
                if last:
                    self._idle.append(client)
                if job is None:
                    continue
                self._training -= last
                if job.status != ok:
                    self._lost.append(job)
                    self._vain += 1
                    continue
                self._vain = 0
                buffer = buffers[job.model]
                buffer.append(job)
                if len(buffer) >= goal:
                    self._step(now, (job.model,))
            if semi and any(buffers):
                self._step(now, tuple(k for k in range(self._models) if buffers[k]))
            self._fill(now)

    def _step(self, time: float, models: tuple[int, ...]) -> None:
        """Makes the server steps with all that has arrived for some models."""
        for k in models:
            buffer = self._buffer[k]
            self._flown += buffer
            self._parts.append((self._known, self._versions[k], len(buffer)))
            buffer.clear()
            self._versions[k] += 1
            self._born[k] = self._known + 1
        if self._lost:
            self._flown += self._lost
            self._parts.append((self._known, -1, len(self._lost)))
            self._lost.clear()
        self._times.append(time)
        self._stepping.append(models)
        self._known += 1

    def _fill(self, now: float) -> None:
        """Starts idle clients, drawn at random, until as many train as there may be."""
        idle, most, wait = self._idle, self.rule.concurrency, self._pace.wait
        while idle and self._training < most:
            if not self._numbers:
                self._numbers = rng.uniform(rng.keys(self._seed, "starts", self._draws), _DRAWS)[::-1].tolist()
                self._draws += 1
            place = int(self._numbers.pop() * len(idle))
            client, idle[place] = idle[place], idle[-1]
            idle.pop()
            seconds = 0.0 if wait is None else wait(client, now)
            if seconds <= 0.0:
                self._begin(client, now)
            elif seconds < math.inf:  # else it will never be available again
                heapq.heappush(self._queue, (now + seconds, client, self._count, None, True))
                self._count += 1
                self._vain += 1

    def _begin(self, client: int, now: float) -> None:
        """Starts the next turn of a client, with the newest version of each of its models."""
        turn = self._turns[client]
        self._turns[client] = turn + 1
        first, models = self._table(turn)
        mine = models[first[client] : first[client + 1]]
        self._training += 1
        rule, pace = self.rule, self._pace
        status = clock.OK
        if rule.dropout and rng.uniform(rng.keys(self._seed, "dropout", turn, client), 1)[0] < rule.dropout:
            status = clock.DROPPED
        compute, parallel = self._compute[client], self._parallel[client]
        transfer = self._transfer[client] if pace.link is None else pace.link(client, now)
        most, born = len(mine), self._born
        given_up = math.inf if rule.deadline is None else now + rule.deadline
        for entry, model in enumerate(mine, 1):
            arrival = now + (most * transfer + compute if parallel else entry * (compute + transfer))
            end = arrival
            if arrival > given_up:
                end, status = given_up, clock.PAST_DEADLINE if status == clock.OK else status
            job = StartedJob(client, model, turn, self._versions[model], born[model], now, arrival, status)
            heapq.heappush(self._queue, (end, client, self._count, job, entry == most))
            self._count += 1

    def _make_table(self, turn: int) -> tuple[list[int], list[int]]:
        """Returns the models of each client's turn: where each client's begin, `[N + 1]`, and the models."""
        client, model = self._assign(turn)
        return np.searchsorted(client, np.arange(self._clients + 1)).tolist(), model.tolist()


# ---------------------------------------------------------------------------------------------------------------------
# What jobs of asynchronous training cost, and how long they take: the timelines of all worlds.


class ClientCosts(NamedTuple):
    """What a job of each client costs, `[R, N]` each.

    Attributes:
        size: Training samples.
        steps: Optimizer steps, without those of personal models.
        up: Bytes that it sends.
        down: Bytes that it receives.
    """

    size: IntArray
    steps: IntArray
    up: IntArray
    down: IntArray


def count_costs(study: Study, phase: Phase) -> ClientCosts:
    """Returns what jobs cost in each world: it depends on the client alone.

    Args:
        study: What runs.
        phase: The training that the jobs belong to.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = {"data": {"name": "cubic"}, "clients": {"number": 2}, "participation": {"mode": "async"}}
        >>> study = build_study(read_scenario(scenario | {"rounds": 3}))
        >>> costs = count_costs(study, study.method.phase)
        >>> costs.size.tolist(), make_timelines(study, study.method.phase, costs)[0].take(2).time.tolist()
        ([[16, 16]], [0.1006644, 0.1006644])
    """
    client, columns = np.arange(study.clients.number), []
    for world in range(study.worlds):
        plan = Plan(client, np.zeros_like(client), np.full_like(client, world))
        jobs = size_jobs(study, phase, plan)
        columns.append((jobs.size, jobs.steps, *job_traffic(study, phase, plan)))
    return ClientCosts(*map(np.stack, zip(*columns, strict=True)))


def make_timelines(study: Study, phase: Phase, costs: ClientCosts) -> list[Timeline]:
    """Returns what happens in each world.

    Args:
        study: What runs; it has an `AsyncRule`.
        phase: The training that the jobs belong to.
        costs: What its jobs cost.

    Raises:
        FedrayError: A job takes infinite virtual time.
    """
    assert study.asynchronous is not None
    plan_turn = lru_cache(KEPT_TURNS)(lambda turn: phase.schedule(turn, None))

    def assign(world: int, turn: int) -> tuple[IntArray, IntArray]:
        plan = plan_turn(turn)
        mine = plan.world == world
        return plan.client[mine], plan.model[mine]

    paces = [_find_pace(study, phase, costs, world) for world in range(study.worlds)]
    return [
        Timeline(study.asynchronous, pace, phase.models, seed=int(seed), assign=partial(assign, world), world=world)
        for world, (seed, pace) in enumerate(zip(study.seeds, paces, strict=True))
    ]


def _find_pace(study: Study, phase: Phase, costs: ClientCosts, world: int) -> Pace:
    """Returns how long the clients of a world take."""
    devices, client, seeds = study.devices, np.arange(study.clients.number), study.seeds[world : world + 1]
    size, steps, up, down = (column[world] for column in costs)
    samples = samples_seen(size, steps, phase.local.batch_size) * phase.passes
    job = clock.JobCosts(steps * phase.passes, up, down, samples)
    compute, transfer = clock.time_jobs(devices, np.repeat(seeds, len(client)), client, job, np.zeros(len(client)))
    if not np.isfinite(compute + transfer).all():
        raise FedrayError("a job takes infinite virtual time: raise uplink and downlink of clients.tiers")
    available = devices.available

    def wait(one: int, now: float) -> float:
        assert available is not None
        return float(available(seeds, np.array([one]), np.array([now]))[0])

    def link(one: int, now: float) -> float:
        place = np.array([one])
        return float(clock.time_transfers(devices, place, up[place], down[place], np.array([now]))[0])

    return Pace(
        compute,
        transfer,
        devices.figure("side_by_side", client) > 0,
        steps > 0,
        wait=None if available is None else wait,
        link=None if devices.links is None else link,
    )


# ---------------------------------------------------------------------------------------------------------------------
# What is known ahead of asynchronous training: the jobs of the next server steps of all worlds, as columns.

LEAST_STEPS = 32  # that are computed at once


class Horizon:
    """The server steps of all worlds that are known and were not forgotten.

    Attributes:
        lines: What happens in each world.
        jobs: The jobs of these steps.
        open: Of jobs in flight that no known step uses: row of the state and version of its model.

    Example:
        >>> from fedray.simulation.async_rule import AsyncRule
        >>> from fedray.simulation.timeline import Pace
        >>> rule = AsyncRule("buffered", concurrency=2, goal=2)
        >>> pace = Pace(np.array([1.0, 2.0]), transfer=np.zeros(2), parallel=np.zeros(2, bool), ready=np.ones(2, bool))
        >>> line = Timeline(rule, pace, 1, seed=0, assign=lambda turn: (np.arange(2), np.zeros(2, int)))
        >>> ahead = Horizon([line], models=1, last=9)
        >>> ahead.reach(3)
        >>> ahead.seconds(0, 3)[:, 0].tolist(), ahead.jobs.client[ahead.places(1, 3)].tolist()
        ([2.0, 3.0, 4.0], [1, 0, 0, 1])
    """

    def __init__(self, lines: list[Timeline], models: int, last: int) -> None:
        """Knows no step.

        Args:
            lines: What happens in each world.
            models: K.
            last: The last step, from 1, that will ever be of use.
        """
        self.lines, self.open = lines, list[tuple[int, int]]()
        self._models, self._last, self._first = models, last, 0
        self._seconds: FloatArray = np.zeros((0, len(lines)))
        self._rows: list[list[int]] = []
        self.jobs = self._join([line.take(0) for line in lines])
        self._bounds = np.zeros(1, dtype=np.int64)

    @property
    def end(self) -> int:
        """How many steps are known, forgotten ones included."""
        return self._first + len(self._rows)

    def reach(self, end: int) -> None:
        """Makes the steps before `end` known, as far as they are of use.

        Raises:
            FedrayError: No upload arrives any more.
        """
        missing = min(end, self._last) - self.end
        if missing <= 0:
            return
        more = min(max(missing, LEAST_STEPS), self._last - self.end)
        taken = [line.take(more) for line in self.lines]
        both: list[Any] = [np.concatenate(pair) for pair in zip(self.jobs, self._join(taken), strict=True)]
        self.jobs = KnownJobs(*both)
        self._seconds = np.concatenate([self._seconds, np.stack([steps.time for steps in taken], axis=1)])
        stepping = zip(*(steps.models for steps in taken), strict=True)
        self._rows += [[w * self._models + k for w, models in enumerate(step) for k in models] for step in stepping]
        self._bounds = np.searchsorted(self.jobs.step, np.arange(self._first, self.end + 1))
        self.open = [(w * self._models + k, v) for w, line in enumerate(self.lines) for k, v in line.list_open()]

    def _join(self, taken: list[ServerSteps]) -> KnownJobs:
        """Joins the same steps of all worlds."""
        columns: list[Any] = [np.concatenate(column) for column in zip(*(steps.jobs for steps in taken), strict=True)]
        jobs = KnownJobs(*columns)
        return jobs if len(taken) == 1 else jobs.take(np.argsort(jobs.step, kind="stable"))

    def forget(self, t: int) -> None:
        """Drops the steps before t."""
        self.jobs = self.jobs.take(slice(self._bounds[t - self._first], None))
        self._seconds, self._rows = self._seconds[t - self._first :], self._rows[t - self._first :]
        self._first = t
        self._bounds = self._bounds[-len(self._rows) - 1 :] - self._bounds[-len(self._rows) - 1]

    def seconds(self, first: int, end: int) -> FloatArray:
        """Returns virtual seconds of the known steps from `first` up to, but without, `end`, `[S, R]`."""
        return self._seconds[first - self._first : end - self._first]

    def rows(self, t: int) -> list[int]:
        """Returns the rows of the state that step in t."""
        return self._rows[t - self._first]

    def places(self, first: int, end: int) -> slice:
        """Returns the places of the jobs of the known steps from `first` up to, but without, `end`."""
        end = min(end, self.end)
        return slice(int(self._bounds[first - self._first]), int(self._bounds[end - self._first]))

    def find_untrained(self) -> int:
        """Returns the first step that uses a job which is not trained; without one the end of the known steps."""
        rest = np.flatnonzero(~self.jobs.trained)
        return int(self.jobs.step[rest[0]]) if len(rest) else self.end
