"""Runs the trials of a sweep (a table of runs) as tasks of a Ray cluster, and talks to Ray Tune."""

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import LocalRayletDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput, FedrayError
from fedray.runtime import environment
from fedray.runtime.environment import read_patience
from fedray.runtime.ray import cluster
from fedray.runtime.ray.connection import DEATH_SECONDS, Connection, RayDied, open_ray, send_modules, worker_environment
from fedray.storage import directory

# ---------------------------------------------------------------------------------------------------------------------
# The folder of a sweep. All nodes must see it, because the trials write their run directories there.


def holds_note(path: str, text: str) -> bool:
    """Returns whether the file `path` exists and has exactly this text.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     note = Path(folder) / "note"
        ...     _ = note.write_text("x")
        ...     holds_note(str(note), "x"), holds_note(str(note), "y")
        (True, False)
    """
    try:
        return Path(path).read_text() == text
    except (OSError, ValueError):
        return False


def confirm_shared(folder: Path, environment: dict[str, Any]) -> None:
    """Checks that all nodes see a folder.

    The function writes a file to the folder, and makes every node with a CPU read the file.

    Raises:
        BadInput: A node does not see the folder.
    """
    untyped: Any = ray
    nodes = [node for node in untyped.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    if len(untyped.nodes()) == 1:
        return
    ask: Any = ray.remote(holds_note)
    note, text = folder / f".{secrets.token_hex(12)}.part", secrets.token_hex(12)
    note.write_text(text)
    try:
        options = {"num_cpus": 0, "max_retries": 2, "runtime_env": environment}
        pins = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=True) for node in nodes]
        asked = [ask.options(**options, scheduling_strategy=pin).remote(str(note), text) for pin in pins]
        seen = ray.get(asked, timeout=read_patience())
    finally:
        note.unlink(missing_ok=True)
    blind = [node["NodeManagerAddress"] for node, sees in zip(nodes, seen, strict=True) if not sees]
    if blind:
        raise BadInput(
            f"out = {folder}: node {blind[0]}{f' (and {len(blind) - 1} more)' if blind[1:] else ''} does not see it, "
            "and trials write there: put it on a file system that all nodes share, or tune on one machine"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Functions as tasks of a Ray cluster, for sweeps.

MOST_TRIES = 4  # attempts to run a task whose worker dies
LOOK_SECONDS = 0.5  # time between two checks whether Ray is running


@contextmanager
def run_as_tasks(
    address: str | None,
    number: int,
    gpus: float,
    own: UserObjects,
    shared: Path,
    *,
    actors: int,
    wait_for: Mapping[str, float] | None,
) -> Iterator[Callable[..., Any]]:
    """Runs functions as tasks of a Ray cluster.

    A task without actors takes one CPU. A task with actors takes a placement group with one CPU for each actor.

    Args:
        address: Network address of the cluster. None means a Ray that fedray starts on this machine.
        number: Number of tasks that run at the same time. A local Ray reports enough CPUs for them.
        gpus: Number of GPUs of each task, possibly a fraction.
        own: The user's objects, whose modules the tasks import.
        shared: The folder to which all tasks write.
        actors: Number of actors that each task makes. It may be 0.
        wait_for: Amounts of resources, by Ray's names, for which the first task waits. None means no wait.

    Yields:
        A function that takes (function, *arguments) and returns a future of the result. The future raises `RayDied` if
        Ray dies.

    Raises:
        BadInput: The cluster cannot hold the actors of a task.
    """
    waiting: list[Future[Any]] = []
    over, room = threading.Event(), cluster.TrialSeats(actors)

    def submit(function: Callable[..., Any], *arguments: Any) -> Any:
        future: Future[Any] = Future()
        waiting.append(future)
        begin(future, MOST_TRIES - 1, (function, *arguments))
        return future

    def begin(future: Future[Any], left: int, call: tuple[Any, ...]) -> None:
        # Ray itself would retry a task whose worker is killed for lack of memory without end
        place, release = room.place(gpus)
        task = ray.remote(_work).options(max_retries=0, runtime_env=worker, **place)
        again = partial(begin, future, left - 1, call) if left else None
        done = task.remote(folder, gpus, *call).future()
        done.add_done_callback(release)
        done.add_done_callback(partial(_pass_on, connection, future, again=again))

    with open_ray(address, number * max(1, actors)) as connection:
        cluster.wait_for_resources(wait_for or {})
        cluster.list_needs(actors, cluster.read_cluster())  # raises an error if the cluster is too small
        worker, folder = worker_environment(send_modules(own, connection)), str(Path.cwd())
        confirm_shared(shared, worker)
        watch = threading.Thread(target=_watch, args=(connection, waiting, over, room), daemon=True)
        watch.start()
        try:
            yield submit
        finally:
            over.set()
            watch.join()


def _work(folder: str, gpus: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function with the task's share of a GPU, in the user's directory if this machine has it."""
    environment.enter_folder(folder)
    environment.limit_gpu_memory(gpus)
    return function(*arguments)


def _pass_on(
    connection: Connection, future: Future[Any], task: Future[Any], again: Callable[[], None] | None = None
) -> None:
    """Passes the result or the error of a task to the future `future`.

    If the error is Ray's, a new thread checks whether Ray itself has died. If only a worker has died, the thread starts
    the task again.

    Args:
        connection: The connection to Ray.
        future: The future that waits for the task.
        task: The task, which has ended.
        again: A function that starts the task again. None means that the task's workers have died too often.
    """
    error = task.exception()
    if error is None:
        with suppress(InvalidStateError):
            future.set_result(task.result())
    elif isinstance(error, RayError) and not isinstance(error, RayTaskError):
        threading.Thread(target=_find_cause, args=(connection, future, error, again), daemon=True).start()
    else:
        cause = getattr(error, "cause", None)  # without the worker's traceback, which Ray adds to the text of `error`
        end_all([future], cause if isinstance(cause, FedrayError) else error)


def _find_cause(connection: Connection, future: Future[Any], error: RayError, again: Callable[[], None] | None) -> None:
    """Checks, for some seconds after a worker has died, whether Ray has died too.

    If only the worker has died, starts the task again by `again`. Otherwise `future` gets an error.
    """
    try:
        if isinstance(error, LocalRayletDiedError):
            raise RayDied("Ray on this machine ended")
        connection.check(DEATH_SECONDS)
    except RayDied as died:
        connection.gone = True
        end_all([future], died)
        return
    if again is not None and isinstance(error, cluster.GONE):
        try:
            again()
        except Exception as failed:  # this thread would end, and the future would wait for ever
            end_all([future], failed if isinstance(failed, FedrayError) else FedrayError(f"Ray failed: {failed}"))
    else:
        end_all(
            [future],
            cluster.explain_error(error, f"a worker, {MOST_TRIES} times in a row," if again is None else "Ray"),
        )


def _watch(
    connection: Connection, waiting: Sequence[Future[Any]], over: threading.Event, room: cluster.TrialSeats
) -> None:
    """Makes all waiting futures raise an error when Ray is gone, because they would wait for ever."""
    while not over.wait(LOOK_SECONDS):
        try:
            connection.check()
        except RayDied as error:
            end_all(waiting, error)
    room.close()


def end_all(waiting: Sequence[Future[Any]], error: BaseException) -> None:
    """Makes all futures that are not done raise an error.

    Example:
        >>> waiting = [Future()]
        >>> end_all(waiting, RayDied("the raylet of the Ray on this machine ended"))
        >>> waiting[0].exception()
        RayDied('the raylet of the Ray on this machine ended')
    """
    for future in list(waiting):
        with suppress(InvalidStateError):
            future.set_exception(error)


# ---------------------------------------------------------------------------------------------------------------------
# Calls of Ray Tune inside a trial. They report metrics, load a checkpoint and reserve resources.
#
# Only this module needs Ray Tune and its dependencies, which fedray does not install.


def report(metrics: Mapping[str, float], folder: Path | None) -> None:
    """Reports the metrics of a round to Ray Tune. During this call, Tune's scheduler may end the trial.

    Tune copies the run directory `folder` as the trial's checkpoint. None means no checkpoint.
    """
    untyped: Any = import_module("ray.tune")
    untyped.report(dict(metrics), checkpoint=None if folder is None else untyped.Checkpoint.from_directory(str(folder)))


def restore_trial(out: Path, scenario_text: str) -> bool:
    """Makes the run directory of a trial from the checkpoint that Tune has chosen for the trial.

    Args:
        out: The run directory, which does not exist yet.
        scenario_text: The scenario of this trial. The checkpoint may be from another trial, whose scenario has other
            values.

    Returns:
        Whether Tune has chosen a checkpoint. If not, the trial begins with the first round.
    """
    untyped: Any = import_module("ray.tune")
    checkpoint = untyped.get_checkpoint()
    if checkpoint is None:
        return False
    with checkpoint.as_directory() as folder:
        directory.adopt_run(Path(folder), out, scenario_text)
    return True


def reserve_bundles(function: Callable[..., Any], actors: int) -> Any:
    """Turns a function into a trainable of Ray Tune (a function that Tune can run as a trial).

    The trainable reserves one CPU for its process, and one CPU for each of its actors.
    """
    untyped: Any = import_module("ray.tune")
    return untyped.with_resources(function, untyped.PlacementGroupFactory([{"CPU": 1.0}] * (1 + actors)))
