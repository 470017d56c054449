"""Asynchronous training: server steps in the order of a timeline, and training in the widest blocks possible.

A round of the loop is one server step in every world. Its uploads come from jobs that started from older versions of
their models. The starts of all jobs in flight are known, so one call of the runtime trains many of them, also some that
later steps will use: their sums are kept until then. A job is a pure function of the version it started from, the
client's data and its address; when it is computed never changes a bit. A call comes as late as a server step needs it,
and trains all jobs whose versions exist by then: no other order needs fewer calls.

Example:
    >>> [wave.tolist() for wave in split_turns(np.array([4, 7, 4]))]  # client 4's second job reads what its first left
    [[0, 1], [2]]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedray.core.method import Phase
from fedray.core.types import Flight, IntArray, Plan, SizedPlan, State
from fedray.simulation import clock
from fedray.simulation.flights import Group, Key, Sums, Versions
from fedray.simulation.flown import count_earlier
from fedray.simulation.horizon import Horizon
from fedray.simulation.pacing import count_costs, make_timelines
from fedray.simulation.rounds import Advance, CountRounds, RoundResult, count_bytes
from fedray.simulation.study import FlightTable, JobTable, Progress, Runtime, Study

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
        """The versions that a checkpoint keeps."""
        self._versions.free(self._at, self._ahead)
        return self._versions.tensors()

    def advance(self, progress: Progress, count_rounds: CountRounds) -> RoundResult:
        """The next server steps of every world, up to the next one that the round loop looks at.

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
        """The state after one server step of every world."""
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
        """FedAsync: `(1 - alpha s) w + alpha s w_start`, to which the server adds `alpha s delta`."""
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
        """How many server steps what is in flight may last for."""
        per_step = self.rule.goal if self.rule.mode == "buffered" else 1
        return max(1, min(-(-self.rule.concurrency // per_step), self.phase.groups // self.study.worlds))

    def _choose(self, t: int) -> Iterator[_Call]:
        """The jobs to be trained now, in calls one after another."""
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
        """The jobs as a runtime takes them, and the versions that they start from, one a row."""
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
        """The jobs that end at some server steps: a plan, the rows of the table, and the step of each."""
        jobs = self._ahead.jobs.take(self._ahead.places(first, end))
        size, steps, up, down = (column[jobs.world, jobs.client] for column in self._costs)
        failed = jobs.error != None  # noqa: E711
        status = np.where(failed, clock.FAILED, jobs.status)
        steps = np.where(status == clock.OK, steps * (1 + len(self.phase.personal)), 0)
        up, down = count_bytes(self.phase, status, up, down)
        flight = FlightTable(jobs.start, jobs.arrival, jobs.version, jobs.staleness)
        table = JobTable(size, steps, jobs.loss, up, down, jobs.arrival - jobs.start, status, jobs.error, flight)
        return Plan(jobs.client, jobs.model, jobs.world), table, jobs.step


def choose_advance(study: Study, runtime: Runtime, progress: Progress) -> Advance | None:
    """What computes the next server steps of a study without rounds; None for a study in rounds.

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
    rank = count_earlier(owner)
    return [np.flatnonzero(rank == wave) for wave in range(int(rank.max(initial=-1)) + 1)]
