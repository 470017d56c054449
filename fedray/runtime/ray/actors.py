"""Starts and calls the client actors of a run, and repeats the calls of actors that die.

A client actor is a process of the cluster that trains the jobs of many simulated clients. A *seat* is the resources
that a node reserves for one actor.
"""

import itertools
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayTaskError

from fedray.assembly.registry import UserObjects, explaining_own_objects
from fedray.assembly.study import build_study
from fedray.core import sums
from fedray.core.errors import FedrayError, Lost
from fedray.core.method import JobRows
from fedray.core.types import SizedPlan, State, Stats
from fedray.own_code.user_code import import_modules
from fedray.runtime import environment, placement
from fedray.runtime import exchange as messages
from fedray.runtime.exchange import ModelRows, PieceKey, Queue, TrainReply, TrainRequest, exchange, unpack_state
from fedray.runtime.ray import cluster
from fedray.runtime.session import answer_pieces, worker_facts
from fedray.runtime.stacking import make_worker
from fedray.runtime.worker import Worker
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Question, Study
from fedray.training.update import keep_vectors

# ---------------------------------------------------------------------------------------------------------------------
# The calls of one exchange, which is all messages of a round: chunks of jobs go to the client actors, and sums of
# uploads come back.

log = logging.getLogger("fedray")
CALL_BYTES = 100 << 10  # Ray copies smaller arguments into the call
NUMBERS = itertools.count()  # numbers of exchanges; actors keep sums only for the exchange with the newest number


def explain_silence(a: int) -> FedrayError:
    """Returns the error for client actor `a`, which does not reply to a call."""
    return FedrayError(
        f"waited {cluster.PATIENCE:g} s for client actor {a} to answer a call; {cluster.describe_cluster()}: is it "
        "stuck? If its work takes longer, set FEDRAY_PATIENCE"
    )


def explain_deaths(a: int) -> FedrayError:
    """Returns the error for client actor `a`, which dies too often during one call."""
    return FedrayError(f"client actor {a} died {cluster.MOST_DEATHS} times over one call: has it enough memory?")


class Calls:
    """Sends tasks to client actors and collects their replies in one exchange (all messages of a round).

    Attributes:
        actors: The client actors.
        recover: A function that takes the index of a dead actor, and waits until the actor is restarted.
        t: The round, from 0.
        jobs: All jobs of the round.
    """

    def __init__(
        self, actors: list[Any], recover: Callable[[int], None], t: int, jobs: SizedPlan, state: State
    ) -> None:
        self.actors, self.recover, self.t, self.jobs = actors, recover, t, jobs
        self._number, packed = next(NUMBERS), messages.pack_state(state)
        self._state = packed if packed.models.nbytes < CALL_BYTES else ray.put(packed)
        self._pending: dict[Any, int] = {}  # awaited reply -> index of the actor
        self._deaths: Counter[int] = Counter()

    def post(self, a: int, chunk: messages.Chunk | None, kept: int, sends: bool) -> None:
        """Sends a task to an actor."""
        jobs = None if chunk is None else self.jobs.take(chunk.places)
        request = TrainRequest(self._number, self.t, jobs, kept, sends)
        self._pending[self.actors[a].train.remote(request, self._state)] = a

    def wait(self) -> tuple[int, TrainReply | None]:
        """Waits for the reply of any actor.

        The reply is None if the actor has died or has lost its sums.
        """
        done, _ = ray.wait(list(self._pending), timeout=cluster.PATIENCE)
        if not done:
            raise explain_silence(min(self._pending.values()))
        a = self._pending.pop(done[0])
        try:
            reply: TrainReply | None = ray.get(done[0])
        except RayTaskError as error:
            raise cluster.explain_error(error, f"client actor {a}") from error
        except cluster.GONE:
            self._deaths[a] += 1
            if self._deaths[a] >= cluster.MOST_DEATHS:
                raise explain_deaths(a) from None
            self.recover(a)
            return a, None
        return a, reply


# ---------------------------------------------------------------------------------------------------------------------
# The client actor. `cluster.make_actors` makes actors of Ray from this plain class.


class Unsent(NamedTuple):
    """Sums over uploads, before an actor sends them. An *exchange* is all messages of a round.

    Attributes:
        exchange: Number that identifies the exchange.
        chunks: Number of chunks of jobs whose uploads are in the sums.
        stats: The sums. None means that there is no chunk.
    """

    exchange: int
    chunks: int = 0
    stats: Stats | None = None


class ClientActor:
    """A client actor. It trains jobs, and holds what its clients keep between rounds (private vectors).

    Attributes:
        scenario: The scenario that is run.
        own: The user's own objects.
        index: Index of the actor.
        gpus: Number of GPUs that the actor reserves, possibly a fraction.
        cpus: Number of CPUs that the actor reserves, possibly a fraction.
        name: Name of the actor in Ray's tools.
        restored: Whether the clients' private vectors were restored since the process started.
        sums: The sums over uploads that the actor has not sent yet.
    """

    def __init__(
        self, scenario: Scenario, own: UserObjects, index: int, gpus: float, cpus: float, *, name: str = "clients"
    ) -> None:
        environment.use_one_thread()
        self.scenario, self.own = scenario, own
        self.index, self.gpus, self.cpus, self.name = index, gpus, cpus, name
        self.restored, self.sums = False, Unsent(-1)

    def __repr__(self) -> str:
        return self.name  # Ray writes the name before each line that this process prints

    @cached_property
    def worker(self) -> Worker:
        """The worker that trains.

        The first call of the actor builds the worker. If this fails, the caller gets the error.
        """
        import_modules(self.own.modules)
        study = build_study(self.scenario, self.own)
        with explaining_own_objects(self.scenario, self.own):  # only this process knows the line of the user's file
            device = environment.device_of(self.gpus, self.scenario.clients.device, tf32=self.scenario.clients.tf32)
            if device == "cuda":
                environment.limit_gpu_memory(self.gpus)
            return make_worker(study, device, max(1, int(self.cpus)))

    def ready(self) -> int:
        """Builds the worker that trains, and returns the id of the actor's process."""
        _ = self.worker
        return os.getpid()

    def hash_kernels(self) -> str | None:
        """Returns a digest of the compiled kernels of this process, or None if there are no compiled kernels."""
        return sums.hash_library()

    def facts(self) -> dict[str, Any]:
        """Describes this actor for the run's manifest."""
        with explaining_own_objects(self.scenario, self.own):
            return worker_facts(self.worker)

    def train(self, request: TrainRequest, packed: ModelRows) -> TrainReply | None:
        """Trains a chunk of a round's jobs, and adds their uploads to the sums that this actor keeps.

        Returns None if the actor has lost its earlier sums.
        """
        self._check_restored()
        if request.kept == 0:
            self.sums = Unsent(request.exchange)
        if self.sums[:2] != (request.exchange, request.kept):
            return None
        rows = None
        if request.jobs is not None:
            stats, rows = self.worker.train(request.t, request.jobs, unpack_state(packed))
            total = self.sums.stats or {}
            sums.add_stats(total, stats)
            self.sums = Unsent(request.exchange, request.kept + 1, total)
        if not request.sends:
            return TrainReply(None, rows)
        reply, self.sums = TrainReply(sums.thin(self.sums.stats or {}), rows), Unsent(request.exchange)
        return reply

    def private(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Returns what the clients of this actor keep between rounds (their private vectors).

        Args:
            names: Names of the vectors to return. None means all vectors.
        """
        self._check_restored()
        return {name: value.numpy() for name, value in keep_vectors(self.worker.store.state(), names).items()}

    def restore(self, private: dict[str, Any]) -> None:
        """Replaces what the clients of this actor keep between rounds (their private vectors)."""
        self.worker.store.restore({name: torch.from_numpy(np.array(value)) for name, value in private.items()})
        self.restored = True

    def _check_restored(self) -> None:
        """Raises `Lost` if the actor was restarted and has lost the private vectors of its clients."""
        if not self.restored and self.worker.study.method.phase.own:
            raise Lost("private client state was lost with an actor")

    def answer(self, message: ModelRows, question: Question, pieces: list[PieceKey]) -> dict[PieceKey, Any]:
        """Computes the function of a `Question` for some of its pieces (ranges of samples or clients).

        If `Question.at_home` is set, the pieces must be clients of this actor.
        """
        if question.at_home:
            self._check_restored()
        found = answer_pieces(self.worker, unpack_state(message), question, pieces)
        return {piece: values.numpy() for piece, values in found.items()}


# ---------------------------------------------------------------------------------------------------------------------
# All client actors of a run. Ray restarts actors that die. A job depends only on the state, the data and the key of its
# random numbers, so it can be sent to an actor again.

MOST_EARLY_DEATHS, EARLY_SECONDS = 20, 300.0  # most deaths and seconds while actors start; beyond both the run ends
LOOK_SECONDS = 2.0  # time between two checks for lost nodes while actors start
Call = tuple[int, Any, tuple[Any, ...]]  # index of an actor, method of the actor, arguments


class ClientActors:
    """Starts, calls and ends the client actors of a run.

    Attributes:
        scenario: The scenario, from which all actors build the same study.
        own: The user's own objects, including data that the actors cannot read from files.
        study: The objects of the run.
        on_death: A function that is called when an actor has died and was restarted. It raises an error if the run must
            return to a checkpoint.
        run: Name of the run.
        given: Resources that the caller has reserved for the actors. None means that the run reserves them itself.
        seconds: Wall seconds of the last exchange. It is infinite before the first exchange.
        actors: The actors.
        specs: Resources and node of each actor.
        parts: Number of runs that share the cluster.
        lost: For the manifest, the address of each node that died, and the tiers of its actors.
    """

    def __init__(
        self,
        scenario: Scenario,
        own: UserObjects,
        study: Study,
        on_death: Callable[[], None],
        *,
        run: str,
        given: cluster.Reservation | None = None,
    ) -> None:
        self.scenario, self.own, self.study = scenario, own, study
        self.on_death, self.run, self.given = on_death, run, given
        self.seconds = math.inf
        self.actors: list[Any] = []
        self.specs: list[placement.ActorSpec] = []
        self.parts = environment.read_run_count()
        self.lost: list[str] = []
        self._seats: cluster.Reservation | None = None
        self._shared: tuple[Any, ...] = ()
        self._began = False  # whether there were actors before

    def start(self) -> None:
        """Replaces the actors with new actors for which the cluster has room. Waits until the new actors can work.

        First waits for free resources, if other jobs use the cluster or nodes were lost.

        Raises:
            FedrayError: An actor cannot work, or the nodes have different compiled kernels.
        """
        waiting = True
        while waiting:
            self.close()
            self._shared = ray.put(self.scenario), ray.put(self.own)  # kept, because Ray restarts actors with them
            keys = self.scenario.clients
            choose = partial(placement.choose_seats, self.study.clients, keys.per_actor, keys.actors, self.parts)
            self._seats = cluster.take_seats(choose, waits=self._began) if self.given is None else self.given
            tiers = [self.study.clients.tiers[spec.tier].name for spec in self._seats.specs]
            self.actors = cluster.make_actors(ClientActor, self._seats, self._shared, run=self.run, tiers=tiers)
            self.specs = self._seats.find_nodes()
            try:
                self.wait_for(range(len(self.actors)))
                self._compare_kernels()
                waiting = False
            except cluster.ClusterChanged:
                pass
            except FedrayError:
                self.close()  # other jobs may have the seats
                raise
        self._began = True

    def _compare_kernels(self) -> None:
        """Raises an error if the nodes have different compiled kernels."""
        if self.scenario.lanes == "torch":
            return
        found = set(self.call_each([(a, actor.hash_kernels, ()) for a, actor in enumerate(self.actors)]))
        if found != {sums.hash_library()}:
            raise FedrayError(
                "the nodes have not all the same compiled kernels: install the same fedray on each, or start a new "
                "run with lanes: torch"
            )

    def wait_for(self, actors: Iterable[int]) -> None:
        """Waits until actors can work.

        Raises:
            FedrayError: An actor does not reply, or dies too often. The message names the actor.
            ClusterChanged: The node of an actor is gone.
        """
        began, deaths = time.monotonic(), 0
        for a, ref in [(a, self.actors[a].ready.remote()) for a in actors]:  # they build their workers side by side
            who = f"client actor {a}"
            while True:
                try:
                    ray.get(ref, timeout=LOOK_SECONDS)
                    break
                except RayTaskError as error:
                    raise cluster.explain_error(error, who) from error
                except GetTimeoutError:
                    self._check_nodes()
                    if time.monotonic() - began > cluster.PATIENCE:
                        raise FedrayError(
                            f"waited {cluster.PATIENCE:g} s for {who}; {cluster.describe_cluster()}"
                        ) from None
                except cluster.GONE as error:  # Ray restarts the actor
                    cluster.raise_if_refused(error, who)
                    self._check_nodes()  # calls of an actor on a lost node may fail at once, again and again
                    deaths += 1
                    if deaths > MOST_EARLY_DEATHS and time.monotonic() - began > EARLY_SECONDS:
                        raise FedrayError(f"{who} dies before it can work: {cluster.MORE_MEMORY}") from None
                    time.sleep(0.2)
                    ref = self.actors[a].ready.remote()

    def _check_nodes(self) -> None:
        """Adds to `lost` each node that is gone and had an actor.

        Raises `ClusterChanged` if there is such a node.
        """
        wanted = {spec.node for spec in self.specs} - {""}
        gone = wanted - {node.name for node in cluster.read_cluster().whole} if wanted else set()
        for node in sorted(gone):
            tiers = sorted({self.study.clients.tiers[spec.tier].name for spec in self.specs if spec.node == node})
            self.lost.append(f"{cluster.find_address_of(node)} (actors of {', '.join(tiers)})")
            log.info("lost node %s: the run goes on with the rest of the cluster", self.lost[-1])
        if gone:
            raise cluster.ClusterChanged

    def train(self, queues: Sequence[Queue], t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Lets the actors train all chunks of jobs of round t. If an actor dies, its chunks are trained again."""
        began = time.monotonic()
        calls = Calls(self.actors, self._recover, t, jobs, state)
        trained = exchange(queues, calls.post, calls.wait)
        self.seconds = time.monotonic() - began
        return trained

    def call_each(self, calls: list[Call]) -> list[Any]:
        """Calls several actors at the same time. If an actor dies, its call is repeated."""
        refs = [method.remote(*arguments) for _, method, arguments in calls]
        return [self._wait_for_answer(call, ref) for call, ref in zip(calls, refs, strict=True)]

    def _wait_for_answer(self, call: Call, ref: Any) -> Any:
        a, method, arguments = call
        for _ in range(cluster.MOST_DEATHS):
            try:
                return ray.get(ref, timeout=cluster.PATIENCE)
            except RayTaskError as error:
                raise cluster.explain_error(error, f"client actor {a}") from error
            except GetTimeoutError:
                raise explain_silence(a) from None
            except cluster.GONE:
                self._recover(a)
                ref = method.remote(*arguments)
        raise explain_deaths(a)

    def _recover(self, a: int) -> None:
        """Waits until the dead actor `a` is restarted, and then calls `on_death`."""
        self.wait_for([a])
        self.on_death()

    def close(self) -> None:
        """Ends the actors and releases their resources."""
        for actor in self.actors:
            ray.kill(actor)
        if self._seats is not None:
            self._seats.release()
        self.actors, self._seats = [], None
