"""FedBEns's server: the density of the product, the way to its modes, and where it is FedFisher's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fedray.components.one_shot import (
    Descent,
    Laplace,
    Mixtures,
    adam,
    climb,
    find_gradient,
    fisher_mean,
    mixture_server,
    weigh_modes,
)
from fedray.components.servers import Rows
from fedray.core.method import Server
from fedray.core.types import State, Uploads

P = 3


def draw(seed: int, clients: int = 4, modes: int = 3, prior: float = 0.2) -> Mixtures:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(clients, modes, P, generator=generator, dtype=torch.float64)
    sure = 0.3 + 2.0 * torch.rand(clients, modes, P, generator=generator, dtype=torch.float64)
    there = torch.ones(clients, modes, dtype=torch.bool)
    there[0, 1:] = False  # a client that has sent one model
    return Mixtures(mean, sure, there, prior)


def log_density(known: Mixtures, w: Tensor) -> Tensor:
    """By torch's distributions, up to a constant."""
    total = 0.5 * (len(known.mean) - 1) * known.prior * w.square().sum()
    for mean, sure, there in zip(known.mean, known.sure, known.there, strict=True):
        each = [
            MultivariateNormal(mu, precision_matrix=p.diag()) for mu, p in zip(mean[there], sure[there], strict=True)
        ]
        total = total + torch.stack([one.log_prob(w).exp() for one in each]).mean().log()  # type: ignore[no-untyped-call]
    return total


def test_the_density_is_that_of_torchs_distributions() -> None:
    known = draw(0)
    one, other = torch.zeros(P, dtype=torch.float64), torch.tensor([0.4, -1.0, 2.0], dtype=torch.float64)
    apart = weigh_modes(known, one)[1] - weigh_modes(known, other)[1]
    torch.testing.assert_close(apart, log_density(known, one) - log_density(known, other))


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_autograd(seed: int) -> None:
    known = draw(seed)
    w = torch.randn(P, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    (wanted,) = torch.autograd.grad(-log_density(known, w), w)
    torch.testing.assert_close(find_gradient(known, w.detach()), wanted)


@pytest.mark.parametrize("seed", range(4))
def test_on_the_way_to_a_mode_the_density_never_falls_and_there_the_gradient_is_zero(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, w = draw(seed), torch.full((P,), 0.3 * seed, dtype=torch.float64)
    heights = [float(log_density(known, w))]
    for steps in range(1, 8):
        monkeypatch.setattr("fedray.components.one_shot.MOST_CLIMBS", steps)
        heights.append(float(log_density(known, climb(known, w))))
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(heights))
    assert heights[1] > heights[0] + 1e-3
    monkeypatch.setattr("fedray.components.one_shot.MOST_CLIMBS", 2000)
    assert find_gradient(known, climb(known, w)).abs().max() < 1e-6


def test_the_product_of_gaussians_with_one_prior_is_the_exact_posterior() -> None:
    """N clients with the same prior: precisions and means add up, and the prior counts once."""
    generator = torch.Generator().manual_seed(5)
    likelihood = torch.rand(4, P, generator=generator, dtype=torch.float64)
    optimum = torch.randn(4, P, generator=generator, dtype=torch.float64)
    sure = likelihood + 0.7
    known = Mixtures((likelihood * optimum / sure)[:, None], sure[:, None], torch.ones(4, 1, dtype=torch.bool), 0.7)
    wanted = (likelihood * optimum).sum(0) / (likelihood.sum(0) + 0.7)
    torch.testing.assert_close(climb(known, torch.zeros(P, dtype=torch.float64)), wanted)


def send(modes: int, size: tuple[int, ...] = (5, 20, 9)) -> Uploads:
    generator = torch.Generator().manual_seed(2)
    n = len(size)
    client, model = np.repeat(np.arange(n), modes), np.tile(np.arange(modes), n)
    return Uploads(
        torch.randn(n * modes, P + 1, generator=generator),
        client=client, model=model, world=0 * client, tier=0 * client, size=np.array(size)[client],
        beside=torch.cat([torch.rand(n * modes, P, generator=generator), torch.zeros(n * modes, 1)], 1),
    )  # fmt: skip


def step(server: Server, uploads: Uploads, modes: int) -> Tensor:
    state = State(torch.arange(modes * (P + 1)).view(modes, -1) / 9.0, torch.zeros(modes, 0, dtype=torch.int64), {})
    return server.step(state, server.reduce(uploads), 0).models


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_of_one_mode_and_next_to_no_prior_it_is_fedfishers_optimum(weighting: str) -> None:
    """The temperature is then a common factor; float buffers (here the last number) are averaged."""
    laplace = Laplace(temperature=0.1, precision=1e-9, prior=0.0, trainable=P)
    one = step(mixture_server(Rows(1, 1), weighting, laplace), send(1), 1)  # type: ignore[arg-type]
    other = step(fisher_mean(Rows(1, 1), weighting), send(1), 1)  # type: ignore[arg-type]
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_of_one_mode_it_is_the_mean_by_precision_less_the_priors(weighting: str) -> None:
    """A precision is `n_k F_k / T + c`, or that of the mean of n_k for all; `(N - 1) c_0` is subtracted once."""
    uploads, laplace = send(1), Laplace(temperature=4.0, precision=3.0, prior=2.0, trainable=P)
    size = torch.from_numpy(uploads.size).double()
    times = size if weighting == "examples" else size.mean().expand(3)
    assert uploads.beside is not None
    sure = times[:, None] * uploads.beside[:, :P].double() / 4.0 + 3.0
    before = torch.arange(P + 1).double() / 9.0
    wanted = (sure * (before + uploads.delta)[:, :P]).sum(0) / (sure.sum(0) - 2 * 2.0)
    found = step(mixture_server(Rows(1, 1), weighting, laplace), uploads, 1)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(found[:P].double(), wanted, rtol=0, atol=1e-6)
    mean = (times[:, None] * uploads.delta.double()).sum(0) / times.sum()
    assert float(found[P]) == pytest.approx(float(before[P] + mean[P]))


def test_modes_far_from_each_other_are_merged_each_by_itself() -> None:
    """Each is what it would be if it were alone: shares of the other modes are zero."""
    uploads = send(2)
    uploads.delta.mul_(0.01)
    uploads.delta[1::2] += 1000.0
    laplace = Laplace(1.0, 0.5, 0.1, P)
    both = step(mixture_server(Rows(1, 2), "examples", laplace), uploads, 2)
    for mode in (0, 1):
        some = slice(mode, None, 2)
        columns = {
            name: getattr(uploads, name)[some] for name in ("delta", "client", "world", "tier", "size", "beside")
        }
        alone = mixture_server(Rows(1, 2), "examples", laplace)
        found = step(alone, Uploads(model=np.full(3, mode), **columns), 2)
        torch.testing.assert_close(both[mode], found[mode])


def test_the_descent_comes_to_the_mode_and_its_score_reads_whole_models() -> None:
    laplace, seen = Laplace(0.1, 1.0, 0.5, P), []

    def score(world: int, model: Tensor) -> float:
        seen.append((world, len(model)))
        return float(len(seen))

    how = Descent(3000, 1000, adam(0.01), score)
    found = step(mixture_server(Rows(1, 1), "examples", laplace, how), send(1), 1)
    mode = step(mixture_server(Rows(1, 1), "examples", laplace), send(1), 1)
    torch.testing.assert_close(found, mode, rtol=0, atol=1e-3)
    assert seen == [(0, P + 1)] * 4
