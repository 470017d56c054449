"""Connects this process to an existing Ray cluster, or starts a Ray cluster on this machine.

Below, *a Ray* is a Ray cluster with its processes. A *driver* is a process that is connected to Ray and makes actors.
"""

import atexit
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import ray._private.worker as ray_worker
from ray._private import ray_constants, services
from ray._private.runtime_env.packaging import pin_runtime_env_uri
from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
from ray.exceptions import RayError
from ray.job_config import JobConfig

import fedray
from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput, FedrayError, FedrayWarning, warn_user
from fedray.own_code.user_code import find_module_places
from fedray.process import SIGNALS, current_ending, skip_teardown
from fedray.runtime import environment
from fedray.runtime.environment import answers

# ---------------------------------------------------------------------------------------------------------------------
# Settings that fedray makes before it starts or joins a Ray: network address, imports of workers, messages.

log = logging.getLogger("fedray")


def listen_on_network(network: bool) -> None:
    """Makes Ray listen on the machine's network address if `network` is True, else only on loopback.

    By default, Ray on Linux always listens on the network address, and has no option to change this. This function sets
    an environment variable and a constant of Ray instead.
    """
    if sys.platform == "linux":
        os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = str(int(network))  # for the processes that Ray starts
        ray_constants.ENABLE_RAY_CLUSTER = network  # for this process, which read the variable when it imported Ray


def own_job() -> JobConfig:
    """Returns the configuration with which this process joins Ray.

    With this configuration, workers import only from the paths in `worker_environment`. By default Ray puts the working
    directory first on the import path. A folder `fedray` in this directory, such as a source checkout, would then
    replace the installed package.
    """
    return JobConfig(_client_job=True)


def is_verbose() -> bool:
    """Returns whether the user sees what code in actors prints (`--verbose`)."""
    return log.isEnabledFor(logging.DEBUG)


@contextmanager
def keep_quiet() -> Iterator[None]:
    """Stops Ray, during the `with` block, from printing unhelpful messages and from changing signal handlers.

    Ray's C++ code sets a handler of SIGTERM when Ray starts or ends. Python's handlers are therefore set again after
    the block.
    """
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # hides a notice at every start
    if not is_verbose():
        untyped: Any = ray_worker
        untyped.print_to_stdstream = lambda *_, **__: None  # hides long logs that Ray prints when a process ends
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS} if main else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------------------------------
# Joining a Ray cluster that exists. Every error comes within seconds, while Ray would try for minutes.


def join_cluster(address: str) -> None:
    """Connects this process to an existing Ray cluster.

    Args:
        address: `HOST:PORT` of the cluster's head node, or `auto` for the cluster that this machine belongs to.

    Raises:
        BadInput: The cluster cannot be reached.

    Example:
        >>> join_cluster("127.0.0.1:1")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: --address 127.0.0.1:1: nobody answers at 127.0.0.1:1: start Ray there (`ray ...
    """
    named = environment.name_address(address)
    environment.prepare_process()
    listen_on_network(True)
    place = address
    if address == "auto":  # Ray wrote the address to a file when it started on this machine
        place = services.find_bootstrap_address(None) or ""
    if not place or not environment.answers(place, environment.ANSWER_SECONDS):
        what = f"nobody answers at {place}" if place else "no Ray runs on this machine"
        raise BadInput(f"{named}: {what}: start Ray there (`ray start --head`), or leave it out")
    try:
        with keep_quiet():
            ray.init(address=place, job_config=own_job(), log_to_driver=is_verbose(), configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        ray.shutdown()
        why = " ".join(str(error).split())[:200]
        raise BadInput(
            f"{named}: {why}: is it a Ray of this version, whose ~/.ray/auth_token this machine has?"
        ) from error


# ---------------------------------------------------------------------------------------------------------------------
# Detecting that Ray is gone. Ray itself may wait half an hour for a reply from a machine on which Ray has died. So a
# connection checks the processes of a Ray that fedray started. For any other Ray, it checks whether the cluster still
# lists this machine's node as alive.

PLENTY = 10**13  # bytes of memory that a local Ray reports, so that only the user limits the number of actors
MOST_TRIES = 2  # attempts to start Ray, because a start may fail on a busy machine
NEEDED = ("gcs_server", "raylet")  # if one of these processes has ended, Ray is gone
LOOK_SECONDS = 2.0  # time between two checks of a cluster
DEATH_SECONDS = 2.0  # after a worker has died, for how long to check whether Ray itself has died
MOST_SILENCE = 10.0  # a cluster is gone if its head node does not answer for so many seconds


class RayDied(FedrayError):
    """Raised if this process's Ray is gone."""


class Connection:
    """A connection of this process to Ray.

    Attributes:
        folder: Folder of the Ray that fedray has started. None means that fedray has not started this Ray.
        gone: Whether a check has found that Ray is gone.
    """

    def __init__(self, folder: Path | None = None, processes: dict[str, subprocess.Popen[bytes]] | None = None) -> None:
        self.folder, self._processes = folder, processes or {}
        self._next_look = self._answered = time.monotonic()
        self._in_doubt = self.gone = False

    def check(self, wait: float = 0.0) -> None:
        """Raises `RayDied` if Ray is gone.

        If `wait` is above 0, the check of a cluster does not end before the head node replies or counts as gone. After
        an earlier end, the caller's next call of Ray could wait for ever.

        Args:
            wait: The check is repeated for at least this number of seconds. 0 means a single check.
        """
        deadline, self._next_look = time.monotonic() + wait, 0.0 if wait else self._next_look
        while True:
            why = self._look_at_processes() if self.folder is not None else self._look_at_cluster()
            if why:
                self.gone = True
                raise RayDied(why)
            if time.monotonic() >= deadline and not (wait and self._in_doubt):
                return
            time.sleep(0.1)

    def _look_at_processes(self) -> str:
        """Names a process of Ray that has ended. The text is empty if all processes run."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                return f"the {name} of the Ray on this machine ended ({process.returncode})"
        return ""

    def _look_at_cluster(self) -> str:
        """Says which part of a cluster is gone. The text is empty if no part is gone."""
        now = time.monotonic()
        if now < self._next_look:
            return ""
        self._next_look, context = now + LOOK_SECONDS, ray.get_runtime_context()
        self._in_doubt = not answers(context.gcs_address)
        if self._in_doubt:
            silent = now - self._answered > MOST_SILENCE
            return f"the head node of the cluster ({context.gcs_address}) does not answer" if silent else ""
        self._answered = now
        untyped: Any = ray
        alive = {node["NodeID"]: node["Alive"] for node in untyped.nodes()}
        return (
            "" if alive.get(context.get_node_id(), True) else "Ray on this machine ended, though its cluster is there"
        )


_OURS = threading.RLock()  # held by a thread while it has fedray's own connection of this process to Ray


@contextmanager
def open_ray(address: str | None, cpus: int, gpus: int | None = None) -> Iterator[Connection]:
    """Connects to a cluster, or to a new Ray on this machine, during the `with` block.

    Only this machine can reach the new Ray (*local Ray*).

    Args:
        address: Network address of the cluster. None means the Ray to which this process is already connected, or else
            a local Ray.
        cpus: Smallest number of CPUs that a local Ray reports.
        gpus: Number of GPUs that a local Ray reports. None means the number of GPUs of this machine.

    Raises:
        BadInput: The cluster cannot be reached, or this process is connected to a different cluster, or another thread
            of this process runs a scenario on Ray.
        FedrayError: No Ray could be started on this machine.
    """
    if not _OURS.acquire(timeout=1.0):
        raise BadInput("a run on Ray goes on in another thread: run one after the other, or each in its own process")
    with ExitStack() as held:
        held.callback(_OURS.release)
        if ray.is_initialized():  # the user has connected it, and threads may share this connection
            held.close()
            known = ray.get_runtime_context().gcs_address
            if address not in (None, "auto", os.environ.get(environment.VARIABLE), known):
                raise BadInput(
                    f"--address {address}: this process is connected to {known}: leave it out, or call ray.shutdown()"
                )
            yield Connection()
        elif address is None:
            with open_local_ray(max(os.cpu_count() or 1, cpus), gpus=gpus) as connection:
                yield connection
        else:
            join_cluster(address)
            connection = Connection()
            try:
                yield connection
            finally:
                if connection.gone:  # `ray.shutdown` would wait a minute for an answer, and then end this process
                    atexit.unregister(ray_worker.shutdown)
                    skip_teardown("ray")
                else:
                    with keep_quiet():
                        ray.shutdown()


@contextmanager
def open_local_ray(
    cpus: int, resources: dict[str, float] | None = None, gpus: int | None = None
) -> Iterator[Connection]:
    """Runs a Ray on this machine during the `with` block, without a dashboard and with all ports on loopback.

    All files of this Ray are in one folder. The folder is removed at the end, even if a signal ends the process.

    Args:
        cpus: Number of CPUs that Ray reports.
        resources: Custom resources by name. None means no custom resources.
        gpus: Number of GPUs that Ray reports. None means the number of GPUs of this machine.

    Yields:
        The connection to this Ray.
    """
    environment.prepare_process()
    with environment.open_session(environment.session_place()) as folder:

        def discard() -> None:
            environment.kill_session(folder)
            environment.remove_session(folder)

        with current_ending().call(discard):
            if current_ending().is_over:  # the hooks may have been called already
                discard()
                current_ending().wait_if_over()
            try:
                yield Connection(folder, _start(folder, num_cpus=cpus, num_gpus=gpus, resources=resources))
            finally:
                _stop(folder)


def _start(folder: Path, **has: Any) -> dict[str, subprocess.Popen[bytes]]:
    """Starts Ray with the resources in `has`, and returns the processes without which Ray cannot work."""
    listen_on_network(False)
    os.environ[environment.MARK] = str(folder)
    # Ray would start workers in advance, but fedray's workers have a different environment and could not use them
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # at Ray's 15 a worker gets 3 % of a core on which others compute
    untyped: Any = ray_worker
    try:
        for tries in range(1, MOST_TRIES + 1):
            try:
                with keep_quiet():
                    ray.init(
                        address="local",
                        job_config=own_job(),
                        include_dashboard=False,
                        log_to_driver=is_verbose(),
                        configure_logging=False,
                        **has,
                        _memory=PLENTY,
                        _temp_dir=str(folder),
                    )
                break
            except (Exception, SystemExit) as error:  # Ray raises errors of many kinds
                # a process that ends must not start what it is stopping; Ray turns a signal into SystemExit
                current_ending().wait_if_over(1.0 if isinstance(error, SystemExit) else 0.0)
                _stop(folder)
                if tries == MOST_TRIES:
                    why = " ".join(str(error).split())[:200] or type(error).__name__
                    raise FedrayError(
                        f"Ray did not start on this machine ({why}): try again when it is less busy, set HOME and "
                        "RAY_TMPDIR to short paths that can be written, set runtime=inline, or give the --address of "
                        "a cluster"
                    ) from error
    finally:
        del os.environ[environment.MARK]
    return {name: untyped._global_node.all_processes[name][0].process for name in NEEDED}


def _stop(folder: Path) -> None:
    """Disconnects from a Ray that fedray started, and ends its processes.

    Processes that would end slowly are killed first.
    """
    node: Any = ray_worker._global_node
    for name, processes in dict(node.all_processes if node else {}).items():
        for one in processes if name not in NEEDED else []:
            one.process.kill()
    with suppress(Exception), keep_quiet():
        ray.shutdown()
    environment.kill_session(folder)
    skip_teardown("ray")  # nothing of this Ray is left


# ---------------------------------------------------------------------------------------------------------------------
# What a driver passes to its workers: environment variables, import path, working directory and the user's modules.
#
# A worker does not start in the driver's directory, and it has the environment variables of the Ray that starts it. Its
# machine may have none of the user's files. So paths in variables are sent as absolute paths, the coordinator works in
# the driver's directory, and Ray sends the user's modules (`py_modules`).

PLACES = ("FEDRAY_DATA", "FEDRAY_CACHE", "HF_HOME", "HF_DATASETS_CACHE")  # variables of the driver that hold a path
KEPT_SECONDS = 30 * 24 * 3600  # how long a cluster keeps modules that are not in use, since a run may pause


def worker_environment(modules: Sequence[str] = ()) -> dict[str, Any]:
    """Returns Ray's runtime environment of a worker. Workers that this worker starts get the same environment.

    Ray sends a class from a user's folder only as a name. So the worker must find the class's module on the same path
    as the sender.

    Args:
        modules: Names of the modules that were sent to the cluster (`send_modules`).
    """
    paths = [path or str(Path.cwd()) for path in sys.path]  # an empty entry is the working directory
    own = [path for path in paths if Path(path).is_dir() and not Path(path).is_relative_to(sys.prefix)]
    own = [path for path in own if not Path(path).is_relative_to(sys.base_prefix)]
    here = Path(fedray.__file__).parents[1]
    if any(Path(path, "fedray").is_dir() and not here.samefile(path) for path in own):
        own.insert(0, str(here))  # so that no other folder `fedray` replaces the package that the driver uses
    numbers = environment.PATIENCE_VARIABLE, environment.PARTS_VARIABLE
    given = {name: os.environ[name] for name in numbers if name in os.environ}
    given |= {name: str(Path(os.environ[name]).expanduser().absolute()) for name in PLACES if os.environ.get(name)}
    variables = environment.WORKER | given | {"PYTHONPATH": os.pathsep.join(own)}
    return {"env_vars": variables, **({"py_modules": list(modules)} if modules else {})}


def send_modules(own: UserObjects, connection: Connection) -> list[str]:
    """Sends the user's modules to a cluster, because its nodes may lack them.

    Modules with equal content are sent once. A Ray that fedray started needs no modules, because this machine has the
    files.

    Returns:
        The names of the modules in Ray, for `worker_environment`.
    """
    places = (
        [] if connection.folder is not None else find_module_places(own.modules, [thing for _, thing in own.things()])
    )
    if not places:
        return []
    wanted = {"py_modules": [str(place) for place in places], "excludes": ["__pycache__", ".git"]}
    try:
        with tempfile.TemporaryDirectory(prefix="fedray-modules-") as scratch:
            sent = upload_py_modules_if_needed(wanted, include_gitignore=False, scratch_dir=scratch)["py_modules"]
        for each in sent:
            pin_runtime_env_uri(each, expiration_s=KEPT_SECONDS)
    except Exception as error:  # such as a folder that is too large, or a file that cannot be read
        why = " ".join(str(error).split())[:200]
        names = ", ".join(place.name for place in places)
        text = f"{names} cannot be sent to the nodes ({why}): install it on each of them"
        warn_user(text, FedrayWarning)
        return []
    return [str(each) for each in sent]
