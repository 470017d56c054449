"""The pictures of training without rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from small import scenario

import fedray
from fedray.report import flights, jobs
from fedray.report.flights import count_shares
from fedray.report.read import ReadRun, read_run

SPREAD = {"clients": {"number": 12, "tiers": {"slow": {"share": 0.5, "spread": 1.0}, "fast": {"spread": 0.3}}}}


def made(tmp_path: Path, mode: str) -> ReadRun:
    keys = {"rounds": 12, "report": False, "participation": {"mode": mode} if mode == "sync" else {
        "mode": mode, "concurrency": 8, "goal": 3}}  # fmt: skip
    return read_run(fedray.run(scenario(keys, SPREAD), out=tmp_path / mode).path)


def test_jobs_in_flight_take_the_place_of_the_round(tmp_path: Path) -> None:
    flying, in_rounds = made(tmp_path, "buffered"), made(tmp_path, "sync")
    assert isinstance(flights.figure_flights(flying), Figure) and isinstance(flights.figure_staleness(flying), Figure)
    assert jobs.figure_gantt(flying) is None and isinstance(jobs.figure_gantt(in_rounds), Figure)
    assert flights.figure_flights(in_rounds) is None and flights.figure_staleness(in_rounds) is None


def test_the_title_says_how_late_uploads_are(tmp_path: Path) -> None:
    run = made(tmp_path, "buffered")
    late = [step for step in run.clients["staleness"].to_pylist() if step is not None]  # type: ignore[index]  # the run has jobs
    figure = flights.figure_staleness(run)
    assert figure is not None and f"{max(late)} at most" in str(figure.get_label())


@pytest.mark.parametrize("most", [1, 3, 20])
def test_shares_add_up_to_one(most: int) -> None:
    assert count_shares(np.arange(9), most).sum() == pytest.approx(1.0)
