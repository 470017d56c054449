"""What goes wrong with Ray, whose answers are made up here: starts that fail, clusters that are gone, deaths."""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray
from ray._private import services
from ray.exceptions import LocalRayletDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from small import of_method

from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput, FedrayError, Unwritable
from fedray.core.types import Clients, Tier
from fedray.runtime import environment as leftovers
from fedray.runtime.placement import ActorSpec, Cluster, Node
from fedray.runtime.ray import actors, cluster, connection, tasks
from fedray.runtime.ray.actors import ClientActors
from fedray.runtime.ray.cluster import ClusterChanged
from fedray.scenario.loader import read_scenario


@pytest.mark.parametrize("error", [TimeoutError("raylet\ndid not start"), SystemExit(1)])
def test_a_ray_that_cannot_start_is_one_line_with_the_remedy(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried twice, and leaves no folder; it was a traceback of Ray's."""
    tried = []

    def fail(**_options: Any) -> None:
        tried.append(list(tmp_path.iterdir()))
        raise error

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(ray, "init", fail)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(FedrayError, match="try again when") as caught, connection.open_local_ray(1):
        pass
    assert len(str(caught.value).splitlines()) == 1
    assert [len(folders) for folders in tried] == [1, 1]
    assert list(tmp_path.iterdir()) == [] and leftovers.MARK not in os.environ
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_dead_raylet_was_silence_for_half_an_hour() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = connection.Connection(Path("/folder"), {"raylet": process})
    here.check()
    process.kill()
    process.wait()
    with pytest.raises(connection.RayDied, match=r"the raylet of the Ray on this machine ended \(-9\)"):
        here.check()
    process.communicate()


def test_after_an_actors_death_a_dead_head_node_was_asked_for_another_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """That call waits for a minute, until Ray ends the process without a line of fedray's."""
    monkeypatch.setattr(connection, "answers", lambda _address: False)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(connection, "MOST_SILENCE", 0.5)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"))
    here = connection.Connection()
    here.check()  # one look proves nothing
    assert not here.gone
    with pytest.raises(connection.RayDied, match=r"the head node of the cluster \(10.0.0.1:6379\) does not answer"):
        here.check(0.1)
    assert here.gone


FULL: RayError = OutOfMemoryError("the node is full")  # type: ignore[no-untyped-call]  # Ray has no types


@pytest.mark.parametrize("error", [FULL, WorkerCrashedError()])
def test_a_task_whose_worker_dies_begins_anew_and_at_last_is_one_line(
    error: RayError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself tries without end, and without a word, where its memory monitor kills."""
    here = connection.Connection(Path("/folder"))
    monkeypatch.setattr(tasks, "DEATH_SECONDS", 0.1)
    future, task, begun = Future[int](), Future[int](), threading.Event()
    task.set_exception(error)
    tasks._pass_on(here, future, task, again=begun.set)
    assert begun.wait(5) and not future.done()
    tasks._pass_on(here, future, task)
    with pytest.raises(FedrayError, match=r"a worker, 4 times in a row, failed: \w+: ") as caught:
        future.result(5)
    assert ("give the node more memory" in str(caught.value)) == isinstance(error, OutOfMemoryError)
    task_error: Any = RayTaskError  # Ray has no types
    cause = task_error("work", "line\nline", Unwritable("the disk is full")).as_instanceof_cause()
    for raised, want in ((LocalRayletDiedError(), "Ray on this machine ended"), (cause, "^the disk is full$")):
        future, task = Future[int](), Future[int]()
        task.set_exception(raised)
        tasks._pass_on(here, future, task)
        with pytest.raises(FedrayError, match=want):
            future.result(5)


def test_nodes_with_other_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a run on each kernel would have bits of neither."""
    monkeypatch.setattr(ray, "put", id)
    monkeypatch.setattr(cluster, "make_actors", lambda *_, **__: [])
    nodes = ClientActors(
        read_scenario(of_method("fedbe")), UserObjects(), MagicMock(), lambda: None, run="", given=MagicMock()
    )
    monkeypatch.setattr(nodes, "call_each", lambda _calls: ["a digest"])
    with pytest.raises(FedrayError, match="not all the same compiled kernels"):
        nodes.start()


def test_a_cluster_that_is_gone_is_left_without_a_word_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.shutdown` waits for a minute for the head node's answer."""
    for place, name in ((connection, "join_cluster"), (connection, "skip_teardown"), (atexit, "unregister")):
        monkeypatch.setattr(place, name, lambda _given: None)
    asked: list[str] = []
    monkeypatch.setattr(ray, "shutdown", lambda: asked.append("shutdown"))
    with connection.open_ray("10.0.0.1:6379", 1) as here:
        here.gone = True
    assert not asked


def test_a_second_run_in_a_thread_lost_its_ray_when_the_first_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or ended in an error of Ray's that named the user's objects; threads may share a connection of the user's."""
    monkeypatch.setattr(connection, "open_local_ray", lambda *_, **__: nullcontext(connection.Connection()))

    def open_again() -> None:
        with connection.open_ray(None, 1):
            pass

    with ThreadPoolExecutor(1) as other:
        with connection.open_ray(None, 1), pytest.raises(BadInput, match="in another thread: run one after the other"):
            other.submit(open_again).result()
        other.submit(open_again).result()
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=DEAD))
        with connection.open_ray(None, 1):
            other.submit(open_again).result()


def test_the_users_own_connection_is_used_and_to_another_cluster_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="192.0.2.2:6411"))
    with connection.open_ray("192.0.2.2:6411", 1):
        pass
    with pytest.raises(BadInput, match="this process is connected to"), connection.open_ray("192.0.2.2:6412", 1):
        pass


DEAD = "127.0.0.1:1"  # nobody listens there


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray of others, and none is joined."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _folder: None)
    monkeypatch.setattr(ray, "init", lambda **_options: pytest.fail("Ray itself would try for minutes"))


@pytest.mark.usefixtures("no_cluster")
def test_a_cluster_that_does_not_answer_is_named_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was given; also by Ray's note of where this machine belongs, which stays when its head node is gone."""
    began = time.monotonic()
    for given, line in (("auto", "no Ray runs on this machine"), (DEAD, f"--address {DEAD}: nobody answers")):
        with pytest.raises(BadInput, match=line):
            connection.join_cluster(given)
    monkeypatch.setenv("RAY_ADDRESS", DEAD)
    with pytest.raises(BadInput, match=f"RAY_ADDRESS = {DEAD}: nobody answers"):
        connection.join_cluster(DEAD)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _folder: DEAD)
    with pytest.raises(BadInput, match=r"--address auto: nobody answers at \S+:1"):
        connection.join_cluster("auto")
    assert time.monotonic() - began < 90


def dying_clients(monkeypatch: pytest.MonkeyPatch, error: RayError) -> ClientActors:
    """One client actor, which always dies."""
    clients = ClientActors.__new__(ClientActors)
    clients.actors, clients.specs, clients.lost, clients.study = [MagicMock()], [], [], MagicMock()
    clients.study.clients = Clients((Tier("all", 1),))
    monkeypatch.setattr("ray.get", MagicMock(side_effect=error))
    monkeypatch.setattr("fedray.runtime.ray.actors.time.sleep", lambda _seconds: None)
    monkeypatch.setattr(actors, "EARLY_SECONDS", 0.0)
    return clients


def test_an_actor_that_always_dies_while_it_starts_was_half_an_hour_of_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedrayError, match="client actor 0 dies before it can work"):
        dying_clients(monkeypatch, FULL).wait_for([0])


def test_an_actor_of_a_node_that_is_gone_was_called_one_without_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its calls failed at once for five minutes, and nobody looked for its node."""
    clients = dying_clients(monkeypatch, WorkerCrashedError())
    clients.specs = [ActorSpec(0, 1.0, 0.0, {}, "gone")]
    monkeypatch.setattr(cluster, "read_cluster", lambda: Cluster([Node("left", {})], []))
    monkeypatch.setattr(cluster, "find_address_of", {"gone": "10.0.0.3"}.get)
    caplog.set_level("INFO", "fedray")
    with pytest.raises(ClusterChanged):
        clients.wait_for([0])
    assert clients.lost == ["10.0.0.3 (actors of all)"] and "lost node 10.0.0.3" in caplog.text, "and nobody said so"
