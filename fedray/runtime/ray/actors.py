"""The client actors of a run: starting them, waiting for them, and calling them, again if they die.

Each actor hosts many simulated clients. On one node, small messages of short rounds go through a compiled graph
(`fedray.runtime.ray.graph`), and everything else through ordinary calls. Ray restarts actors that die. A job depends on
nothing but state, data and address, so it can be sent again.

Example:
    >>> import numpy as np
    >>> broadcast_bytes(Round(0, (), np.zeros((3, 100), np.float32), np.zeros((3, 0)), {}))
    1200
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayChannelError, RaySystemError, RayTaskError

from fedray.assembly.user_objects import UserObjects
from fedray.core import native
from fedray.core.errors import BadInput, FedrayError
from fedray.runtime import placement
from fedray.runtime.messages import Reply, Round
from fedray.runtime.ray.client_actor import ClientActor
from fedray.runtime.ray.cluster import (
    GONE,
    MOST_DEATHS,
    PATIENCE,
    REMEDIES,
    ClusterChanged,
    count_nodes,
    describe_cluster,
    explain_error,
    make_actors,
    raise_if_refused,
    read_room,
)
from fedray.runtime.ray.connection import KeepsDying
from fedray.runtime.ray.graph import GRAPH_BYTES, CompiledGraph
from fedray.runtime.ray.naming import name_actors
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study

log = logging.getLogger("fedray")
MOST_EARLY_DEATHS, EARLY_SECONDS = 20, 300.0  # of actors that die again and again while they start
SAY_SECONDS = 3.0  # between two lines about how many actors are up
LOOK_SECONDS = 1.0  # between two looks at the cluster: has it grown, or lost what an actor waits for?
Call = tuple[int, Any, tuple[Any, ...]]  # an actor's number, its method, arguments


def broadcast_bytes(message: Round) -> int:
    """Counts the bytes of a broadcast's arrays."""
    return int(message.models.nbytes) + sum(int(value.nbytes) for value in message.extra.values())


class ClientActors:
    """The client actors, and the graph that calls them.

    Attributes:
        scenario: From which actors build the same study.
        own: The user's own objects, with what the actors cannot read from files.
        study: What is trained.
        on_death: Called after an actor has died and was restarted; it raises where the run cannot go on from here.
        run: Name of the run.
        take_peer_calls: Whether the actors call each other while they work.
        recoveries: Deaths of actors from which the run has recovered.
        actors: The actors, by number.
        specs: What each actor reserves.
    """

    def __init__(
        self,
        scenario: Scenario,
        own: UserObjects,
        study: Study,
        on_death: Callable[[], None],
        *,
        run: str,
        take_peer_calls: bool,
    ) -> None:
        self.scenario, self.own, self.study = scenario, own, study
        self.on_death, self.run, self.take_peer_calls = on_death, run, take_peer_calls
        self.recoveries = 0
        self.actors: list[Any] = []
        self.specs: list[placement.ActorSpec] = []
        self._agreed = False  # whether all actors had the same kernels when they began
        self._graph = CompiledGraph()

    def start(self) -> None:
        """Makes the actors for which the cluster has room, in place of those there were, and waits for them."""
        began, waiting = time.monotonic(), True
        while waiting:
            self.close()
            self._shared = (
                ray.put(self.scenario),
                ray.put(self.own),
            )  # kept, because actors restart from these objects
            self.specs = self._plan()
            names = name_actors(self.study.clients.tiers[spec.tier].name for spec in self.specs)
            self.actors = make_actors(
                ClientActor, self.specs, self._shared, run=self.run, names=names, peers=self.take_peer_calls
            )
            with suppress(ClusterChanged):
                self.wait_for(range(len(self.actors)))
                waiting = False
        if not self._agree_on_kernels():
            self.scenario = replace(self.scenario, lanes="torch")
            self.start()
        now = time.monotonic()
        self._next_look = now + LOOK_SECONDS + 10 * (now - began)  # restarts take a tenth of the time at most

    def _agree_on_kernels(self) -> bool:
        """Whether all actors compute the same bits; False where the run, not yet begun, should go without kernels."""
        if self.scenario.lanes == "torch":
            return True
        found = set(self.call_each([(a, actor.hash_kernels, ()) for a, actor in enumerate(self.actors)]))
        if found == {native.hash_library()}:
            self._agreed = True
        elif self.scenario.lanes == "compiled" or self._agreed:
            raise FedrayError(
                "the nodes have not all the same compiled kernels: install the same fedray on each, or start a new run "
                "with lanes: torch"
            )
        return self._agreed

    def _plan(self) -> list[placement.ActorSpec]:
        keys = self.scenario.clients
        return placement.plan_actors(self.study.clients, read_room(), keys.per_actor, keys.actors)

    def should_grow(self) -> bool:
        """Tells whether nodes joined since the last look that new actors would use, unless the scenario fixes them."""
        keys = self.scenario.clients
        if (keys.per_actor, keys.actors) != ("auto", "auto") or time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_SECONDS
        return placement.fits_room(self.specs, read_room()) and self._plan() != self.specs

    def wait_for(self, actors: Iterable[int]) -> None:
        """Waits until actors answer; raises an error that names the actor if it does not."""
        began = said = time.monotonic()
        deadline, wanted, deaths = began + PATIENCE, list(actors), 0
        for up, a in enumerate(wanted):
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                log.info("starting the actors: %s of %s are up", up, len(wanted))
            while not self._answers(a, deadline):
                deaths += 1
                if deaths > MOST_EARLY_DEATHS and time.monotonic() - began > EARLY_SECONDS:
                    raise KeepsDying(f"client actor {a} dies before it can work: {REMEDIES['OutOfMemoryError']}")
                time.sleep(0.2)
        self._one_node = count_nodes() == 1

    def _answers(self, a: int, deadline: float) -> bool:
        """Whether actor a answers, which may take a while; False if it died meanwhile."""
        ref = self.actors[a].ready.remote()
        while True:
            try:
                ray.get(ref, timeout=2 * LOOK_SECONDS)
                return True
            except RayTaskError as error:
                raise explain_error(error, f"client actor {a}") from error
            except GetTimeoutError:
                self._check_room()
                died = False
            except GONE as error:  # Ray restarts it
                raise_if_refused(error, f"client actor {a}")
                died = True
            if time.monotonic() > deadline:
                raise self._timeout_error(a)
            if died:
                return False

    def _check_room(self) -> None:
        """Raises `ClusterChanged` where a node went for good and fewer actors would fit."""
        try:
            if not placement.fits_room(self.specs, read_room()) and self._plan():
                raise ClusterChanged
        except BadInput:  # not even one actor a tier fits: a node may come back
            return

    def _timeout_error(self, a: int) -> FedrayError:
        spec = self.specs[a]
        missing = placement.describe_missing(spec, self.study.clients.tiers[spec.tier].name, read_room())
        return FedrayError(f"waited {PATIENCE:g} s for client actor {a}{missing}")

    def broadcast(self, message: Round, kept: int) -> list[Reply]:
        """Sends a round to every actor, again to those that died; `kept` are the bytes of uploads in the replies."""
        small = kept + broadcast_bytes(message) + 64 * sum(len(jobs.size) for jobs in message.jobs) < GRAPH_BYTES
        if small and self._one_node and self.study.client_timeout is None and not self._graph.is_slow:
            try:
                return self._graph.call(self.actors, message)
            except (*GONE, RayChannelError, RaySystemError):
                self._graph.close()
                self._recover(range(len(self.actors)))
            except RayTaskError as error:
                raise explain_error(error, "a client actor") from error
        self._graph.close()
        shared = message if small else ray.put(message)  # Ray copies small arguments into the call
        return self.call_each([(a, actor.train, (shared,)) for a, actor in enumerate(self.actors)])

    def call_each(self, calls: list[Call]) -> list[Any]:
        """Makes ordinary calls of actors at the same time, again where an actor died."""
        refs = [method.remote(*arguments) for _, method, arguments in calls]
        return [self._wait_for_answer(call, ref) for call, ref in zip(calls, refs, strict=True)]

    def _wait_for_answer(self, call: Call, ref: Any) -> Any:
        a, method, arguments = call
        for _ in range(MOST_DEATHS):
            try:
                return ray.get(ref, timeout=PATIENCE)
            except RayTaskError as error:
                raise explain_error(error, f"client actor {a}") from error
            except GetTimeoutError:
                raise FedrayError(
                    f"waited {PATIENCE:g} s for client actor {a} to answer a call; {describe_cluster()}: is it stuck? "
                    "If its work takes longer, set FEDRAY_PATIENCE"
                ) from None
            except GONE:
                self._recover([a])
                ref = method.remote(*arguments)
        raise KeepsDying(f"client actor {a} died {MOST_DEATHS} times over one call: has it enough memory?")

    def _recover(self, actors: Iterable[int]) -> None:
        """Waits until actors of which one has died are there again, and tells the runtime."""
        self.wait_for(actors)
        self.recoveries += 1
        self.on_death()

    def close(self) -> None:
        """Ends the actors."""
        self._graph.close()
        for actor in self.actors:
            ray.kill(actor)
