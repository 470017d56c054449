"""Losses: torch's own where torch has them, the same bits with and without lanes."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

from fedray.core.types import Objective
from fedray.models.net import factor_fisher, measure_losses, per_sample, split_gaussian

GENERATOR = torch.Generator().manual_seed(1)
OUTPUTS = torch.randn(6, 4, generator=GENERATOR)
LABELS = torch.tensor([0, 1, 2, 3, 0, 1])
TARGETS = torch.randn(6, 4, generator=GENERATOR)
CASES = [("cross_entropy", LABELS), ("half_mse", TARGETS), ("mse", TARGETS), ("gaussian_nll", TARGETS[:, :2])]


def test_cross_entropy_is_torchs() -> None:
    expected = functional.cross_entropy(OUTPUTS, LABELS, reduction="none")
    torch.testing.assert_close(per_sample("cross_entropy", OUTPUTS, LABELS), expected)


def test_squares_are_summed_over_outputs() -> None:
    squares = ((OUTPUTS - TARGETS) ** 2).sum(1)
    torch.testing.assert_close(per_sample("mse", OUTPUTS, TARGETS), squares)
    torch.testing.assert_close(per_sample("half_mse", OUTPUTS, TARGETS), squares / 2)


def test_gaussian_nll_is_the_negative_log_density() -> None:
    mean, variance = (part.double().numpy() for part in split_gaussian(OUTPUTS))
    expected = -stats.norm(mean, np.sqrt(variance)).logpdf(TARGETS[:, :2]).sum(1)
    assert per_sample("gaussian_nll", OUTPUTS, TARGETS[:, :2]).numpy() == pytest.approx(expected, rel=1e-4)
    collapsed = torch.tensor([[0.0, -1000.0]])
    assert per_sample("gaussian_nll", collapsed, torch.zeros(1)).isfinite().all()


@pytest.mark.parametrize("objective", ["half_mse", "mse"])
def test_a_column_of_outputs_meets_a_vector_of_targets_without_broadcasting(objective: Objective) -> None:
    column, vector = OUTPUTS[:, :1], TARGETS[:, 0]
    assert torch.equal(per_sample(objective, column, vector), per_sample(objective, column, vector[:, None]))
    assert per_sample(objective, column, vector).shape == (6,)
    with pytest.raises(RuntimeError):
        per_sample(objective, OUTPUTS, vector)


@pytest.mark.parametrize("classes", [2, 10, 15, 16, 40])
def test_a_measured_loss_has_the_same_bits_alone_and_among_others(classes: int) -> None:
    outputs, y = 3 * torch.randn(2, 21, classes, generator=GENERATOR), torch.arange(42).view(2, 21) % classes
    together = measure_losses("cross_entropy", outputs, y)
    torch.testing.assert_close(together, per_sample("cross_entropy", outputs, y))
    alone = [measure_losses("cross_entropy", outputs[:, i : i + 1], y[:, i : i + 1]) for i in range(21)]
    assert torch.equal(torch.cat(alone, dim=1), together)


@pytest.mark.parametrize(("objective", "y"), CASES)
def test_lanes_and_vmap_give_the_same_bits(objective: Objective, y: Tensor) -> None:
    one = per_sample(objective, OUTPUTS, y)
    lanes, ys = torch.stack([OUTPUTS, OUTPUTS.flip(0)]), torch.stack([y, y.flip(0)])
    batched = per_sample(objective, lanes, ys)
    assert batched.shape == (2, 6)
    assert torch.equal(batched[0], one)
    mapped = torch.func.vmap(lambda f, t: per_sample(objective, f, t))(lanes, ys)
    assert torch.equal(mapped, batched)


def expected_fisher(objective: Objective, outputs: Tensor) -> Tensor:
    """The mean over draws of the label, exact for classes and by quadrature else, of the gradient's outer product."""
    if objective == "cross_entropy":
        labels, weights = torch.arange(len(outputs))[:, None], outputs.softmax(-1)
    else:
        points, given = np.polynomial.hermite_e.hermegauss(12)
        noise, weight = torch.from_numpy(points), torch.from_numpy(given / given.sum())
        mean, sd = outputs, torch.ones_like(outputs)
        if objective == "mse":
            sd = sd * 0.5**0.5
        if objective == "gaussian_nll":
            mean, variance = split_gaussian(outputs)
            sd = variance.sqrt()
        grid = torch.cartesian_prod(*[noise] * len(mean)).reshape(-1, len(mean))
        labels, weights = mean + sd * grid, torch.cartesian_prod(*[weight] * len(mean)).reshape(-1, len(mean)).prod(1)
    leaf = outputs.expand(len(labels), -1).clone().requires_grad_()
    y = labels[:, 0] if objective == "cross_entropy" else labels.detach()
    (g,) = torch.autograd.grad(per_sample(objective, leaf, y).sum(), leaf)
    return (weights[:, None] * g).T @ g


@pytest.mark.parametrize("objective", ["cross_entropy", "half_mse", "mse", "gaussian_nll"])
def test_the_fisher_of_the_outputs_is_the_mean_of_squared_gradients_under_the_models_own_labels(
    objective: Objective,
) -> None:
    outputs = torch.tensor([0.3, -1.0, 0.9, 0.2], dtype=torch.float64)[: 3 if objective == "cross_entropy" else 4]
    outputs = outputs if objective != "mse" else outputs[:2]
    outputs = outputs if objective != "half_mse" else outputs[:2]
    vectors = factor_fisher(objective, outputs)
    torch.testing.assert_close(vectors.T @ vectors, expected_fisher(objective, outputs.detach()))
