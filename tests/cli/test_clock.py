"""What a command says about its time is what the clock says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import scenario

from fedray.scenario.yaml_text import write_yaml


@pytest.mark.slow
def test_the_summary_left_out_start_up_evaluation_and_report(tmp_path: Path) -> None:
    """A real `fedray run`: the parts that it prints add up to the time from its start until it prints them."""
    (tmp_path / "tiny.yaml").write_text(write_yaml(scenario({"rounds": 2, "report": True})))
    command = [sys.executable, "-m", "fedray", "run", "tiny.yaml", "--out", "run", "--quiet"]
    began = time.monotonic()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(text for text in process.stdout if text.startswith("wall time "))
        clock = time.monotonic() - began
        process.communicate()
    assert process.returncode == 0
    whole, *parts = (float(number) for number in re.findall(r"([\d.]+) s", line))
    names = re.findall(r"(start-up|training|evaluation|report) ", line)
    assert names == ["start-up", "training", "evaluation", "report"], line
    assert abs(sum(parts) - clock) < max(1.0, 0.2 * clock), f"{line.strip()}, but {clock:.1f} s on the clock"
    assert abs(sum(parts) - whole) < 0.25, "rounded to tenths"
    timings = json.loads((tmp_path / "run" / "manifest.json").read_text())["timings"]
    assert 0 < timings["evaluation_seconds"] < timings["process_seconds"]
    assert sum(timings[f"{part}_seconds"] for part in ("training", "evaluation")) <= timings["process_seconds"] + 1e-6
