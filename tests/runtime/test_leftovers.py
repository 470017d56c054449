"""What killed runs leave is found and removed; what belongs to a living process, or to somebody else, never is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import run_command

from fedray.core.errors import BadInput, FedrayError
from fedray.runtime import leftovers


@pytest.fixture(autouse=True)
def long_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest's own directories are too deep for sockets."""
    monkeypatch.setattr(leftovers, "SOCKET_BYTES", 4096)


def make_dead(place: Path, *raylets: int) -> Path:
    """The folder of a run that is over."""
    with leftovers.open_session(place) as folder:
        for pid in raylets:
            leftovers.note_raylet(folder, pid)
        (folder / "logs").mkdir()
        (folder / "logs" / "raylet.out").write_text("lines")
    return folder


def is_dead(folder: Path) -> bool:
    """Whether nobody uses the folder any more: its owner is gone, and all processes of its Ray."""
    return leftovers.is_abandoned(folder) and not leftovers.session_processes(folder)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of /dev/shm."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", folder)
    return folder


def end_process() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_shared_memory_of_its_own_dead_raylet_is_removed(memory: Path, tmp_path: Path) -> None:
    """Not of a raylet that lives, nor of an earlier one with the same id, nor of anybody else."""
    gone, early = end_process(), time.time_ns()
    folder, now = make_dead(tmp_path, gone, os.getpid()), time.time_ns()
    own = [memory / f"sem.hdr{gone}-{now}", memory / f"sem.obj{gone}-{now}"]
    others = [f"sem.hdr{os.getpid()}-{now}", f"sem.hdr{gone}-{early}", f"sem.hdr{gone}9-{now}", f"sem.mp-{gone}", "x"]
    for path in [*own, *(memory / name for name in others)]:
        path.touch()
    assert sorted(leftovers.session_memory(folder)) == sorted(own)
    leftovers.remove_session(folder)
    assert {path.name for path in memory.iterdir()} == set(others)
    assert not folder.exists()


def test_memory_of_a_raylet_stayed_where_nobody_had_asked_for_its_status(memory: Path, tmp_path: Path) -> None:
    """A raylet that was killed a moment ago is a zombie of the process that cleans up."""
    raylet = subprocess.Popen(["sleep", "60"])
    folder = make_dead(tmp_path, raylet.pid)
    path = memory / f"sem.hdr{raylet.pid}-{time.time_ns()}"
    path.touch()
    assert leftovers.session_memory(folder) == []
    os.kill(raylet.pid, 9)
    while leftovers.session_memory(folder) != [path]:
        time.sleep(0.01)
    raylet.wait()


def test_a_session_that_is_held_or_whose_ray_goes_on_is_not_dead(tmp_path: Path) -> None:
    """Its driver was killed a moment ago, and a worker still writes."""
    with leftovers.open_session(tmp_path) as held:
        assert not is_dead(held)
    assert is_dead(held)
    folder = make_dead(tmp_path)
    worker = subprocess.Popen(["sleep", "60"], env={**os.environ, leftovers.MARK: str(folder)})
    try:
        while leftovers.session_processes(folder) != [worker.pid]:
            time.sleep(0.01)
        assert not is_dead(folder)
        leftovers.kill_session(folder)
        assert worker.wait(10) == -9
        assert is_dead(folder)
    finally:
        worker.kill()


def edit(folder: Path, key: str, change: Callable[[Any], Any]) -> None:
    path = folder / leftovers.OWNER
    owner = json.loads(path.read_text())
    path.write_text(json.dumps({**owner, key: change(owner[key])}))


@pytest.mark.parametrize(
    ("key", "change", "dead"),
    [
        ("host", lambda name: name + "-other", False),  # a directory that two machines share
        ("system", lambda text: text + "1", False),  # another container
        ("system", lambda _: "", False),  # a system without these files
        ("system", lambda text: "1" + text, True),  # before this machine started
    ],
)
def test_processes_are_known_on_their_machine_only(key: str, change: Any, dead: bool, tmp_path: Path) -> None:
    folder = make_dead(tmp_path)
    edit(folder, key, change)
    assert is_dead(folder) is dead


def test_what_fedray_has_not_marked_is_not_found(tmp_path: Path) -> None:
    """A directory of that name, a link to a folder of fedray's, and one whose mark is damaged."""
    folder = make_dead(tmp_path)
    (tmp_path / f"{leftovers.PREFIX}mine").mkdir()
    (tmp_path / f"{leftovers.PREFIX}link").symlink_to(folder)
    assert leftovers.find_sessions([tmp_path]) == [folder]
    for text in ("", "[" * 10_000, "{}", '{"pid": 1, "host": 2, "system": "", "start": 0, "raylets": []}'):
        (folder / leftovers.OWNER).write_text(text)
        assert leftovers.find_sessions([tmp_path]) == []


@pytest.mark.usefixtures("memory")
def test_clean_lists_first_and_removes_with_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "session_places", lambda: [tmp_path])
    dead = make_dead(tmp_path, end_process())
    with leftovers.open_session(tmp_path) as alive:
        listed = run_command("clean")
        assert str(dead) in listed.out
        assert dead.exists()
        assert "removed" in run_command("clean", "--yes").out
        assert not dead.exists()
        assert alive.exists()
        monkeypatch.setattr(leftovers, "find_sessions", lambda _places: [dead])  # its run removed it meanwhile
        assert run_command("clean").out.startswith("nothing is left") and leftovers.session_memory(dead) == []


@pytest.mark.usefixtures("memory")
def test_a_ray_that_was_still_ending_was_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for; where it takes too long, one line says so, and its folder stays."""
    monkeypatch.setattr(leftovers, "session_places", lambda: [tmp_path])
    folder, waits = make_dead(tmp_path), [[1], [1], []]
    monkeypatch.setattr(leftovers, "session_processes", lambda _folder: waits[0])
    monkeypatch.setattr(leftovers, "ENDING_SECONDS", 0.0)
    ending = run_command("clean", "--yes")
    assert (ending.status, ending.out.count("\n"), folder.exists()) == (0, 1, True)
    assert ending.out.startswith(f"{folder}: its run has ended, but processes of its Ray go on")
    monkeypatch.setattr(leftovers, "session_processes", lambda _folder: waits.pop(0))
    monkeypatch.setattr(leftovers, "ENDING_SECONDS", 60.0)
    ended = run_command("clean", "--yes")
    assert (ended.status, "removed" in ended.out, folder.exists(), waits) == (0, True, False, [])


def test_a_place_too_long_for_sockets_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own error was a traceback."""
    monkeypatch.setattr(leftovers, "SOCKET_BYTES", 107)
    place = tmp_path / ("x" * 80)
    place.mkdir()
    with pytest.raises(BadInput, match=r"107 are possible: set RAY_TMPDIR"), leftovers.open_session(place):
        pass
    with pytest.raises(FedrayError, match="set RAY_TMPDIR"), leftovers.open_session(Path("/nowhere")):
        pass


RUN = """
import sys, fedray
keys = {"rounds": 1, "runtime": "inline", "report": False, "clients": {"number": 4}, "method": "fedavg"}
print(fedray.run(keys).path, flush=True)
sys.stdin.readline()
"""


@pytest.mark.usefixtures("memory")
def test_a_run_without_out_stayed_and_clean_listed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed with its size; it is removed when its process has ended, and not before."""
    monkeypatch.setattr(leftovers, "session_places", lambda: [tmp_path])
    with subprocess.Popen(
        [sys.executable, "-c", RUN], env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        run = Path(process.stdout.readline().strip())
        folder = run.parent
        assert run.is_relative_to(tmp_path)
        kept = run_command("clean", "--yes").out
        assert kept.startswith(f"{folder}: ") and "kept: its process goes on" in kept and run.is_dir()
        process.communicate("\n")
    listed = run_command("clean").out
    assert listed.startswith(f"{folder}: ") and "kB, a run or a sweep without out=\n" in listed and run.is_dir()
    assert "removed" in run_command("clean", "--yes").out and not folder.exists()
    assert run_command("clean").out.startswith("nothing is left")
