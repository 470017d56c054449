"""`fedray tune` as a user types it: the quick sweep, a kill in the middle, bad input, and trials as Ray tasks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sweeps import LR, list_outcomes, rows, run, sweep

from fedray.scenario import nested as yaml_text


def fedray(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedray", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, **options)


@pytest.mark.slow  # tests/tuning/test_search.py interrupts sweeps in this process
def test_a_sweep_killed_in_the_middle_resumes_to_the_same_trials(tmp_path: Path) -> None:
    found = sweep({"local.lr": LR, "method.models": {"type": "int", "low": 1, "high": 3}},
                  overrides={"rounds": 20, "checkpoint.every": 1},
                  trials=5, sampler={"name": "tpe", "startup": 3})  # fmt: skip
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml_text.write_yaml(found))
    command = [sys.executable, "-m", "fedray", "tune", str(file), "--out", str(tmp_path / "cut")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun = tmp_path / "cut" / "trials" / "00002" / "checkpoints" / "round-000003"
    deadline = time.monotonic() + 200
    while not begun.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut" / "best.yaml").exists()
    done = fedray("tune", file, "--out", tmp_path / "cut", "--resume")
    assert done.returncode == 0, done.stderr
    assert "trial 1 " not in done.stderr  # finished before
    assert "trial 2 " in done.stderr
    summary, undisturbed = run(found, tmp_path / "whole")
    assert list_outcomes(rows(tmp_path / "cut")) == list_outcomes(undisturbed)
    assert (tmp_path / "cut" / "best.yaml").read_text() == (tmp_path / "whole" / "best.yaml").read_text()
    assert summary["trainings"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("actors", [0, 2])
def test_trials_as_ray_tasks_find_what_inline_trials_find(actors: int, tmp_path: Path) -> None:
    """Each in one process, and each over two actors."""
    found = sweep({"local.lr": [0.1, 0.2, 0.3]}, sampler="grid", jobs=2, pruner={"name": "median", "startup": 5})
    file, spans = tmp_path / "sweep.yaml", {"trial": {"actors": actors}} if actors else {}
    file.write_text(yaml_text.write_yaml({**found, **spans, "overrides": {"runtime": "ray"}}))
    done = fedray("tune", file, "--out", tmp_path / "ray")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "ray" / "trials" / "00000" / "manifest.json").read_text())
    assert manifest.get("actors", 0) == actors
    assert list_outcomes(rows(tmp_path / "ray")) == list_outcomes(run({**found, "jobs": 1}, tmp_path / "inline")[1])
