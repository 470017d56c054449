"""Where trials train: actors of a trial need a cluster, a CPU each, and no company in the lanes."""

from __future__ import annotations

from typing import Any

import pytest
from sweeps import LR, sweep

from fedray.core.errors import BadInput
from fedray.tuning.sweep_file import read_sweep
from fedray.tuning.workers import refuse_idle_actors


def confirm(keys: dict[str, Any], address: str | None = None) -> int:
    """The actors of a trial, where they can train."""
    found = read_sweep(sweep({"local.lr": LR}, trial={"actors": 2}, **keys))
    refuse_idle_actors(found, found.scenario({}), address)
    return found.actors


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({}, "trial.actors = 2 needs a cluster, but runtime = inline: write overrides: {runtime: ray}, or leave"),
        ({"overrides": {"runtime": "auto"}}, "but runtime = auto: write overrides: {runtime: ray}, give --address, or"),
        ({"overrides": {"runtime": "ray"}, "together": 2}, "together = 2: trials with actors have no lanes to share"),
        (
            {"overrides": {"runtime": "ray", "clients.tiers": {"lab": {"num_gpus": 1}}}},
            "clients.tiers.lab: the actors of a trial have a CPU each: drop num_gpus",
        ),
    ],
)
def test_actors_that_cannot_train_are_one_line(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput) as caught:
        confirm(keys)
    assert line in str(caught.value)


def test_on_a_cluster_trials_may_span_actors() -> None:
    assert confirm({"overrides": {"runtime": "ray"}, "together": 1}) == 2
    assert confirm({"overrides": {"runtime": "auto"}}, address="auto") == 2
