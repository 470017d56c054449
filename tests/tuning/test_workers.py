"""Processes that train trials end with the one that began them, and need nothing of its script."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from sweeps import LR, run, sweep

from fedray.bench.rows import list_tree
from fedray.core.errors import BadInput, ScenarioWarning
from fedray.scenario import nested as yaml_text
from fedray.scenario.names import Origin
from fedray.tuning.trial import _end_with_parent


@pytest.mark.slow  # a terminal and processes that import torch
@pytest.mark.parametrize("moment", ["a worker begins", "it trains"])
def test_ctrl_c_of_a_terminal_printed_the_tracebacks_of_the_workers(moment: str, tmp_path: Path) -> None:
    """A terminal sends it to the whole process group; workers that still import, and those that train, say nothing."""
    file, out = tmp_path / "sweep.yaml", tmp_path / "out"
    file.write_text(yaml_text.write_yaml(sweep({"local.lr": LR}, jobs=2, overrides={"rounds": 10_000})))
    command = [sys.executable, "-m", "fedray", "tune", str(file), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    try:
        while process.poll() is None and not (
            any((out / "trials").glob("*/rounds.parquet"))
            if moment == "it trains"
            else sum("spawn_main" in one.command for one in list_tree()) == 2
        ):
            time.sleep(0.01)
        time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)  # until the last process of the group has ended
    finally:
        process.kill()
    lines = [line for line in said.splitlines() if "training the trials" not in line]
    assert (process.returncode, len(lines)) == (130, 1), said
    assert lines[0].startswith("fedray: ended by SIGINT; ")


SCRIPT = """
import fedray
keys = {"rounds": 1, "data": {"name": "digits", "limit": 60}, "clients": {"number": 2}, "runtime": "inline"}
sweep = {"scenario": keys, "space": {"local.lr": [0.1, 0.3]}, "objectives": ["accuracy"], "jobs": 2}
print([trial.state for trial in fedray.tune({**sweep, "sampler": "grid"}, report=False)])
"""


@pytest.mark.slow  # it starts three processes that import torch
@pytest.mark.parametrize("given", ["a file", "standard input"])
def test_a_script_without_a_main_guard_began_the_sweep_again_in_each_worker(given: str, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    command = [sys.executable, *([str(file)] if given == "a file" else [])]
    stdin = file.read_text() if given == "standard input" else None
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("['complete', 'complete']\n", 0), done.stderr


@pytest.mark.slow  # a process that imports torch
def test_a_worker_that_warned_wrote_a_line_of_source_code(capfd: pytest.CaptureFixture[str]) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_end_with_parent) as pool:
        pool.submit(warnings.warn, "one row", ScenarioWarning).result()
    assert capfd.readouterr().err == "fedray: note: one row\n"


def test_names_that_a_script_registers_are_said_to_need_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedray.tuning.trial.list_origins", lambda: {("data", "mine"): Origin("__main__", "load")})
    with pytest.raises(BadInput, match=r"jobs = 2: .* what a script registers \(mine\): register it in a module"):
        run(sweep({"local.lr": LR}, jobs=2), tmp_path / "s")
