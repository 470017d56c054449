"""What a person watches: phases and lines without a terminal, a live table where there is one, and the time left."""

import io
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small import run_command, scenario, write_keys

from fedray.experiments import live


def snapshot(round: int, seconds: float, accuracy: float = 0.5, rounds: int = 40) -> dict[str, Any]:
    return {
        "round": round,
        "rounds": rounds,
        "metrics": {"accuracy": accuracy, "accuracy_mean": accuracy - 0.1, "nll": 1.0},
        "up_bytes": 2_500_000,
        "down_bytes": 2_500_000,
        "sim_seconds": 90.0,
        "wall_seconds": seconds,
    }


@pytest.mark.parametrize(
    ("round", "seconds", "says"), [(10, 5.0, "15 s"), (30, 3600.0, "20 min"), (10, 3600.0, "3 h"), (40, 60.0, "0 s")]
)
def test_the_time_left_is_that_of_the_rounds_to_come_at_the_pace_so_far(round: int, seconds: float, says: str) -> None:
    assert live.estimate_time_left(snapshot(round, seconds)) == says


def test_without_a_terminal_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a snapshot, at most one in two seconds, and always the last."""
    said, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("fedray.experiments.live.time.monotonic", lambda: clock[0])
    with live.watch_run("a run") as show:
        for round, now in ((0, 100.0), (1, 100.5), (10, 103.0), (10, 110.0), (40, 110.1)):
            clock[0] = now
            show(snapshot(round, now - 100.0))
    lines = said.getvalue().splitlines()
    assert lines == [
        "round 0/40  accuracy 0.5000  members' mean accuracy 0.4000  NLL 1.0000  uplink 2.5 MB",
        "round 10/40  accuracy 0.5000  members' mean accuracy 0.4000  NLL 1.0000  uplink 2.5 MB  9 s left",
        "round 40/40  accuracy 0.5000  members' mean accuracy 0.4000  NLL 1.0000  uplink 2.5 MB",
    ]


def test_on_a_terminal_there_is_a_table_with_the_newest_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    with live.watch_run("fed_ensemble on digits") as show:
        for round in range(13):
            show(snapshot(round, 2.0 * round, 0.01 * round))
            show(snapshot(round, 2.0 * round, 0.01 * round))  # the same snapshot again adds no row
    last = screen.getvalue().split("fed_ensemble on digits")[-1]
    assert [f" {round}/40" in last for round in (2, 3, 12)] == [False, True, True]
    assert last.count("12/40") == 1 and "accuracy" in last and "30 %, 56 s left" in last


def test_a_phase_is_said_when_it_lasts_and_again_after_25_s_at_most() -> None:
    progress = live.ProgressPhase()
    progress.begin("reading the data")
    said = {}
    for second in range(100):
        line = live.next_line(progress, progress.began + second)
        if line:
            said[second] = line
    assert said == {
        2: "reading the data",
        17: "still reading the data (17 s)",
        40: "still reading the data (40 s)",
        65: "still reading the data (1.08 min)",
        90: "still reading the data (1.5 min)",
    }


def test_without_a_terminal_every_phase_of_a_run_was_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the report is made; nothing of it is a control code."""

    def draw(_run_dirs: Any, out: Path, **_: Any) -> None:
        time.sleep(0.5)
        out.write_text("<html>")

    monkeypatch.setattr(live, "SOON", 0.0)
    monkeypatch.setattr("fedray.report.page.write_report", draw)
    done = run_command("run", write_keys(tmp_path, scenario({"rounds": 2})), "--out", tmp_path / "run")
    assert done.status == 0 and "drawing the report" in done.err.splitlines()
    assert "\x1b" not in done.err + done.out


def test_quiet_says_the_result_alone_and_verbose_shows_tracebacks(tmp_path: Path) -> None:
    given = write_keys(tmp_path, scenario({"rounds": 2}))
    quiet = run_command("run", given, "-q", "--no-report", "--out", tmp_path / "run")
    assert (quiet.status, quiet.err) == (0, "")
    assert quiet.out.splitlines()[-1] == str(tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()
    wrong = run_command("-v", "run", given, "rounds=ten")
    assert "Traceback" in wrong.err
    assert wrong.err.splitlines()[-1].startswith("fedray: rounds = 'ten'")
    assert logging.getLogger("fedray").level == logging.NOTSET
