"""Runs asynchronous training, in which no client waits for other clients. Clients start and finish in virtual time.

A *job* trains one model of one world at one client. It starts from the newest *version* of the model. Each server step
that changes the model makes the next version. A job is *in flight* from its start until the server uses its upload. The
*staleness* of its upload is the number of server steps that change the model while the job is in flight. A *world* is
one combination of a seed and a fold of the data. A *study* is everything that a run needs except a runtime.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import BadInput, FedrayError
from fedray.core.sums import ExactSum, Kept, add_stats, map_arrays
from fedray.core.types import Flight, FloatArray, IntArray, Plan, SizedPlan, State, Stats
from fedray.simulation import devices as clock
from fedray.simulation import rounds
from fedray.simulation.study import AsyncRule, FlightTable, JobTable, Progress, Runtime, Study

# ---------------------------------------------------------------------------------------------------------------------
# Jobs of asynchronous training. A started job is a tuple, and ended jobs are columns of a table.


class StartedJob(NamedTuple):
    """A job that has just started. `KnownJobs` describes the fields."""

    client: int
    model: int
    turn: int
    version: int
    born: int
    start: float
    arrival: float
    status: int


class KnownJobs(NamedTuple):
    """The J jobs that end at the known server steps. A server step is known if its time is already computed.

    All arrays are `[J]`. The jobs are sorted by server step and then by world. In each world, jobs whose uploads the
    step uses come first, sorted by model and then by arrival.

    Attributes:
        client: Client of each job.
        model: Model of each job.
        turn: Number of the client's earlier turns. In a turn a client trains the models that the schedule assigns to
            it. The job's random numbers depend on the turn.
        version: Number of server steps that changed the job's model before the job started.
        born: Server step, counted from 1, that made the job's version of the model. It is 0 for the initial model.
        start: Virtual second at which the job started.
        arrival: Virtual second at which the upload arrived. A job without upload has the second at which its upload was
            expected.
        status: Index into `fedray.simulation.devices.STATUS`. It says how the job ended.
        step: Server step that uses the upload. If no step uses it, this is the first step after the job's end.
        staleness: Number of server steps that changed the model between the job's start and `step`. It is -1 if no step
            uses the upload.
        copy: Number of the client's earlier uploads of the same model in the same server step.
        world: World of each job.
        row: Row of the state that holds the job's model: `world * K + model`.
        loss: Mean loss over the optimizer steps. It is NaN until the job is trained. Training changes `loss`, `error`
            and `trained` in place.
        error: Traceback if the job failed. Otherwise it is None.
        trained: Whether the job needs no training any more, because it was trained or no step uses its upload.
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

    def take(self, index: IntArray | slice) -> "KnownJobs":
        """Returns some of the jobs."""
        columns: list[Any] = [column[index] for column in self]
        return KnownJobs(*columns)


def count_earlier(who: IntArray) -> IntArray:
    """Returns for each of J entries the number of equal entries before it, `[J]`.

    Example:
        >>> count_earlier(np.array([4, 7, 4, 4])).tolist()
        [0, 0, 1, 2]
    """
    order = np.argsort(who, kind="stable")
    ranked, rank = who[order], np.empty_like(who)
    rank[order] = np.arange(len(who)) - np.searchsorted(ranked, ranked)
    return rank


# ---------------------------------------------------------------------------------------------------------------------
# Starts and arrivals of the jobs of one world, in virtual time.
#
# The virtual time of a job depends on its steps, its bytes and its device, but not on trained parameters. So all
# starts, arrivals and server steps are known before anything is trained. A heap (`heapq`) holds the next events. A
# library such as simpy is not needed, because no processes wait for each other.
#
# At the same instant, arrivals are processed first, in the order of clients, with the server steps that they cause.
# Then idle clients start with the newest models. A client without samples never starts. A client that is drawn while it
# is not available becomes idle again as soon as it is available.

Assign = Callable[[int], tuple[IntArray, IntArray]]  # from a turn to clients and models of its jobs
Moment = Callable[[int, float], float]  # (client, virtual second) -> virtual seconds
MOST_IDLE_EVENTS = 100  # after MOST_IDLE_EVENTS * (1 + clients) lost jobs and unavailable clients in a row, a run ends
KEPT_TURNS = 64  # number of newest turns whose assignments of models to clients are cached
_DRAWS = 1024  # number of random numbers drawn at once


class Pace(NamedTuple):
    """The time that each client takes for a job. Arrays are `[N]`.

    Attributes:
        compute: Virtual seconds of training.
        transfer: Virtual seconds of download and upload together. They are not used if `link` is set.
        parallel: Whether the client trains all of its models at the same time.
        ready: Whether the client has samples.
        wait: A function that takes a client and a virtual second, and returns the seconds until the client is
            available. None means that clients are always available.
        link: A function that takes a client and the virtual second of its job's start. It returns the seconds of
            download and upload together. None means that links do not change over time.

    Example:
        One of two clients is twice as fast. The server makes a step after every second arrival.

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
    """S consecutive server steps.

    Attributes:
        time: Virtual second of each server step, `[S]`.
        models: The models that each server step changes.
        jobs: The jobs that end at these steps. For each step, the jobs with uploads that the step uses come first. Then
            come jobs that have ended without an upload since the previous step.
    """

    time: FloatArray
    models: list[tuple[int, ...]]
    jobs: KnownJobs


class Timeline:
    """Computes when the jobs of one world start and arrive, and when the server makes its steps.

    It computes only as many steps as `take` needs. It stores the jobs whose uploads are not used yet, and forgets
    server steps that `take` has returned.
    """

    def __init__(self, rule: AsyncRule, pace: Pace, models: int, *, seed: int, assign: Assign, world: int = 0) -> None:
        """Makes a timeline that begins at time 0 and starts the first clients.

        Args:
            rule: The rule of asynchronous training.
            pace: The time that each client takes for a job.
            models: K, the number of models.
            seed: Seed of the world.
            assign: A function that takes an index t. It returns the jobs of every client's turn t as two arrays
                (client, model), sorted by client. In a turn, a client trains the models that the schedule assigns to
                it. Each client's turns are counted from 0.
            world: Index of the world (a seed and a fold).
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
        # events: time, client, running number, the job that ends or None, whether the client becomes idle
        self._queue: list[tuple[float, int, int, StartedJob | None, bool]] = []
        self._versions, self._born = [0] * models, [0] * models
        self._buffer: list[list[StartedJob]] = [[] for _ in range(models)]
        self._training, self._count, self._draws = 0, 0, 0
        self._numbers, self._lost = list[float](), list[StartedJob]()
        self._vain = 0  # number of lost jobs and unavailable clients since the last upload
        self._known = 0  # number of server steps so far
        self._times: list[float] = []  # times of the steps that `take` has not returned yet
        self._stepping: list[tuple[int, ...]] = []  # the models that each of these steps changes
        self._finished: list[StartedJob] = []  # the jobs that end at these steps
        self._parts: list[tuple[int, int, int]] = []  # runs of `_finished`: (server step, version, number of jobs)
        self._fill(0.0)

    def take(self, steps: int) -> ServerSteps:
        """Returns the next `steps` server steps.

        Raises:
            FedrayError: No upload arrives any more.
        """
        end = self._known - len(self._times) + steps
        self._extend(end)
        parts = bisect_left(self._parts, (end,))  # arrivals at one instant may cause more steps than needed
        step, now, number = np.array(self._parts[:parts], dtype=np.int64).reshape(-1, 3).T
        finished = int(number.sum())
        done, seconds = self._finished[:finished], ("start", "arrival")
        columns: dict[str, Any] = {
            name: np.array([job[i] for job in done], np.float64 if name in seconds else np.int64)
            for i, name in enumerate(StartedJob._fields)
        }
        part, now = np.repeat(np.arange(len(number)), number), np.repeat(now, number)
        staleness = np.where(now < 0, -1, now - columns["version"])
        copy = count_earlier(part * self._clients + columns["client"])
        jobs = KnownJobs(
            **columns,
            step=step[part],
            staleness=staleness,
            copy=copy,
            world=np.full(finished, self._world),
            row=self._world * self._models + columns["model"],
            loss=np.full(finished, np.nan),
            error=np.full(finished, None, dtype=object),
            trained=columns["status"] != clock.OK,
        )
        times, stepping = self._times[:steps], self._stepping[:steps]
        del self._times[:steps], self._stepping[:steps], self._finished[:finished], self._parts[:parts]
        return ServerSteps(np.array(times), stepping, jobs)

    def list_open(self) -> list[tuple[int, int]]:
        """Returns (model, version) of the started jobs that `take` has not returned yet.

        Jobs whose uploads will not be used are left out.
        """
        begun = (
            [entry[3] for entry in self._queue] + [job for buffer in self._buffer for job in buffer] + self._finished
        )
        return [(job.model, job.version) for job in begun if job is not None and job.status == clock.OK]

    def _extend(self, steps: int) -> None:
        """Processes starts and arrivals until `steps` server steps are computed."""
        semi, queue, buffers, goal = self.rule.mode == "semi", self._queue, self._buffer, self._goal
        ok, pop = clock.OK, heapq.heappop
        most = math.inf if self.rule.max_staleness is None else self.rule.max_staleness
        while self._known < steps:
            if not queue or self._vain > MOST_IDLE_EVENTS * (1 + self._clients):
                raise FedrayError(
                    f"after {self._known} server steps no upload arrives any more: look at deadline, dropout, tick and "
                    "max_staleness of participation, at the windows of clients.trace, and at the clients' data"
                )
            now = queue[0][0]
            if semi:
                tick = max(1, math.ceil(now / self.rule.tick - 1e-9)) * self.rule.tick
                now = max(now, tick)  # despite rounding, an arrival at 3 * 0.1 s belongs to the tick at 0.3 s
            while queue and queue[0][0] <= now:
                _, client, _, job, last = pop(queue)
                if last:
                    self._idle.append(client)
                if job is None:
                    continue
                self._training -= last
                if job.status == ok and self._versions[job.model] - job.version > most:
                    job = job._replace(status=clock.STALE)
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
        """Records a server step, which uses all arrived uploads of some models."""
        for k in models:
            buffer = self._buffer[k]
            self._finished += buffer
            self._parts.append((self._known, self._versions[k], len(buffer)))
            buffer.clear()
            self._versions[k] += 1
            self._born[k] = self._known + 1
        if self._lost:
            self._finished += self._lost
            self._parts.append((self._known, -1, len(self._lost)))
            self._lost.clear()
        self._times.append(time)
        self._stepping.append(models)
        self._known += 1

    def _fill(self, now: float) -> None:
        """Starts idle clients, in random order, until `concurrency` clients train."""
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
            elif seconds < math.inf:  # an infinite wait means never
                heapq.heappush(self._queue, (now + seconds, client, self._count, None, True))
                self._count += 1
                self._vain += 1

    def _begin(self, client: int, now: float) -> None:
        """Starts the next turn of a client with the newest versions of its models."""
        turn = self._turns[client]
        self._turns[client] = turn + 1
        first, models = self._table(turn)
        mine = models[first[client] : first[client + 1]]
        if not mine:
            raise BadInput(
                f"the schedule gives client {client} no job in turn {turn}: without rounds, give every client a job in "
                "every turn, or set participation.mode to sync"
            )
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
        """Returns the models that each client trains in its turn with the index `turn`.

        Returns:
            Offsets `[N + 1]` and models. Client i trains `models[offsets[i] : offsets[i + 1]]`.
        """
        client, model = self._assign(turn)
        order = np.argsort(client, kind="stable")  # a user's own schedule may give any order
        client, model = client[order], model[order]
        return np.searchsorted(client, np.arange(self._clients + 1)).tolist(), model.tolist()


# ---------------------------------------------------------------------------------------------------------------------
# The costs of jobs, and the timelines of all worlds.


class ClientCosts(NamedTuple):
    """The costs of a job of each client in each world, in arrays `[R, N]`.

    Attributes:
        size: Number of training samples.
        steps: Number of optimizer steps. The training of models that stay at the client is left out.
        up: Bytes that the job sends.
        down: Bytes that the job receives.
        work: All computation of the job as a number of steps (`simulation.rounds.cost_jobs`).
        samples: Number of samples that the steps of `work` read.
    """

    size: IntArray
    steps: IntArray
    up: IntArray
    down: IntArray
    work: FloatArray
    samples: FloatArray


def count_costs(study: Study) -> ClientCosts:
    """Returns what a job of each client costs in each world.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = {"data": {"name": "cubic"}, "clients": {"number": 2}, "participation": {"mode": "async"}}
        >>> study = build_study(read_scenario(scenario | {"rounds": 3}))
        >>> costs = count_costs(study)
        >>> costs.size.tolist(), make_timelines(study, costs)[0].take(2).time.tolist()
        ([[16, 16]], [0.1006644, 0.1006644])
    """
    client, columns = np.arange(study.clients.number), []
    for world in range(study.worlds):
        plan = Plan(client, np.zeros_like(client), np.full_like(client, world))
        jobs = rounds.size_jobs(study, plan)
        cost = rounds.cost_jobs(study, jobs, *rounds.job_traffic(study, plan))
        columns.append((jobs.size, jobs.steps, cost.up, cost.down, cost.steps, cost.samples))
    return ClientCosts(*map(np.stack, zip(*columns, strict=True)))


def make_timelines(study: Study, costs: ClientCosts) -> list[Timeline]:
    """Returns the timeline of each world.

    Args:
        study: The objects of the run. Its field `asynchronous` must be set.
        costs: The costs of the jobs.

    Raises:
        FedrayError: A job takes infinite virtual time.
    """
    assert study.asynchronous is not None
    phase = study.method.phase
    plan_turn = lru_cache(KEPT_TURNS)(lambda turn: phase.schedule(turn, None))

    def assign(world: int, turn: int) -> tuple[IntArray, IntArray]:
        plan = plan_turn(turn)
        mine = plan.world == world
        return plan.client[mine], plan.model[mine]

    paces = [_find_pace(study, costs, world) for world in range(study.worlds)]
    return [
        Timeline(study.asynchronous, pace, phase.models, seed=int(seed), assign=partial(assign, world), world=world)
        for world, (seed, pace) in enumerate(zip(study.seeds, paces, strict=True))
    ]


def _find_pace(study: Study, costs: ClientCosts, world: int) -> Pace:
    """Returns the virtual time that each client of a world takes for a job."""
    devices, client, seeds = study.devices, np.arange(study.clients.number), study.seeds[world : world + 1]
    _, steps, up, down, work, samples = (column[world] for column in costs)
    job = clock.JobCosts(work, up, down, samples)
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
# The jobs of the next server steps of all worlds. They are known before they are trained.

LEAST_STEPS = 32  # fewest server steps that are computed at once


class KnownSteps:
    """The next server steps of all worlds, and the jobs that end at them.

    Server steps that are already computed are called *known*.

    Attributes:
        lines: The timeline of each world.
        jobs: The jobs that end at the known steps. Jobs of forgotten steps are left out.
        open: The models that later steps need. There is a pair (row of the state, version) for each started job that
            ends after the known steps.

    Example:
        >>> from fedray.simulation.study import AsyncRule
        >>> from fedray.simulation.asynchronous import Pace
        >>> rule = AsyncRule("buffered", concurrency=2, goal=2)
        >>> pace = Pace(np.array([1.0, 2.0]), transfer=np.zeros(2), parallel=np.zeros(2, bool), ready=np.ones(2, bool))
        >>> line = Timeline(rule, pace, 1, seed=0, assign=lambda turn: (np.arange(2), np.zeros(2, int)))
        >>> ahead = KnownSteps([line], models=1, last=9)
        >>> ahead.reach(3)
        >>> ahead.seconds(0, 3)[:, 0].tolist(), ahead.jobs.client[ahead.places(1, 3)].tolist()
        ([2.0, 3.0, 4.0], [1, 0, 0, 1])
    """

    def __init__(self, lines: list[Timeline], models: int, last: int) -> None:
        """Begins without known server steps.

        Args:
            lines: The timeline of each world.
            models: K, the number of models.
            last: Number of server steps of the run.
        """
        self.lines, self.open = lines, list[tuple[int, int]]()
        self._models, self._last, self._first = models, last, 0
        self._seconds: FloatArray = np.zeros((0, len(lines)))
        self._rows: list[list[int]] = []
        self.jobs = lines[0].take(0).jobs
        self._bounds = np.zeros(1, dtype=np.int64)

    @property
    def end(self) -> int:
        """The index of the last known step, plus 1."""
        return self._first + len(self._rows)

    def reach(self, end: int) -> None:
        """Computes the server steps before step `end`, up to the last step of the run.

        Raises:
            FedrayError: No upload arrives any more.
        """
        missing = min(end, self._last) - self.end
        if missing <= 0:
            return
        more = min(max(missing, LEAST_STEPS), self._last - self.end)
        taken = [line.take(more) for line in self.lines]
        columns: list[Any] = [np.concatenate(c) for c in zip(self.jobs, *(one.jobs for one in taken), strict=True)]
        jobs = KnownJobs(*columns)
        self.jobs = jobs.take(np.argsort(jobs.step, kind="stable"))  # of all worlds
        self._seconds = np.concatenate([self._seconds, np.stack([steps.time for steps in taken], axis=1)])
        stepping = zip(*(steps.models for steps in taken), strict=True)
        self._rows += [[w * self._models + k for w, models in enumerate(step) for k in models] for step in stepping]
        self._bounds = np.searchsorted(self.jobs.step, np.arange(self._first, self.end + 1))
        self.open = [(w * self._models + k, v) for w, line in enumerate(self.lines) for k, v in line.list_open()]

    def forget(self, t: int) -> None:
        """Deletes the server steps before step t, and their jobs."""
        self.jobs = self.jobs.take(slice(self._bounds[t - self._first], None))
        self._seconds, self._rows = self._seconds[t - self._first :], self._rows[t - self._first :]
        self._first = t
        self._bounds = self._bounds[-len(self._rows) - 1 :] - self._bounds[-len(self._rows) - 1]

    def seconds(self, first: int, end: int) -> FloatArray:
        """Returns the virtual second of each step from `first` to `end - 1` in each of R worlds, `[S, R]`."""
        return self._seconds[first - self._first : end - self._first]

    def rows(self, t: int) -> list[int]:
        """Returns the rows of the state that change in server step t."""
        return self._rows[t - self._first]

    def places(self, first: int, end: int) -> slice:
        """Returns the slice of `jobs` with the jobs that end at the steps from `first` to `end - 1`."""
        end = min(end, self.end)
        return slice(int(self._bounds[first - self._first]), int(self._bounds[end - self._first]))

    def find_untrained(self) -> int:
        """Returns the first known server step with an untrained job, or `end` if all jobs are trained."""
        rest = np.flatnonzero(~self.jobs.trained)
        return int(self.jobs.step[rest[0]]) if len(rest) else self.end


# ---------------------------------------------------------------------------------------------------------------------
# Data for later server steps: the versions from which jobs in flight started, and the sums of trained jobs.

Group = tuple[int, int]  # (server step, row of the state) of uploads that are added up
Key = tuple[int, int]  # (row of the state, version of the model in this row)
LEAST_FREED = 8  # versions are freed if their number has grown by a quarter plus this


def _pick(value: Any, g: int, groups: int) -> Any:
    """Extracts the sums of group g from the sums of all groups."""
    if isinstance(value, Kept):
        return Kept({key: row for key, row in value.rows.items() if key[0] == g})
    return map_arrays({"": value}, lambda array: array.chunk(groups)[g])[""]


def join_groups(parts: Mapping[int, Stats], rows: int, models: int) -> Stats:
    """Joins the sums of single models into sums for all M models, `[M, ...]`.

    Models without sums get zeros.

    The keys of `parts` are the models' rows in the state.
    """
    if not parts:
        return {}
    first = next(iter(parts.values()))
    if rows == 1 and not any(isinstance(value, Kept) for value in first.values()):
        return first
    found: Stats = {}
    for name, one in first.items():
        fields = {row: next(iter(vars(part[name]).values())) for row, part in parts.items()}  # arrays of each row
        if isinstance(one, Kept):
            each = [(row, client, kept) for row, field in fields.items() for (_, _, client), kept in field.items()]
            found[name] = Kept({(row // models, row % models, client): kept for row, client, kept in each})
        elif isinstance(one, ExactSum):
            limbs = {limb for field in fields.values() for limb in field}
            have = {limb: {row: field[limb] for row, field in fields.items() if limb in field} for limb in limbs}
            found[name] = ExactSum({limb: _place(part, rows) for limb, part in have.items()})
        else:
            found[name] = type(one)(_place(fields, rows))
    return found


def _place(parts: Mapping[int, Tensor], rows: int) -> Tensor:
    """Joins the arrays of all rows into one array, `[rows * p, ...]`.

    `parts` has the arrays of some rows, each of p entries, `[p, ...]`. All other rows get zeros.
    """
    first = next(iter(parts.values()))
    out = first.new_zeros(rows, *first.shape)
    for row, part in parts.items():
        out[row] = part
    return out.flatten(0, 1)


class Versions:
    """Stores the older model versions that unfinished jobs started from.

    Attributes:
        now: For each row of the state, the number of server steps that have changed its model, `[M]`.
    """

    def __init__(self, worlds: int, models: int, flight: Mapping[str, Tensor]) -> None:
        """Starts with the versions in a checkpoint.

        Args:
            worlds: Number of worlds.
            models: K, the number of models.
            flight: The tensors that `tensors` returned for the checkpoint. It is empty if there were no older versions.
        """
        self.now = [0] * (worlds * models)
        self._models = models
        self._rows: dict[Key, tuple[Tensor, Tensor]] = {}
        self._most = 0  # with more versions than this, some are freed
        if flight:
            keys = [(int(w) * models + int(k), int(v)) for w, k, v in flight["keys"].tolist()]
            rows = zip(flight["models"][:, None], flight["counters"][:, None], strict=True)
            self._rows = dict(zip(keys, rows, strict=True))

    def pass_step(self, rows: Iterable[int], state: State | None = None) -> None:
        """Counts a server step that changes some rows of the state, and stores the rows' models as older versions.

        `state` is the state before the step. If it is None, nothing is stored.
        """
        for row in rows:
            if state is not None:
                self._rows[row, self.now[row]] = _copy_row(state.models, row), _copy_row(state.counters, row)
            self.now[row] += 1

    def free(self, t: int, ahead: KnownSteps, *, all: bool = True) -> None:
        """Deletes the versions that no later step needs.

        A version is needed until the server has used the uploads of all jobs that started from it.

        Args:
            t: The next server step.
            ahead: The server steps that are already computed.
            all: Whether to delete versions even if only a few are stored.
        """
        if not all and len(self._rows) <= self._most:
            return
        jobs, later = ahead.jobs, slice(ahead.places(t, t).start, None)
        used = jobs.status[later] == clock.OK
        rows, versions = jobs.row[later][used].tolist(), jobs.version[later][used].tolist()
        needed = {*zip(rows, versions, strict=True), *ahead.open}
        self._rows = {key: row for key, row in self._rows.items() if key in needed}
        self._most = len(self._rows) * 5 // 4 + LEAST_FREED

    def find(self, key: Key, state: State) -> tuple[Tensor, Tensor]:
        """Returns a version of a model, `[1, d]`, and its integer buffers, `[1, c]`.

        `state` has the newest version of each model.
        """
        row, version = key
        if version == self.now[row]:
            return state.models[row : row + 1], state.counters[row : row + 1]
        return self._rows[key]

    def rows(self, keys: Sequence[Key], state: State) -> State:
        """Returns the state that is sent to clients. It has one row for each of the versions `keys`."""
        found = [self.find(key, state) for key in keys]
        return State(torch.cat([one for one, _ in found]), torch.cat([one for _, one in found]), {})

    def tensors(self) -> dict[str, Tensor]:
        """Returns the older versions as tensors for a checkpoint. The dict is empty if there are no older versions."""
        if not self._rows:
            return {}
        keys = sorted(self._rows)
        return {
            "keys": torch.tensor([(row // self._models, row % self._models, v) for row, v in keys], dtype=torch.int64),
            "models": torch.cat([self._rows[key][0] for key in keys]),
            "counters": torch.cat([self._rows[key][1] for key in keys]),
        }


def _copy_row(rows: Tensor, row: int) -> Tensor:
    """Copies a row of the state, `[1, d]`. The other rows then need not stay in memory."""
    return rows if len(rows) == 1 else rows[row : row + 1].clone()


# ---------------------------------------------------------------------------------------------------------------------
# The server steps. A round of the loop is one server step in every world. The uploads of a step come from jobs that
# started from older versions of their models. A job depends only on its version, the client's data and the key of its
# random numbers. So its result has the same bits whenever it is computed. The runtime is called only when a server step
# needs a job that is not trained yet. The call then trains all known jobs whose versions exist, and keeps the sums of
# uploads for later steps. No other order needs fewer calls.

MOST_STEPS = 64  # most server steps that the round loop gets at once


class _Call(NamedTuple):
    """The J jobs that the runtime trains in one call.

    Attributes:
        places: Indexes into the jobs of `KnownSteps.jobs`, `[J]`.
        group: Index of each job's group, `[J]`. The uploads of a group change the same model in the same server step.
        groups: For each group, its server step and the row of the state that its uploads change.
    """

    places: IntArray
    group: IntArray
    groups: list[Group]


class AsyncTraining:
    """Computes the server steps of a study with asynchronous training."""

    def __init__(self, study: Study, runtime: Runtime, progress: Progress) -> None:
        """Prepares training, and computes the timelines up to the server step at which the run begins or resumes.

        Args:
            study: The objects of the run. Its field `asynchronous` must be set.
            runtime: The runtime on which jobs run.
            progress: The progress from which the run begins or resumes. Its field `flight` is replaced.
        """
        assert study.asynchronous is not None
        phase = study.method.phase
        self.study, self.runtime, self.phase, self.rule = study, runtime, phase, study.asynchronous
        self._costs = count_costs(study)
        self._rows = study.worlds * phase.models  # M
        self._ahead = KnownSteps(make_timelines(study, self._costs), phase.models, study.rounds)
        self._versions = Versions(study.worlds, phase.models, progress.flight())
        self._sums: dict[Group, Stats] = {}  # sums over uploads, until the server step that uses the sums
        self._due = self._at = progress.round  # the next step that needs training; the current step
        for t in range(progress.round):
            self._ahead.reach(t + 1)
            self._versions.pass_step(self._ahead.rows(t))
            self._ahead.forget(t + 1 - (t + 1) % MOST_STEPS)
        progress.flight = self._list_flight

    def _list_flight(self) -> dict[str, Tensor]:
        """Returns the older versions of models that are still needed, as tensors for a checkpoint."""
        self._versions.free(self._at, self._ahead)
        return self._versions.tensors()

    def advance(self, progress: Progress, count_rounds: rounds.CountRounds) -> rounds.RoundResult:
        """Computes the next server steps of every world, and returns their result.

        Args:
            progress: The progress of the run. It is not changed.
            count_rounds: A function that takes the virtual time of each of the next steps, and returns how many of them
                to compute.
        """
        t, state, ahead = progress.round, progress.state, self._ahead
        ahead.forget(t)
        ahead.reach(t + MOST_STEPS)
        end = t + count_rounds(ahead.seconds(t, t + MOST_STEPS)[:, 0])
        for s in range(t, end):
            state = self._step(s, state)
        plan, table, at = self._describe(t, end)
        return rounds.RoundResult(plan, table, state, ahead.seconds(end - 1, end)[0].copy(), end - t, at + 1)

    def _step(self, t: int, state: State) -> State:
        """Returns the state after one server step of every world."""
        ahead = self._ahead
        if t >= self._due:
            if ahead.find_untrained() == t:
                self._train(t, state)
            self._due = ahead.find_untrained()
        rows = ahead.rows(t)
        found = {row: sums for row in rows if (sums := self._sums.pop((t, row), None)) is not None}
        stats = join_groups(found, self._rows, self.phase.models)  # empty if all jobs of the step failed
        after = self._mix(t, state) if self.rule.mode == "async" else state
        after = self.phase.server.step(after, stats, t) if stats else after
        self._versions.pass_step(rows, state)
        self._at = t + 1
        return after

    def _mix(self, t: int, state: State) -> State:
        """Mixes each model with the versions from which its jobs started: `(1 - alpha s) w + alpha s w_start`.

        Here `alpha s` is the weight of a job's upload. The server then adds `alpha s delta`, so that the result is
        FedAsync's `(1 - alpha s) w + alpha s w_trained`.
        """
        models, jobs = state.models.clone(), self._ahead.jobs.take(self._ahead.places(t, t + 1))
        used = [j for j in np.flatnonzero(jobs.status == clock.OK).tolist() if jobs.error[j] is None]
        keys = list(zip(jobs.row.tolist(), jobs.version.tolist(), strict=True))
        weights = self.rule.weigh(np.maximum(jobs.staleness, 0))
        for j in used:
            row, weight = keys[j][0], float(weights[j])
            start, now = self._versions.find(keys[j], state)[0][0].double(), models[row].double()
            models[row] = (now + weight * (start - now)).to(models.dtype)
        return state._replace(models=models)

    def _train(self, t: int, state: State) -> None:
        """Trains the jobs of server step t, and jobs of later steps whose versions exist already."""
        ahead = self._ahead
        ahead.reach(t + self._count_ahead())
        self._versions.free(t, ahead, all=False)
        for call in self._choose(t):
            stats, left = self.runtime.train(t, *self._pack(call, state))
            ahead.jobs.trained[call.places] = True
            ahead.jobs.loss[call.places] = left.loss
            for j, text in left.errors.items():
                ahead.jobs.error[call.places[j]] = text
            for g, group in enumerate(call.groups):  # groups without uploads come last in `stats`
                own = {name: _pick(value, g, self.phase.groups) for name, value in stats.items()}
                add_stats(self._sums.setdefault(group, {}), own)

    def _count_ahead(self) -> int:
        """Returns the number of server steps, the current step included, whose jobs may be trained in one call."""
        per_step = self.rule.goal if self.rule.mode == "buffered" else 1
        return max(1, min(-(-self.rule.concurrency // per_step), self.phase.groups // self.study.worlds))

    def _choose(self, t: int) -> Iterator[_Call]:
        """Yields the calls of the runtime that train the jobs of step t, and perhaps some jobs of later steps.

        If clients keep private data between jobs, a call has only jobs of step t, and at most one job of each client.
        """
        jobs, own, rows = self._ahead.jobs, self.phase.own, self._rows
        near = self._ahead.places(t, t + (1 if own else self._count_ahead()))
        ready = near.start + np.flatnonzero(~jobs.trained[near] & (jobs.born[near] <= t))
        waves = [ready]
        if own:  # the second wave has the second job of each client, because this job reads what the first one left
            earlier = count_earlier(jobs.world[ready] * self.study.clients.number + jobs.client[ready])
            waves = [ready[earlier == wave] for wave in range(int(earlier.max(initial=-1)) + 1)]
        for index in waves:
            code = jobs.step[index] * rows + jobs.row[index]  # in ascending order
            new = np.r_[True, code[1:] != code[:-1]]
            group = np.cumsum(new) - 1
            if group[-1] >= self.phase.groups:
                keep = group < self.phase.groups
                index, group, code, new = (part[keep] for part in (index, group, code, new))
            yield _Call(index, group, [divmod(each, rows) for each in code[new].tolist()])

    def _pack(self, call: _Call, state: State) -> tuple[SizedPlan, State]:
        """Returns the jobs for a call of the runtime, and a state with the models from which these jobs start.

        The state has one row for each version of each model.
        """
        jobs, index, number = self._ahead.jobs, call.places, self.study.clients.number
        client, version, world = jobs.client[index], jobs.version[index], jobs.world[index]
        rows: dict[Key, int] = {}
        place = [rows.setdefault(k, len(rows)) for k in zip(jobs.row[index].tolist(), version.tolist(), strict=True)]
        flight = Flight(
            row=np.array(place),
            group=call.group,
            weight=self.rule.weigh(jobs.staleness[index]),
            turn=jobs.turn[index],
            version=version,
            sender=client + jobs.copy[index] * number,
        )
        plan, who = Plan(client, jobs.model[index], world), world * number + client
        sized = SizedPlan(plan, self._costs.size.ravel()[who], self._costs.steps.ravel()[who], flight)
        return sized, self._versions.rows(list(rows), state)

    def _describe(self, first: int, end: int) -> tuple[Plan, JobTable, IntArray]:
        """Describes the jobs that end at the server steps from `first` to `end - 1`.

        Returns the plan of these jobs, their table, and the server step at which each job ends, `[J]`.
        """
        jobs = self._ahead.jobs.take(self._ahead.places(first, end))
        size, steps, up, down = (column[jobs.world, jobs.client] for column in self._costs[:4])
        failed = jobs.error != None  # noqa: E711
        status = np.where(failed, clock.FAILED, jobs.status)
        steps = np.where(status == clock.OK, steps * len(self.phase.locals), 0)
        up, down = rounds.count_bytes(self.phase, status, up, down)
        flight = FlightTable(jobs.start, jobs.arrival, jobs.version, jobs.staleness)
        table = JobTable(size, steps, jobs.loss, up, down, jobs.arrival - jobs.start, status, jobs.error, flight)
        return Plan(jobs.client, jobs.model, jobs.world), table, jobs.step


def choose_advance(study: Study, runtime: Runtime, progress: Progress) -> rounds.Advance:
    """Returns the function that computes the next round, or the next server steps of asynchronous training."""
    if study.asynchronous is None:
        return partial(rounds.run_round, study, runtime)
    return AsyncTraining(study, runtime, progress).advance
