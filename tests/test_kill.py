"""A driver that is killed at any moment, then `fedray resume`: the same bits as an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KEYS = ["rounds=60", "checkpoint.every=3", "evaluate.every=5", "clients.number=30", "local.epochs=8", "runtime=inline"]
TEXT = "method: {models: 3}\ndata: {partition: {name: classes}}\nparticipation: {fraction: 0.5}\n"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedray.cli", *arguments]


def summary(out: Path) -> dict[str, str]:
    loaded: dict[str, str] = json.loads((out / "summary.json").read_text())
    return loaded


def killed_once(scenario: Path, out: Path, wait: float) -> None:
    """Starts a run and kills it some seconds after its first checkpoint."""
    process = subprocess.Popen(command("run", str(scenario), *KEYS, "--out", str(out)), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((out / "checkpoints").glob("round-*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    time.sleep(wait)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()


def check(tmp_path: Path, waits: list[float]) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(TEXT)
    subprocess.run(command("run", str(scenario), *KEYS, "--out", str(tmp_path / "whole")), check=True, capture_output=True)
    want = summary(tmp_path / "whole")
    for n, wait in enumerate(waits):
        out = tmp_path / f"killed{n}"
        killed_once(scenario, out, wait)
        subprocess.run(command("resume", str(out)), check=True, capture_output=True)
        got = summary(out)
        assert (got["model_hash"], got["state_hash"]) == (want["model_hash"], want["state_hash"])


def test_a_killed_driver_resumes_to_the_same_bits(tmp_path: Path) -> None:
    check(tmp_path, [random.uniform(0.0, 0.5)])


@pytest.mark.slow
def test_ten_killed_drivers_resume_to_the_same_bits(tmp_path: Path) -> None:
    check(tmp_path, [random.uniform(0.0, 2.0) for _ in range(10)])
