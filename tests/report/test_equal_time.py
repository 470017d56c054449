"""Runs without rounds are compared at equal virtual time, not at equal numbers of server steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedray.report import compare
from fedray.report.page import render_many
from fedray.report.read import ReadRun


def made(name: str, mode: str, seconds: float, steps: int, lift: float = 0.0) -> ReadRun:
    """A run of three seeds whose accuracy grows with virtual time alone, plus a lift."""
    time = np.linspace(0.0, seconds, steps + 1)
    columns = {key: np.tile(value, 3) for key, value in {"round": np.arange(steps + 1.0), "sim_seconds": time}.items()}
    columns |= {"replicate": np.repeat([0.0, 1.0, 2.0], steps + 1), "fold": np.zeros(3 * steps + 3)}
    grown = 0.9 * (1 - np.exp(-columns["sim_seconds"] / 20)) + 0.01 * columns["replicate"] * (1 + 5 * lift) + lift
    scenario: dict[str, Any] = {"seed": 0, "participation": {"mode": mode}}
    return ReadRun(name, scenario, "", {}, {}, columns | {"accuracy": grown}, None, None, {})


def test_a_run_that_steps_more_often_is_not_ahead_for_that() -> None:
    """In rounds 40 steps last 400 s, without rounds 4: after 40 steps the one with rounds would be far ahead."""
    runs = [made("sync", "sync", 400.0, 40), made("async", "async", 40.0, 400)]
    (pair,) = compare.compare_with_first(runs, ["accuracy"])
    assert pair.difference is not None and pair.difference.mean == pytest.approx(0.0, abs=1e-9)
    by_round = [compare.read_world_scores(run, "accuracy", 40) for run in runs]
    assert by_round[0][0, 0] - by_round[1][0, 0] > 0.5
    assert "equal virtual time, after 40 s" in compare.list_pairing_notes(runs)[0]


def test_the_lift_of_a_run_is_seen_at_every_moment() -> None:
    runs = [made("sync", "sync", 48.0, 48), made("buffered", "buffered", 96.0, 192, lift=0.06)]
    found = compare.compare_moments(runs, "accuracy", 12)
    assert [at for at, _ in found] == [4.0 * i for i in range(1, 13)]
    for _, (pair,) in found:
        assert pair.difference is not None and pair.difference.mean == pytest.approx(0.063) and pair.difference.n == 3
    figure = compare.figure_moments(runs)
    assert isinstance(figure, Figure) and "Against sync at equal virtual time, up to 48 s" in str(figure.get_label())
    head, rows = compare.make_moment_table(runs)
    assert [row[head.index("difference")].text for row in rows] == ["+6.3 points"] * compare.SHOWN_MOMENTS
    page = render_many(runs)
    assert "At equal virtual time" in page and compare.make_difference_table(runs)[1]


def test_steps_that_share_a_moment_are_read_in_their_order() -> None:
    """A server that takes two updates at 40 s has the model of the second one, be it the worse."""
    run = made("async", "async", 40.0, 400)
    rounds = {**run.rounds, "sim_seconds": np.minimum(run.rounds["sim_seconds"], 39.0)}
    rounds["accuracy"] = np.where(run.rounds["round"] == 400, 0.5, 0.9)
    at = compare.read_world_scores(replace(run, rounds=rounds), "accuracy", 39.0, "sim_seconds")
    assert list(at.values()) == [0.5] * 3


def test_runs_in_rounds_are_compared_by_rounds() -> None:
    runs = [made("a", "sync", 40.0, 40), made("b", "sync", 400.0, 40)]
    assert compare.compare_moments(runs, "accuracy", 4) == [] and compare.figure_moments(runs) is None
    assert compare.make_moment_table(runs)[1] == [] and compare.find_axis(runs) == "round"
