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
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayChannelError, RaySystemError, RayTaskError

from fedray.assembly.user_objects import UserObjects
from fedray.core import native
from fedray.core.errors import BadInput, FedrayError
from fedray.runtime import busy, environment, placement
from fedray.runtime.messages import Reply, Round
from fedray.runtime.misfit import describe_missing
from fedray.runtime.ray.client_actor import ClientActor
from fedray.runtime.ray.cluster import (
    GONE,
    MOST_DEATHS,
    REMEDIES,
    ClusterChanged,
    count_nodes,
    describe_cluster,
    explain_error,
    make_actors,
    raise_if_refused,
)
from fedray.runtime.ray.connection import KeepsDying
from fedray.runtime.ray.graph import GRAPH_BYTES, CompiledGraph
from fedray.runtime.ray.naming import name_actors
from fedray.runtime.ray.newcomers import Newcomers
from fedray.runtime.ray.seats import PATIENCE, Reservation, read_cluster, reserve, take_seats
from fedray.runtime.seats import ActorSpec
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study

log = logging.getLogger("fedray")
MOST_EARLY_DEATHS, EARLY_SECONDS = 20, 300.0  # of actors that die again and again while they start
SAY_SECONDS = 3.0  # between two lines about how many actors are up
LOOK_SECONDS = 1.0  # between two looks at the cluster: has it lost the node that an actor waits for?
GROW_SECONDS = 2.0  # between two looks whether there is room for further actors
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
        specs: What each actor reserves, and on which node.
        keys: How many actors there are to be.
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
        self.specs: list[ActorSpec] = []
        keys = scenario.clients
        self.keys = busy.ActorKeys(keys.per_actor, keys.actors, environment.read_share())
        self._seats: list[Reservation] = []
        self._shared: tuple[Any, ...] = ()
        self._newcomers: Newcomers | None = None
        self._joins, self._next_look = True, 0.0  # whether further actors may join, and when it is looked for room
        self._began = False  # whether there were actors before
        self._agreed = False  # whether all actors had the same kernels when they began
        self._graph = CompiledGraph()

    def start(self) -> None:
        """Makes the actors for which the cluster has room, in place of those there were, and waits for them.

        Where other jobs hold the cluster, or after the run's nodes were lost, it waits for seats.
        """
        waiting = True
        while waiting:
            self.close()
            self._shared = ray.put(self.scenario), ray.put(self.own)  # kept, because actors restart from these objects
            seats = take_seats(partial(busy.choose_seats, self.study.clients, keys=self.keys), waits=self._began)
            self._seats.append(seats)
            self.actors, self.specs = self._make(seats), seats.find_nodes()
            try:
                self.wait_for(range(len(self.actors)))
                waiting = False
            except ClusterChanged:
                pass
            except FedrayError:
                self.close()  # other jobs may have the seats
                raise
        self._began = True
        if not self._agree_on_kernels():
            self.scenario = replace(self.scenario, lanes="torch")
            self.start()

    def _make(self, seats: Reservation) -> list[Any]:
        """Makes actors beside those there are."""
        first, tiers = len(self.actors), self.study.clients.tiers
        names = name_actors(tiers[spec.tier].name for spec in [*self.specs[:first], *seats.specs])[first:]
        peers = self.take_peer_calls
        return make_actors(ClientActor, seats, self._shared, run=self.run, names=names, peers=peers, first=first)

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

    def has_grown(self) -> bool:
        """Tells whether further actors are ready to join, where nodes joined or other jobs ended; it starts such ones.

        It never waits: actors start while the others train. Where the scenario fixes the actors there are no others.
        """
        if self.keys.fixed or not self._joins or time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + GROW_SECONDS
        if self._newcomers is None:
            self._newcomers = self._invite()
        state = self._newcomers.look() if self._newcomers else "starting"
        if state == "failed" and self._newcomers:
            self._joins = not self._newcomers.differ
            self._newcomers.close()
            self._newcomers = None
        return state == "ready"

    def _invite(self) -> Newcomers | None:
        """Actors beside those there are, where there is room for some."""
        cluster = read_cluster()
        with suppress(BadInput):  # nodes are lost
            planned = placement.plan_actors(self.study.clients, cluster.whole, "auto", "auto")
            more = busy.plan_more(busy.take_part(planned, self.keys.parts), self.specs, cluster.free)
            if more:
                kernels = None if self.scenario.lanes == "torch" else native.hash_library()
                return Newcomers(reserve(more), self._make, kernels)
        return None

    def join(self) -> None:
        """Takes the further actors beside those there are; homes of clients change."""
        new, self._newcomers = self._newcomers, None
        if new is None:  # all actors were made anew meanwhile
            return
        self._graph.close()
        self.specs, self.actors = self.specs + new.seats.find_nodes(), self.actors + new.actors
        self._seats.append(new.seats)
        self._one_node = count_nodes() == 1
        log.info("training: %s further actors joined, %s in all", len(new.actors), len(self.actors))

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
                self._check_nodes()
                died = False
            except GONE as error:  # Ray restarts it
                raise_if_refused(error, f"client actor {a}")
                died = True
            if time.monotonic() > deadline:
                raise self._timeout_error(a)
            if died:
                return False

    def _check_nodes(self) -> None:
        """Raises `ClusterChanged` where a node is gone on which an actor had its seat."""
        alive = {node.name for node in read_cluster().whole}
        if any(spec.node and spec.node not in alive for spec in self.specs):
            raise ClusterChanged

    def _timeout_error(self, a: int) -> FedrayError:
        spec = self.specs[a]
        missing = describe_missing(spec, self.study.clients.tiers[spec.tier].name, read_cluster().whole)
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
        """Ends the actors and gives their seats back."""
        self._graph.close()
        if self._newcomers is not None:
            self._newcomers.close()
        for actor in self.actors:
            ray.kill(actor)
        for seats in self._seats:
            seats.release()
        self._newcomers, self.actors, self._seats = None, [], []
