"""A network whose rows see each other in evaluation has no score of its own, and says so."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from small import scenario
from torch import Tensor, nn

import fedray
from fedray.advice import find_mixing_networks, warn_of_study
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core.errors import ScenarioWarning
from fedray.scenario.loader import read_scenario


class Centering(nn.Module):
    """Subtracts the batch's mean, in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def network(part: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), part)


def test_scores_that_depend_on_the_pieces_of_the_test_set_were_printed_in_silence() -> None:
    """One line says it; the answers of such a network for one row do depend on the others."""
    with pytest.warns(ScenarioWarning, match="depends on the rows beside it") as said:
        run = fedray.run(scenario({"rounds": 1}), model=lambda: network(Centering()))
    lines = [str(one.message) for one in said if "depends on the rows" in str(one.message)]
    assert len(lines) == 1 and len(lines[0].splitlines()) == 1
    x = np.random.default_rng(0).integers(0, 17, (4, 1, 8, 8)).astype(np.uint8)
    assert not np.allclose(run.predict(x).mean[:2], run.predict(x[:2]).mean)


@pytest.mark.parametrize("mixes", [True, False])
def test_batch_statistics_are_named_and_running_statistics_are_not(mixes: bool) -> None:
    own = UserObjects(model=lambda: network(nn.BatchNorm1d(10, track_running_stats=not mixes)))
    read = read_scenario(scenario({"local": {"batch_size": "full"}}))  # no batch of one row
    study = build_study(read, own)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_study(read, study, [find_mixing_networks])
    assert ["depends on the rows beside it" in str(one.message) for one in said] == ([True] if mixes else [])
