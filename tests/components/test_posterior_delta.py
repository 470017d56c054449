"""What FedPA's clients send: the recursion against dense matrices, its limits, and where its descent ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedray.components.one_shot import correct_by_precision


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


def test_the_order_of_the_samples_does_not_matter() -> None:
    start, samples = draw(1, 7, 5)
    one, other = (correct_by_precision(0.3)(start, some) for some in (samples, samples.flip(0)))
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_descent_by_exact_samples_ends_at_the_global_optimum_and_that_by_means_does_not() -> None:
    """Least squares: N(m_i, S_i) are the clients' posteriors, the mode of whose product is the optimum of all rows."""
    generator = np.random.default_rng(0)
    designs = [generator.normal(size=(40, 3)) * scale for scale in ([3, 1, 0.5], [0.5, 2, 1], [1, 0.5, 3])]
    targets = [x @ generator.normal(size=3) * 4 + generator.normal(size=40) for x in designs]
    optimum = np.linalg.lstsq(np.concatenate(designs), np.concatenate(targets), rcond=None)[0]
    means = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(designs, targets, strict=True)]
    combine, number, w = correct_by_precision(1e4), 40, torch.zeros(3, dtype=torch.float64)
    for t in range(120):
        deltas = []
        for x, mean in zip(designs, means, strict=True):
            root = np.linalg.cholesky(np.linalg.inv(x.T @ x))
            samples = mean + generator.normal(size=(number, 3)) @ root.T
            deltas.append(combine(w, torch.from_numpy(samples)))
        w = w + torch.stack(deltas).mean(0) / (200 if t < 60 else 1000)
    apart = np.linalg.norm(np.mean(means, axis=0) - optimum)  # where FedAvg with local convergence ends
    assert apart > 0.5
    assert np.linalg.norm(w.numpy() - optimum) < 0.05 * apart
