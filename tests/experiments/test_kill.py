"""`kill -9` of the driver at any moment, then `fedray resume`: the bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from fedray.storage import tables as record

SCENARIO: dict[str, Any] = {
    "method": {"models": 3},
    "data": {"name": "synthetic", "samples": 24, "features": 16, "classes": 4, "test": 200},
    "clients": {"number": 12},
    "model": {"hidden": [8]},
    "local": {"lr": 0.05, "batch_size": 8, "epochs": 1},
    "participation": {"fraction": 0.5},
    "checkpoint": {"every": 10},
    "evaluate": {"every": 25},
    "report": False,
}
INLINE: dict[str, Any] = {"runtime": "inline", "rounds": 400}
RAY: dict[str, Any] = {"runtime": "ray", "rounds": 150, "clients": {"number": 12, "actors": 1}}
STACK: dict[str, Any] = {  # bases for the first half of the rounds, then the meta model
    **INLINE,
    "rounds": 60,
    "method": {"name": "stacking", "folds": "within", "bases": [{"name": "mlp", "hidden": [8]}, {"name": "linear"}]},
    "model": {},
    "clients": {"number": 6},
}
PRIVATE: dict[str, Any] = {**INLINE, "compress": {"kind": "topk", "error_feedback": True}}


def fedray(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedray", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_summary(process: subprocess.Popen[str], out: Path) -> dict[str, Any]:
    _, said = process.communicate()
    assert process.returncode == 0, said
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def kill_after(process: subprocess.Popen[str], out: Path, checkpoints: int, seconds: float) -> bool:
    """Kills a run some time after its n-th new checkpoint; False if it had ended by then."""
    before = {path.name for path in (out / "checkpoints").glob("round-*")}
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        there = {path.name for path in (out / "checkpoints").glob("round-*")} - before
        if len(there) >= checkpoints if checkpoints else (out / "scenario.yaml").exists():
            break
        time.sleep(0.005)
    time.sleep(seconds)
    alive = process.poll() is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


class RunResults(NamedTuple):
    """What a run leaves: its hashes, and the rows of its tables but for their wall time."""

    hashes: tuple[str, str]
    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]


def read_results(process: subprocess.Popen[str], out: Path) -> RunResults:
    summary, tables = wait_for_summary(process, out), []
    for name in ("rounds", "clients"):
        table = record.read_table(out, name)
        kept = [column for column in table.column_names if column != "wall_seconds"]
        tables.append(sorted(table.select(kept).to_pylist(), key=repr))
    return RunResults((summary["model_hash"], summary["state_hash"]), *tables)


def run_with_kills(
    tmp_path: Path, change: dict[str, Any], moments: list[tuple[int, float]]
) -> tuple[int, RunResults, RunResults]:
    """How often a run was killed, what it left in the end, and what an undisturbed one left."""
    file, out, whole = tmp_path / "scenario.yaml", tmp_path / "killed", tmp_path / "whole"
    file.write_text(yaml.safe_dump({**SCENARIO, **change}))
    undisturbed = fedray("run", file, "runtime=inline", "--out", whole)
    process, kills = fedray("run", file, "--out", out), 0
    for checkpoints, seconds in moments:
        kills += kill_after(process, out, checkpoints, seconds)
        process = fedray("resume", out)
    return kills, read_results(process, out), read_results(undisturbed, whole)


def random_moments(number: int) -> list[tuple[int, float]]:
    """Random moments: after which checkpoint, and how long after it."""
    return [(random.randint(0, 5), random.uniform(0.0, 0.5)) for _ in range(number)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_inline_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Twice: the resumed run is killed too."""
    kills, resumed, whole = run_with_kills(
        tmp_path, INLINE, [(2, random.uniform(0.0, 0.1)), (1, random.uniform(0.0, 0.1))]
    )
    assert kills > 0, "nothing was killed: the run is too short"
    assert resumed == whole


@pytest.mark.slow  # test_faults.py kills actors and the coordinator of a run that goes on
@pytest.mark.timeout(600)
def test_a_killed_ray_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Its coordinator outlives the driver for seconds, and must not write beside the resumed one."""
    kills, resumed, whole = run_with_kills(tmp_path, RAY, [(2, random.uniform(0.0, 0.1))])
    assert kills > 0, "nothing was killed: the run is too short"
    assert resumed == whole


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("change", [INLINE, PRIVATE, RAY, STACK], ids=["inline", "private state", "ray", "stack"])
def test_many_kills_at_any_moment_resume_to_the_same_bits(tmp_path: Path, change: dict[str, Any]) -> None:
    kills, resumed, whole = run_with_kills(tmp_path, {**change, "rounds": 4 * change["rounds"]}, random_moments(10))
    assert kills > 0, "nothing was killed: the run is too short"
    assert resumed == whole
