"""IVON-ADMM: steps of the optimizer IVON for a client's Gaussian, and the server's step of ADMM between Gaussians.

A row is that of PVI (`components/partitioned.py`): `[mean, rho, linear, precision, is_prior]`. The client's factor
`exp(linear w - precision w^2 / 2)` is minus its duals: with those of the paper, v = -linear and V = -precision.

Example:
    The share of the prior and the factors in the posterior, for ten clients and a penalty of 0.2.

    >>> round(find_server_step("admm", 0.2, 10), 3), find_server_step(1.0, 0.2, 10)
    (0.333, 1.0)
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedray.components.aggregation import Rows
from fedray.components.partitioned import NATURAL, find_posterior, from_natural, make_prior, place_posteriors
from fedray.core.local import StepContext, Transform
from fedray.core.method import Server
from fedray.core.types import State, Stats

SITES = "sites"  # the product of all clients' factors in the state, by natural parameters


class Weights(NamedTuple):
    """What weighs the terms of a client's objective against each other.

    Attributes:
        penalty: rho, of the divergence from the received Gaussian, above 0.
        temperature: tau, by which the losses of all rows are divided, above 0.
        prior: S_0, the precision of the prior, above 0.
    """

    penalty: float
    temperature: float
    prior: float


class _Learned(NamedTuple):
    """What local training remembers, `[p]` each.

    Attributes:
        momentum: Running mean of the gradients, 0 at first.
        precision: S, of the client's Gaussian.
        center: Mean of the received one.
        received: S_g, its precision.
    """

    momentum: Tensor
    precision: Tensor
    center: Tensor
    received: Tensor


def learn_by_ivon(weights: Weights, beta1: float, beta2: float, p: int) -> Transform:
    """Steps of a client's Gaussian q by IVON; the loss is taken at a draw from q.

    They lead to the least `n / tau E_q[loss] + E_q[linear w - precision w^2 / 2] + rho KL(q || received)`. A
    precision stays above 0: a step multiplies it by `1 + y + y^2 / 2`. At a learning rate of 0 nothing changes.

    Args:
        weights: Of the objective.
        beta1: Share of earlier gradients in the running mean, in [0, 1).
        beta2: Share of the earlier curvature in the running mean, in (0, 1]; with 1 the precision stays.
        p: Weights of the network.

    Source: Shen, Daheim, Cong, et al., *Variational Learning is Effective for Large Deep Networks*, ICML 2024, Alg. 1.
    """
    rho, tau, prior = weights.penalty, weights.temperature, weights.prior

    def draw(parameters: Tensor, noise: Tensor) -> Tensor:
        mean, width, rest = parameters.split_with_sizes((p, p, 2 * p + 1), dim=-1)
        return torch.cat([mean + softplus(width) * noise, width, rest], dim=-1)

    def init(parameters: Tensor) -> _Learned:
        mean, own = parameters[..., :p], softplus(parameters[..., p : 2 * p].double()).square().reciprocal()
        received = find_posterior(parameters, prior, p)[..., p:].to(parameters.dtype)
        center = torch.where(parameters[..., 4 * p : 4 * p + 1] > 0.5, torch.zeros_like(mean), mean)
        return _Learned(torch.zeros_like(mean), own.to(parameters.dtype), center, received)

    def update(gradient: Tensor, state: _Learned, parameters: Tensor, context: StepContext) -> tuple[Tensor, _Learned]:
        mean, width, linear, precision, _ = parameters.split_with_sizes((p, p, p, p, 1), dim=-1)
        data, scale = gradient[..., :p], context.size / (tau * rho)
        curvature = scale * data * context.noise / softplus(width) - precision / rho  # of loss and duals, at the draw
        y = (1.0 - beta2) * (curvature - (state.precision - state.received)) / state.precision
        own = state.precision * (1.0 + y + 0.5 * y.square())
        momentum = beta1 * state.momentum + (1.0 - beta1) * data
        pull = (linear - precision * mean) / rho + state.received * (mean - state.center)
        step = (scale * momentum / (1.0 - beta1 ** (context.step + 1)) + pull) / own
        wider = _find_width(own) - width
        widen = -wider / context.lr if context.lr else torch.zeros_like(wider)
        kept = state._replace(momentum=momentum, precision=own)
        return torch.cat([step, widen, torch.zeros_like(parameters[..., 2 * p :])], dim=-1), kept

    return Transform(init, update, True, "ivon", numbers=p, at=draw)


def find_server_step(step: float | Literal["admm"], penalty: float, clients: int) -> float:
    """alpha, the share of the prior and all factors in the next posterior: `1 / (1 + rho N)` with `admm`.

    Args:
        step: alpha itself, in (0, 1], or the word.
        penalty: rho.
        clients: N.
    """
    return 1.0 / (1.0 + penalty * clients) if step == "admm" else float(step)


def step_by_admm(base: Server, rows: Rows, *, alpha: float, kept: float, prior: float, p: int) -> Server:
    """The posterior is `(1 - alpha)` times the mean of the clients' ones, and alpha times the prior with all factors.

    So it is in natural parameters, which the state keeps in float64 beside the product of all factors. Clients send by
    what theirs differ from those of the posterior. Where a precision is not above 0, the model has `LEAST`.

    Args:
        base: The mean, of which float buffers are.
        rows: The rows of the state.
        alpha: In (0, 1].
        kept: Share of what a client sends by which its factor changes.
        prior: Precision of the prior.
        p: Weights of the network.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        first = make_prior(rows.number, prior, p)
        return {**base.init(models), NATURAL: first, SITES: torch.zeros_like(first)}

    def step(state: State, stats: Stats, t: int) -> State:
        number, change = stats["weight"].total, stats["sum"].value()[:, : 2 * p]
        before, sites = state.extra[NATURAL], state.extra[SITES] + kept * change
        mean = before + change / number.clamp(min=1)[:, None]
        natural = (1.0 - alpha) * mean + alpha * (make_prior(rows.number, prior, p) + sites)
        natural = torch.where(number[:, None] > 0, natural, before)
        after = place_posteriors(state, base.step(state, stats, t), natural, number > 0)
        return after._replace(extra={**after.extra, SITES: sites})

    return Server(init, base.reduce, step)


def _find_width(precision: Tensor) -> Tensor:
    """The rho of the standard deviation `precision^(-1/2)`."""
    return from_natural(torch.cat([torch.zeros_like(precision), precision], dim=-1)).chunk(2, dim=-1)[1]
