"""Networks of Gaussians and of samples: they begin and answer as the network that they hold."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear

from fedray.models.net import MeanField, Partitioned, Samples, compute_raw_outputs, net_of
from fedray.models.nets import model_maker


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
    pair = net_of(lambda: MeanField(make(), -2.0, kind), kind, "cross_entropy", 4)
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
    pair = net_of(lambda: MeanField(make(), 0.0, "tied"), "tied", "cross_entropy", 4)
    row, p = pair.init(0).requires_grad_(), pair.layout.trainable // 4
    (g,) = torch.autograd.grad(compute_raw_outputs(pair, row[None], x).square().sum(), row)
    assert (g[:p] != 0).any() and (g[p:] == 0).all()


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


@pytest.mark.parametrize("make", [model_maker("mlp", (4,), 3, hidden=[5]), normalized], ids=["mlp", "batch norm"])
def test_it_begins_and_answers_as_the_network_in_partitioned(make: Callable[[], nn.Module]) -> None:
    """The same first weights from the same address, a factor of 1, and answers that the mean alone decides."""
    plain = net_of(make, "net", "cross_entropy", 3)
    one = net_of(lambda: Partitioned(make(), -2.0, "net"), "net", "cross_entropy", 3)
    p, row, start = plain.layout.trainable, one.init(3), plain.init(3)
    assert one.layout.names[0] == "posterior.mean" and one.layout.names[4] == "start.is_prior"
    assert one.layout.sizes[:5] == (p, p, p, p, 1) and one.layout.trainable == 4 * p + 1
    assert torch.equal(row[:p], start[:p])
    assert (row[p : 2 * p] == -2.0).all() and (row[2 * p : 4 * p] == 0.0).all() and row[4 * p] == 1.0
    assert torch.equal(row[4 * p + 1 :], start[p:])  # running statistics
    x, half = torch.randn(7, 4), torch.cat([0.5 * start[:p], start[p:]])
    other = torch.cat([0.5 * start[:p], row[p : 4 * p + 1] + 9.0, start[p:]])
    wanted = compute_raw_outputs(plain, torch.stack([start, half]), x)
    torch.testing.assert_close(compute_raw_outputs(one, torch.stack([row, other]), x), wanted)


SAMPLES_MAKERS = {name: made for name, made in MAKERS.items() if name != "tied"}


@pytest.mark.parametrize("kind", SAMPLES_MAKERS)
def test_it_begins_as_copies_of_the_network_and_answers_with_their_mean(kind: str) -> None:
    make, x = SAMPLES_MAKERS[kind]
    plain = net_of(make, kind, "cross_entropy", 4)
    several = net_of(lambda: Samples(make(), 3, kind), kind, "cross_entropy", 4)
    start, p = plain.init(3), plain.layout.d
    assert torch.equal(several.init(3), start.repeat(3))
    rows = torch.stack([start, 0.5 * start, 2.0 * start])
    wanted = compute_raw_outputs(plain, rows, x).softmax(-1).mean(0)
    torch.testing.assert_close(compute_raw_outputs(several, rows.view(1, 3 * p), x)[0].exp(), wanted)
    one = net_of(lambda: Samples(make(), 1, kind), kind, "cross_entropy", 4)  # is the network
    answer = compute_raw_outputs(plain, start[None], x).log_softmax(-1)
    torch.testing.assert_close(compute_raw_outputs(one, start[None], x), answer)


def test_in_training_it_is_its_last_sample_whose_gradient_alone_there_is() -> None:
    make, x = SAMPLES_MAKERS["mlp"]
    plain, several = (net_of(f, "mlp", "cross_entropy", 4) for f in (make, lambda: Samples(make(), 3, "mlp")))
    rows = torch.stack([plain.init(k) for k in range(3)]).requires_grad_()
    several.module.train()
    out = functional_call(several.module, {"samples": rows}, (x,))
    torch.testing.assert_close(out, compute_raw_outputs(plain, rows[-1:], x)[0])
    (g,) = torch.autograd.grad(out.square().sum(), rows)
    assert (g[-1] != 0).any() and (g[:-1] == 0).all()
