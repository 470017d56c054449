"""Scores by tier are means over the clients of the tier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from small import scenario

import fedray
from fedray.report.clients import read_tier_curves
from fedray.report.read import ReadRun, read_run


def test_the_curve_of_a_tier_is_the_mean_of_its_clients_in_each_world(tmp_path: Path) -> None:
    tiers = {"strong": {"number": 2}, "weak": {}}
    keys = {"rounds": 2, "replicates": 2, "clients": {"tiers": tiers}, "evaluate": {"clients": "all"}}
    run = fedray.run(scenario(keys), out=tmp_path / "run")
    frame = run.client_scores.to_pandas()
    found = read_tier_curves(read_run(run.path))
    assert list(found) == ["strong", "weak"]
    for tier, curve in found.items():
        assert curve.round.tolist() == [0, 1, 2] and curve.values.shape == (2, 3)
        mine = frame[frame["tier"] == tier].groupby(["replicate", "round"])["accuracy"].mean()
        assert np.allclose(curve.values, mine.to_numpy().reshape(2, 3))


def test_a_run_without_such_scores_has_no_curves() -> None:
    assert read_tier_curves(ReadRun("run", {}, "", {}, {}, {}, None, None, {})) == {}
