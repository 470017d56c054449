"""A Ray that fedray started dies in the middle of a run: another one is started, and nothing of either is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from on_ray import hashes, inline, run

from fedray.bench.rows import list_tree
from fedray.runtime import environment as leftovers

QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"


@pytest.fixture
def short_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes a directory with a short name for the sessions of Ray, because its sockets have long names."""
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def test_a_folder_of_the_same_name_does_not_replace_the_package(short_place: Path, tmp_path: Path) -> None:
    """Checks that workers import the installed package, as the driver does, in a checkout with a folder of its name."""
    (tmp_path / "fedray").mkdir()
    (tmp_path / "fedray" / "__init__.py").write_text("raise ImportError('the package of the working directory')\n")
    command = "import sys; from fedray.cli.commands import main; sys.exit(main())"
    options = ["runtime=ray", "rounds=1", "clients.number=10", "report=false", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", command, "run", str(QUICKSTART), *options],
        cwd=tmp_path, env=os.environ | {"RAY_TMPDIR": str(short_place)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["kernels"] != "none"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["/raylet/raylet ", "/gcs/gcs_server ", "ray::DashboardAgent", "ray::RuntimeEnv"])
def test_a_ray_that_dies_is_started_again_and_changes_no_bit(
    name: str, short_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checks also that no process and no folder of either Ray is left."""
    killed: list[int] = []
    folders: list[Path] = []
    remove = leftovers.remove_session

    def note(folder: Path) -> None:
        folders.append(folder)
        remove(folder)

    monkeypatch.setattr(leftovers, "remove_session", note)
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
    assert len(folders) == 2
    assert not [pid for folder in folders for pid in leftovers.session_processes(folder)]
