"""What is known ahead of asynchronous training: the jobs of the next server steps of all worlds, as columns.

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

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core.types import FloatArray, IntArray
from fedray.simulation import clock
from fedray.simulation.flown import FlownJobs
from fedray.simulation.timeline import ServerSteps, Timeline

LEAST_STEPS = 32  # that are computed at once


class KnownJobs(NamedTuple):
    """Jobs that end at known server steps, `[J]` each: step by step, world by world; the first columns as `FlownJobs`.

    Attributes:
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


class Horizon:
    """The server steps of all worlds that are known and were not forgotten.

    Attributes:
        lines: What happens in each world.
        jobs: The jobs of these steps.
        open: Of jobs in flight that no known step uses: row of the state and version of its model.
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
        """The same steps of all worlds."""
        each = [len(steps.jobs.client) for steps in taken]
        world = np.repeat(np.arange(len(taken)), each)
        columns: list[Any] = [np.concatenate(column) for column in zip(*(steps.jobs for steps in taken), strict=True)]
        n, flown = len(world), FlownJobs(*columns)
        jobs = KnownJobs(
            *flown,
            world=world,
            row=world * self._models + flown.model,
            loss=np.full(n, np.nan),
            error=np.full(n, None, dtype=object),
            trained=flown.status != clock.OK,
        )
        return jobs if len(taken) == 1 else jobs.take(np.argsort(jobs.step, kind="stable"))

    def forget(self, t: int) -> None:
        """Drops the steps before t."""
        self.jobs = self.jobs.take(slice(self._bounds[t - self._first], None))
        self._seconds, self._rows = self._seconds[t - self._first :], self._rows[t - self._first :]
        self._first = t
        self._bounds = self._bounds[-len(self._rows) - 1 :] - self._bounds[-len(self._rows) - 1]

    def seconds(self, first: int, end: int) -> FloatArray:
        """Virtual seconds of the known steps from `first` up to, but without, `end`, `[S, R]`."""
        return self._seconds[first - self._first : end - self._first]

    def rows(self, t: int) -> list[int]:
        """The rows of the state that step in t."""
        return self._rows[t - self._first]

    def places(self, first: int, end: int) -> slice:
        """Where the jobs of the known steps from `first` up to, but without, `end` are."""
        end = min(end, self.end)
        return slice(int(self._bounds[first - self._first]), int(self._bounds[end - self._first]))

    def find_untrained(self) -> int:
        """The first step that uses a job which is not trained; the end of what is known if there is none."""
        rest = np.flatnonzero(~self.jobs.trained)
        return int(self.jobs.step[rest[0]]) if len(rest) else self.end
