"""Where the trainings of a sweep run: in this process, in a pool of processes, or as tasks on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput, FedrayError
from fedray.experiments.spread import refuse_other_seats
from fedray.process.ending import current_ending
from fedray.process.notes import say_notes
from fedray.scenario.names import list_origins
from fedray.scenario.schema import Scenario
from fedray.tuning.sweep import Sweep
from fedray.tuning.trial import Outcome, TrialTask, train_job

Submit = Callable[[TrialTask], "Future[Outcome]"]
_OF_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # which it sends to all that was started from it


@contextmanager
def make_workers(
    number: int,
    base: Scenario,
    address: str | None,
    own: UserObjects,
    folder: Path,
    *,
    actors: int = 0,
    wait_for: Mapping[str, float] | None = None,
) -> Iterator[Submit]:
    """A function that submits a job to a worker; the workers end with the block.

    Args:
        number: how many workers there are at a time; a single one is this process.
        base: the base scenario of the sweep; `runtime: ray`, or `auto` with an address, makes the trainings tasks of
            a cluster.
        address: of an existing Ray cluster; None starts one on this machine.
        own: the user's objects, whose modules the workers import.
        folder: the directory of the sweep, which all workers must see.
        actors: client actors that each training spans; 0: it stays in its worker.
        wait_for: what the cluster must have before the first training begins, by Ray's names.
    """
    if _trains_on_ray(base, address):
        from fedray.runtime.ray.tasks import run_as_tasks

        gpus = max((tier.num_gpus for tier in base.clients.tiers.values()), default=0.0)
        with run_as_tasks(address, number, gpus, own, folder, actors=actors, wait_for=wait_for) as send:
            yield lambda job: send(train_job, job)
    elif number == 1:
        yield _train_here
    else:
        with _open_pool(number) as submit:
            yield submit


@contextmanager
def _open_pool(number: int) -> Iterator[Submit]:
    """A pool of processes; what is interrupted in them is resumed from its checkpoint."""
    _start_tracker()
    others, ending = set(multiprocessing.active_children()), current_ending()
    pool = ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), initializer=_end_with_parent)

    def start(function: Callable[..., Any], *args: object) -> Future[Any]:
        # A terminal sends them to children too. A blocked signal stays blocked in a child that begins meanwhile
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINAL)
        try:
            with _hide_script():
                return pool.submit(function, *args)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def kill_workers() -> None:
        for child in set(multiprocessing.active_children()) - others:
            child.kill()

    ending.hooks.append(kill_workers)
    try:
        if _registers_names():
            _try_script(start)
        yield partial(start, train_job)
        pool.shutdown()
    finally:  # after an error or Ctrl-C there may be some
        ending.hooks.remove(kill_workers)
        kill_workers()
        pool.shutdown(wait=False, cancel_futures=True)


def _registers_names() -> bool:
    """Whether the script that runs has registered names: only then workers need what it does."""
    return any(origin.module == "__main__" for origin in list_origins().values())


@contextmanager
def _hide_script() -> Iterator[None]:
    """Keeps workers that begin in the block from running the script once more, where it has registered no names.

    `multiprocessing` imports the script in each process that it starts. One without `if __name__ == "__main__":` would
    begin the sweep again.
    """
    script = sys.modules["__main__"]
    if not _registers_names():
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _try_script(start: Callable[..., Future[Any]]) -> None:
    """Starts a worker that runs the script for the names that it registers.

    Raises:
        BadInput: the worker ended, because the script starts the sweep again.
    """
    try:
        start(os.getpid).result()
    except BrokenProcessPool:
        raise BadInput(
            "jobs: each worker runs the script for the names that it registers, and the script starts the sweep again: "
            'put what calls fedray.tune below `if __name__ == "__main__":`, or the names into a module, modules=[...]'
        ) from None


def end_in_worker() -> None:
    """Ends a worker that has come to the beginning of a sweep while it imports the script that started it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(1)


def _start_tracker() -> None:
    """Starts the process that removes semaphores which an ended process has left, and keeps it from warning of them."""
    given = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (given, "ignore:resource_tracker")))
    try:
        resource_tracker.ensure_running()
    finally:
        if given is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = given


def _trains_on_ray(base: Scenario, address: str | None) -> bool:
    return base.runtime == "ray" or (base.runtime == "auto" and address is not None)


def refuse_idle_actors(sweep: Sweep, base: Scenario, address: str | None) -> None:
    """Refuses `trial.actors` where no actor would train.

    Args:
        sweep: the sweep.
        base: its base scenario.
        address: of an existing Ray cluster, if one is given.

    Raises:
        BadInput: says what to change.
    """
    if not sweep.actors:
        return
    named = f"trial.actors = {sweep.actors}"
    if not _trains_on_ray(base, address):
        more = "" if base.runtime == "inline" else ", give --address"
        remedy = f"write overrides: {{runtime: ray}}{more}, or leave trial out"
        raise BadInput(f"{named} needs a cluster, but runtime = {base.runtime}: {remedy}")
    refuse_other_seats(base)


def _train_here(job: TrialTask) -> Future[Outcome]:
    """Trains a job at once, in this process."""
    future: Future[Outcome] = Future()
    try:
        future.set_result(train_job(job))
    except FedrayError as error:
        future.set_exception(error)
    return future


def _end_with_parent() -> None:
    """Makes a worker end with the process that made it, however that ends; Ctrl-C is left to that process.

    What it warns of is a line on stderr: no warning reaches the process that made it.
    """
    say_notes(partial(print, file=sys.stderr))
    for number in _OF_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait_for_parent() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
