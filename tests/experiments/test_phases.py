"""Nobody stares at an empty screen: phases are said, and that the command still works; `--quiet` says nothing."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from small import run_command, scenario

from fedray.cli.commands import commands
from fedray.experiments import live

FAST = (  # the command with a clock a hundred times as fast, and no terminal
    "import sys; from fedray.experiments import live; from fedray.cli.commands import main; "
    "live.SOON, live.SILENCE = 0.0, 0.3; main(sys.argv[1:])"
)


@pytest.fixture(autouse=True)
def no_phases() -> None:
    """Here phases are said, other than in the other tests of this folder."""


def file(folder: Path) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(scenario({"rounds": 2})))
    return path


def test_a_phase_is_said_when_it_lasts_and_again_after_25_s_at_most() -> None:
    """The pauses grew from 15 s to 30 s and to ten minutes."""
    heard = live.Heard()
    heard.begin("reading the data")
    said = {}
    for second in range(100):
        line = live.next_line(heard, heard.began + second)
        if line:
            said[second] = line
    assert said == {
        2: "reading the data",
        17: "still reading the data (17 s)",
        40: "still reading the data (40 s)",
        65: "still reading the data (1.08 min)",
        90: "still reading the data (1.5 min)",
    }


def test_a_phase_that_is_over_at_once_is_not_said() -> None:
    heard = live.Heard()
    for phase in ("reading the data", "training"):
        heard.begin(phase)
        assert live.next_line(heard, heard.began + 1.9) is None
    heard.speak()  # a line of progress
    assert live.next_line(heard, heard.spoke + live.SILENCE - 1) is None
    assert live.next_line(heard, heard.spoke + live.SILENCE + 1) == "still training (16 s)"


def test_without_a_terminal_every_phase_of_a_run_was_silent(tmp_path: Path) -> None:
    """Also while the report is made; nothing of it is a control code."""
    command = [sys.executable, "-c", FAST, "run", str(file(tmp_path)), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    at = [lines.index(line) for line in ("reading the data", "drawing the report")]
    assert at == sorted(at)
    assert "\x1b" not in done.stderr + done.stdout


def test_quiet_says_the_result_alone_and_verbose_shows_tracebacks(tmp_path: Path) -> None:
    given = file(tmp_path)
    quiet = run_command("run", given, "-q", "--no-report", "--out", tmp_path / "run")
    assert (quiet.status, quiet.err) == (0, "")
    assert quiet.out.splitlines()[-1] == str(tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()
    wrong = run_command("-v", "run", given, "rounds=ten")
    assert "Traceback" in wrong.err
    assert wrong.err.splitlines()[-1].startswith("fedray: rounds = 'ten'")
    assert logging.getLogger("fedray").level == logging.NOTSET


@pytest.mark.parametrize("command", ["run", "resume", "table", "tune"])
def test_each_command_that_draws_a_report_can_leave_it_out(command: str) -> None:
    assert "--no-report" in run_command(command, "--help").out


def test_help_cut_its_descriptions() -> None:
    words = " ".join(run_command("--help").out.split())
    for command in commands.commands.values():
        assert " ".join((command.help or "?").split("\n\n")[0].split()) in words
