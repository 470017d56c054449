"""Particles: their direction is that of its formula, and the targets of a client are what they are called."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from fedray.core.local import StepContext
from fedray.features.particles import Target, approach, divide_by_root, find_direction, find_nearby

PLAIN = Target(temperature=1.0, precision=2.0, bandwidth=0.7)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def density(at: Tensor, particles: Tensor, bandwidth: float) -> Tensor:
    """The logarithm of the mean of Gaussian kernels, up to a constant, of each place."""
    squares = (at[:, None] - particles[None]).square().sum(-1)
    return torch.logsumexp(-squares / (2 * bandwidth**2), dim=1)


def score_of(target: object, at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(target(leaf).sum(), leaf)[0]  # type: ignore[operator]


def loop_direction(score: Tensor, w: Tensor) -> Tensor:
    """The sum of the paper, term by term; the kernel's gradient is autograd's."""
    k = len(w)
    squares = sorted(float((a - b).square().sum()) for a in w for b in w)
    h = float(np.median(squares)) / (2 * math.log(k + 1))
    out = torch.zeros_like(w)
    for n in range(k):
        for j in range(k):
            leaf = w[j].clone().requires_grad_()
            kernel = torch.exp(-(leaf - w[n]).square().sum() / (2 * h))
            (slope,) = torch.autograd.grad(kernel, leaf)
            out[n] += (kernel.detach() * score[j] + slope) / k
    return out


@pytest.mark.parametrize("k", [2, 5, 8])
def test_the_direction_is_the_double_sum_over_particles(k: int) -> None:
    score, w = draw(k, 3), 10.0 + draw(k, 3, seed=1)
    torch.testing.assert_close(find_direction(score, w), loop_direction(score, w), rtol=1e-9, atol=1e-12)


def test_one_particle_follows_its_own_score_and_equal_ones_their_mean_score() -> None:
    score = draw(4, 3)
    assert torch.equal(find_direction(score[:1], draw(1, 3)), score[:1])
    equal = torch.full((4, 3), 7.3, dtype=torch.float32)
    torch.testing.assert_close(find_direction(score.float(), equal), score.float().mean(0).expand(4, 3))


def test_particles_in_another_order_go_the_same_ways() -> None:
    order, particles = torch.tensor([3, 0, 4, 1, 2]), approach(PLAIN, 5, 1)
    g, received, now, own = (draw(5, 3, seed=seed) for seed in range(4))
    size = torch.tensor(9)
    moved = particles.move(g, received, now, own, size)
    again = particles.move(g[order], received[order], now[order], own[order], size)
    torch.testing.assert_close(again, moved[order])
    learned = particles.learn(now, received, g, own)
    again = particles.learn(now[order], received[order], g[order], own[order])
    torch.testing.assert_close(again, learned[order])


def test_particles_become_a_sample_of_a_gaussian() -> None:
    """One client of a quadratic loss, whose own particles are still the first ones: mean and covariance are known."""
    n, precision = 12, torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64) / 4
    mode = torch.tensor([1.0, -2.0], dtype=torch.float64)
    whole = n * precision / 3.0 + 0.5 * torch.eye(2)
    particles = approach(Target(temperature=3.0, precision=0.5, bandwidth=0.3), 60, 0)
    start = draw(60, 2)
    now = start.clone()
    for _ in range(1000):
        now -= 0.15 * particles.move((now - mode) @ precision, start, now, start, torch.tensor(n))
    mean, covariance = torch.linalg.solve(whole, n * precision @ mode / 3.0), torch.linalg.inv(whole)
    torch.testing.assert_close(now.mean(0), mean, rtol=0, atol=0.02)
    torch.testing.assert_close(now.T.cov(), covariance, rtol=0.2, atol=0.03)


def test_the_mean_nearby_is_the_slope_of_the_particles_density() -> None:
    at, w = draw(4, 3), draw(6, 3, seed=1)
    expected = score_of(lambda v: density(v, w, 0.7), at)
    torch.testing.assert_close((find_nearby(at, w, 0.7) - at) / 0.7**2, expected)


def test_densities_far_below_the_smallest_number_have_a_slope() -> None:
    """The densities of a network's weights: in the authors' code they vanish under what is added to them."""
    at, w = draw(3, 800), 40.0 + draw(5, 800, seed=1)
    assert (torch.exp(density(at, w, 0.55)) == 0).all()
    assert (find_nearby(at, w, 0.55) - at).abs().min() > 10


def test_a_clients_first_visit_does_not_know_the_densities() -> None:
    """Received and own particles are the first ones then: t_k = 1, and the target is prior times likelihood."""
    g, first, now = draw(5, 3), draw(5, 3, seed=1), draw(5, 3, seed=2)
    for bandwidth in (0.1, 5.0):
        moved = approach(PLAIN._replace(bandwidth=bandwidth), 5, 1).move(g, first, now, first, torch.tensor(4))
        torch.testing.assert_close(moved, -find_direction(-4.0 * g - 2.0 * now, now), rtol=0, atol=0)


def test_later_the_target_is_the_received_density_over_the_own_times_prior_and_likelihood() -> None:
    centre, n = draw(3), 7

    def target(v: Tensor) -> Tensor:
        likelihood = -n * (v - centre).square().sum(1) / 2.0 / 4.0
        prior = -2.0 * v.square().sum(1) / 2.0
        return density(v, received, 0.7) - density(v, own, 0.7) + prior + likelihood

    received, now, own = (draw(5, 3, seed=seed) for seed in range(3))
    particles = approach(PLAIN._replace(temperature=4.0), 5, 1)
    moved = particles.move(now - centre, received, now, own, torch.tensor(n))
    torch.testing.assert_close(moved, -find_direction(score_of(target, now), now))
    plain = -find_direction(score_of(lambda v: target(v) - density(v, received, 0.7) + density(v, own, 0.7), now), now)
    assert mse_loss(moved, plain) > 1e-3


def test_the_own_particles_learn_what_has_changed() -> None:
    now, received, trained, own = (draw(5, 3, seed=seed) for seed in range(4))

    def target(v: Tensor) -> Tensor:
        return density(v, trained, 0.7) - density(v, received, 0.7) + density(v, own, 0.7)

    particles = approach(PLAIN, 5, 1)
    torch.testing.assert_close(
        particles.learn(now, received, trained, own), -find_direction(score_of(target, now), now)
    )
    one = [part[:1] for part in (received, trained, own)]
    new = one[2] + one[1] - one[0]  # of one particle this is where it ends
    torch.testing.assert_close(approach(PLAIN, 1, 1).learn(new, *one), torch.zeros_like(new), rtol=0, atol=1e-12)


def test_the_first_step_has_the_size_of_the_rate_and_later_ones_remember() -> None:
    rule, g, nothing = divide_by_root(0.9), torch.tensor([4.0, -0.5]), torch.zeros(2)
    one = torch.tensor(1)
    context = StepContext(0, one, 0, one, 0.1, one, torch.neg, torch.neg)
    step, mean = rule.update(g, rule.init(nothing), nothing, context)
    torch.testing.assert_close(step, torch.tensor([1.0, -1.0]), rtol=0, atol=1e-5)
    step, _ = rule.update(0 * g, mean, nothing, context._replace(step=1))
    assert (step == 0).all()
    step, _ = rule.update(2 * g, mean, nothing, context._replace(step=1))
    torch.testing.assert_close(step, torch.tensor([2.0, -2.0]) / math.sqrt(0.9 + 0.1 * 4), rtol=1e-5, atol=0)
