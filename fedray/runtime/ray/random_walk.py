"""A random walk on Ray: models travel from client actor to client actor, never through the coordinator.

The holder trains a model and calls its neighbour's actor with it, which acknowledges; until the next hand-over is
acknowledged too the sender keeps its copy. An actor that died is started again by Ray and says what it misses; who
sent it last sends it again. Where that copy is gone as well (a model that stayed in one process, two deaths at
once) the run goes back to its newest checkpoint. Either way the bits are those of the undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayTaskError

from fedray.core.errors import FedrayError, Lost
from fedray.core.method import JobRows
from fedray.core.types import IntArray, SizedPlan, State, Stats
from fedray.runtime import messages, placement
from fedray.runtime.placement import ActorSpec
from fedray.runtime.ray.cluster import GONE, PATIENCE, POST, explain_error
from fedray.runtime.worker import Worker
from fedray.simulation.rounds import draw_first_state
from fedray.simulation.study import Study

DEATHS = 5  # of one actor over one step: then the step is what kills it
Key = tuple[int, int]  # (world, model)


class Parcel(NamedTuple):
    """A model on its way: its version (steps it was last trained in, plus 1), row `[d]`, counters `[c]`."""

    version: int
    row: Any
    counters: Any


class Orders(NamedTuple):
    """What an actor does in step t: its jobs, the version each model must have, and the actor that gets it next `[J]`
    (its own number: it stays)."""

    t: int
    jobs: SizedPlan
    version: IntArray
    to: IntArray


class Report(NamedTuple):
    """What it says: what it misses (then nothing was done), the rows of its jobs, and who did not acknowledge."""

    missing: list[Key]
    rows: JobRows | None
    silent: list[int]


class Holder:
    """The models that a client actor holds, and copies of those it handed on."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.phase = worker.study.method.phase
        self.state = draw_first_state(worker.study, self.phase)
        self.held: dict[Key, Parcel] = {}
        self.sent: dict[Key, Parcel] = {}

    def receive(self, parcels: dict[Key, Parcel]) -> bool:
        """Takes models; the answer is the acknowledgement."""
        self.held |= {key: Parcel(one.version, *map(np.array, one[1:])) for key, one in parcels.items()}
        return True

    def step(self, orders: Orders, peers: dict[int, Any]) -> Report:
        """Trains its models and hands them on."""
        plan = orders.jobs.plan
        keys = list(zip(plan.world.tolist(), plan.model.tolist(), strict=True))
        missing = self.missing(dict(zip(keys, orders.version.tolist(), strict=True)))
        if missing:
            return Report(missing, None, [])
        self.sent = {key: one for key, one in self.sent.items() if one.version >= orders.t}
        trained, rows = self._train(orders, keys)
        self.held |= trained
        routes = {b: [key for key, to in zip(keys, orders.to.tolist(), strict=True) if to == b] for b in peers}
        for key in (key for keys in routes.values() for key in keys):
            self.sent[key] = self.held.pop(key)
        return Report([], rows, [b for b, peer in peers.items() if not self.send(routes[b], peer)])

    def _train(self, orders: Orders, keys: list[Key]) -> tuple[dict[Key, Parcel], JobRows]:
        row = torch.tensor([world * self.phase.models + model for world, model in keys])
        self.state.models[row] = torch.stack([torch.from_numpy(self.held[key].row) for key in keys])
        self.state.counters[row] = torch.stack([torch.from_numpy(self.held[key].counters) for key in keys])
        stats, rows = self.worker.train(orders.t, orders.jobs, self.state, self.phase)
        after = self.phase.server.step(self.state, stats, orders.t)
        each = zip(keys, after.models[row].numpy(), after.counters[row].numpy(), strict=True)
        return {key: Parcel(orders.t + 1, *one) for key, *one in each}, rows

    def missing(self, wanted: dict[Key, int]) -> list[Key]:
        """Which of the models, in these versions, are not here."""
        return [key for key, v in wanted.items() if key not in self.held or self.held[key].version != v]

    def send(self, keys: list[Key], peer: Any) -> bool:
        """Calls another actor with models; whether it acknowledged."""
        ref = peer.receive.options(concurrency_group=POST).remote({key: self.sent[key] for key in keys})
        try:
            return bool(ray.get(ref, timeout=PATIENCE))
        except (*GONE, RayTaskError, GetTimeoutError):
            return False

    def move(self, wanted: dict[Key, int], peer: Any) -> list[Key] | None:
        """Hands models on that were not trained here; what is missing, or None if nobody acknowledged."""
        missing = self.missing(wanted)
        if missing:
            return missing
        self.sent |= {key: self.held[key] for key in wanted}
        if not self.send(list(wanted), peer):
            return None
        for key in wanted:
            del self.held[key]
        return []

    def resend(self, wanted: dict[Key, int], peer: Any) -> bool:
        """Sends copies again; False if one is not here any more or nobody acknowledged."""
        there = all(key in self.sent and self.sent[key].version == version for key, version in wanted.items())
        return there and self.send(list(wanted), peer)

    def show(self, wanted: dict[Key, int]) -> dict[Key, Parcel] | list[Key]:
        """Copies of models for whoever observes, or what is missing."""
        return self.missing(wanted) or {key: self.held[key] for key in wanted}


class Walks:
    """The coordinator's side: says who steps and where to, knows where every model is, and holds none of them.

    version, home, sender `[R, K]`: of each model, the actor that has it, and the one that still has a copy (-1: none).
    """

    def __init__(self, study: Study, ready: Callable[[list[int]], None]) -> None:
        self.study, self.ready = study, ready
        self.seats: list[ActorSpec] = []
        self.actors: list[Any] = []
        walk = study.method.phase.walk
        assert walk is not None
        self.walk, self.now = walk, -1
        shape = study.worlds, study.method.phase.models
        self.version, self.home, self.sender = (np.full(shape, -1) for _ in range(3))

    def sit(self, seats: list[ActorSpec], actors: list[Any]) -> None:
        """The actors, which hold nothing yet."""
        self.seats, self.actors = seats, actors
        self.forget()

    def forget(self) -> None:
        """The next step begins from the engine's state."""
        self.now = -1

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """One step of all walks; the models stay with the actors, so there are no statistics."""
        if self.now < 0:
            self._seat(t, state)
        of = jobs.plan.world, jobs.plan.model
        home = self._homes(t)[of]
        self._bring(of, home)
        to, work = self._homes(t + 1)[of], {int(a): np.flatnonzero(home == a) for a in np.unique(home)}
        orders = {a: Orders(t, jobs.take(its), self.version[of][its], to[its]) for a, its in work.items()}
        started = {a: self._start(a, one) for a, one in orders.items()}
        rows = [self._finish(a, orders[a], started[a]) for a in work]
        self.version[of], self.home[of], self.sender[of] = t + 1, to, np.where(to == home, -1, home)
        self.now = t + 1
        return {}, messages.in_order(list(work.values()), rows)

    def gather(self, state: State) -> State:
        """Copies of all models, for evaluation and checkpoints."""
        if self.now < 0:
            return state
        models, counters = state.models.clone(), state.counters.clone()
        for a in np.unique(self.home).tolist():
            wanted = self._versions(np.argwhere(self.home == a))
            for (world, model), one in self._seen(a, wanted).items():
                row = world * self.version.shape[1] + model
                models[row], counters[row] = (
                    torch.from_numpy(np.array(one.row)),
                    torch.from_numpy(np.array(one.counters)),
                )
        return State(models, counters, state.extra)

    def _homes(self, t: int) -> IntArray:
        at = self.walk.at(t)
        return placement.assign_homes(self.study.clients, self.seats, at.ravel()).reshape(at.shape)

    def _versions(self, keys: Any) -> dict[Key, int]:
        return {(int(w), int(k)): int(self.version[w, k]) for w, k in keys}

    def _seat(self, t: int, state: State) -> None:
        """Gives every model to the actor of its holder."""
        home, models = self._homes(t), self.version.shape[1]
        self.version[:], self.home[:], self.sender[:], self.now = t, home, -1, t
        for a in np.unique(home).tolist():
            rows = {key: key[0] * models + key[1] for key in self._versions(np.argwhere(home == a))}
            parcels = {k: Parcel(t, state.models[r].numpy(), state.counters[r].numpy()) for k, r in rows.items()}
            self._call(a, "receive", parcels)

    def _bring(self, of: tuple[IntArray, IntArray], home: IntArray) -> None:
        """Has models sent to where they are trained now: those who held them did not train, and so sent nothing."""
        away = self.home[of] != home
        for a, b in sorted(set(zip(self.home[of][away].tolist(), home[away].tolist(), strict=True))):
            keys = np.stack(of, axis=1)[away & (self.home[of] == a) & (home == b)]
            self._move(a, self._versions(keys), b)
            world, model = keys.T
            self.home[world, model], self.sender[world, model] = b, a

    def _move(self, a: int, wanted: dict[Key, int], b: int) -> None:
        for _ in range(DEATHS):
            missing = self._call(a, "move", wanted, self.actors[b])
            if missing == []:
                return
            if missing is None:
                self._await(b)
            else:
                self._restore(a, {key: wanted[key] for key in missing})
        raise FedrayError(f"client actors {a} and {b} died {DEATHS} times over one hop: see Ray's logs")

    def _start(self, a: int, orders: Orders) -> Any:
        peers = {int(b): self.actors[b] for b in np.unique(orders.to) if b != a}
        return self.actors[a].step.remote(orders, peers)

    def _finish(self, a: int, orders: Orders, ref: Any) -> JobRows:
        """An actor's report, asked again after its death or after it was given what it missed."""
        for _ in range(DEATHS):
            try:
                report: Report = ray.get(ref, timeout=PATIENCE)
            except RayTaskError as error:
                raise explain_error(error, f"client actor {a}") from error
            except GONE:
                self._await(a)
                report = Report([], None, [])
            if report.rows is not None:
                self._repeat(a, orders, report.silent)
                return report.rows
            self._restore(a, self._versions(report.missing))
            ref = self._start(a, orders)
        raise FedrayError(f"client actor {a} died {DEATHS} times over one step: has it enough memory? see Ray's logs")

    def _repeat(self, a: int, orders: Orders, silent: list[int]) -> None:
        """Hands on again what was not acknowledged, once the receiver is back."""
        for b in silent:
            self._await(b)
            of = orders.to == b
            plan = orders.jobs.plan.take(of)
            wanted = dict.fromkeys(zip(plan.world.tolist(), plan.model.tolist(), strict=True), orders.t + 1)
            self._copied(a, wanted, b)

    def _restore(self, a: int, missing: dict[Key, int]) -> None:
        """Has the previous holders send what an actor lost."""
        for key, version in missing.items():
            self._copied(int(self.sender[key]), {key: version}, a)

    def _copied(self, sender: int, wanted: dict[Key, int], to: int) -> None:
        try:
            ok = sender not in (-1, to) and ray.get(
                self.actors[sender].resend.remote(wanted, self.actors[to]), timeout=2 * PATIENCE
            )
        except (*GONE, GetTimeoutError):
            ok = False
        if not ok:
            self.forget()
            raise Lost("a model of the walk was lost with the actor that held its only copy")

    def _seen(self, a: int, wanted: dict[Key, int]) -> dict[Key, Parcel]:
        for _ in range(DEATHS):
            shown = self._call(a, "show", wanted)
            if isinstance(shown, dict):
                return shown
            self._restore(a, {key: wanted[key] for key in shown})
        raise FedrayError(f"client actor {a} died {DEATHS} times while it was observed: see Ray's logs")

    def _call(self, a: int, method: str, *arguments: Any) -> Any:
        for _ in range(DEATHS):
            try:
                return ray.get(getattr(self.actors[a], method).remote(*arguments), timeout=PATIENCE)
            except RayTaskError as error:
                raise explain_error(error, f"client actor {a}") from error
            except GONE:
                self._await(a)
        raise FedrayError(f"client actor {a} died {DEATHS} times over one call: see Ray's logs")

    def _await(self, a: int) -> None:
        """An actor died: waits until Ray has started it again."""
        self.ready([a])
