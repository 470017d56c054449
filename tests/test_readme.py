"""The README's blocks run as they stand: what a reader types is what is tested."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, flags=re.M | re.S)


def blocks(kind: str) -> list[str]:
    return [body for name, body in BLOCKS if name == kind]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    for folder in ("scenarios", "tune"):
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def environment() -> dict[str, str]:
    bin_ = str(Path(sys.executable).parent)
    paths = {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **paths, "OMP_NUM_THREADS": "1"}


def test_the_first_blocks_are_the_run_and_the_test_command() -> None:
    run, test = blocks("sh")[:2]
    assert "fedray run scenarios/quickstart.yaml" in run
    assert "pytest" in test
    assert all("venv" in block and "pip install" in block for block in (run, test))


@pytest.mark.parametrize("block", blocks("bash"), ids=lambda b: b.split("\n", 1)[0][:60])
def test_every_command_of_the_readme_runs(block: str, workplace: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], cwd=workplace, env=environment(), capture_output=True, text=True,
        check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("block", blocks("python"), ids=lambda b: b.split("\n", 1)[0][:60])
def test_every_python_example_runs(block: str, workplace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", block], cwd=workplace, env=environment(),
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda b: b.split("\n", 1)[0][:60])
def test_every_scenario_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    import fedray

    run = fedray.run(block, out=tmp_path / "run", runtime="inline", rounds=1)
    assert run.summary["rounds"] == 1
