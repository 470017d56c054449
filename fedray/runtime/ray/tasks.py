"""Functions as tasks of a Ray cluster, for sweeps.

Example:
    >>> waiting = [Future()]
    >>> end_all(waiting, RayDied("the raylet of the Ray on this machine ended"))
    >>> waiting[0].exception()
    RayDied('the raylet of the Ray on this machine ended')
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import ray
from ray.exceptions import LocalRayletDiedError, RayError, RayTaskError

from fedray.runtime.ray.cluster import worker_environment
from fedray.runtime.ray.connection import DEATH_SECONDS, Connection, RayDied, open_ray

LOOK_SECONDS = 0.5  # between two looks whether Ray is there


@contextmanager
def run_as_tasks(address: str | None, number: int, gpus: float) -> Iterator[Callable[..., Any]]:
    """Runs functions as tasks of a cluster, one CPU each.

    Args:
        address: Address of the cluster; None starts a local one.
        number: How many tasks run at once; a local cluster is made large enough.
        gpus: GPUs of each task, possibly a fraction.

    Yields:
        A function: (function, *arguments) -> future of the result; it raises `RayDied` if Ray dies meanwhile.
    """
    waiting: list[Future[Any]] = []
    over = threading.Event()

    def submit(function: Callable[..., Any], *arguments: Any) -> Any:
        task = ray.remote(function).options(num_cpus=1, num_gpus=gpus, runtime_env=worker_environment())
        future: Future[Any] = Future()
        waiting.append(future)
        task.remote(*arguments).future().add_done_callback(partial(_pass_on, connection, future))
        return future

    with open_ray(address, number) as connection:
        watch = threading.Thread(target=_watch, args=(connection, waiting, over), daemon=True)
        watch.start()
        try:
            yield submit
        finally:
            over.set()
            watch.join()


def _pass_on(connection: Connection, future: Future[Any], task: Future[Any]) -> None:
    """Gives a task's end to the future that waits for it; where a worker died, Ray itself may have died."""
    error = task.exception()
    if error is None:
        with suppress(InvalidStateError):
            future.set_result(task.result())
    elif isinstance(error, RayError) and not isinstance(error, RayTaskError):
        threading.Thread(target=_find_cause, args=(connection, future, error), daemon=True).start()
    else:
        end_all([future], error)


def _find_cause(connection: Connection, future: Future[Any], error: BaseException) -> None:
    """Looks for some seconds whether a worker's death was Ray's."""
    try:
        if isinstance(error, LocalRayletDiedError):
            raise RayDied("Ray on this machine ended")
        connection.check(DEATH_SECONDS)
    except RayDied as died:
        connection.gone, error = True, died
    end_all([future], error)


def _watch(connection: Connection, waiting: Sequence[Future[Any]], over: threading.Event) -> None:
    """Ends the futures once Ray is gone: Ray itself would let them wait."""
    while not over.wait(LOOK_SECONDS):
        try:
            connection.check()
        except RayDied as error:
            end_all(waiting, error)


def end_all(waiting: Sequence[Future[Any]], error: BaseException) -> None:
    """Makes all futures that are not done raise an error."""
    for future in list(waiting):
        with suppress(InvalidStateError):
            future.set_exception(error)
