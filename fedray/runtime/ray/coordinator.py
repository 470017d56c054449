"""Runs a scenario on Ray.

The *driver* is the process of the user's command. It makes the coordinator actor, which runs the round loop. The Ray
runtime in the coordinator sends jobs to the client actors.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import ray
import torch
from ray import cloudpickle as untyped
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.assembly.registry import UserObjects, list_own_names, name_thing
from fedray.assembly.study import build_study, describe_study, hash_own_values
from fedray.core.errors import BadInput, FedrayError, Lost
from fedray.core.method import JobRows
from fedray.core.types import SizedPlan, State, Stats
from fedray.own_code.user_code import describe_exception, import_modules
from fedray.runtime import environment, exchange, placement, session
from fedray.runtime.ray import cluster
from fedray.runtime.ray.actors import ClientActors
from fedray.runtime.ray.connection import DEATH_SECONDS, Connection, RayDied, open_ray, send_modules, worker_environment
from fedray.scenario.names import list_origins
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Pieces, Question, Study
from fedray.storage.summary import list_changes, tell_user
from fedray.training.update import deal_private, merge_private

# ---------------------------------------------------------------------------------------------------------------------
# The Ray runtime. It broadcasts the models of a round, and collects the sums of the clients' uploads.
#
# Client actors train the jobs (`fedray.runtime.ray.actors`). If a node is lost, the actors are replaced, and the call
# is repeated. Results have the same bits for every assignment of clients to actors.

_P = ParamSpec("_P")
_T = TypeVar("_T")


def retry(method: Callable[Concatenate["RayRuntime", _P], _T]) -> Callable[Concatenate["RayRuntime", _P], _T]:
    """Repeats the decorated method if a node is lost while the method runs.

    Before the method is repeated, the runtime replaces its actors.
    """

    @wraps(method)
    def repeat(runtime: "RayRuntime", /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        while True:
            try:
                return method(runtime, *arguments, **named)
            except cluster.ClusterChanged:
                runtime.clients.start()
                runtime._check_private()

    return repeat


def to_tensors(arrays: dict[Any, Any]) -> dict[Any, torch.Tensor]:
    """Copies the arrays of a reply into tensors."""
    return {key: torch.from_numpy(np.array(value)) for key, value in arrays.items()}


class RayRuntime:
    """Runs jobs on Ray, from within the coordinator actor. The class `Runtime` describes the methods.

    Attributes:
        study: The objects of the run.
        has_private: Whether actors hold data that clients keep between rounds (private vectors). It is False until
            `restore` has sent these data.
        clients: The client actors.
    """

    def __init__(
        self, scenario: Scenario, own: UserObjects, study: Study, run: str, *, seats: cluster.Reservation | None = None
    ) -> None:
        self.study = study
        self.has_private = False
        self.clients = ClientActors(scenario, own, study, self._check_private, run=run, given=seats)
        self.clients.start()

    @property
    def actors(self) -> list[Any]:
        """The client actors."""
        return self.clients.actors

    def _check_private(self) -> None:
        """Raises `Lost` if actors hold data of clients, because an actor that died has lost such data."""
        if self.has_private:
            raise Lost("private client state was lost with an actor")

    @retry
    def facts(self) -> dict[str, Any]:
        """Describes the client actors for the run's manifest."""
        return session.join_worker_facts(
            self.clients.call_each([(a, actor.facts, ()) for a, actor in enumerate(self.actors)])
        )

    @retry
    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Trains the jobs of round t on the actors."""
        is_long = len(self.actors) > 1 and self.clients.seconds > exchange.SECONDS_AN_ACTOR * len(self.actors)
        laps = exchange.PULLED_LAPS if is_long else 1
        specs, phase = self.clients.specs, self.study.method.phase
        queues = exchange.cut_chunks(self.study.clients, specs, jobs, phase.models, at_home=bool(phase.own), laps=laps)
        return self.clients.train(queues, t, jobs, state)

    @retry
    def ask(self, question: Question, state: State) -> Pieces:
        """Computes the function of a `Question` for all of its samples or clients, which the actors share.

        If `Question.at_home` is set, the function is computed for each client by the actor that holds the client's
        private vectors.
        """
        pieces, n = session.list_pieces(self.study, question), len(self.actors)
        parts = [pieces[a::n] for a in range(n)]
        if question.at_home:
            clients = session.list_clients(self.study, question)
            each = np.array([clients[world][place] for world, place in pieces], dtype=np.int64)
            home = placement.assign_homes(self.study.clients, self.clients.specs, each)
            parts = [[pieces[i] for i in np.flatnonzero(home == a)] for a in range(n)]
        shared, asked = ray.put(exchange.pack_state(state)), ray.put(question)
        calls = [(a, self.actors[a].answer, (shared, asked, part)) for a, part in enumerate(parts)]
        return {key: tensor for answer in self.clients.call_each(calls) for key, tensor in to_tensors(answer).items()}

    @retry
    def private(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """Returns the private vectors of all clients for a checkpoint.

        `names` are the names of the vectors to return. None means all vectors.
        """
        if not self.study.method.phase.own:
            return {}
        parts = self.clients.call_each([(a, actor.private, (names,)) for a, actor in enumerate(self.actors)])
        return merge_private([to_tensors(part) for part in parts])

    def restore(self, private: dict[str, torch.Tensor]) -> None:
        """Replaces the private vectors of all clients with the vectors of a checkpoint."""
        if self.study.method.phase.own:
            self.has_private = False  # an actor that dies now has nothing to lose and is called again
            self._send_private(private)
            self.has_private = True

    @retry
    def _send_private(self, private: dict[str, torch.Tensor]) -> None:
        parts = deal_private(
            private, partial(placement.assign_homes, self.study.clients, self.clients.specs), len(self.actors)
        )
        self.clients.call_each([(a, self.actors[a].restore, (part,)) for a, part in enumerate(parts)])

    def close(self) -> None:
        """Ends the actors."""
        self.clients.close()


# ---------------------------------------------------------------------------------------------------------------------
# Sending a user's own objects and registered names to the actors of Ray.

cloudpickle: Any = untyped  # cloudpickle has no type annotations


def prepare_objects(scenario: Scenario, own: UserObjects) -> UserObjects:
    """Prepares the user's objects for the actors.

    The scenario may use names that the user registered. The result also lists the modules with these registrations, so
    that the actors import them.

    Raises:
        BadInput: An object cannot be sent to a different process, or the actors cannot import the file that registered
            a name.
    """
    check_sendable(own)
    modules, known = list(own.modules), {Path(name).stem if name.endswith(".py") else name for name in own.modules}
    for kind, name in list_own_names(scenario, own):
        origin = list_origins()[kind, name]
        if origin.module == "__main__" and not own.modules:
            raise BadInput(
                f"{kind} {name!r} was registered in {origin.file}, which the actors of Ray cannot import: register it "
                'in a module and give --import MODULE, or modules=["MODULE"] in Python'
            )
        if origin.module not in {"__main__", *known}:
            modules.append(origin.module)
            known.add(origin.module)
    return replace(own, modules=tuple(modules))


def check_sendable(own: UserObjects) -> None:
    """Checks that the user's objects can be sent to other processes.

    Raises:
        BadInput: An object cannot be sent. The message names the object and the reason.

    Example:
        >>> from threading import Lock
        >>> lock = Lock()
        >>> check_sendable(UserObjects(model=lambda: lock))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: model = ...: it cannot be sent to the actors of Ray (TypeError: cannot pickle ...
    """
    for kind, thing in own.things():
        try:
            cloudpickle.dumps(thing)
        except Exception as error:
            raise BadInput(
                f"{kind} = {own.named().get(kind) or name_thing(thing)}: it cannot be sent to the actors of Ray "
                f"({describe_exception(error)}): open files, locks and loggers inside the function, or set runtime: "
                "inline"
            ) from None


# ---------------------------------------------------------------------------------------------------------------------
# The coordinator and the driver. If the coordinator dies, the driver makes a new one, which continues from the newest
# checkpoint. An actor ends with the process that made it. So if the driver dies, all actors end, and `fedray resume`
# continues the run.

log = logging.getLogger("fedray")
MOST_STARTS = 20  # most coordinators that a driver makes for a run
MOST_RAYS = 5  # most starts of Ray on this machine for a run, because Ray itself may die


class Coordinator:
    """Runs a scenario on the machine that has the run directory. Meanwhile, `progress` can be called.

    Attributes:
        scenario: The scenario that is run.
        own: The user's own objects.
        out: The run directory.
        alone: Whether all actors run on this machine, which has the user's files.
        values: Digests of the values that the user's code uses in the driver (`hash_own_values`).
        snapshots: Snapshots of the run that nobody has fetched yet. In a snapshot, `phase` says what the run does now,
            and `note` is a warning.
    """

    def __init__(
        self,
        scenario: Scenario,
        own: UserObjects,
        out: str,
        folder: str = "",
        *,
        alone: bool,
        values: Mapping[str, str],
    ) -> None:
        environment.use_one_thread()
        environment.enter_folder(folder)
        self.scenario, self.own, self.out, self.alone, self.values = scenario, own, Path(out), alone, values
        self.snapshots: deque[session.Snapshot] = deque()

    def __repr__(self) -> str:
        return "coordinator"  # Ray writes this name before each line that this process prints

    def run(self) -> dict[str, Any]:
        """Runs the scenario, from its newest checkpoint if there is one, and returns the summary."""

        def keep_phase(record: logging.LogRecord) -> bool:
            self.snapshots.append({"phase": record.getMessage()})  # the driver shows this text
            return False

        log.setLevel(logging.INFO)
        log.addFilter(keep_phase)
        import_modules(self.own.modules)
        log.info("reading the data")
        study = build_study(self.scenario, self.own)
        self._compare_values()
        log.info("starting the actors")
        own = self.own.with_rows(self.scenario, study) if self.alone else self.own.shipped(study)
        with closing(RayRuntime(self.scenario, own, study, self.out.name)) as runtime:
            facts = {"runtime": "ray", **runtime.facts(), "actors": len(runtime.actors)}
            facts["lost_nodes"] = runtime.clients.lost  # this list may grow during the run
            digests = describe_study(self.scenario, self.own, study) | session.describe_lanes(study, facts)
            return session.run_session(
                study, runtime, self.out, self.snapshots.append, facts=facts, digests=digests, tell=self._keep_note
            )

    def _compare_values(self) -> None:
        """Warns if the user's code uses a value that differs in the driver.

        Ray sends a function of a module only as a name, and the actors import the module. The actors do not see a value
        that the driver changed after its import. A difference is no error, because the module may compute the value,
        for example from the machine's name.
        """
        here = hash_own_values(self.scenario, self.own)
        if changed := list_changes("values", {"values": self.values}, {"values": here}):
            self._keep_note(
                f"the actors of Ray import your modules again, and see another {', '.join(changed)}: set it in the "
                "file of its module, or pass it with functools.partial"
            )

    def _keep_note(self, line: str) -> None:
        """Stores a line, which the process of the user's command prints as a warning."""
        self.snapshots.append({"note": line})

    def progress(self) -> list[session.Snapshot]:
        """Returns the snapshots since the last call."""
        return [self.snapshots.popleft() for _ in range(len(self.snapshots))]


def run_on_ray(
    scenario: Scenario,
    own: UserObjects,
    out: Path,
    watch: session.Watch,
    address: str | None,
    *,
    wait_for: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Runs a scenario on Ray.

    Args:
        scenario: The scenario that is run.
        own: The user's own objects.
        out: The run directory.
        watch: A function that is called after each evaluated round. It takes a snapshot: a dictionary with the round,
            metrics, bytes and seconds.
        address: Network address of the cluster. None means a Ray that fedray starts on this machine.
        wait_for: Amounts of resources, by Ray's names. The run begins when the cluster has them. None means no wait.

    Returns:
        The summary.
    """
    own = prepare_objects(scenario, own)
    keys = scenario.clients
    cpus, gpus = (
        0 if keys.actors == "auto" else int(keys.actors),
        environment.pretend_gpus(keys.tiers.values(), keys.device),
    )
    for _ in range(MOST_RAYS):
        with open_ray(address, cpus, gpus) as connection:
            try:
                cluster.wait_for_resources(wait_for or {})
                return _run_coordinator(scenario, own, out, watch, connection)
            except RayError as error:
                raise cluster.explain_error(error, "the coordinator") from error
            except RayDied as error:
                if connection.folder is None:
                    raise FedrayError(f"{error}: `fedray resume {out}` goes on where Ray runs") from None
                died = str(error)
        log.info("starting Ray again, to go on from the newest checkpoint: %s", died)
    raise FedrayError(f"Ray died {MOST_RAYS} times, has it enough memory? ({died}): `fedray resume {out}` goes on")


def _run_coordinator(
    scenario: Scenario, own: UserObjects, out: Path, watch: session.Watch, connection: Connection
) -> dict[str, Any]:
    """Makes the coordinator actor, shows its snapshots, and returns the summary.

    If the coordinator dies, it is replaced.
    """
    folder = str(Path.cwd())
    here = ray.get_runtime_context().get_node_id()
    given = {"alone": connection.folder is not None, "values": hash_own_values(scenario, own)}
    kind: Any = ray.remote(Coordinator)
    options = {
        "num_cpus": 0,  # Ray may start such an actor on any node
        "max_concurrency": 2,
        "max_restarts": 0,
        "runtime_env": worker_environment(send_modules(own, connection)),
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False),  # where the run directory is
    }
    for _ in range(MOST_STARTS):
        [named] = cluster.name_options(out.name, ["coordinator"])
        coordinator = kind.options(**options, **named).remote(scenario, own, str(out), folder, **given)
        try:
            return _watch_coordinator(coordinator, out, watch, connection)
        except RayTaskError:
            raise
        except cluster.GONE as error:
            connection.check(DEATH_SECONDS)
            cluster.raise_if_refused(error, "the coordinator")
            log.info("the coordinator died (%s): it goes on from the newest checkpoint", type(error).__name__)
        except RayError:
            connection.check(DEATH_SECONDS)
            raise
        finally:  # otherwise the coordinator would go on although the driver no longer watches it
            with suppress(Exception):  # Ray itself may be gone
                connection.check()
                ray.kill(coordinator)
    raise FedrayError(f"the coordinator died {MOST_STARTS} times: `fedray resume {out}` goes on")


def _watch_coordinator(coordinator: Any, out: Path, watch: session.Watch, connection: Connection) -> dict[str, Any]:
    """Shows the snapshots of a coordinator, until it returns the summary."""
    ref = coordinator.run.remote()
    done: list[Any] = []
    while not done:
        done, _ = ray.wait([ref], timeout=0.25)
        shown = coordinator.progress.remote()
        deadline = time.monotonic() + cluster.PATIENCE
        while not ray.wait([shown], timeout=min(1.0, cluster.PATIENCE))[0]:
            connection.check()
            if time.monotonic() > deadline:
                has = cluster.describe_cluster()
                raise FedrayError(f"waited {cluster.PATIENCE:g} s for the coordinator; {has}: `fedray resume {out}`")
        connection.check()
        for snapshot in ray.get(shown):
            if "phase" in snapshot:
                log.info("%s", snapshot["phase"])
            elif "note" in snapshot:
                tell_user(snapshot["note"])
            else:
                watch(snapshot)
    summary: dict[str, Any] = ray.get(ref)
    return summary
