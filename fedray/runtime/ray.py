"""The Ray runtime: client actors that host many simulated clients each, and a coordinator actor that runs the engine.

The coordinator broadcasts the models once a round and gets reduced statistics back:
over a compiled graph where messages are small and rounds short (one shared-memory channel a hop), as ordinary calls
otherwise. Client actors restart by themselves; jobs are pure in (state, data, address) and are issued again. Actors die
with the one that made them, so the driver makes the coordinator, and makes it again from its checkpoint if it dies.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.dag import InputNode, MultiOutputNode
from ray.exceptions import GetTimeoutError, RayActorError, RayChannelError, RaySystemError, RayTaskError
from torch import Tensor

from fedray.build import Own, build
from fedray.coordinate import Snapshot, coordinate
from fedray.core import FedrayError, JobRows, Phase, Plan, State, Stats
from fedray.engine import Lost
from fedray.known import known_clients
from fedray.lanes import block as lanes
from fedray.loggers import build_loggers
from fedray.private import dealt, merged
from fedray.runtime import environment, messages, packing
from fedray.runtime.client import Client
from fedray.runtime.cluster import cause, connect, refused, room, workplace
from fedray.runtime.facts import together
from fedray.runtime.host import Host
from fedray.runtime.messages import Piece
from fedray.scenario import Scenario
from fedray.study import Study
from fedray.tree import merge

GRAPH_BYTES = 256 << 10  # larger broadcasts are quicker through the object store (Ray 2.60: 31 ms at 0.4 MB)
LONG = 0.03  # seconds: over longer rounds an ordinary call is cheaper than a graph, whose readers wait by spinning
LAPS = 4  # rounds that tell how long a round takes
PATIENCE = float(os.environ.get("FEDRAY_PATIENCE", "1800"))  # seconds to wait for an actor before giving up
RESTARTS = 20  # of the coordinator
DEATHS = 5  # of one actor over one call: then the call is what kills it

Call = tuple[int, Any, tuple[Any, ...]]  # an actor's number, its method, arguments


class Rays:
    """The runtime as the engine sees it; lives in the coordinator actor."""

    def __init__(self, scenario: Scenario, own: Own, study: Study) -> None:
        self.study = study
        self.seats = packing.seats(study.clients, room(), scenario.clients.per_actor, scenario.clients.actors)
        kind: Any = ray.remote(Client)
        self.shared = (ray.put(scenario), ray.put(own))  # held: an actor that restarts is made from them again
        self.actors: list[Any] = [
            kind.options(
                num_cpus=seat.num_cpus,
                num_gpus=seat.num_gpus,
                resources=seat.resources,
                max_restarts=-1,
                runtime_env=workplace(),
            ).remote(*self.shared, index, seat.num_gpus, seat.num_cpus)
            for index, seat in enumerate(self.seats)
        ]
        self.graph: Any = None
        self.laps: deque[float] = deque(maxlen=LAPS)  # seconds that the newest rounds took in the actors
        self.stateful = any(phase.own for phase in study.method.phases)
        self.recoveries = 0
        self._ready(range(len(self.actors)))
        self.host = Host(study)  # for piece lists only

    def _ready(self, which: Iterable[int]) -> None:
        """Waits until actors answer; says what was awaited when they do not."""
        deadline = time.monotonic() + PATIENCE
        for a in which:
            while not self._answers(a, deadline):
                time.sleep(0.2)

    def _answers(self, a: int, deadline: float) -> bool:
        try:
            ray.get(self.actors[a].ready.remote(), timeout=max(1.0, deadline - time.monotonic()))
            return True
        except RayTaskError as error:
            raise cause(error, f"client actor {a}") from error
        except (GetTimeoutError, RayActorError) as error:  # it restarts
            refused(error, f"client actor {a}")
            if time.monotonic() > deadline:
                raise self._waited(a) from None
            return False

    def _waited(self, a: int) -> FedrayError:
        tier = self.study.clients.tiers[self.seats[a].tier].name
        return FedrayError(f"waited {PATIENCE:g} s for client actor {a}{packing.missing(self.seats[a], tier, room())}")

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the client actors."""
        return together(self._each([(a, actor.facts, ()) for a, actor in enumerate(self.actors)]))

    def train(self, t: int, plan: Plan, state: State, phase: Phase) -> tuple[Stats, JobRows]:
        size = self.study.shards.sizes(plan.replicate, plan.client)
        steps = lanes.steps_of(size, phase.local)
        parts = packing.deal(self.study.clients, self.seats, plan, steps, at_home=bool(phase.own))
        message = messages.to_round(t, [plan.take(part) for part in parts], state)
        replies = self._ask(message, state.models.shape[1] * 4 * len(plan.client) if phase.server.keeps else 0)
        stats, rows = zip(*(messages.from_reply(reply) for reply in replies), strict=True)
        return merge(list(stats)), messages.in_order(parts, rows)

    def _ask(self, message: messages.Round, kept: int) -> list[messages.Reply]:
        """One round trip to every actor; those that died are awaited and asked again. kept: bytes of whole uploads."""
        sent = message.models.nbytes + sum(value.nbytes for value in message.extra.values())
        small = kept + sent + 64 * sum(len(plan.client) for plan in message.plans) < GRAPH_BYTES
        if small and not (len(self.laps) == LAPS and min(self.laps) > LONG):
            try:
                return self._by_graph(message)
            except (RayActorError, RayChannelError, RaySystemError):
                self._drop_graph()
                self.recoveries += 1
                self._ready(range(len(self.actors)))
                self._check_private()
            except RayTaskError as error:
                raise cause(error, "a client actor") from error
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
                raise cause(error, f"client actor {a}") from error
            except GetTimeoutError:
                raise self._waited(a) from None
            except RayActorError:
                self.recoveries += 1
                self._ready([a])
                self._check_private()
                ref = method.remote(*arguments)
        raise FedrayError(f"client actor {a} died {DEATHS} times over one call: has it enough memory? see Ray's logs")

    def _check_private(self) -> None:
        """After an actor's death: what its clients kept to themselves is gone; the run goes back to a checkpoint."""
        if self.stateful:
            raise Lost("private client state was lost with an actor")

    def _spread(self, state: State, kind: str, keys: list[Piece], models: int) -> dict[Piece, Tensor]:
        shared = ray.put(messages.to_round(0, [], state))
        n = len(self.actors)
        answers = self._each([(a, self.actors[a].evaluate, (shared, kind, keys[a::n], models)) for a in range(n)])
        return {key: torch.from_numpy(np.array(value)) for answer in answers for key, value in answer.items()}

    def outputs(self, state: State, split: str, models: int) -> dict[Piece, Tensor]:
        return self._spread(state, split, self.host.pieces(state, split), models)

    def losses(self, state: State, models: int) -> dict[Piece, Tensor]:
        return self._spread(state, "losses", self.host.client_pieces(), models)

    def uncertainty(self, state: State, models: int) -> dict[Piece, Tensor]:
        return self._spread(state, "uncertainty", self.host.client_pieces(), models)

    def known(self, state: State) -> dict[Piece, Tensor]:
        keys, shared = known_clients(self.study), ray.put(messages.to_round(0, [], state))
        home = packing.homes(self.study.clients, self.seats, np.array([client for _, client in keys])).tolist()
        mine = [[key for key, at in zip(keys, home, strict=True) if at == a] for a in range(len(self.actors))]
        answers = self._each([(a, self.actors[a].known, (shared, part)) for a, part in enumerate(mine)])
        return {key: torch.from_numpy(np.array(value)) for answer in answers for key, value in answer.items()}

    def private(self) -> dict[str, Tensor]:
        if not self.stateful:
            return {}
        parts = self._each([(a, actor.private, ()) for a, actor in enumerate(self.actors)])
        return merged([{name: torch.from_numpy(np.array(value)) for name, value in part.items()} for part in parts])

    def restore(self, private: dict[str, Tensor]) -> None:
        if not self.stateful:
            return
        mine = dealt(private, partial(packing.homes, self.study.clients, self.seats), len(self.actors))
        calls = [(a, self.actors[a].restore, (part,)) for a, part in enumerate(mine)]
        stateful, self.stateful = self.stateful, False  # an actor that dies here is simply told again
        self._each(calls)
        self.stateful = stateful

    def close(self) -> None:
        self._drop_graph()
        for actor in self.actors:
            ray.kill(actor)


class Coordinator:
    """Runs the engine on the machine that holds the run directory; answers `progress` while it does."""

    def __init__(self, scenario: Scenario, own: Own, out: str) -> None:
        environment.one_thread()
        self.scenario, self.own, self.out = scenario, own, Path(out)
        self.latest: Snapshot | None = None

    def run(self) -> dict[str, Any]:
        """The whole run; its summary."""
        study = build(self.scenario, self.own.imported())
        runtime = Rays(self.scenario, self.own, study)
        known = {"runtime": "ray", **runtime.facts(), "actors": len(runtime.actors)}
        try:
            return coordinate(
                study, runtime, self.out, self._watch, known, build_loggers(self.scenario.loggers, self.out)
            )
        finally:
            runtime.close()

    def _watch(self, shown: Snapshot) -> None:
        self.latest = shown

    def progress(self) -> Snapshot | None:
        """The newest snapshot."""
        return self.latest


def run_on_ray(
    scenario: Scenario, own: Own, out: Path, watch: Callable[[Snapshot], None], address: str | None
) -> dict[str, Any]:
    """Runs a scenario on Ray and returns its summary; the coordinator is made again if it dies."""
    actors = scenario.clients.actors
    started = connect(address, 0 if actors == "auto" else int(actors))
    try:
        return _drive(scenario, own, out, watch)
    except RayTaskError as error:
        raise cause(error, "the coordinator") from error
    finally:
        if started:
            ray.shutdown()


def _drive(scenario: Scenario, own: Own, out: Path, watch: Callable[[Snapshot], None]) -> dict[str, Any]:
    kind: Any = ray.remote(Coordinator).options(num_cpus=0, max_concurrency=2, max_restarts=0, runtime_env=workplace())
    for _ in range(RESTARTS):
        coordinator = kind.remote(scenario, own, str(out))
        ref = coordinator.run.remote()
        try:
            while True:
                done, _ = ray.wait([ref], timeout=0.25)
                shown = ray.get(coordinator.progress.remote(), timeout=PATIENCE)
                if shown is not None:
                    watch(shown)
                if done:
                    summary: dict[str, Any] = ray.get(ref)
                    return summary
        except RayActorError as error:
            refused(error, "the coordinator")
    raise FedrayError(f"the coordinator died {RESTARTS} times: see the logs of Ray, then `fedray resume {out}`")
