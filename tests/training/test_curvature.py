"""The diagonal of the Fisher information: a plain loop of autograd, row by row and class by class, says the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from modules import Apply
from torch import Tensor, nn
from torch.func import functional_call

from fedray.core.types import Net
from fedray.features import measure
from fedray.features.measure import sum_curvature
from fedray.models.net import net_of, per_sample
from fedray.models.nets import build_net


class Backwards(torch.autograd.Function):
    """The identity, which torch cannot map over rows."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: Any, g: Tensor) -> Tensor:
        return g


def unmapped() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 3), Apply(Backwards.apply))


NETS: dict[str, tuple[Net, tuple[int, ...]]] = {
    "linear": (build_net("linear", (5,), 3, "cross_entropy"), (5,)),
    "mlp": (build_net("mlp", (5,), 3, "cross_entropy", hidden=[7]), (5,)),
    "cnn": (build_net("cnn", (1, 12, 12), 4, "cross_entropy", channels=[2, 3], hidden=[5], dropout=0.5), (1, 12, 12)),
    "batch norm": (
        net_of(lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "own", "cross_entropy", 3),
        (5,),
    ),
    "recurrent": (build_net("lstm", (6,), 5, "cross_entropy", vocabulary=5, hidden=4, layers=1), (6,)),
    "not mapped": (net_of(unmapped, "own", "cross_entropy", 3), (5,)),
}


def loop(net: Net, row: Tensor, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """By definition: the mean over labels of the squared gradient of the loss, summed over rows, `[p]`."""
    net.module.eval()
    p, total = net.layout.trainable, torch.zeros(net.layout.trainable, dtype=torch.float64)
    for one, label in zip(x, y, strict=True):
        views = {name: view.clone() for name, view in net.layout.views(row).items()}
        leaves = [views[name].requires_grad_() for name in net.layout.names[: net.layout.trainable_tensors]]
        out = functional_call(net.module, views, (one[None],))
        odds = out[0].detach().softmax(-1).double() if kind == "model" else torch.eye(net.outputs)[label]
        for c, odd in enumerate(odds):
            loss = per_sample(net.objective, out, torch.tensor([c])).sum()
            g = torch.autograd.grad(loss, leaves, retain_graph=True)
            total += odd * torch.cat([part.reshape(-1) for part in g]).double().square()
    assert len(total) == p
    return total


@pytest.mark.parametrize("kind", ["model", "empirical"])
@pytest.mark.parametrize("name", NETS)
def test_it_is_that_of_a_loop_over_rows_and_labels(name: str, kind: str) -> None:
    """To float precision; float buffers have none; a layer that torch cannot map is no obstacle."""
    net, shape = NETS[name]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, *shape, generator=generator), torch.arange(6) % net.outputs
    x = x.mul(2).long() % 5 if name == "recurrent" else x  # tokens
    found = sum_curvature(net, net.init(3), x, y, kind)
    wanted = loop(net, net.init(3), x, y, kind)
    torch.testing.assert_close(found[: net.layout.trainable], wanted, rtol=1e-4, atol=1e-7 * float(wanted.max()))
    assert bool((found[net.layout.trainable :] == 0).all())
    assert float(wanted.max()) > 1e-3


def test_of_squared_losses_it_is_the_hessian_of_a_linear_model() -> None:
    """`half_mse` is the negative log likelihood of unit variance, `mse` that of half of it; targets do not matter."""
    x = torch.tensor([[1.0, 2.0], [0.0, 3.0], [2.0, -1.0]])
    for objective, times in (("half_mse", 1.0), ("mse", 2.0)):
        net = net_of(lambda: nn.Linear(2, 1), "own", objective, 1)  # type: ignore[arg-type]
        one, other = (sum_curvature(net, net.init(0), x, y, "model") for y in (torch.zeros(3), torch.ones(3)))
        assert one.tolist() == pytest.approx([times * 5.0, times * 14.0, times * 3.0])
        assert torch.equal(one, other)


def test_pieces_of_the_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, shape = NETS["cnn"]
    x, y = torch.randn(7, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(7) % 4
    whole = sum_curvature(net, net.init(0), x, y, "model")
    monkeypatch.setattr(measure, "MAPPED_NUMBERS", 2 * net.outputs * net.layout.d)
    torch.testing.assert_close(sum_curvature(net, net.init(0), x, y, "model"), whole, rtol=1e-5, atol=1e-9)
