"""A Ray that fedray starts: its start fails in one line, its death is seen at once, and it leaves nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from on_ray import hashes, inline, run
from ray.exceptions import LocalRayletDiedError, OutOfMemoryError, RayError, WorkerCrashedError

from fedray.bench.measure import list_tree
from fedray.core.errors import BadInput, FedrayError
from fedray.runtime import environment, leftovers
from fedray.runtime.ray import connection, tasks

QUICKSTART = Path(__file__).parents[3] / "scenarios" / "quickstart.yaml"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the sessions."""
    monkeypatch.setattr(leftovers, "SOCKET_BYTES", 4096)
    folder = tmp_path_factory.mktemp("ray")
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    return folder


@pytest.fixture
def short_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for the sessions of real Rays, whose sockets have long names; other runs keep theirs elsewhere."""
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


@pytest.mark.parametrize("error", [TimeoutError("raylet\ndid not start"), SystemExit(1), RuntimeError()])
def test_a_ray_that_cannot_start_is_one_line(
    error: BaseException, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried twice, and leaves no folder; it was a traceback of Ray's."""
    tried = []

    def fail(**_options: Any) -> None:
        tried.append(list(place.iterdir()))
        raise error

    monkeypatch.setattr(ray, "init", fail)
    before = signal.getsignal(signal.SIGTERM)
    match = "Ray did not start on this machine .*: try again when"
    with pytest.raises(FedrayError, match=match) as caught, connection.open_local_ray(1):
        pass
    assert len(str(caught.value).splitlines()) == 1
    assert [len(folders) for folders in tried] == [1, 1]
    assert list(place.iterdir()) == []
    assert leftovers.MARK not in os.environ
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


def test_a_cluster_that_is_gone_is_left_without_a_word_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.shutdown` waits for a minute for the head node's answer."""
    left: list[str] = []
    monkeypatch.setattr(connection, "join_cluster", lambda _address: None)
    monkeypatch.setattr(ray, "shutdown", lambda: left.append("shutdown"))
    monkeypatch.setattr(connection, "leave_untidy", left.append)
    monkeypatch.setattr("atexit.unregister", lambda _hook: None)
    for gone in (True, False):
        with connection.open_ray("10.0.0.1:6379", 1) as here:
            here.gone = gone
    assert left == ["ray", "shutdown"]


def test_tasks_of_a_dead_ray_waited_for_ever() -> None:
    done: Future[int] = Future()
    done.set_result(3)
    waiting: Future[int] = Future()
    tasks.end_all([done, waiting], connection.RayDied("the raylet ended"))
    assert done.result() == 3
    with pytest.raises(connection.RayDied):
        waiting.result(0)


@pytest.mark.parametrize("error", [LocalRayletDiedError(), WorkerCrashedError()])
def test_a_dead_ray_was_called_a_worker_without_memory(error: RayError) -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    here = connection.Connection(Path("/folder"), {"raylet": process})
    task: Future[int] = Future()
    task.set_exception(error)
    future: Future[int] = Future()
    tasks._pass_on(here, future, task)
    with pytest.raises(connection.RayDied):
        future.result(5)


FULL: RayError = OutOfMemoryError("the node is full")  # type: ignore[no-untyped-call]  # Ray has no types


@pytest.mark.parametrize("error", [FULL, WorkerCrashedError()])
def test_a_task_whose_worker_dies_begins_anew_and_at_last_is_one_line(error: RayError) -> None:
    """Ray itself tries without end, and without a word, where its memory monitor kills."""
    here = connection.Connection(Path("/folder"))
    future, task, begun = Future[int](), Future[int](), threading.Event()
    task.set_exception(error)
    tasks._pass_on(here, future, task, again=begun.set)
    assert begun.wait(5) and not future.done()
    tasks._pass_on(here, future, task)
    with pytest.raises(FedrayError, match=r"a worker, 4 times in a row, failed: \w+: ") as caught:
        future.result(5)
    assert ("give the node more memory" in str(caught.value)) == isinstance(error, OutOfMemoryError)


def test_what_a_task_answers_or_raises_is_passed_on() -> None:
    here, answered, failed = connection.Connection(Path("/folder")), Future[int](), Future[int]()
    answered.set_result(3)
    failed.set_exception(ValueError("its own"))
    for task in (answered, failed):
        future: Future[int] = Future()
        tasks._pass_on(here, future, task)
        assert future.exception(5) is task.exception()
    assert future.done()


@pytest.mark.parametrize("text", ["abc", "-1", "0", "nan", "inf", ""])
def test_patience_that_is_no_number_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRAY_PATIENCE", text)
    with pytest.raises(BadInput, match="FEDRAY_PATIENCE = .*: give a positive number of seconds, or unset it"):
        environment.prepare_process()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "/proc/home"), "make that path writable, or set HOME"),
        (PermissionError(errno.EACCES, "Permission denied", "/home/me/.ray"), "make that path writable, or set HOME"),
        (OSError(errno.ENOSPC, "No space left on device"), "free space"),
    ],
)
def test_a_path_that_cannot_be_written_was_told_to_wait_for_a_less_busy_machine(
    error: OSError, remedy: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_options: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(FedrayError, match=remedy) as caught, connection.open_local_ray(1):
        pass
    assert str(place) not in str(caught.value) and "less busy" not in str(caught.value)


def test_a_home_that_cannot_be_written_kept_ray_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray writes a token there; where it cannot, the Ray that fedray starts has one of its own."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    connection.give_token()
    assert "RAY_AUTH_TOKEN" not in os.environ, "a home that can be written keeps it for other tools"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    connection.give_token()
    assert len(os.environ.pop("RAY_AUTH_TOKEN")) == 64


@pytest.mark.slow
def test_a_folder_of_the_same_name_does_not_replace_the_package(short_place: Path, tmp_path: Path) -> None:
    """A command in a checkout whose package is installed elsewhere: the workers import what the driver imports."""
    (tmp_path / "fedray").mkdir()
    (tmp_path / "fedray" / "__init__.py").write_text("raise ImportError('the package of the working directory')\n")
    command = "import sys; from fedray.cli.commands import main; sys.exit(main())"
    options = ["runtime=ray", "rounds=1", "clients.number=10", "report=false", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", command, "run", str(QUICKSTART), *options],
        cwd=tmp_path, env=os.environ | {"RAY_TMPDIR": str(short_place), "HOME": "/proc/nobody"},  # not writable
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["kernels"] != "none"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["/raylet/raylet ", "/gcs/gcs_server ", "ray::DashboardAgent", "ray::RuntimeEnv"])
def test_a_ray_that_dies_is_started_again_and_changes_no_bit(
    name: str, short_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of either Ray is left: no process, no folder, no shared memory."""
    killed: list[int] = []
    raylets: dict[Path, int] = {}
    note = leftovers.note_raylet

    def note_both(folder: Path, pid: int) -> None:
        raylets[folder] = pid
        note(folder, pid)

    monkeypatch.setattr(leftovers, "note_raylet", note_both)
    monkeypatch.setenv("FEDRAY_PATIENCE", "240")  # an actor needs a minute on a busy machine
    long = {"rounds": 150, "evaluate": {"every": 50}, "checkpoint": {"every": 10}, "clients": {"actors": 2}}

    def kill() -> None:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "run" / "checkpoints").glob("round-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        for one in [one for one in list_tree() if name in one.command[:200] + " "][:1]:
            os.kill(one.id, signal.SIGKILL)
            killed.append(one.id)

    thread = threading.Thread(target=kill)
    thread.start()
    done = run(long, out=tmp_path / "run")
    thread.join()
    assert killed
    assert hashes(done) == inline(long)
    assert "Raylet is terminated" not in capfd.readouterr().out
    assert list(short_place.iterdir()) == []
    assert len(raylets) == 2
    assert not [pid for folder in raylets for pid in leftovers.session_processes(folder)]
    assert not [path for pid in raylets.values() for path in leftovers.SHARED_MEMORY.glob(f"sem.*{pid}-*")]
