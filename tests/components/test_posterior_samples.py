"""Chains: without noise they are SGD with momentum, with noise they have the posterior's variance; their samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from blocks import make_block, perceptron
from torch import Tensor

from fedray.components.one_shot import Cycles, sample_posterior
from fedray.core.local import Reading, StepContext
from fedray.core.method import Local
from fedray.models.net import net_of
from fedray.models.weights import Samples, wrap_networks
from fedray.training.client_code import train_client_lanes, train_client_loop


def constant(steps: int) -> Cycles:
    """As many cycles as steps, all of them with noise: the rate never falls."""
    return Cycles(number=steps, per_cycle=1, samples=1, exploration=0.0)


def walk(
    cycles: Cycles, steps: int, slope: Any, w: Tensor, *, lr: float = 0.1, momentum: float = 0.5, **more: Any
) -> list[Tensor]:
    """The row `[M p]` behind each step, from `w`; `slope` gives the gradient of a step at the chain's place."""
    generator = torch.Generator().manual_seed(1)
    temperature, size, p = more.get("temperature", 0.0), more.get("size", 50), w.numel() // cycles.samples
    rule = sample_posterior(cycles, momentum, temperature, p)
    row, state, rows = w.clone(), rule.init(w), []
    unused: Any = None
    for step in range(steps):
        noise = torch.randn(p, generator=generator, dtype=w.dtype)
        number, zero, n = torch.tensor(steps), torch.tensor(0), torch.tensor(size)
        context = StepContext(0, zero, step, number, lr, n, unused, unused, noise, n)
        gradient = torch.cat([torch.zeros_like(row[:-p]), slope(step, row[-p:])])
        change, state = rule.update(gradient, state, row, context)
        row = row.sub(change, alpha=lr)
        rows.append(row)
    return rows


def test_the_defaults_sample_at_the_ends_of_the_epochs_of_the_authors_code() -> None:
    """25 epochs in five cycles, the last two of each with noise and a sample each; the last six are kept."""
    ends = Cycles(number=5, per_cycle=2, samples=6, exploration=0.6).ends()
    np.testing.assert_allclose(np.array(ends) * 25, [14, 15, 19, 20, 24, 25])


def test_without_temperature_it_is_sgd_with_momentum_at_a_cyclical_rate() -> None:
    """To the bit, with the cosine of each cycle on the gradients of torch's optimizer."""
    w = torch.randn(7, generator=torch.Generator().manual_seed(0))
    slopes = torch.randn(12, 7, generator=torch.Generator().manual_seed(3))
    found = walk(Cycles(3, 1, 1, 0.5), 12, lambda step, _place: slopes[step], w, momentum=0.3)
    weights = w.clone().requires_grad_()
    optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.3)
    for step in range(12):
        weights.grad = slopes[step] * (0.5 * (1 + math.cos(math.pi * (step % 4) / 4)))
        optimizer.step()
        assert torch.equal(found[step], weights.detach())


@pytest.mark.parametrize(("momentum", "curvature"), [(0.1, 5.0), (0.1, 0.5), (0.7, 5.0)])
def test_on_a_quadratic_its_variance_is_the_posteriors(momentum: float, curvature: float) -> None:
    """`T / (n h)` for the mean loss h w^2 / 2, times what the length of a step adds: an AR(2) process."""
    lr, temperature, size, chains = 0.1, 0.5, 40, 40_000
    steps = 400
    w = torch.zeros(chains, dtype=torch.float64)
    more = {"momentum": momentum, "temperature": temperature, "size": size}
    found = walk(constant(steps), steps, lambda _step, place: curvature * place, w, lr=lr, **more)[-1]
    finite = 1 / (1 - lr * curvature / (2 * (1 + momentum)))
    wanted = temperature / (size * curvature) * finite
    assert float(found.var()) == pytest.approx(wanted, rel=4 * math.sqrt(2 / chains))
    assert abs(float(found.mean())) < 4 * math.sqrt(wanted / chains)


def test_noise_is_in_the_second_part_of_each_cycle_alone() -> None:
    w = torch.zeros(5)
    cycles = Cycles(number=2, per_cycle=1, samples=1, exploration=0.5)
    rows = walk(cycles, 8, lambda _step, place: torch.zeros_like(place), w, momentum=0.0, temperature=1.0)
    moved = [bool((after != before).any()) for before, after in zip([w, *rows], rows, strict=False)]
    assert moved == [False, False, True, True, False, False, True, True]


def test_a_sample_is_where_the_chain_stood_when_it_was_taken() -> None:
    """All samples move with the chain until then, to the bit; the last one is its end."""
    start, cycles = torch.randn(4, generator=torch.Generator().manual_seed(0)), Cycles(2, 2, 3, 0.5)
    alone = walk(Cycles(2, 2, 1, 0.5), 8, lambda _step, place: place, start, temperature=1.0)
    rows = walk(cycles, 8, lambda _step, place: place, start.repeat(3), temperature=1.0)
    for row, place in zip(rows, alone, strict=True):
        assert torch.equal(row[-4:], place)
    taken = [math.ceil(8 * end - 1e-9) for end in cycles.ends()]
    assert taken == [4, 7, 8]
    for sample, step in zip(rows[-1].view(3, 4), taken, strict=True):
        assert torch.equal(sample, alone[step - 1])


def test_a_later_round_begins_where_the_chain_has_ended() -> None:
    earlier = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    rows = walk(Cycles(1, 3, 3, 0.0), 6, lambda _step, place: place, earlier.reshape(-1))
    alone = walk(Cycles(1, 1, 1, 0.0), 6, lambda _step, place: place, earlier[-1])
    torch.testing.assert_close(rows[-1].view(3, 4), torch.stack([alone[1], alone[3], alone[5]]))


def test_a_training_of_fewer_steps_than_samples_sends_some_of_them_twice() -> None:
    row = walk(Cycles(2, 2, 4, 0.5), 1, lambda _step, place: place + 1, torch.ones(4 * 3))[-1].view(4, 3)
    assert (row == row[0]).all() and (row != 1).all()


def test_lanes_side_by_side_are_lanes_one_by_one() -> None:
    """Of clients of several sizes, whose samples fall on other steps, and whose noise has other addresses."""
    several = net_of(wrap_networks(lambda: perceptron().module, Samples, 3, "mlp"), "mlp", "cross_entropy", 4)
    p, sizes = several.layout.trainable // 3, [20, 13, 5]
    rule = sample_posterior(Cycles(2, 2, 3, 0.5), 0.4, 1.0, p)
    plain = make_block(perceptron(), (6,), Local(lr=0.1, epochs=3, batch_size=4, step=rule), sizes, torch.float32)
    start, lanes = plain.start.repeat(1, 3), torch.arange(3)
    reading = Reading(0, lanes, torch.zeros_like(lanes), start, size=torch.tensor(sizes))
    block = plain._replace(start=start, reading=reading)
    one, other = (train(several, block).final for train in (train_client_lanes, train_client_loop))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    samples = one.view(3, 3, p)
    assert all((samples[:, i] != samples[:, i + 1]).any(dim=1).all() for i in range(2))
