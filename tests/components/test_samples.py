"""Samples of posteriors: corrections by their covariance, cyclical SGHMC, and particles."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from blocks import make_block, perceptron
from torch import Tensor
from torch.nn.functional import mse_loss

from fedray.components.one_shot import Cycles, correct_by_precision, sample_posterior
from fedray.core.method import Local, Reading, StepContext
from fedray.features.particles import approach, divide_by_root, find_direction, find_nearby
from fedray.models.net import Samples, net_of
from fedray.training.client_code import train_client_lanes, train_client_loop


def draw(seed: int, number: int, p: int) -> tuple[Tensor, Tensor]:
    """A start and samples of a Gaussian that is no multiple of the identity."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(p, p, generator=generator, dtype=torch.float64)
    samples = 1.0 + torch.randn(number, p, generator=generator, dtype=torch.float64) @ root
    return torch.randn(p, generator=generator, dtype=torch.float64), samples


@pytest.mark.parametrize("rho", [0.01, 0.4, 30.0])
@pytest.mark.parametrize("number", [2, 3, 9])
def test_the_recursion_is_the_dense_inverse_of_the_shrunk_covariance(number: int, rho: float) -> None:
    """With fewer samples than dimensions, where the covariance itself has no inverse, and with more."""
    for p in (2, 5, 40):
        start, samples = draw(number, number, p)
        shrinkage = 1.0 / (1.0 + (number - 1) * rho)
        covariance = shrinkage * torch.eye(p, dtype=torch.float64) + (1 - shrinkage) * torch.cov(samples.T)
        wanted = torch.linalg.solve(covariance, samples.mean(0) - start)
        error = torch.linalg.norm(correct_by_precision(rho)(start, samples) - wanted) / torch.linalg.norm(wanted)
        assert error < 32 * torch.finfo(torch.float64).eps * torch.linalg.cond(covariance)  # 1e5 at most


def test_without_a_covariance_it_is_the_way_to_the_mean() -> None:
    """One sample, or rho = 0: to the bit and to the rounding of the running mean."""
    start, samples = draw(0, 6, 4)
    assert torch.equal(correct_by_precision(0.7)(start, samples[:1]), samples[0] - start)
    torch.testing.assert_close(correct_by_precision(0.0)(start, samples), samples.mean(0) - start)
    same = samples[:1].expand(6, -1)
    torch.testing.assert_close(correct_by_precision(0.1)(start, same), 1.5 * (same[0] - start))  # 1 + 5 rho


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
    assert torch.equal(walk(Cycles(1, 1, 1, 0.0), 1, lambda _step, place: place, w, lr=0.0)[0], w)
    found = walk(Cycles(3, 1, 1, 0.5), 12, lambda step, _place: slopes[step], w, momentum=0.3)
    weights = w.clone().requires_grad_()
    optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.3)
    for step in range(12):
        weights.grad = slopes[step] * (0.5 * (1 + math.cos(math.pi * (step % 4) / 4)))
        optimizer.step()
        assert torch.equal(found[step], weights.detach())


@pytest.mark.parametrize(("momentum", "curvature"), [(0.1, 5.0), (0.7, 0.5)])
def test_on_a_quadratic_its_variance_is_the_posteriors(momentum: float, curvature: float) -> None:
    """`T / (n h)` for the mean loss h w^2 / 2, times what the length of a step adds: an AR(2) process."""
    lr, temperature, size, chains, steps = 0.1, 0.5, 40, 20_000, 400
    w = torch.zeros(chains, dtype=torch.float64)
    more = {"momentum": momentum, "temperature": temperature, "size": size}
    always = Cycles(number=steps, per_cycle=1, samples=1, exploration=0.0)  # each with noise: the rate never falls
    found = walk(always, steps, lambda _step, place: curvature * place, w, lr=lr, **more)[-1]
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
    several = net_of(lambda: Samples(perceptron().module, 3, "mlp"), "mlp", "cross_entropy", 4)
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


PLAIN = {"temperature": 1.0, "precision": 2.0, "bandwidth": 0.7}


def particles_draw(*shape: int, seed: int = 0) -> Tensor:
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
    score, w = particles_draw(k, 3), 10.0 + particles_draw(k, 3, seed=1)
    torch.testing.assert_close(find_direction(score, w), loop_direction(score, w), rtol=1e-9, atol=1e-12)


def test_one_particle_follows_its_own_score_and_equal_ones_their_mean_score() -> None:
    score = particles_draw(4, 3)
    assert torch.equal(find_direction(score[:1], particles_draw(1, 3)), score[:1])
    equal = torch.full((4, 3), 7.3, dtype=torch.float32)
    torch.testing.assert_close(find_direction(score.float(), equal), score.float().mean(0).expand(4, 3))


def test_particles_become_a_sample_of_a_gaussian() -> None:
    """One client of a quadratic loss, whose own particles are still the first ones: mean and covariance are known."""
    n, precision = 12, torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64) / 4
    mode = torch.tensor([1.0, -2.0], dtype=torch.float64)
    whole = n * precision / 3.0 + 0.5 * torch.eye(2)
    particles = approach(60, 0, temperature=3.0, precision=0.5, bandwidth=0.3)
    start = particles_draw(60, 2)
    now = start.clone()
    for _ in range(600):
        now -= 0.15 * particles.move((now - mode) @ precision, start, now, start, torch.tensor(n))
    mean, covariance = torch.linalg.solve(whole, n * precision @ mode / 3.0), torch.linalg.inv(whole)
    torch.testing.assert_close(now.mean(0), mean, rtol=0, atol=0.02)
    torch.testing.assert_close(now.T.cov(), covariance, rtol=0.2, atol=0.03)


def test_the_mean_nearby_is_the_slope_of_the_particles_density() -> None:
    at, w = particles_draw(4, 3), particles_draw(6, 3, seed=1)
    expected = score_of(lambda v: density(v, w, 0.7), at)
    torch.testing.assert_close((find_nearby(at, w, 0.7) - at) / 0.7**2, expected)


def test_densities_far_below_the_smallest_number_have_a_slope() -> None:
    """The densities of a network's weights: in the authors' code they vanish under what is added to them."""
    at, w = particles_draw(3, 800), 40.0 + particles_draw(5, 800, seed=1)
    assert (torch.exp(density(at, w, 0.55)) == 0).all()
    assert (find_nearby(at, w, 0.55) - at).abs().min() > 10


def test_later_the_target_is_the_received_density_over_the_own_times_prior_and_likelihood() -> None:
    centre, n = particles_draw(3), 7

    def target(v: Tensor) -> Tensor:
        likelihood = -n * (v - centre).square().sum(1) / 2.0 / 4.0
        prior = -2.0 * v.square().sum(1) / 2.0
        return density(v, received, 0.7) - density(v, own, 0.7) + prior + likelihood

    received, now, own = (particles_draw(5, 3, seed=seed) for seed in range(3))
    particles = approach(5, 1, **PLAIN | {"temperature": 4.0})
    moved = particles.move(now - centre, received, now, own, torch.tensor(n))
    torch.testing.assert_close(moved, -find_direction(score_of(target, now), now))
    plain = -find_direction(score_of(lambda v: target(v) - density(v, received, 0.7) + density(v, own, 0.7), now), now)
    assert mse_loss(moved, plain) > 1e-3


def test_the_own_particles_learn_what_has_changed() -> None:
    now, received, trained, own = (particles_draw(5, 3, seed=seed) for seed in range(4))

    def target(v: Tensor) -> Tensor:
        return density(v, trained, 0.7) - density(v, received, 0.7) + density(v, own, 0.7)

    particles = approach(5, 1, **PLAIN)
    torch.testing.assert_close(
        particles.learn(now, received, trained, own), -find_direction(score_of(target, now), now)
    )
    one = [part[:1] for part in (received, trained, own)]
    new = one[2] + one[1] - one[0]  # of one particle this is where it ends
    torch.testing.assert_close(approach(1, 1, **PLAIN).learn(new, *one), torch.zeros_like(new), rtol=0, atol=1e-12)


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
