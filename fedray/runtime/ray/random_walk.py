"""A random walk on Ray: models travel from client actor to client actor, never through the coordinator."""

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
from fedray.runtime import exchange, placement
from fedray.runtime.placement import ActorSpec
from fedray.runtime.ray.cluster import GONE, MOST_DEATHS, PATIENCE, PEER_CALLS, explain_error
from fedray.runtime.worker import Worker
from fedray.simulation.rounds import draw_first_state
from fedray.simulation.study import Study

# ---------------------------------------------------------------------------------------------------------------------
# The client actor's side of a random walk: holds models, trains them, and hands them to the next client's actor.
#
# An actor that hands a model on keeps its copy until the next hand-over of that model is acknowledged too, so that it
# can send the model again when the receiver dies. The coordinator's side is in `fedray.runtime.ray.random_walk`.

ModelKey = tuple[int, int]  # (world, model)


class Parcel(NamedTuple):
    """A model in one version.

    Attributes:
        version: The step in which it was last trained, plus 1.
        row: Its numbers, `[d]`.
        counters: Its counters, `[c]`.
    """

    version: int
    row: Any
    counters: Any


class Orders(NamedTuple):
    """What an actor does in one step of the walk.

    Attributes:
        t: The step, from 0.
        jobs: Its jobs, `[J]`.
        version: The version that each job's model must have before the step, `[J]`.
        to: The actor that holds each job's model after the step, `[J]`; its own number where the model stays.
    """

    t: int
    jobs: SizedPlan
    version: IntArray
    to: IntArray


class Report(NamedTuple):
    """What an actor answers to its orders.

    Attributes:
        missing: Models that it does not hold in the version it needs; if there are any, it has done nothing.
        rows: One row for each of its jobs; None where models are missing.
        unacknowledged: Actors that did not acknowledge the models they were sent.
    """

    missing: list[ModelKey]
    rows: JobRows | None
    unacknowledged: list[int]


class ModelHolder:
    """The models that a client actor holds, and copies of those it has handed on.

    Attributes:
        worker: Trains the models.
        phase: The training of the walk.
        state: A state of all models, into which the held ones are written for training.
        held: The models that are here.
        sent: Copies of models that were handed on.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.phase = worker.study.method.phase
        self.state = draw_first_state(worker.study, self.phase)
        self.held: dict[ModelKey, Parcel] = {}
        self.sent: dict[ModelKey, Parcel] = {}

    def receive(self, parcels: dict[ModelKey, Parcel]) -> bool:
        """Takes models; the answer acknowledges them."""
        self.held |= {
            key: Parcel(one.version, np.array(one.row), np.array(one.counters)) for key, one in parcels.items()
        }
        return True

    def step(self, orders: Orders, peers: dict[int, Any]) -> Report:
        """Trains models and hands them on; `peers` are the receiving actors by number."""
        plan = orders.jobs.plan
        keys = list(zip(plan.world.tolist(), plan.model.tolist(), strict=True))
        missing = self.find_missing(dict(zip(keys, orders.version.tolist(), strict=True)))
        if missing:
            return Report(missing, None, [])
        self.sent = {key: parcel for key, parcel in self.sent.items() if parcel.version >= orders.t}
        trained, rows = self._train(orders, keys)
        self.held |= trained
        routes = {b: [key for key, to in zip(keys, orders.to.tolist(), strict=True) if to == b] for b in peers}
        for key in (key for keys in routes.values() for key in keys):
            self.sent[key] = self.held.pop(key)
        return Report([], rows, [b for b, peer in peers.items() if not self._send(routes[b], peer)])

    def _train(self, orders: Orders, keys: list[ModelKey]) -> tuple[dict[ModelKey, Parcel], JobRows]:
        row = torch.tensor([world * self.phase.models + model for world, model in keys])
        self.state.models[row] = torch.stack([torch.from_numpy(self.held[key].row) for key in keys])
        self.state.counters[row] = torch.stack([torch.from_numpy(self.held[key].counters) for key in keys])
        stats, rows = self.worker.train(orders.t, orders.jobs, self.state, self.phase)
        after = self.phase.server.step(self.state, stats, orders.t)
        each = zip(keys, after.models[row].numpy(), after.counters[row].numpy(), strict=True)
        return {key: Parcel(orders.t + 1, model, counters) for key, model, counters in each}, rows

    def find_missing(self, wanted: dict[ModelKey, int]) -> list[ModelKey]:
        """Finds the models that are not here in the wanted version."""
        return [key for key, v in wanted.items() if key not in self.held or self.held[key].version != v]

    def _send(self, keys: list[ModelKey], peer: Any) -> bool:
        """Calls another actor with copies of models; tells whether it acknowledged them."""
        ref = peer.receive.options(concurrency_group=PEER_CALLS).remote({key: self.sent[key] for key in keys})
        try:
            return bool(ray.get(ref, timeout=PATIENCE))
        except (*GONE, RayTaskError, GetTimeoutError):
            return False

    def move(self, wanted: dict[ModelKey, int], peer: Any) -> list[ModelKey] | None:
        """Hands models to another actor that were not trained here.

        Args:
            wanted: The models, with the version they must have.
            peer: The receiving actor.

        Returns:
            The models that are missing; then none was sent. None if the receiver did not acknowledge them.
        """
        missing = self.find_missing(wanted)
        if missing:
            return missing
        self.sent |= {key: self.held[key] for key in wanted}
        if not self._send(list(wanted), peer):
            return None
        for key in wanted:
            del self.held[key]
        return []

    def resend(self, wanted: dict[ModelKey, int], peer: Any) -> bool:
        """Sends copies again; False if a copy is not here any more, or nobody acknowledged."""
        kept = all(key in self.sent and self.sent[key].version == version for key, version in wanted.items())
        return kept and self._send(list(wanted), peer)

    def show(self, wanted: dict[ModelKey, int]) -> dict[ModelKey, Parcel] | list[ModelKey]:
        """Copies of models for evaluation and checkpoints, or the list of those that are missing."""
        return self.find_missing(wanted) or {key: self.held[key] for key in wanted}


# ---------------------------------------------------------------------------------------------------------------------
# The actor of the client that holds a model trains it and hands it to the actor of the next client, which
# acknowledges it (`fedray.runtime.ray.random_walk`). The coordinator's side is here: it says who trains what and
# where models go next, and it knows where each model is. An actor that died is started again by Ray and reports which
# models it misses; the actor that sent such a model last sends it again. Where that copy is gone as well (a model
# that stayed in one process, two deaths at once) the run goes back to its newest checkpoint. Either way the bits are
# those of the undisturbed run.


def group_by_actor(actor: IntArray) -> dict[int, IntArray]:
    """The places `[j]` of each actor in a list of actors `[J]`.

    Example:
        >>> group_by_actor(np.array([1, 0, 1]))
        {0: array([1]), 1: array([0, 2])}
    """
    return {int(a): np.flatnonzero(actor == a) for a in np.unique(actor)}


class RandomWalks:
    """The coordinator's side of the walks of all models.

    Attributes:
        study: What is trained; R worlds of K models.
        wait_for: Waits until actors answer that Ray starts again.
        specs: What each actor reserves.
        actors: The actors.
        walk: Which client holds each model in each step.
        started: Whether the models are with the actors; otherwise the next step begins from the server's state.
        version: Version of each model, `[R, K]`: the step in which it was last trained, plus 1.
        home: The actor that holds each model, `[R, K]`.
        sender: The actor that still has a copy of each model, `[R, K]`; -1 for none.
    """

    def __init__(self, study: Study, wait_for: Callable[[list[int]], None]) -> None:
        self.study, self.wait_for = study, wait_for
        self.specs: list[ActorSpec] = []
        self.actors: list[Any] = []
        walk = study.method.phase.walk
        assert walk is not None
        self.walk, self.started = walk, False
        shape = study.worlds, study.method.phase.models
        self.version, self.home, self.sender = (np.full(shape, -1) for _ in range(3))

    def use_actors(self, specs: list[ActorSpec], actors: list[Any]) -> None:
        """Takes new actors, which hold no models yet."""
        self.specs, self.actors = specs, actors
        self.reset()

    def reset(self) -> None:
        """Makes the next step begin from the server's state."""
        self.started = False

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Makes one step of all walks.

        Args:
            t: The step, from 0.
            jobs: The jobs of the step, `[J]`.
            state: The server's state, from which the first step begins.

        Returns:
            No statistics, because the models stay with the actors; and one row for each job.
        """
        if not self.started:
            self._distribute(t, state)
        of = jobs.plan.world, jobs.plan.model
        home = self._actors_at(t)[of]
        self._move_to(of, home)
        to, places = self._actors_at(t + 1)[of], group_by_actor(home)
        orders = {a: Orders(t, jobs.take(its), self.version[of][its], to[its]) for a, its in places.items()}
        refs = {a: self._order(a, one) for a, one in orders.items()}
        rows = [self._collect(a, orders[a], refs[a]) for a in places]
        self.version[of], self.home[of], self.sender[of] = t + 1, to, np.where(to == home, -1, home)
        return {}, exchange.in_order(list(places.values()), rows)

    def gather(self, state: State) -> State:
        """Copies all models into a state, for evaluation and checkpoints."""
        if not self.started:
            return state
        models, counters = state.models.clone(), state.counters.clone()
        for a in np.unique(self.home).tolist():
            wanted = self._versions(np.argwhere(self.home == a))
            for (world, model), parcel in self._copy(a, wanted).items():
                row = world * self.version.shape[1] + model
                models[row] = torch.from_numpy(np.array(parcel.row))
                counters[row] = torch.from_numpy(np.array(parcel.counters))
        return State(models, counters, state.extra)

    def _actors_at(self, t: int) -> IntArray:
        """The actors on which the holders of the models live in step t, `[R, K]`."""
        holder = self.walk.at(t)
        return placement.assign_homes(self.study.clients, self.specs, holder.ravel()).reshape(holder.shape)

    def _versions(self, keys: Any) -> dict[ModelKey, int]:
        return {(int(w), int(k)): int(self.version[w, k]) for w, k in keys}

    def _distribute(self, t: int, state: State) -> None:
        """Gives every model to the actor of its holder."""
        home, models = self._actors_at(t), self.version.shape[1]
        self.version[:], self.home[:], self.sender[:], self.started = t, home, -1, True
        for a in np.unique(home).tolist():
            rows = {key: key[0] * models + key[1] for key in self._versions(np.argwhere(home == a))}
            parcels = {k: Parcel(t, state.models[r].numpy(), state.counters[r].numpy()) for k, r in rows.items()}
            self._call(a, "receive", parcels)

    def _move_to(self, of: tuple[IntArray, IntArray], home: IntArray) -> None:
        """Moves models to the actors that train them now; their last holders did not train, and so sent nothing."""
        away = self.home[of] != home
        for a, b in sorted(set(zip(self.home[of][away].tolist(), home[away].tolist(), strict=True))):
            keys = np.stack(of, axis=1)[away & (self.home[of] == a) & (home == b)]
            self._move(a, self._versions(keys), b)
            world, model = keys.T
            self.home[world, model], self.sender[world, model] = b, a

    def _move(self, a: int, wanted: dict[ModelKey, int], b: int) -> None:
        """Moves models from actor a to actor b."""
        for _ in range(MOST_DEATHS):
            missing = self._call(a, "move", wanted, self.actors[b])
            if missing == []:
                return
            if missing is None:
                self.wait_for([b])
            else:
                self._recover(a, {key: wanted[key] for key in missing})
        raise FedrayError(f"client actors {a} and {b} died {MOST_DEATHS} times over one hop: see Ray's logs")

    def _order(self, a: int, orders: Orders) -> Any:
        """Sends orders to an actor; the reference to its report."""
        peers = {int(b): self.actors[b] for b in np.unique(orders.to) if b != a}
        return self.actors[a].step.remote(orders, peers)

    def _collect(self, a: int, orders: Orders, ref: Any) -> JobRows:
        """Waits for an actor's report; the orders are sent again after its death, or once it got what it missed."""
        for _ in range(MOST_DEATHS):
            try:
                report: Report = ray.get(ref, timeout=PATIENCE)
            except RayTaskError as error:
                raise explain_error(error, f"client actor {a}") from error
            except GONE:
                self.wait_for([a])
                report = Report([], None, [])
            if report.rows is not None:
                self._repeat_sending(a, orders, report.unacknowledged)
                return report.rows
            self._recover(a, self._versions(report.missing))
            ref = self._order(a, orders)
        raise FedrayError(
            f"client actor {a} died {MOST_DEATHS} times over one step: has it enough memory? see Ray's logs"
        )

    def _repeat_sending(self, a: int, orders: Orders, receivers: list[int]) -> None:
        """Has actor a send models again to receivers that did not acknowledge them, once these are back."""
        for b in receivers:
            self.wait_for([b])
            plan = orders.jobs.plan.take(orders.to == b)
            wanted = dict.fromkeys(zip(plan.world.tolist(), plan.model.tolist(), strict=True), orders.t + 1)
            self._resend(a, wanted, b)

    def _recover(self, a: int, missing: dict[ModelKey, int]) -> None:
        """Has the previous holders send the models that actor a lost."""
        for key, version in missing.items():
            self._resend(int(self.sender[key]), {key: version}, a)

    def _resend(self, sender: int, wanted: dict[ModelKey, int], to: int) -> None:
        try:
            sent = sender not in (-1, to) and ray.get(
                self.actors[sender].resend.remote(wanted, self.actors[to]), timeout=2 * PATIENCE
            )
        except (*GONE, GetTimeoutError):
            sent = False
        if not sent:
            self.reset()
            raise Lost("a model of the walk was lost with the actor that held its only copy")

    def _copy(self, a: int, wanted: dict[ModelKey, int]) -> dict[ModelKey, Parcel]:
        """Copies of models that actor a holds."""
        for _ in range(MOST_DEATHS):
            shown = self._call(a, "show", wanted)
            if isinstance(shown, dict):
                return shown
            self._recover(a, {key: wanted[key] for key in shown})
        raise FedrayError(f"client actor {a} died {MOST_DEATHS} times while it was observed: see Ray's logs")

    def _call(self, a: int, method: str, *arguments: Any) -> Any:
        """Calls an actor, again after its death."""
        for _ in range(MOST_DEATHS):
            try:
                return ray.get(getattr(self.actors[a], method).remote(*arguments), timeout=PATIENCE)
            except RayTaskError as error:
                raise explain_error(error, f"client actor {a}") from error
            except GONE:
                self.wait_for([a])
        raise FedrayError(f"client actor {a} died {MOST_DEATHS} times over one call: see Ray's logs")
