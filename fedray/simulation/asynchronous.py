"""Asynchronous training: server steps in the order of a timeline, and training in the widest blocks possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Phase
from fedray.core.sums import ExactSum, Kept, map_arrays, merge_stats
from fedray.core.types import Flight, IntArray, Plan, SizedPlan, State, Stats
from fedray.simulation import clock
from fedray.simulation.rounds import Advance, CountRounds, RoundResult, count_bytes
from fedray.simulation.study import FlightTable, JobTable, Progress, Runtime, Study
from fedray.simulation.timeline import Horizon, count_costs, count_earlier, make_timelines

# ---------------------------------------------------------------------------------------------------------------------
# What asynchronous training keeps of jobs in flight: the versions that they started from, and sums for later steps.

Group = tuple[int, int]  # (server step, row of the state) whose uploads are added up
Key = tuple[int, int]  # (row of the state, version of its model)
LEAST_FREED = 8  # versions that are freed at once, and a quarter of what is needed


class Sums:
    """The statistics of uploads that are trained, until the server step that uses them.

    Example:
        The uploads of two server steps were added up in one call; each step takes its own. Step 7 has a second part.

        >>> sums, value = Sums(rows=1, models=1), ExactSum({0: torch.tensor([[1.0], [2.0], [0.0], [0.0]])})
        >>> sums.add({"sum": value}, [(7, 0), (8, 0)], most=4)
        >>> sums.add({"sum": value}, [(7, 0)], most=4)
        >>> sums.take(7, [0])["sum"].value().tolist(), sums.take(8, [0])["sum"].value().tolist()
        ([[2.0]], [[2.0]])
    """

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
        for g, group in enumerate(groups):
            self._parts.setdefault(group, []).append({name: _pick(value, g, most) for name, value in stats.items()})

    def take(self, t: int, rows: Iterable[int]) -> Stats:
        """Returns the statistics `[M, ...]` of a server step and forgets them; empty if all its jobs failed.

        Args:
            t: The step.
            rows: Of the state, whose models step.
        """
        found = {row: merge_stats(parts) for row in rows if (parts := self._parts.pop((t, row), None)) is not None}
        return join_groups(found, self._rows, self._models)


def _pick(value: Any, g: int, groups: int) -> Any:
    """Returns the part of statistics that is of one group."""
    if isinstance(value, Kept):
        return Kept({key: row for key, row in value.rows.items() if key[0] == g})
    return map_arrays({"": value}, lambda array: array.chunk(groups)[g])[""]


def join_groups(parts: Mapping[int, Stats], rows: int, models: int) -> Stats:
    """Returns the statistics of a server step `[M, ...]` from those of the models that step; others have 0.

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
    found: Stats = {}
    for name, one in first.items():
        fields = {row: next(iter(vars(part[name]).values())) for row, part in parts.items()}  # arrays, by name or alone
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
    """Places parts `[p, ...]` of some rows in an array of all, `[rows * p, ...]`."""
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
        """Records a server step of the models in some rows; `state` is the one before it, None to keep nothing."""
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
        """Returns a version of a model `[1, d]` and its counters `[1, c]`; `state` has the newest ones."""
        row, version = key
        if version == self.now[row]:
            return state.models[row : row + 1], state.counters[row : row + 1]
        return self._rows[key]

    def rows(self, keys: Sequence[Key], state: State) -> State:
        """Returns versions of models, one a row, as a state that can be broadcast."""
        found = [self.find(key, state) for key in keys]
        return State(torch.cat([one for one, _ in found]), torch.cat([one for _, one in found]), {})

    def tensors(self) -> dict[str, Tensor]:
        """Returns what a checkpoint keeps: the old versions; empty without any."""
        if not self._rows:
            return {}
        keys = sorted(self._rows)
        return {
            "keys": torch.tensor([(row // self._models, row % self._models, v) for row, v in keys], dtype=torch.int64),
            "models": torch.cat([self._rows[key][0] for key in keys]),
            "counters": torch.cat([self._rows[key][1] for key in keys]),
        }


def _copy_row(rows: Tensor, row: int) -> Tensor:
    """Copies a row `[1, d]`, because the states of a run are not written to."""
    return rows if len(rows) == 1 else rows[row : row + 1].clone()


# ---------------------------------------------------------------------------------------------------------------------
# A round of the loop is one server step in every world. Its uploads come from jobs that started from older versions
# of their models. The starts of all jobs in flight are known, so one call of the runtime trains many of them, also
# some that later steps will use: their sums are kept until then. A job is a pure function of the version it started
# from, the client's data and its address; when it is computed never changes a bit. A call comes as late as a server
# step needs it, and trains all jobs whose versions exist by then: no other order needs fewer calls.

MOST_STEPS = 64  # server steps from one look of the round loop to the next


class _Call(NamedTuple):
    """Jobs of one call of the runtime.

    Attributes:
        places: Of the jobs among the known ones, `[J]`.
        group: The number of each job's server step and model, `[J]`.
        groups: Server step and row of the state by this number.
    """

    places: IntArray
    group: IntArray
    groups: list[Group]


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
        self._costs = count_costs(study, phase)
        self._rows = study.worlds * phase.models  # M
        self._ahead = Horizon(make_timelines(study, phase, self._costs), phase.models, study.rounds)
        self._versions = Versions(study.worlds, phase.models, progress.flight())
        self._sums = Sums(self._rows, phase.models)
        self._due = self._at = progress.round  # when something has to be trained; where the run stands
        for t in range(progress.round):
            self._ahead.reach(t + 1)
            self._versions.pass_step(self._ahead.rows(t))
            self._ahead.forget(t + 1 - (t + 1) % MOST_STEPS)
        progress.flight = self._list_flight

    def _list_flight(self) -> dict[str, Tensor]:
        """Returns the versions that a checkpoint keeps."""
        self._versions.free(self._at, self._ahead)
        return self._versions.tensors()

    def advance(self, progress: Progress, count_rounds: CountRounds) -> RoundResult:
        """Makes the next server steps of every world, up to the next one that the round loop looks at.

        Args:
            progress: Where the run stands; it is not changed.
            count_rounds: How many they are.
        """
        t, state, ahead = progress.round, progress.state, self._ahead
        ahead.forget(t)
        ahead.reach(t + MOST_STEPS)
        end = t + count_rounds(ahead.seconds(t, t + MOST_STEPS)[:, 0])
        for s in range(t, end):
            state = self._step(s, state)
        plan, table, at = self._describe(t, end)
        return RoundResult(plan, table, state, ahead.seconds(end - 1, end)[0].copy(), end - t, at + 1)

    def _step(self, t: int, state: State) -> State:
        """Returns the state after one server step of every world."""
        ahead = self._ahead
        if t >= self._due:
            if ahead.find_untrained() == t:
                self._train(t, state)
            self._due = ahead.find_untrained()
        rows = ahead.rows(t)
        stats = self._sums.take(t, rows)
        after = self._mix(t, state) if self.rule.mode == "async" else state
        after = self.phase.server.step(after, stats, t) if stats else after
        self._versions.pass_step(rows, state)
        self._at = t + 1
        return after

    def _mix(self, t: int, state: State) -> State:
        """Mixes as FedAsync: `(1 - alpha s) w + alpha s w_start`, to which the server adds `alpha s delta`."""
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
        """Trains the jobs of the server step t, and with them those in flight that the next ones use."""
        ahead = self._ahead
        ahead.reach(t + self._count_ahead())
        self._versions.free(t, ahead, all=False)
        for call in self._choose(t):
            stats, left = self.runtime.train(t, *self._pack(call, state), self.phase)
            ahead.jobs.trained[call.places] = True
            ahead.jobs.loss[call.places] = left.loss
            for j, text in left.errors.items():
                ahead.jobs.error[call.places[j]] = text
            self._sums.add(stats, call.groups, self.phase.groups)

    def _count_ahead(self) -> int:
        """Returns for how many server steps the jobs in flight may last."""
        per_step = self.rule.goal if self.rule.mode == "buffered" else 1
        return max(1, min(-(-self.rule.concurrency // per_step), self.phase.groups // self.study.worlds))

    def _choose(self, t: int) -> Iterator[_Call]:
        """Returns the jobs to be trained now, in calls one after another."""
        jobs, own, rows = self._ahead.jobs, self.phase.own, self._rows
        near = self._ahead.places(t, t + (1 if own else self._count_ahead()))
        ready = near.start + np.flatnonzero(~jobs.trained[near] & (jobs.born[near] <= t))
        waves = (
            split_turns(jobs.world[ready] * self.study.clients.number + jobs.client[ready]) if own else [slice(None)]
        )
        for wave in waves:
            index = ready[wave]
            code = jobs.step[index] * rows + jobs.row[index]  # it rises
            new = np.r_[True, code[1:] != code[:-1]]
            group = np.cumsum(new) - 1
            if group[-1] >= self.phase.groups:
                keep = group < self.phase.groups
                index, group, code, new = (part[keep] for part in (index, group, code, new))
            yield _Call(index, group, [divmod(each, rows) for each in code[new].tolist()])

    def _pack(self, call: _Call, state: State) -> tuple[SizedPlan, State]:
        """Returns the jobs as a runtime takes them, and the versions that they start from, one a row."""
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
        """Returns the jobs that end at some server steps: a plan, the rows of the table, and the step of each."""
        jobs = self._ahead.jobs.take(self._ahead.places(first, end))
        size, steps, up, down = (column[jobs.world, jobs.client] for column in self._costs)
        failed = jobs.error != None  # noqa: E711
        status = np.where(failed, clock.FAILED, jobs.status)
        steps = np.where(status == clock.OK, steps * self.phase.passes, 0)
        up, down = count_bytes(self.phase, status, up, down)
        flight = FlightTable(jobs.start, jobs.arrival, jobs.version, jobs.staleness)
        table = JobTable(size, steps, jobs.loss, up, down, jobs.arrival - jobs.start, status, jobs.error, flight)
        return Plan(jobs.client, jobs.model, jobs.world), table, jobs.step


def choose_advance(study: Study, runtime: Runtime, progress: Progress) -> Advance | None:
    """Returns the function that computes the next server steps of a study without rounds; None for rounds.

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

    Example:
        >>> [wave.tolist() for wave in split_turns(np.array([4, 7, 4]))]  # client 4 reads what its first job left
        [[0, 1], [2]]
    """
    rank = count_earlier(owner)
    return [np.flatnonzero(rank == wave) for wave in range(int(rank.max(initial=-1)) + 1)]
