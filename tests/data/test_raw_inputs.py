"""Networks that get inputs as they are: a network that standardizes by itself trains as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario
from torch import Tensor, nn

import fedray
from fedray.core.errors import BadInput, FedrayWarning
from fedray.data.catalogue import load_data
from fedray.scenario.identity import list_result_keys
from fedray.scenario.loader import read_scenario, to_plain

FEW: dict[str, Any] = {"rounds": 2, "method": {"name": "fedavg"}, "clients": {"number": 3}, "report": False}
RAW = {"data": {"standardize": False}}


class Standardizing(nn.Module):
    """Two layers behind `(x - shift) / scale`, with the statistics of the digits, or behind nothing."""

    def __init__(self, itself: bool) -> None:
        nn.Module.__init__(self)
        self.first, self.last = nn.Linear(64, 6), nn.Linear(6, 10)
        digits = load_data("digits")
        self.shift, self.scale = (torch.from_numpy(part[0]) for part in (digits.shift, digits.scale))
        self.itself = itself

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.shift) / self.scale if self.itself else x
        out: Tensor = self.last(self.first(x.flatten(1)).relu())
        return out


def models(run: fedray.Run) -> Tensor:
    return run.progress.state.models


@pytest.mark.parametrize("lanes", ["auto", "torch"])
def test_a_network_that_standardizes_by_itself_trains_and_answers_as_before(lanes: str) -> None:
    usual = fedray.run(scenario(FEW, {"lanes": lanes}), model=lambda: Standardizing(False))
    raw = fedray.run(scenario(FEW, RAW, {"lanes": lanes}), model=lambda: Standardizing(True))
    torch.testing.assert_close(models(usual), models(raw), rtol=1e-4, atol=1e-5)
    assert raw.metrics["nll"] == pytest.approx(usual.metrics["nll"], rel=1e-4)
    images = load_data("digits").test.x[:5]
    np.testing.assert_allclose(raw.predict(images).mean, usual.predict(images).mean, rtol=1e-3, atol=1e-5)


def test_the_networks_see_bytes_and_the_export_says_so(tmp_path: Path) -> None:
    seen: list[float] = []

    def network() -> nn.Module:
        module = Standardizing(True)
        module.register_forward_pre_hook(lambda _module, given: seen.append(float(given[0].max())))
        return module

    run = fedray.run(scenario(FEW, RAW), model=network)
    assert max(seen) > 15
    with pytest.warns(FedrayWarning, match="value seen of model network is not what the run began with"):
        run.export(tmp_path / "export")
    assert '"shift"' not in (tmp_path / "export" / "models.json").read_text()


def test_runs_from_before_the_key_go_on_and_one_that_has_it_is_another() -> None:
    usual, raw = (list_result_keys(to_plain(read_scenario(keys))) for keys in ({}, RAW))
    assert raw.keys() - usual.keys() == {"data.standardize"}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"data": {"name": "sine", "standardize": False}}, "the inputs of sine are not standardized anyway"),
        ({"method": "adaboost_f", **RAW}, "clients of adaboost_f fit trees"),
    ],
)
def test_where_it_cannot_act_it_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=f"^data.standardize = false cannot act, because {why}"):
        fedray.run(keys, runtime="inline", rounds=1, report=False)
