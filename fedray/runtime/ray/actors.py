"""The client actors of a run: starting them, waiting for them, and calling them, again if they die.

Each actor hosts many simulated clients. Ray restarts actors that die. A job depends on nothing but state, data and
address, so it can be sent again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError

from fedray.assembly.user_objects import UserObjects
from fedray.core import native
from fedray.core.errors import FedrayError
from fedray.core.method import JobRows
from fedray.core.types import Stats
from fedray.runtime import busy, environment
from fedray.runtime.chunks import Queue
from fedray.runtime.exchange import choose_adding, exchange, share_nodes
from fedray.runtime.misfit import describe_missing
from fedray.runtime.ray.client_actor import ClientActor
from fedray.runtime.ray.cluster import (
    GONE,
    MOST_DEATHS,
    REMEDIES,
    ClusterChanged,
    describe_cluster,
    explain_error,
    make_actors,
    raise_if_refused,
)
from fedray.runtime.ray.connection import KeepsDying
from fedray.runtime.ray.exchange import Calls, Round
from fedray.runtime.ray.naming import name_actors
from fedray.runtime.ray.seats import PATIENCE, Reservation, read_cluster, take_seats
from fedray.runtime.seats import ActorSpec
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study

log = logging.getLogger("fedray")
MOST_EARLY_DEATHS, EARLY_SECONDS = 20, 300.0  # of actors that die again and again while they start
SAY_SECONDS = 3.0  # between two lines about how many actors are up
LOOK_SECONDS = 1.0  # between two looks at the cluster: has it lost the node that an actor waits for?
ADD_BYTES = 1 << 20  # of the sums of a model, from which on those of a node are added up there
Call = tuple[int, Any, tuple[Any, ...]]  # an actor's number, its method, arguments


class ClientActors:
    """The client actors, and calls of them.

    Attributes:
        scenario: From which actors build the same study.
        own: The user's own objects, with what the actors cannot read from files.
        study: What is trained.
        on_death: Called after an actor has died and was restarted; it raises where the run cannot go on from here.
        run: Name of the run.
        take_peer_calls: Whether the actors call each other while they work.
        given: Seats that somebody else has reserved for the run; None: it looks for its own.
        seconds: How long the last exchange took; infinity before the first.
        traffic: Bytes of models and of sums in the last exchange.
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
        given: Reservation | None = None,
    ) -> None:
        self.scenario, self.own, self.study = scenario, own, study
        self.on_death, self.run, self.take_peer_calls, self.given = on_death, run, take_peer_calls, given
        self.seconds, self.traffic = math.inf, [0, 0]
        self.actors: list[Any] = []
        self.specs: list[ActorSpec] = []
        keys = scenario.clients
        self.keys = busy.ActorKeys(keys.per_actor, keys.actors, environment.read_share())
        self._seats: Reservation | None = None
        self._shared: tuple[Any, ...] = ()
        self._began = False  # whether there were actors before
        self._agreed = False  # whether all actors had the same kernels when they began

    def start(self) -> None:
        """Makes the actors for which the cluster has room, in place of those there were, and waits for them.

        Where other jobs hold the cluster, or after the run's nodes were lost, it waits for seats.
        """
        waiting = True
        while waiting:
            self.close()
            self._shared = ray.put(self.scenario), ray.put(self.own)  # kept, because actors restart from these objects
            choose = partial(busy.choose_seats, self.study.clients, keys=self.keys)
            self._seats = take_seats(choose, waits=self._began) if self.given is None else self.given
            names = name_actors(self.study.clients.tiers[spec.tier].name for spec in self._seats.specs)
            called: dict[str, Any] = {"run": self.run, "names": names, "peers": self.take_peer_calls}
            self.actors = make_actors(ClientActor, self._seats, self._shared, **called)
            self.specs = self._seats.find_nodes()
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
                self._check_nodes()  # calls of an actor whose node is gone may fail at once, again and again
                died = True
            if time.monotonic() > deadline:
                raise self._timeout_error(a)
            if died:
                return False

    def _check_nodes(self) -> None:
        """Raises `ClusterChanged` where a node is gone on which an actor had its seat."""
        wanted = {spec.node for spec in self.specs} - {""}
        if wanted and wanted - {node.name for node in read_cluster().whole}:
            raise ClusterChanged

    def _timeout_error(self, a: int) -> FedrayError:
        spec = self.specs[a]
        missing = describe_missing(spec, self.study.clients.tiers[spec.tier].name, read_cluster().whole)
        return FedrayError(f"waited {PATIENCE:g} s for client actor {a}{missing}")

    def train(self, queues: Sequence[Queue], round_: Round, *, keeps: bool) -> tuple[Stats, JobRows]:
        """Has the chunks of a round trained, those of an actor that died again.

        Args:
            queues: The chunks.
            round_: What is trained.
            keeps: Whether uploads are sent as they are, and not sums of them.
        """
        began = time.monotonic()
        small = keeps or 8 * round_.state.models.shape[1] < ADD_BYTES
        apart = [] if small else share_nodes(self.specs, ray.get_runtime_context().get_node_id())
        nodes = choose_adding(apart, queues)
        calls = Calls(self.actors, self._recover, round_, {a for actors in nodes for a in actors})
        trained = exchange(queues, calls.post, calls.wait, nodes)
        self.seconds, self.traffic = time.monotonic() - began, calls.traffic
        return trained

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
                self._recover(a)
                ref = method.remote(*arguments)
        raise KeepsDying(f"client actor {a} died {MOST_DEATHS} times over one call: has it enough memory?")

    def _recover(self, a: int) -> None:
        """Waits until an actor that has died is there again, and tells the runtime."""
        self.wait_for([a])
        self.on_death()

    def close(self) -> None:
        """Ends the actors and gives their seats back."""
        for actor in self.actors:
            ray.kill(actor)
        if self._seats is not None:
            self._seats.release()
        self.actors, self._seats = [], None
