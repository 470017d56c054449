"""The Ray runtime as the coordinator sees it: client actors that host many simulated clients each.

The coordinator broadcasts the models once a round and gets reduced statistics back: over a compiled graph where there
is one node, messages are small and rounds short (one shared-memory channel a hop), as ordinary calls otherwise. Client
actors restart by themselves; jobs are pure in (state, data, address) and are issued again. Where nodes come or go, the
actors are seated anew between two calls: the packing never changes a bit.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from ray.dag import InputNode, MultiOutputNode
from ray.exceptions import GetTimeoutError, RayActorError, RayChannelError, RaySystemError, RayTaskError
from torch import Tensor

from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput, FedrayError, Lost
from fedray.core.exact_sum import merge_stats
from fedray.core.method import JobRows, Phase
from fedray.core.types import SizedPlan, State, Stats
from fedray.evaluation.clients import known_clients
from fedray.runtime import messages, placement
from fedray.runtime.client_state import deal_private, merge_private
from fedray.runtime.messages import Piece
from fedray.runtime.ray.client_actor import ClientActor
from fedray.runtime.ray.cluster import (
    GONE,
    PATIENCE,
    ClusterChanged,
    explain_error,
    free_room,
    has_resources,
    live_nodes,
    make_actors,
    raise_if_refused,
    retry_when_moved,
)
from fedray.runtime.ray.random_walk import Walks
from fedray.runtime.stacking import make_worker
from fedray.runtime.worker_info import join_worker_facts
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study

GRAPH_BYTES = 256 << 10  # larger broadcasts are quicker through the object store (Ray 2.60: 31 ms at 0.4 MB)
LONG = 0.03  # seconds: over longer rounds an ordinary call is cheaper than a graph, whose readers wait by spinning
LAPS = 4  # rounds that tell how long a round takes
DEATHS = 5  # of one actor over one call: then the call is what kills it
LOOK = 1.0  # seconds between two looks at the cluster: has it grown, or lost what an actor waits for?
Call = tuple[int, Any, tuple[Any, ...]]  # an actor's number, its method, arguments


class RayRuntime:
    """The runtime as the engine sees it; lives in the coordinator actor."""

    def __init__(self, scenario: Scenario, own: UserObjects, study: Study) -> None:
        self.study, self.scenario, self.own = study, scenario, own
        self.actors: list[Any] = []
        self.graph: Any = None
        self.laps: deque[float] = deque(maxlen=LAPS)  # seconds that the newest rounds took in the actors
        self.stateful = bool(study.method.phase.own)
        self.recoveries = 0
        self.walks = Walks(study, self._ready) if study.method.phase.walk else None
        self._sit()
        self.host = make_worker(study)  # for piece lists only

    def _seats(self) -> list[placement.ActorSpec]:
        keys = self.scenario.clients
        return placement.plan_actors(self.study.clients, free_room(), keys.per_actor, keys.actors)

    def _sit(self) -> None:
        """Makes the actors that the cluster has room for, in place of those there were."""
        began, waiting = time.monotonic(), True
        while waiting:
            self.close()
            own = self.own if live_nodes() == 1 else self.own.shipped(self.study)
            self.shared = (ray.put(self.scenario), ray.put(own))  # held: an actor that restarts is made from them again
            self.seats = self._seats()
            self.actors = make_actors(ClientActor, self.seats, self.walks is not None, *self.shared)
            with suppress(ClusterChanged):
                self._ready(range(len(self.actors)))
                waiting = False
        if self.walks is not None:
            self.walks.sit(self.seats, self.actors)
        now = time.monotonic()
        self.look = now + LOOK + 10 * (now - began)  # a cluster that grows and grows costs a tenth of the time

    def reseat(self) -> None:
        """New actors, as many as what is left of the cluster holds."""
        self.recoveries += 1
        self._sit()
        self._check_private()
        if self.walks is not None:
            raise Lost("the models of the walk were lost with their actors")

    def _grow(self) -> None:
        """Where the packing follows the cluster: uses the nodes that joined since the last look."""
        keys = self.scenario.clients
        if (keys.per_actor, keys.actors) != ("auto", "auto") or self.walks or time.monotonic() < self.look:
            return
        self.look = time.monotonic() + LOOK
        if placement.count_fitting(self.seats, free_room()) and self._seats() != self.seats:
            private = self.private()
            self._sit()
            self.restore(private)

    def _ready(self, which: Iterable[int]) -> None:
        """Waits until actors answer; says what was awaited when they do not."""
        deadline = time.monotonic() + PATIENCE
        for a in which:
            while not self._answers(a, deadline):
                time.sleep(0.2)
        self.alone = live_nodes() == 1

    def _answers(self, a: int, deadline: float) -> bool:
        ref = self.actors[a].ready.remote()
        while True:
            try:
                ray.get(ref, timeout=2 * LOOK)
                return True
            except RayTaskError as error:
                raise explain_error(error, f"client actor {a}") from error
            except GetTimeoutError:
                self._check_room()
                if time.monotonic() > deadline:
                    raise self._waited(a) from None
            except GONE as error:  # it restarts
                raise_if_refused(error, f"client actor {a}")
                if time.monotonic() > deadline:
                    raise self._waited(a) from None
                return False

    def _check_room(self) -> None:
        """Gives up waiting where a node went for good and fewer actors would do."""
        try:
            if not placement.count_fitting(self.seats, free_room()) and self._seats():
                raise ClusterChanged
        except BadInput:  # nothing fits: a node may come back
            return

    def _waited(self, a: int) -> FedrayError:
        tier = self.study.clients.tiers[self.seats[a].tier].name
        return FedrayError(
            f"waited {PATIENCE:g} s for client actor {a}{placement.describe_missing(self.seats[a], tier, free_room())}"
        )

    @retry_when_moved
    def facts(self) -> dict[str, Any]:
        """What the manifest says of the client actors."""
        return join_worker_facts(self._each([(a, actor.facts, ()) for a, actor in enumerate(self.actors)]))

    @retry_when_moved
    def train(self, t: int, jobs: SizedPlan, state: State, phase: Phase) -> tuple[Stats, JobRows]:
        if self.walks is not None:
            return self.walks.train(t, jobs, state)
        self._grow()
        parts = placement.deal_jobs(self.study.clients, self.seats, jobs.plan, jobs.steps, at_home=bool(phase.own))
        message = messages.to_round(t, [jobs.take(part) for part in parts], state)
        replies = self._ask(message, state.models.shape[1] * 4 * len(jobs.size) if phase.server.keeps else 0)
        stats, rows = zip(*(messages.from_reply(reply) for reply in replies), strict=True)
        return merge_stats(list(stats)), messages.in_order(parts, rows)

    def _ask(self, message: messages.Round, kept: int) -> list[messages.Reply]:
        """One round trip to every actor; those that died are awaited and asked again. kept: bytes of whole uploads."""
        sent = message.models.nbytes + sum(value.nbytes for value in message.extra.values())
        small = kept + sent + 64 * sum(len(jobs.size) for jobs in message.jobs) < GRAPH_BYTES
        if (
            small
            and self.alone
            and self.study.client_timeout is None
            and not (len(self.laps) == LAPS and min(self.laps) > LONG)
        ):
            try:
                return self._by_graph(message)
            except (RayActorError, RayChannelError, RaySystemError):
                self._drop_graph()
                self.recoveries += 1
                self._ready(range(len(self.actors)))
                self._check_private()
            except RayTaskError as error:
                raise explain_error(error, "a client actor") from error
        self._drop_graph()
        shared = message if small else ray.put(message)  # Ray copies small arguments into the call
        return self._each([(a, self.actors[a].train, (shared,)) for a in range(len(self.actors))])

    def _by_graph(self, message: messages.Round) -> list[messages.Reply]:
        if self.graph is None:
            with InputNode() as source:
                dag = MultiOutputNode([actor.train.bind(source) for actor in self.actors])
            self.graph = dag.experimental_compile(_buffer_size_bytes=4 * GRAPH_BYTES)
        began = time.perf_counter()
        answer = self.graph.execute(message)
        time.sleep(0.5 * min(self.laps, default=0.0))  # waiting for it takes a whole core from the actors
        done: list[messages.Reply] = ray.get(answer, timeout=PATIENCE)
        self.laps.append(time.perf_counter() - began)
        return done

    def _drop_graph(self) -> None:
        if self.graph is not None:
            self.graph.teardown()
            self.graph = None

    def _each(self, calls: list[Call]) -> list[Any]:
        """Ordinary calls to actors, issued again where an actor died."""
        refs = [method.remote(*arguments) for _, method, arguments in calls]
        return [self._answer(call, ref) for call, ref in zip(calls, refs, strict=True)]

    def _answer(self, call: Call, ref: Any) -> Any:
        a, method, arguments = call
        for _ in range(DEATHS):
            try:
                return ray.get(ref, timeout=PATIENCE)
            except RayTaskError as error:
                raise explain_error(error, f"client actor {a}") from error
            except GetTimeoutError:
                raise FedrayError(
                    f"waited {PATIENCE:g} s for client actor {a} to answer a call; {has_resources()}: is it stuck? If its work "
                    "takes longer, set FEDRAY_PATIENCE"
                ) from None
            except GONE:
                self.recoveries += 1
                self._ready([a])
                self._check_private()
                ref = method.remote(*arguments)
        raise FedrayError(f"client actor {a} died {DEATHS} times over one call: has it enough memory? see Ray's logs")

    def _check_private(self) -> None:
        """After an actor's death: what its clients kept to themselves is gone; the run goes back to a checkpoint."""
        if self.stateful:
            raise Lost("private client state was lost with an actor")

    @retry_when_moved
    def _spread(self, state: State, kind: str, keys: list[Piece], models: int) -> dict[Piece, Tensor]:
        shared = ray.put(messages.to_round(0, [], state))
        n = len(self.actors)
        answers = self._each([(a, self.actors[a].evaluate, (shared, kind, keys[a::n], models)) for a in range(n)])
        return {key: torch.from_numpy(np.array(value)) for answer in answers for key, value in answer.items()}

    def outputs(self, state: State, split: str, models: int, worlds: int | None = None) -> dict[Piece, Tensor]:
        return self._spread(state, split, self.host.pieces(state, split, worlds), models)

    def losses(self, state: State, models: int, worlds: int | None = None) -> dict[Piece, Tensor]:
        return self._spread(state, "losses", self.host.client_pieces(worlds), models)

    def uncertainty(self, state: State, models: int, worlds: int | None = None) -> dict[Piece, Tensor]:
        return self._spread(state, "uncertainty", self.host.client_pieces(worlds), models)

    @retry_when_moved
    def known(self, state: State) -> dict[Piece, Tensor]:
        keys, shared = known_clients(self.study), ray.put(messages.to_round(0, [], state))
        home = placement.assign_homes(self.study.clients, self.seats, np.array([client for _, client in keys])).tolist()
        mine = [[key for key, at in zip(keys, home, strict=True) if at == a] for a in range(len(self.actors))]
        answers = self._each([(a, self.actors[a].known, (shared, part)) for a, part in enumerate(mine)])
        return {key: torch.from_numpy(np.array(value)) for answer in answers for key, value in answer.items()}

    @retry_when_moved
    def gather(self, state: State) -> State:
        return state if self.walks is None else self.walks.gather(state)

    @retry_when_moved
    def private(self) -> dict[str, Tensor]:
        if not self.stateful:
            return {}
        parts = self._each([(a, actor.private, ()) for a, actor in enumerate(self.actors)])
        return merge_private(
            [{name: torch.from_numpy(np.array(value)) for name, value in part.items()} for part in parts]
        )

    def restore(self, private: dict[str, Tensor]) -> None:
        if self.walks is not None:
            self.walks.forget()
        if not self.stateful:
            return
        self.stateful = False  # an actor that dies here is simply told again
        try:
            self._give(private)
        finally:
            self.stateful = True

    @retry_when_moved
    def _give(self, private: dict[str, Tensor]) -> None:
        mine = deal_private(private, partial(placement.assign_homes, self.study.clients, self.seats), len(self.actors))
        self._each([(a, self.actors[a].restore, (part,)) for a, part in enumerate(mine)])

    def close(self) -> None:
        self._drop_graph()
        for actor in self.actors:
            ray.kill(actor)
