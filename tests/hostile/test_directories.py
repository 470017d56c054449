"""A run directory of somebody else may be anything: every command ends with one line that names the file.

All of them, with little memory: `python -m pytest -q -m slow -s tests/hostile/test_directories.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from directories import make_run
from hostile_files import CASES
from small import run_command

pytestmark = pytest.mark.short_report  # a page of a run that is read

SAMPLE = (
    "yaml: aliases",
    "yaml: a link to a device",
    "yaml: a pipe",
    "identity: a newer format",
    "summary: NaN",
    "jobs: a model of 10^9",
    "jobs: negative ids",
    "jobs: 30 million equal rows",
    "rounds: no round",
    "pictures: a pickle",
    "pictures: a terabyte",
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("name", SAMPLE)
def test_a_hostile_directory_is_one_line_that_names_the_file(name: str, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    CASES[name].harm(tmp_path / "run")
    result = run_command("report", tmp_path / "run")
    lines = [line for line in result.err.splitlines() if line.startswith("fedray: ")]
    assert result.status in (1, 2) and len(lines) == 1 and "Traceback" not in result.err, result.err
    assert CASES[name].file in lines[0]


@pytest.mark.parametrize("name", ["jobs: no model", "jobs: ids that are text"])
def test_a_run_whose_jobs_are_damaged_does_not_go_on_with_a_traceback(name: str, good: Path, tmp_path: Path) -> None:
    """The models that took no upload are counted from its jobs; Arrow's own error came out."""
    shutil.copytree(good, tmp_path / "run")
    CASES[name].harm(tmp_path / "run")
    result = run_command("resume", tmp_path / "run")
    assert result.status in (0, 1, 2) and "Traceback" not in result.err
    assert result.status == 0 or CASES[name].file in result.err


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_hostile_directory_is_bounded_for_every_command() -> None:
    """In a process of its own for each, which may take 1.5 GB beyond what it began with."""
    program = Path(__file__).with_name("directories.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    print(done.stdout)
    assert len(CASES) >= 62
    assert "WRONG" not in done.stdout, done.stdout
