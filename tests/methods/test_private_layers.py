"""Layers that stay with the clients: what is private, what is sent, and which part FedRep trains when."""

from __future__ import annotations

from typing import Any

import torch
from small import models, scenario, spell_out
from torch import Tensor, nn

import fedray

FED_AVG: dict[str, Any] = {"method": {"name": "fedavg"}}


def run(*changes: dict[str, Any], **options: Any) -> fedray.Run:
    few = {"rounds": 2, "data": {"limit": 90}, "clients": {"number": 3}}
    return fedray.run(spell_out(scenario(few, *changes)), **options)


class Constant(nn.Module):
    """A network whose first parameters are always the same, so that N models and one model begin alike."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.first, self.last = nn.Linear(64, 4), nn.Linear(4, 10)
        with torch.no_grad():
            for part in self.parameters():
                part.copy_(torch.linspace(-0.3, 0.4, part.numel()).view_as(part).cos())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x.flatten(1)).tanh())
        return out


def test_with_everything_private_nothing_is_sent_and_each_client_trains_alone() -> None:
    """Each client's model is its model of `local_only`, up to the order of the rows in its one batch."""
    full = {"local": {"batch_size": "full"}}
    alone = run({"method": {"name": "local_only"}}, full, model=Constant)
    kept = run({"method": {"name": "fedper"}, "local": {"private": ["*"]}}, full, model=Constant)
    assert set(kept.clients["up_bytes"].to_pylist()) == {0}
    assert torch.equal(models(kept), models(run({"rounds": 0}, FED_AVG, model=Constant)))
    from safetensors.torch import load_file

    private = load_file(kept.path / "checkpoints" / "round-000002" / "state.safetensors")["private/layers/rows"]
    torch.testing.assert_close(private, models(alone), rtol=1e-4, atol=1e-5)


def test_normalization_layers_stay_with_the_clients_of_fedbn() -> None:
    """With their running statistics: what that means is tested for any layers that stay."""
    study = run({"rounds": 0, "method": {"name": "fedbn"}}, {"model": {"norm": "batch"}}).study
    assert study.method.phase.stays == tuple(
        name for name, part in study.net.module.named_modules() if isinstance(part, nn.BatchNorm1d)
    )


def test_fedrep_trains_its_body_where_a_tenth_of_the_steps_is_less_than_one() -> None:
    few = {"method": {"name": "fedrep"}, "local": {"epochs": None, "steps": 2}}
    head = torch.from_numpy(run({"rounds": 0}, few).study.net.layout.mask(("3",)))
    before, after = (models(run({"rounds": rounds}, few)) for rounds in (0, 1))
    assert bool((before != after)[:, ~head].any())
