"""Variational steps: the gradients of the divergence, and the whole local training against plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from blocks import make_block, perceptron
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softplus

from fedray.components.gaussians import differentiate_divergence, learn_posterior
from fedray.core.local import Reading
from fedray.core.method import Local
from fedray.models.net import net_of
from fedray.models.weights import MeanField, wrap_networks
from fedray.training.client_code import draw_noise, train_client_lanes, train_client_loop
from fedray.training.layers import train_mlp

PLAIN = perceptron()
PAIR = net_of(wrap_networks(lambda: perceptron().module, MeanField, -2.5, "mlp"), "mlp", "cross_entropy", 4)
P = PLAIN.layout.trainable


def diverge(own: Tensor, prior: Tensor) -> Tensor:
    """KL(q || w) by torch, of `[mean, rho]`."""
    one, other = (Normal(row[: len(row) // 2], softplus(row[len(row) // 2 :])) for row in (own, prior))
    return kl_divergence(one, other).sum()


def test_the_slopes_are_those_of_torchs_divergence() -> None:
    g = torch.Generator().manual_seed(0)
    own, prior = (torch.randn(10, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))
    wanted = torch.autograd.grad(diverge(own, prior), [own, prior])
    for found, slope in zip(differentiate_divergence(own.detach(), prior.detach()), wanted, strict=True):
        torch.testing.assert_close(found, slope)


def test_between_equal_gaussians_there_is_no_divergence_and_nothing_moves() -> None:
    """Also where they are as narrow, or as wide, as the option `rho` allows."""
    same = torch.cat([torch.randn(6), torch.tensor([-20.0, -5.0, -1.0, 0.0, 3.0, 20.0])])
    assert float(diverge(same, same)) == 0.0
    assert all((slope == 0).all() for slope in differentiate_divergence(same, same))


def blocks_of(local: Local, sizes: list[int], rho: float = -2.5) -> tuple[Any, Any]:
    """Lanes of the plain network, and the same clients with Gaussians around the same weights; priors lie elsewhere."""
    plain = make_block(PLAIN, (6,), local, sizes, torch.float32)
    w, lanes = plain.start, torch.arange(len(sizes))
    spread = torch.full_like(w, rho)
    start = torch.cat([w, spread, w + 0.1, spread + 0.3], dim=1)
    reading = Reading(0, lanes, torch.zeros_like(lanes), start, size=torch.tensor(sizes))
    return plain, plain._replace(start=start, reading=reading)


def train_by_torch(block: Any, lane: int, local: Local, *, zeta: float, turns: int) -> Tensor:
    """The local training of one client with torch's divergence, autograd and optimizers."""
    own, prior = (part.clone().requires_grad_() for part in block.start[lane].split(2 * P))
    make: Any = torch.optim.Adam if local.optimizer == "adam" else torch.optim.SGD
    more = {} if local.optimizer == "adam" else {"momentum": local.momentum}
    optimizers = [make([part], lr=block.lr, **more) for part in (own, prior)]
    size = int(block.reading.size[lane])
    for s in range(int(block.steps[lane])):
        x, y = (part[0, lane] for part in block.read(s, s + 1))
        real = block.weight[s, lane] > 0
        noise = draw_noise(block.local, block.keys[lane : lane + 1], s, block.start[:1])[0]
        draw = PLAIN.layout.views(own[:P] + softplus(own[P:]) * noise)
        loss = cross_entropy(functional_call(PLAIN.module, draw, (x[real],)), y[real])
        losses = [loss + zeta / size * diverge(own, prior.detach())]
        for optimizer in optimizers[: 2 if (s + 1) % turns == 0 else 1]:
            optimizer.zero_grad()
            cost: Any = losses.pop() if losses else zeta / size * diverge(own.detach(), prior)
            cost.backward()
            optimizer.step()
    return torch.cat([own, prior]).detach()


@pytest.mark.parametrize("train", [train_client_lanes, train_client_loop], ids=["lanes", "one after another"])
@pytest.mark.parametrize(
    ("local", "turns"),
    [
        (Local(optimizer="adam", lr=0.01), 5),
        (Local(optimizer="adam", lr=0.01), 1),
        (Local(lr=0.05, momentum=0.9), 3),
        (Local(lr=0.05), 1),
    ],
    ids=["adam, 5 to 1", "adam, 1 to 1", "momentum, 3 to 1", "sgd, 1 to 1"],
)
def test_local_training_is_that_of_torchs_divergence_and_optimizers(train: Any, local: Local, turns: int) -> None:
    """Of clients of several sizes, whose last batches are padded."""
    zeta, sizes = 3.0, [11, 7]
    rule = learn_posterior(local, zeta, turns, P)
    _, block = blocks_of(Local(lr=local.lr), sizes)
    block = block._replace(local=Local(lr=local.lr, step=rule), lr=local.lr)
    found = train(PAIR, block).final
    for lane in range(len(sizes)):
        wanted = train_by_torch(block, lane, local, zeta=zeta, turns=turns)
        assert (wanted[2 * P :] - block.start[lane, 2 * P :]).abs().max() > 1e-3  # the prior moves, too
        torch.testing.assert_close(found[lane], wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("local", [Local(optimizer="adam", lr=0.01), Local(lr=0.05, momentum=0.9)], ids=["adam", "sgd"])
def test_a_narrow_gaussian_that_is_near_nothing_is_plain_local_training(local: Local) -> None:
    """With zeta = 0 and sigma = 2e-9: the own mean is trained as a network, and the prior stays to the bit."""
    plain, block = blocks_of(local, [11, 7, 4], rho=-20.0)
    rule = learn_posterior(local, 0.0, 5, P)
    found = train_client_loop(PAIR, block._replace(local=Local(lr=local.lr, step=rule))).final
    wanted = train_mlp(PLAIN, plain).final
    assert (wanted - plain.start).abs().max() > 0.01
    torch.testing.assert_close(found[:, :P], wanted, rtol=0, atol=1e-5)
    assert torch.equal(found[:, 2 * P :], block.start[:, 2 * P :])


def test_the_draws_have_the_deviation_that_rho_says() -> None:
    rule, row = learn_posterior(Local(), 1.0, 1, 4000), torch.cat([torch.ones(4000), torch.full((4000,), -1.0)] * 2)
    assert rule.at is not None
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=4000)).float()
    draw = rule.at(row, noise)
    assert torch.equal(draw[4000:], row[4000:])
    assert float(draw[:4000].std()) == pytest.approx(float(softplus(torch.tensor(-1.0))), rel=0.03)
    assert float(draw[:4000].mean()) == pytest.approx(1.0, abs=0.02)
