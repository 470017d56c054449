"""What asynchronous training keeps of jobs in flight: the versions that they started from, and sums for later steps.

Example:
    The uploads of two server steps were added up in one call; each step takes its own sum.

    >>> groups = Groups(4)
    >>> groups.number([(0, 0, 7), (0, 0, 8), (0, 0, 7)]).tolist()
    [0, 1, 0]
    >>> sums = {"sum": ExactSum({0: torch.tensor([[1.0], [2.0], [0.0], [0.0]])})}
    >>> [(group, part["sum"].value().tolist()) for group, part in groups.split(sums)]
    [((0, 0, 7), [[1.0]]), ((0, 0, 8), [[2.0]])]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core.exact_sum import Counts, ExactSum, Kept, Largest
from fedray.core.types import IntArray, State, Stats
from fedray.simulation import clock
from fedray.simulation.timeline import ServerStep, Timeline

Group = tuple[int, int, int]  # (world, model, server step) whose uploads are added up
Key = tuple[int, int, int]  # (world, model, version)


class Groups:
    """The numbers under which a call of the runtime adds up the uploads of several server steps.

    Attributes:
        most: How many there may be.
    """

    def __init__(self, most: int) -> None:
        self.most, self._numbers = most, dict[Group, int]()

    def number(self, groups: Sequence[Group]) -> IntArray:
        """The number of the group of each job, `[J]`."""
        out = np.array([self._numbers.setdefault(group, len(self._numbers)) for group in groups], dtype=np.int64)
        assert len(self._numbers) <= self.most
        return out

    def split(self, stats: Stats) -> Iterator[tuple[Group, Stats]]:
        """The statistics of each group, from those of all `[G, ...]`."""
        for group, g in self._numbers.items():
            yield group, {name: _take(value, g, self.most) for name, value in stats.items()}


def _take(value: Any, g: int, groups: int) -> Any:
    """The rows of one group."""
    if isinstance(value, ExactSum):
        return ExactSum({limb: part.view(groups, -1, part.shape[1])[g] for limb, part in value.limbs.items()})
    if isinstance(value, Counts):
        return Counts(value.total.view(groups, -1, *value.total.shape[1:])[g])
    if isinstance(value, Largest):
        return Largest(value.most.view(groups, -1, *value.most.shape[1:])[g])
    return Kept({key: row for key, row in value.rows.items() if key[0] == g})


def join_groups(parts: Mapping[int, Stats], rows: int, models: int) -> Stats:
    """The statistics of a server step `[M, ...]` from those of the models that step.

    Args:
        parts: Statistics of a row of the state.
        rows: M.
        models: K.
    """
    if not parts:
        return {}
    first = next(iter(parts.values()))
    return {name: _join({row: part[name] for row, part in parts.items()}, rows, models) for name in first}


def _join(values: Mapping[int, Any], rows: int, models: int) -> Any:
    """One statistic of all rows; those that nobody trained are 0."""
    first = next(iter(values.values()))
    if isinstance(first, ExactSum):
        limbs = {limb for value in values.values() for limb in value.limbs}
        have = {limb: {row: v.limbs[limb] for row, v in values.items() if limb in v.limbs} for limb in limbs}
        return ExactSum({limb: _place(part, rows) for limb, part in have.items()})
    if isinstance(first, Counts):
        return Counts(_place({row: value.total for row, value in values.items()}, rows))
    if isinstance(first, Largest):
        return Largest(_place({row: value.most for row, value in values.items()}, rows))
    return Kept(
        {
            (row // models, row % models, client): kept
            for row, value in values.items()
            for (_, _, client), kept in value.rows.items()
        }
    )


def _place(parts: Mapping[int, Tensor], rows: int) -> Tensor:
    """Parts `[p, ...]` of some rows in an array of all, `[rows * p, ...]`."""
    first = next(iter(parts.values()))
    out = first.new_zeros(rows, *first.shape)
    for row, part in parts.items():
        out[row] = part
    return out.flatten(0, 1)


class Versions:
    """The models that jobs in flight started from and that have stepped since. What nobody needs any more is freed.

    Attributes:
        now: How many steps each model has taken, `[R, K]`.
    """

    def __init__(self, worlds: int, models: int, flight: Mapping[str, Tensor]) -> None:
        """Takes what a checkpoint kept: see `tensors`."""
        self.now = np.zeros((worlds, models), dtype=np.int64)
        self._models = models
        self._rows: dict[Key, tuple[Tensor, Tensor]] = {}
        self._needed: Counter[Key] = Counter()
        if flight:
            keys = [(int(w), int(k), int(v)) for w, k, v in flight["keys"].tolist()]
            self._rows = dict(zip(keys, zip(flight["models"], flight["counters"], strict=True), strict=True))

    def begin(self, line: Timeline, t: int) -> None:
        """Goes to the server step t of a world."""
        for s, step in enumerate(line.read(0, t)):
            self._pass(line, step)
            self.now[line.world, list(step.models)] += 1
            line.forget(s)

    def _pass(self, line: Timeline, step: ServerStep) -> None:
        """Counts the jobs that started, and those that a step used."""
        for job in line.started:
            if job.status == clock.OK:
                self._needed[job.world, job.model, job.version] += 1
        line.started.clear()
        for job in step.jobs:
            key = job.world, job.model, job.version
            self._needed[key] -= 1
            if not self._needed[key]:
                del self._needed[key]
                self._rows.pop(key, None)

    def pass_step(self, line: Timeline, step: ServerStep, state: State) -> None:
        """After a server step of a world; `state` is the one before it."""
        self._pass(line, step)
        for k in step.models:
            key, row = (line.world, k, int(self.now[line.world, k])), line.world * self._models + k
            if key in self._needed:
                self._rows[key] = state.models[row].clone(), state.counters[row].clone()
            self.now[line.world, k] += 1

    def find(self, key: Key, state: State) -> tuple[Tensor, Tensor]:
        """A version of a model `[d]` and its counters `[c]`; `state` has the newest ones."""
        world, k, version = key
        if version == self.now[world, k]:
            row = world * self._models + k
            return state.models[row], state.counters[row]
        return self._rows[key]

    def rows(self, keys: Sequence[Key], state: State) -> State:
        """Versions of models, one a row, as a state that can be broadcast."""
        found = [self.find(key, state) for key in keys]
        return State(torch.stack([one for one, _ in found]), torch.stack([one for _, one in found]), {})

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: the old versions that are still needed; empty without any."""
        if not self._rows:
            return {}
        keys = sorted(self._rows)
        return {
            "keys": torch.tensor(keys, dtype=torch.int64),
            "models": torch.stack([self._rows[key][0] for key in keys]),
            "counters": torch.stack([self._rows[key][1] for key in keys]),
        }
