"""The connection to Ray: to a cluster that is there, or to one that fedray starts on this machine; and its end.

Ray itself may wait for half an hour for an answer of a machine whose Ray has died. So a connection looks at the
processes of a Ray that fedray started, and elsewhere asks whether this machine's node is still known.
"""

from __future__ import annotations

import atexit
import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray._private.worker as ray_worker

from fedray.core.errors import BadInput, FedrayError
from fedray.process.ending import current_ending
from fedray.process.quickly import leave_untidy
from fedray.runtime import addresses, environment, leftovers
from fedray.runtime.addresses import answers
from fedray.runtime.ray.joining import join_cluster
from fedray.runtime.ray.switches import give_token, is_verbose, keep_quiet, listen_on_network, own_job

PLENTY = 10**13  # bytes of memory for Ray's count: of a Ray that is started here the user says how many actors it has
MOST_TRIES = 2  # of a start on a busy machine
NEEDED = ("gcs_server", "raylet")  # processes of a Ray without which it is gone
LOOK_SECONDS = 2.0  # between two questions to a cluster
DEATH_SECONDS = 2.0  # after a worker has died: did Ray itself die?
MOST_SILENCE = 10.0  # seconds without an answer of a cluster's head node


class RayDied(FedrayError):
    """The Ray that this process is connected to is gone."""


class KeepsDying(FedrayError):
    """A process of Ray died again and again. The logs of a Ray that fedray started are kept."""


class Connection:
    """A connection of this process to Ray.

    Attributes:
        folder: Of a Ray that fedray started, else None.
        gone: Whether Ray was found to be gone.
    """

    def __init__(self, folder: Path | None = None, processes: dict[str, subprocess.Popen[bytes]] | None = None) -> None:
        self.folder, self._processes = folder, processes or {}
        self._next_look = self._answered = time.monotonic()
        self._in_doubt = self.gone = False

    def check(self, wait: float = 0.0) -> None:
        """Raises `RayDied` where Ray is gone; with `wait`, looks again and again for some seconds.

        With `wait` it returns only when the head node answers: what is asked of Ray next would wait for it without end.
        """
        deadline = time.monotonic() + wait
        if wait:
            self._next_look = 0.0
        while True:
            try:
                if self.folder is not None:
                    self._check_processes()
                else:
                    self._check_cluster()
            except RayDied:
                self.gone = True
                raise
            if time.monotonic() >= deadline and not (wait and self._in_doubt):
                return
            time.sleep(0.1)

    def _check_processes(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise RayDied(f"the {name} of the Ray on this machine ended ({process.returncode})")

    def _check_cluster(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        context = ray.get_runtime_context()
        self._in_doubt = not answers(context.gcs_address)
        if self._in_doubt:
            if now - self._answered > MOST_SILENCE:
                raise RayDied(f"the head node of the cluster ({context.gcs_address}) does not answer")
            return
        self._answered = now
        untyped: Any = ray
        here = [node for node in untyped.nodes() if node["NodeID"] == context.get_node_id()]
        if here and not here[0]["Alive"]:
            raise RayDied("Ray on this machine ended, though its cluster is there")


@contextmanager
def open_ray(address: str | None, cpus: int, gpus: int | None = None) -> Iterator[Connection]:
    """Connects to a cluster, or starts a local one that only this machine can reach and that ends with the block.

    Args:
        address: Address of the cluster; None starts a local one, unless this process is connected already.
        cpus: CPUs that a local cluster has at least.
        gpus: GPUs that a local cluster is said to have; None: those of this machine.

    Raises:
        BadInput: The cluster cannot be reached, or this process is connected to another one.
        FedrayError: No Ray could be started here.
    """
    if ray.is_initialized():
        known = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", known, os.environ.get(addresses.VARIABLE)):
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
            if connection.gone:
                _abandon()
            else:
                with keep_quiet():
                    ray.shutdown()


def _abandon() -> None:
    """Leaves a cluster that is gone: Ray would wait a minute for its answer, and then end this process by itself."""
    atexit.unregister(ray_worker.shutdown)
    leave_untidy("ray")


@contextmanager
def open_local_ray(
    cpus: int, resources: dict[str, float] | None = None, gpus: int | None = None
) -> Iterator[Connection]:
    """A Ray on this machine while the block runs: without a dashboard, every port on loopback, its files in one folder.

    The folder and Ray's shared memory are removed at the end, also by a signal, unless Ray's logs are asked for.
    """
    environment.prepare_process()
    with leftovers.open_session(leftovers.session_place()) as folder:
        hooks, discard = current_ending().hooks, partial(_discard, folder)
        hooks.append(discard)
        keep = False
        try:
            yield Connection(folder, _start(folder, num_cpus=cpus, num_gpus=gpus, resources=resources))
        except KeepsDying as error:
            keep = True
            raise KeepsDying(f"{error}; Ray's logs are in {folder} until `fedray clean --yes`") from None
        finally:
            _stop(folder)
            if not keep:
                leftovers.remove_session(folder)
            hooks.remove(discard)


def _discard(folder: Path) -> None:
    leftovers.kill_session(folder)
    leftovers.remove_session(folder)


def _start(folder: Path, **has: Any) -> dict[str, subprocess.Popen[bytes]]:
    """Starts Ray, which has some resources, and returns the processes that it cannot do without."""
    listen_on_network(False)
    give_token()
    os.environ[leftovers.MARK] = str(folder)
    # workers for a first driver would import what fedray's own workers, which have an environment of theirs, do not use
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    why, remedy = "", ""
    try:
        for _ in range(MOST_TRIES):
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
                found = {name: _find_process(name) for name in NEEDED}
                leftovers.note_raylet(folder, found["raylet"].pid)
                return found
            except (Exception, SystemExit) as error:  # Ray ends with whatever its parts end with
                why = " ".join(str(error).split())[:200] or type(error).__name__
                remedy = _choose_remedy(error)
                _stop(folder)
    finally:
        del os.environ[leftovers.MARK]
    raise FedrayError(
        f"Ray did not start on this machine ({why}): {remedy}, set runtime=inline, or give the --address of a cluster"
    )


def _choose_remedy(error: BaseException) -> str:
    """What a user does where Ray did not start: a path that cannot be written is no matter of patience."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free space"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR):
        return "make that path writable, or set HOME and RAY_TMPDIR to directories that are"
    return "try again when the machine is less busy"


def _find_process(name: str) -> subprocess.Popen[bytes]:
    untyped: Any = ray_worker
    process: subprocess.Popen[bytes] = untyped._global_node.all_processes[name][0].process
    return process


def _stop(folder: Path) -> None:
    """Disconnects from a Ray that fedray started and ends its processes; the helpers first, which are slow to go."""
    node: Any = ray_worker._global_node
    for name, processes in dict(node.all_processes if node else {}).items():
        for one in processes if name not in NEEDED else []:
            one.process.kill()
    with suppress(Exception), keep_quiet():
        ray.shutdown()
    leftovers.kill_session(folder)
