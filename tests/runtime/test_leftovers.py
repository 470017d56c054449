"""What killed runs leave is found and removed; what belongs to a living process, or to somebody else, never is."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import run_command

from fedray.runtime import environment as leftovers


def make_dead(place: Path) -> Path:
    """The folder of a run that is over."""
    with leftovers.open_session(place) as folder:
        (folder / "logs").mkdir()
        (folder / "logs" / "raylet.out").write_text("lines")
    return folder


def is_dead(folder: Path) -> bool:
    """Whether nobody uses the folder any more: its owner is gone, and all processes of its Ray."""
    return leftovers.is_abandoned(folder) and not leftovers.session_processes(folder)


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


def test_clean_lists_first_and_removes_with_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a directory of that name, nor a link to a folder of fedray's is one of them."""
    monkeypatch.setattr(leftovers, "session_places", lambda: [tmp_path])
    dead = make_dead(tmp_path)
    (tmp_path / f"{leftovers.PREFIX}mine").mkdir()
    (tmp_path / f"{leftovers.PREFIX}link").symlink_to(dead)
    with leftovers.open_session(tmp_path) as alive:
        listed = run_command("clean")
        assert str(dead) in listed.out and "mine" not in listed.out and "link" not in listed.out
        assert dead.exists()
        assert "removed" in run_command("clean", "--yes").out
        assert not dead.exists()
        assert alive.exists()


def test_a_ray_that_was_still_ending_was_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for; where it takes too long, one line says so, and its folder stays."""
    monkeypatch.setattr(leftovers, "session_places", lambda: [tmp_path])
    folder = make_dead(tmp_path)
    monkeypatch.setattr(leftovers, "session_processes", lambda _folder: [1])
    monkeypatch.setattr(leftovers, "ENDING_SECONDS", 0.0)
    ending = run_command("clean", "--yes")
    assert (ending.status, ending.out.count("\n"), folder.exists()) == (0, 1, True)
    assert ending.out.startswith(f"{folder}: its run has ended, but processes of its Ray go on")


HOLD = """
import sys
from fedray.files.plain import choose_out
with choose_out(None, "run") as out:
    out.mkdir()
    print(out, flush=True)
    sys.stdin.readline()
"""


def test_a_run_without_out_stayed_and_clean_listed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed with its size; it is removed when its process has ended, and not before."""
    monkeypatch.setattr(leftovers, "session_places", lambda: [tmp_path])
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        run = Path(process.stdout.readline().strip())
        folder = run.parent
        kept = run_command("clean", "--yes").out
        assert kept.startswith(f"{folder}: ") and "kept: its process goes on" in kept and run.is_dir()
        process.communicate("\n")
    listed = run_command("clean").out
    assert listed.startswith(f"{folder}: ") and "a run or a sweep without out=\n" in listed and run.is_dir()
    assert "removed" in run_command("clean", "--yes").out and not folder.exists()
    assert run_command("clean").out.startswith("nothing is left")
