"""Clients with a batch of one row, on which batch normalization cannot train, are named before the run."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch import nn

import fedray
from fedray.advice import find_lone_rows, warn_of_study
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.errors import FedrayError, ScenarioWarning
from fedray.experiments.check import explain_scenario
from fedray.scenario.loader import read_scenario


def keys(**more: Any) -> dict[str, Any]:
    return {
        "method": "fedavg",
        "rounds": 1,
        "clients": 3,
        "data": {"name": "digits", "limit": 100, "partition": {"name": "sizes", "sizes": [40, 41, 19]}},
        "model": {"name": "mlp", "hidden": [4], "norm": "batch"},
        "local": {"epochs": 1, "batch_size": 4},
        "runtime": "inline",
        "report": False,
        **more,
    }


def lone(scenario: dict[str, Any], model: Any = None) -> list[str]:
    """What the check of a scenario says about batches of one row."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read = read_scenario(scenario)
        warn_of_study(read, build_study(read, UserObjects(model=model)), [find_lone_rows])
    return [str(one.message) for one in said if "a batch of one row" in str(one.message)]


def test_a_client_whose_last_batch_has_one_row_was_found_in_the_middle_of_a_run() -> None:
    """The check names it with the remedies, and so does the line that ends the run."""
    with pytest.warns(ScenarioWarning, match="client 1 has a batch of one row, and the run ends when one of them"):
        explain_scenario(read_scenario(keys()))
    match = r"client 1 \(model 0\) failed: ValueError: Expected .*: choose another local.batch_size, .*model.norm"
    with pytest.warns(ScenarioWarning), pytest.raises(FedrayError, match=match):
        fedray.run(keys())


def test_a_client_that_is_left_out_is_a_warning_too() -> None:
    assert "they are left out" in lone(keys(on_client_error="skip"))[0]


@pytest.mark.parametrize(
    ("change", "model"),
    [
        ({"local": {"epochs": 1, "batch_size": 7}}, None),
        ({"local": {"epochs": 1, "batch_size": "full"}}, None),
        ({"local": {"steps": 1, "batch_size": 4}}, None),  # the batch of one row is the eleventh
        ({"model": {"name": "mlp", "hidden": [4], "norm": "layer"}}, None),
        ({}, lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))),
    ],
    ids=["a rest of five", "one batch", "too few steps", "layer norm", "maps of several pixels"],
)
def test_what_trains_is_not_warned_of(change: dict[str, Any], model: Any) -> None:
    assert lone(keys(**change), model) == []


def test_maps_of_one_pixel_are_like_features() -> None:
    """As torch has it: one value of a channel is left."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 8), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 10))

    assert len(lone(keys(), network)) == 1


class Frozen(nn.BatchNorm1d):
    """Batch normalization that keeps its statistics in training."""

    def train(self, _mode: bool = True) -> Frozen:
        super().train(False)
        return self


def test_normalization_that_stays_in_evaluation_mode_is_not_warned_of() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), Frozen(4), nn.Linear(4, 10))

    assert lone(keys(), network) == []
