"""Scores that have no mean are said, and the seeds that have a value keep it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import fedray
from fedray.core.errors import FedrayWarning

KEYS: dict[str, Any] = {"rounds": 1, "clients": 2, "method": "fedavg", "data": {"name": "digits", "limit": 60}}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_without_a_mean_is_said_once_at_the_end(value: float, tmp_path: Path) -> None:
    with pytest.warns(FedrayWarning) as said:
        run = fedray.run(
            {**KEYS, "rounds": 2, "replicates": 2, "runtime": "inline"},
            metrics={"mine": lambda scored: value if scored.replicate else 1.0},
            out=tmp_path / "run",
            report=False,
        )
    assert [str(one.message) for one in said] == [
        "no mean in summary.json, because a replicate or fold ended with nan or an infinite value: score mine: "
        "see its column in rounds.parquet"
    ]
    assert run.summary["metrics"]["mine"] == {"mean": None, "sd": None, "n": 2}
    assert run.rounds["mine"].to_pylist()[:3] == [1.0, 1.0, 1.0]  # of the first seed


def test_scores_with_a_mean_are_not_said(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = {**KEYS, "runtime": "inline"}
        run = fedray.run(given, metrics={"mine": lambda _: 1.0}, out=tmp_path / "run", report=False)
    assert run.summary["metrics"]["mine"]["mean"] == 1.0
