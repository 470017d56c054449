"""`fedray tune` as a user types it: the quick sweep, a kill in the middle, bad input, and trials as Ray tasks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import list_outcomes, rows, run, sweep

from fedray.scenario import nested as yaml_text


@pytest.mark.slow
@pytest.mark.parametrize("actors", [0, 2])
def test_trials_as_ray_tasks_find_what_inline_trials_find(actors: int, tmp_path: Path) -> None:
    """Each in one process, and each over two actors."""
    found = sweep({"local.lr": [0.1, 0.2, 0.3]}, sampler="grid", jobs=2, pruner={"name": "median", "startup": 5})
    file, spans = tmp_path / "sweep.yaml", {"trial": {"actors": actors}} if actors else {}
    file.write_text(yaml_text.write_yaml({**found, **spans, "overrides": {"runtime": "ray"}}))
    command = [sys.executable, "-m", "fedray", "tune", str(file), "--out", str(tmp_path / "ray")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "ray" / "trials" / "00000" / "manifest.json").read_text())
    assert manifest.get("actors", 0) == actors
    assert list_outcomes(rows(tmp_path / "ray")) == list_outcomes(run({**found, "jobs": 1}, tmp_path / "inline")[1])
