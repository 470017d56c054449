"""Starts and arrivals of asynchronous training, in virtual time, of one world.

The length of a job follows from its steps, its bytes and its device, and none of it from training. So the whole
sequence of starts, arrivals and server steps is known before anything is trained. A heap (`heapq`) holds what will
happen next: there are no processes that wait for each other, for which a library such as simpy would be of use.

What happens at one instant happens in this order: arrivals by client, with the server steps that they cause; then idle
clients start, with the newest models. A client without data is never asked. One that is not available when it is drawn
comes back when it is.

Example:
    Two clients, one twice as fast; the server steps after every second arrival.

    >>> rule = AsyncRule("buffered", concurrency=2, goal=2)
    >>> pace = Pace(np.array([1.0, 2.0]), transfer=np.zeros(2), parallel=np.zeros(2, bool), ready=np.ones(2, bool))
    >>> line = Timeline(rule, pace, 1, seed=0, assign=lambda turn: (np.arange(2), np.zeros(2, int)))
    >>> for step in line.read(0, 3):
    ...     print(step.time, [(job.client, job.version, job.staleness) for job in step.jobs])
    2.0 [(0, 0, 0), (0, 0, 0)]
    3.0 [(1, 0, 1), (0, 1, 0)]
    4.0 [(0, 2, 0), (1, 1, 1)]
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.types import FloatArray, IntArray
from fedray.simulation import clock
from fedray.simulation.async_rule import AsyncRule

Assign = Callable[[int], tuple[IntArray, IntArray]]  # turn -> (client, model) of everyone's jobs, sorted by client
Wait = Callable[[int, float], float]  # (client, virtual seconds) -> seconds until it is available
MOST_LOST = 100  # jobs a client that may end without an upload, one after another
KEPT_TURNS = 64  # of which the models of every client are kept
_DRAWS = 1024  # random numbers that are drawn at once


class Pace(NamedTuple):
    """How long a client takes for a job, `[N]` each.

    Attributes:
        compute: Virtual seconds of its training.
        transfer: Virtual seconds of its two transfers.
        parallel: Whether the client trains its models of a turn side by side.
        ready: Whether it has data.
    """

    compute: FloatArray
    transfer: FloatArray
    parallel: NDArray[np.bool_]
    ready: NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class Job:
    """A job in virtual time.

    Attributes:
        world: Its world.
        client: Its client.
        model: Its model.
        turn: How many turns the client had before: in the address of the job it stands for the round.
        version: How many steps its model had taken when it started.
        start: Virtual seconds at which it started.
        arrival: Virtual seconds at which it arrives, or would have.
        status: How it ends: an index into `clock.STATUS`.
        step: The server step that uses it; -1 while none is known.
        staleness: How many steps its model took between its start and that step; -1 while none is known.
        copy: How many uploads of its client that step has of the same model before it.
        loss: Its mean loss over the steps; NaN until it is trained.
        error: Traceback of a job that failed, else None.
        trained: Whether it is trained, or failed in it.
    """

    world: int
    client: int
    model: int
    turn: int
    version: int
    start: float
    arrival: float
    status: int
    step: int = -1
    staleness: int = -1
    copy: int = 0
    loss: float = math.nan
    error: str | None = None
    trained: bool = False


class ServerStep(NamedTuple):
    """A step of the server.

    Attributes:
        time: Virtual seconds.
        models: The models that step.
        jobs: The jobs whose uploads it uses, model by model, in the order of their arrival.
        lost: The jobs that ended since the step before without an upload.
    """

    time: float
    models: tuple[int, ...]
    jobs: list[Job]
    lost: list[Job]


class Timeline:
    """All that happens in one world. It holds the steps that were not forgotten, and the jobs in flight.

    Attributes:
        world: Its number.
        started: Jobs that started; whoever follows them empties the list.
    """

    def __init__(
        self,
        rule: AsyncRule,
        pace: Pace,
        models: int,
        *,
        seed: int,
        assign: Assign,
        wait: Wait | None = None,
        world: int = 0,
    ) -> None:
        """Starts at time 0, with every client idle.

        Args:
            rule: When the server steps.
            pace: How long the clients take.
            models: K.
            seed: Of the world.
            assign: Which models each client trains in its turns.
            wait: When clients are available; None: always.
            world: Its number.
        """
        self.rule, self.world, self.started = rule, world, list[Job]()
        self._models, self._seed, self._wait = models, seed, wait
        self._compute, self._transfer = pace.compute.tolist(), pace.transfer.tolist()
        self._parallel = pace.parallel.tolist()
        self._goal = {"buffered": rule.goal, "async": 1, "semi": math.inf}[rule.mode]
        self._steps: dict[int, ServerStep] = {}
        self._known, self._count = 0, 0
        self._turns: dict[int, int] = {}
        self._table = lru_cache(KEPT_TURNS)(self._make_table)
        self._assign, self._clients = assign, len(pace.compute)
        self._idle: list[int] = np.flatnonzero(pace.ready).tolist()
        self._queue: list[tuple[float, int, int, Job | None, bool]] = []  # time, client, number, job, last of its turn
        self._versions, self._buffer = [0] * models, [list[Job]() for _ in range(models)]
        self._training, self._draws, self._lost = 0, 0, list[Job]()
        self._numbers: list[float] = []
        self._fill(0.0)

    def read(self, first: int, end: int) -> list[ServerStep]:
        """The server's steps from `first` up to, but without, `end`.

        Raises:
            FedrayError: No upload arrives any more.
        """
        self._extend(end)
        return [self._steps[t] for t in range(first, end)]

    def forget(self, t: int) -> None:
        """Frees a step that nobody will read again."""
        del self._steps[t]

    def _extend(self, steps: int) -> None:
        """Goes on until so many steps of the server are known."""
        semi, queue = self.rule.mode == "semi", self._queue
        while self._known < steps:
            if not queue or len(self._lost) > MOST_LOST * (1 + self._clients):
                raise FedrayError(
                    f"after {self._known} server steps no upload arrives any more: raise participation.deadline, "
                    "lower participation.dropout, or look at the windows of clients.trace and at the clients' data"
                )
            now = queue[0][0]
            if semi:
                now = max(1, math.ceil(now / self.rule.tick - 1e-9)) * self.rule.tick
            while queue and queue[0][0] <= now:
                time, client, _, job, last = heapq.heappop(queue)
                if job is not None:
                    self._end(time, job)
                    self._training -= last
                if last:
                    self._idle.append(client)
            if semi and any(self._buffer):
                self._step(now, [k for k in range(self._models) if self._buffer[k]])
            self._fill(now)

    def _end(self, time: float, job: Job) -> None:
        """A job ends."""
        if job.status != clock.OK:
            self._lost.append(job)
            return
        buffer = self._buffer[job.model]
        buffer.append(job)
        if len(buffer) >= self._goal:
            self._step(time, [job.model])

    def _step(self, time: float, models: list[int]) -> None:
        """The server steps with all that has arrived for some models."""
        jobs = [job for k in models for job in self._buffer[k]]
        met: dict[tuple[int, int], int] = {}
        for job in jobs:
            who = job.client, job.model
            job.copy = met[who] = met.get(who, -1) + 1
            job.step, job.staleness = self._known, self._versions[job.model] - job.version
        self._steps[self._known] = ServerStep(time, tuple(models), jobs, self._lost)
        self._known += 1
        self._lost = []
        for k in models:
            self._versions[k] += 1
            self._buffer[k] = []

    def _fill(self, now: float) -> None:
        """Idle clients start, drawn at random, until as many train as there may be."""
        idle = self._idle
        while idle and self._training < self.rule.concurrency:
            place = int(self._draw() * len(idle))
            client, idle[place] = idle[place], idle[-1]
            idle.pop()
            wait = 0.0 if self._wait is None else self._wait(client, now)
            if wait == math.inf:
                continue  # it will never be available again
            if wait > 0.0:
                heapq.heappush(self._queue, (now + wait, client, self._count, None, True))
                self._count += 1
            else:
                self._begin(client, now)

    def _draw(self) -> float:
        """The next uniform number."""
        if not self._numbers:
            key = rng.keys(self._seed, "starts", self._draws)
            self._numbers = rng.uniform(key, _DRAWS)[::-1].tolist()
            self._draws += 1
        return self._numbers.pop()

    def _begin(self, client: int, now: float) -> None:
        """A client starts its next turn, with the newest version of each of its models."""
        turn = self._turns.get(client, 0)
        self._turns[client] = turn + 1
        first, models = self._table(turn)
        mine = models[first[client] : first[client + 1]]
        self._training += 1
        status = self._ending(client, turn)
        given_up = math.inf if self.rule.deadline is None else now + self.rule.deadline
        compute, transfer = self._compute[client], self._transfer[client]
        for entry, model in enumerate(mine, 1):
            whole = len(mine) * transfer + compute if self._parallel[client] else entry * (compute + transfer)
            arrival = now + whole
            end = clock.PAST_DEADLINE if arrival > given_up else status
            job = Job(self.world, client, model, turn, self._versions[model], now, arrival, end)
            heapq.heappush(self._queue, (min(arrival, given_up), client, self._count, job, entry == len(mine)))
            self._count += 1
            self.started.append(job)

    def _ending(self, client: int, turn: int) -> int:
        """Whether a client drops out of a turn."""
        if not self.rule.dropout:
            return clock.OK
        u = rng.uniform(rng.keys(self._seed, "dropout", turn, client), 1)[0]
        return clock.DROPPED if u < self.rule.dropout else clock.OK

    def _make_table(self, turn: int) -> tuple[list[int], list[int]]:
        """The models of everyone's turn: where each client's begin, `[N + 1]`, and the models."""
        client, model = self._assign(turn)
        return np.searchsorted(client, np.arange(self._clients + 1)).tolist(), model.tolist()
