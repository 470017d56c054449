"""Pretrained weights and frozen layers: runs begin with them, leave what is frozen alone, and export all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small import scenario
from torch import Tensor, nn

import fedray


class Body(nn.Module):
    """A network with a body that may be frozen, weights that are tied, and a constant."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.body, self.mixing, self.head = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.again = self.mixing
        self.register_buffer("table", torch.arange(8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.again(self.mixing(self.body(x.flatten(1)).relu()).tanh()).relu())
        return out


@pytest.fixture
def trained(tmp_path: Path) -> dict[str, Tensor]:
    """What somebody else has trained."""
    torch.manual_seed(3)
    torch.save(Body().state_dict(), tmp_path / "weights.pt")
    found: dict[str, Tensor] = torch.load(tmp_path / "weights.pt", weights_only=True)
    return found


@pytest.mark.parametrize("frozen", [False, True])
def test_a_run_begins_with_pretrained_weights_and_exports_all(
    frozen: bool, trained: dict[str, Tensor], tmp_path: Path
) -> None:
    def network() -> nn.Module:
        module = Body()
        module.load_state_dict(trained)
        module.body.requires_grad_(not frozen)
        return module

    keys: dict[str, Any] = scenario({"method": {"name": "fedavg"}})
    start = fedray.run({**keys, "rounds": 0}, model=network)
    for name, value in start.models[0].items():
        assert torch.equal(value, trained[name]), name
    run = fedray.run({**keys, "rounds": 2}, model=network)
    (file,) = run.export(tmp_path / "export")
    exported = load_file(file)
    assert exported.keys() == trained.keys()
    module = Body()
    module.load_state_dict(exported)
    assert torch.equal(module.body.weight, trained["body.weight"]) is frozen
    assert not torch.equal(module.head.weight, trained["head.weight"])
    assert torch.equal(exported["again.weight"], exported["mixing.weight"])
    x = torch.rand(5, 1, 8, 8)
    shown = run.predict((16 * x).round().to(torch.uint8).numpy())
    assert shown.probabilities is not None
    d = sum(p.numel() for p in network().parameters() if p.requires_grad)
    assert set(run.clients["up_bytes"].to_pylist()) == {4 * d}
