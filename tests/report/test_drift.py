"""The picture of drift names the clients beyond the threshold, and nobody else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_runs import write_run

from fedray.metrics.unknown import ANOMALY_Z
from fedray.report import pictures
from fedray.report.clients import figure_drift
from fedray.report.read import read_run


@pytest.mark.parametrize(
    ("scores", "title", "named"),
    [
        ({}, "None of 20 clients has", []),
        ({7: 3.4}, "1 of 20 clients has", ["client 7"]),
        ({7: 3.4, 2: -3.2, 11: 4.0}, "3 of 20 clients have", ["clients 11, 7, 2"]),
        ({i: 5.0 - i / 10 for i in range(9)}, "9 of 20 clients have", ["clients 0, 1, 2, 3, 4, 5, 6, 7, ..."]),
    ],
)
def test_clients_beyond_the_threshold_are_named(
    tmp_path: Path, scores: dict[int, float], title: str, named: list[str]
) -> None:
    run = read_run(write_run(tmp_path / "run", clients=20, rounds=3))
    z = np.linspace(-1.0, 1.0, 20)
    z[list(scores)] = list(scores.values())
    run.pictures["client_scores"] = z
    with pictures.use_figure_style():
        figure = figure_drift(run)
    assert figure is not None
    assert figure.get_label() == f"{title} a drift score beyond 3 standard deviations"
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == named
    assert {ANOMALY_Z, -ANOMALY_Z} <= {float(np.asarray(line.get_ydata())[0]) for line in axes.lines}


def test_clients_without_data_are_not_drawn(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", clients=20, rounds=3))
    run.pictures["client_scores"] = np.full(20, np.nan)
    assert figure_drift(run) is None
