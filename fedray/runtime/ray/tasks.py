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
from typing import Any

import ray

from fedray.runtime.ray.cluster import worker_environment
from fedray.runtime.ray.connection import Connection, RayDied, open_ray

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
        future = task.remote(*arguments).future()
        waiting.append(future)
        return future

    with open_ray(address, number) as connection:
        watch = threading.Thread(target=_watch, args=(connection, waiting, over), daemon=True)
        watch.start()
        try:
            yield submit
        finally:
            over.set()
            watch.join()


def _watch(connection: Connection, waiting: Sequence[Future[Any]], over: threading.Event) -> None:
    """Ends the futures once Ray is gone: Ray itself would let them wait."""
    while not over.wait(LOOK_SECONDS):
        try:
            connection.check()
        except RayDied as error:
            end_all(waiting, error)


def end_all(waiting: Sequence[Future[Any]], error: RayDied) -> None:
    """Makes all futures that are not done raise an error."""
    for future in list(waiting):
        with suppress(InvalidStateError):
            future.set_exception(error)
