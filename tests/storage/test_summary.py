"""Scores of a whole run: pooled over its worlds, and over its last rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small import scenario

import fedray


def test_the_score_of_the_last_three_rounds_is_their_mean_in_each_world(tmp_path: Path) -> None:
    """As Fed-ensemble's tables have it; of fewer than three evaluated rounds after the first state there is none."""
    run = fedray.run(scenario({"rounds": 5, "replicates": 2, "report": False}), out=tmp_path / "run")
    frame = run.metrics_dataframe.sort_values("round")
    each = [world["accuracy"].to_numpy()[-3:].mean() for _, world in frame.groupby("replicate")]
    pooled = run.summary["metrics"]["accuracy_last3"]
    assert pooled["mean"] == pytest.approx(np.mean(each), abs=1e-15)
    assert pooled["sd"] == pytest.approx(np.std(each, ddof=1), abs=1e-15) and pooled["n"] == 2
    few = fedray.run(scenario({"rounds": 2, "report": False}), out=tmp_path / "few")
    assert "accuracy_last3" not in few.summary["metrics"]
