"""What asynchronous training keeps of jobs in flight: the versions that they started from, and sums for later steps.

Example:
    The uploads of two server steps were added up in one call; each step takes its own. Step 7 has a second part.

    >>> sums, value = Sums(rows=1, models=1), ExactSum({0: torch.tensor([[1.0], [2.0], [0.0], [0.0]])})
    >>> sums.add({"sum": value}, [(7, 0), (8, 0)], most=4)
    >>> sums.add({"sum": value}, [(7, 0)], most=4)
    >>> sums.take(7, [0])["sum"].value().tolist(), sums.take(8, [0])["sum"].value().tolist()
    ([[2.0]], [[2.0]])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedray.core.sums import Counts, ExactSum, Kept, Largest, merge_stats
from fedray.core.types import State, Stats
from fedray.simulation import clock
from fedray.simulation.horizon import Horizon

Group = tuple[int, int]  # (server step, row of the state) whose uploads are added up
Key = tuple[int, int]  # (row of the state, version of its model)
LEAST_FREED = 8  # versions that are freed at once, and a quarter of what is needed


class Sums:
    """The statistics of uploads that are trained, until the server step that uses them."""

    def __init__(self, rows: int, models: int) -> None:
        """Has nothing.

        Args:
            rows: M, of the state.
            models: K.
        """
        self._rows, self._models = rows, models
        self._parts: dict[Group, list[Stats]] = {}

    def add(self, stats: Stats, groups: Sequence[Group], most: int) -> None:
        """Takes the statistics of one call of a runtime.

        Args:
            stats: Of all groups, `[G, ...]`.
            groups: Those that have uploads: the first ones of G.
            most: G.
        """
        each = [_split(value, most) for value in stats.values()]
        for group, parts in zip(groups, zip(*each, strict=True), strict=False):
            self._parts.setdefault(group, []).append(dict(zip(stats, parts, strict=True)))

    def take(self, t: int, rows: Iterable[int]) -> Stats:
        """The statistics `[M, ...]` of a server step, which are forgotten; empty where all its jobs failed.

        Args:
            t: The step.
            rows: Of the state, whose models step.
        """
        found = {row: merge_stats(parts) for row in rows if (parts := self._parts.pop((t, row), None)) is not None}
        return join_groups(found, self._rows, self._models)


def _split(value: Any, groups: int) -> list[Any]:
    """One statistic of each group."""
    if isinstance(value, ExactSum):
        limbs = [part.chunk(groups) for part in value.limbs.values()]
        return [ExactSum(dict(zip(value.limbs, parts, strict=True))) for parts in zip(*limbs, strict=True)]
    if isinstance(value, Kept):
        return [Kept({key: row for key, row in value.rows.items() if key[0] == g}) for g in range(groups)]
    kind, array = (Counts, value.total) if isinstance(value, Counts) else (Largest, value.most)
    return [kind(part) for part in array.chunk(groups)]


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
    if rows == 1 and not any(isinstance(value, Kept) for value in first.values()):
        return first
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
    """The models that jobs in flight started from and that have stepped since.

    What nobody needs any more is freed when the next jobs are chosen, and is in no checkpoint.

    Attributes:
        now: How many steps each row's model has taken, `[M]`.
    """

    def __init__(self, worlds: int, models: int, flight: Mapping[str, Tensor]) -> None:
        """Takes what a checkpoint kept: see `tensors`."""
        self.now = [0] * (worlds * models)
        self._models = models
        self._rows: dict[Key, tuple[Tensor, Tensor]] = {}
        self._most = 0  # rows above which something is freed
        if flight:
            keys = [(int(w) * models + int(k), int(v)) for w, k, v in flight["keys"].tolist()]
            rows = zip(flight["models"][:, None], flight["counters"][:, None], strict=True)
            self._rows = dict(zip(keys, rows, strict=True))

    def pass_step(self, rows: Iterable[int], state: State | None = None) -> None:
        """After a server step of the models in some rows; `state` is the one before it, None where it was passed."""
        for row in rows:
            if state is not None:
                self._rows[row, self.now[row]] = _copy_row(state.models, row), _copy_row(state.counters, row)
            self.now[row] += 1

    def free(self, t: int, ahead: Horizon, *, all: bool = True) -> None:
        """Frees what no job in flight needs that the server uses in step t or later.

        Args:
            t: The step.
            ahead: The known steps.
            all: Whether also where little can be freed.
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
        """A version of a model `[1, d]` and its counters `[1, c]`; `state` has the newest ones."""
        row, version = key
        if version == self.now[row]:
            return state.models[row : row + 1], state.counters[row : row + 1]
        return self._rows[key]

    def rows(self, keys: Sequence[Key], state: State) -> State:
        """Versions of models, one a row, as a state that can be broadcast."""
        found = [self.find(key, state) for key in keys]
        return State(torch.cat([one for one, _ in found]), torch.cat([one for _, one in found]), {})

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: the old versions; empty without any."""
        if not self._rows:
            return {}
        keys = sorted(self._rows)
        return {
            "keys": torch.tensor([(row // self._models, row % self._models, v) for row, v in keys], dtype=torch.int64),
            "models": torch.cat([self._rows[key][0] for key in keys]),
            "counters": torch.cat([self._rows[key][1] for key in keys]),
        }


def _copy_row(rows: Tensor, row: int) -> Tensor:
    """A row `[1, d]` that does not hold the memory of the others; the states of a run are not written to."""
    return rows if len(rows) == 1 else rows[row : row + 1].clone()
