"""Loss functions: one number for each sample, from a network's raw outputs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedray.core.errors import BadInput
from fedray.core.types import VARIANCE_FLOOR, Objective

_LOG_2PI = math.log(2.0 * math.pi)


class Gaussian(NamedTuple):
    """What a Gaussian head predicts.

    Attributes:
        mean: `[..., B, outputs / 2]`.
        variance: `[..., B, outputs / 2]`, above 0.
    """

    mean: Tensor
    variance: Tensor


def per_sample(objective: Objective, outputs: Tensor, y: Tensor) -> Tensor:
    """The loss of each sample.

    `cross_entropy` is -log softmax(f)[y]. `half_mse` is 1/2 |f - y|^2 and `mse` is |f - y|^2, both summed over the
    outputs (`half_mse` is the loss of FE Theorem 2). `gaussian_nll` is (log v + (m - y)^2 / v + log 2 pi) / 2 with
    (m, v) of `split_gaussian`, summed over the targets.

    Args:
        objective: Which loss.
        outputs: Raw outputs f, `[..., B, outputs]`; there may be axes in front, as those of lanes and of `vmap`.
        y: Class numbers `[..., B]` int64, or targets `[..., B]` or `[..., B, targets]`.

    Returns:
        `[..., B]`.

    Example:
        >>> import torch
        >>> per_sample("half_mse", torch.tensor([[3.0], [1.0]]), torch.tensor([1.0, 1.0]))
        tensor([2., 0.])
        >>> per_sample("cross_entropy", torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([4.])
    """
    if objective == "cross_entropy":
        return -functional.log_softmax(outputs, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    if objective == "gaussian_nll":
        mean, variance = split_gaussian(outputs)
        return 0.5 * (variance.log() + (_like(y, mean) - mean).square() / variance + _LOG_2PI).sum(-1)
    squares = (outputs - _like(y, outputs)).square().sum(-1)
    if objective == "half_mse":
        return 0.5 * squares
    if objective == "mse":
        return squares
    raise BadInput(f"objective = {objective}: choose cross_entropy, half_mse, mse or gaussian_nll")


def factor_fisher(objective: Objective, outputs: Tensor) -> Tensor:
    """Vectors `[j, outputs]` whose outer products add up to the Fisher information about the outputs of one sample.

    It is that of the distribution whose negative log likelihood the loss is, up to a constant: of classes it is
    `diag(p) - p p'`, of `half_mse` the identity, of `mse` twice that, and of a Gaussian head `1 / v` for the mean and
    `1 / (2 v^2)` for the variance.

    Args:
        objective: Which loss.
        outputs: Raw outputs of the sample, `[outputs]`.

    Example:
        >>> import torch
        >>> s = factor_fisher("cross_entropy", torch.tensor([0.0, 0.0]))
        >>> s.T @ s
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
    """
    one = torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device)
    if objective == "cross_entropy":
        p = outputs.softmax(-1)
        return p.sqrt()[:, None] * (one - p)
    if objective == "gaussian_nll":
        variance = split_gaussian(outputs).variance
        raw = outputs.chunk(2, dim=-1)[1]
        return one * torch.cat([variance.rsqrt(), raw.sigmoid() / (math.sqrt(2.0) * variance)])
    return one * (math.sqrt(2.0) if objective == "mse" else 1.0)


def split_gaussian(outputs: Tensor) -> Gaussian:
    """Reads the outputs `[..., B, 2 targets]` of a Gaussian head: the mean, then what becomes the variance by softplus.

    Source: Lakshminarayanan, Pritzel and Blundell 2017, section 2.2.1 (softplus, and 1e-6 against collapse).
    """
    mean, raw = outputs.chunk(2, dim=-1)
    return Gaussian(mean, functional.softplus(raw) + VARIANCE_FLOOR)


def _like(y: Tensor, outputs: Tensor) -> Tensor:
    """Targets `[..., B]` or `[..., B, targets]` in the outputs' shape; reshaped, never broadcast."""
    return y.reshape(outputs.shape).to(outputs.dtype)
