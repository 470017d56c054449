"""A network under Gaussians over its weights: it begins and answers as the network, whatever the network is made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedray.models.net import compute_raw_outputs, net_of
from fedray.models.nets import model_maker
from fedray.models.weights import MeanField, wrap_networks


class Tied(nn.Module):
    """One weight in two places, one layer twice, and a layer that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fixed = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.second.weight = self.first.weight
        self.again = self.second
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.again(self.second(self.first(x)).tanh())
        return linear(self.norm(self.fixed(hidden)), self.first.weight) * self.scale


MAKERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (model_maker("mlp", (4,), 4, hidden=[5]), torch.randn(7, 4)),
    "cnn": (model_maker("cnn", (1, 8, 8), 4, channels=[2, 3], hidden=[5]), torch.randn(7, 1, 8, 8)),
    "lstm": (model_maker("lstm", (6,), 4), torch.arange(42).reshape(7, 6) % 4),
    "tied": (Tied, torch.randn(7, 4)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_it_begins_and_answers_as_the_network(kind: str) -> None:
    """The same first weights from the same address, the same answers, both Gaussians as wide as was asked for."""
    make, x = MAKERS[kind]
    plain = net_of(make, kind, "cross_entropy", 4)
    pair = net_of(wrap_networks(make, MeanField, -2.0, kind), kind, "cross_entropy", 4)
    p, row, start = plain.layout.trainable, pair.init(3), plain.init(3)
    assert pair.layout.names[:4] == ("own.mean", "own.rho", "prior.mean", "prior.rho")
    assert pair.layout.trainable == 4 * p
    for first in (0, 2 * p):
        assert torch.equal(row[first : first + p], start[:p])
        assert (row[first + p : first + 2 * p] == -2.0).all()
    assert torch.equal(row[4 * p :], start[p:])  # running statistics
    answers = compute_raw_outputs(plain, torch.stack([start, 0.5 * start]), x)
    row[:p], other = start[:p], torch.cat([0.5 * start[:p], row[p : 4 * p] + 9.0, 0.5 * start[p:]])
    torch.testing.assert_close(compute_raw_outputs(pair, torch.stack([row, other]), x), answers)


def test_what_it_puts_out_descends_to_the_own_mean_alone() -> None:
    make, x = MAKERS["tied"]
    pair = net_of(wrap_networks(make, MeanField, 0.0, "tied"), "tied", "cross_entropy", 4)
    row, p = pair.init(0).requires_grad_(), pair.layout.trainable // 4
    (g,) = torch.autograd.grad(compute_raw_outputs(pair, row[None], x).square().sum(), row)
    assert (g[:p] != 0).any() and (g[p:] == 0).all()
