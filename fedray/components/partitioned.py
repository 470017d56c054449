"""Partitioned variational inference: local training against the cavity, the clients' factors, and their product.

A row is `[mean, rho, linear, precision, is_prior]` (`models/partitioned.py`). The natural parameters of a Gaussian are
`[mean / sigma^2, 1 / sigma^2]`; those of a product of Gaussians, and of factors `exp(linear w - precision w^2 / 2)`,
are the sum of theirs.

Example:
    A posterior N(1, 1/4) of which the client's own factor has a precision of 3 and a linear term of 4: without it, the
    standard normal distribution is left.

    >>> import math
    >>> rho = math.log(math.expm1(0.5))  # softplus(rho) is 1/2
    >>> [round(number, 5) for number in find_cavity(torch.tensor([1.0, rho, 4.0, 3.0, 0.0]), 9.0, 1).tolist()]
    [0.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedray.components.aggregation import Rows
from fedray.components.mean_field import Moments, differentiate_in_own, find_step
from fedray.core import rng
from fedray.core.local import StepContext, Transform
from fedray.core.method import Answer, Local, Server
from fedray.core.types import State, Stats

LEAST = 1e-6  # precision that stands for one that is not above 0, as MIN_PRECISION in MattAshman/pvi
NATURAL = "natural"  # the posterior's natural parameters in the state


class _Learned(NamedTuple):
    """What local training remembers: the optimizer's memory, and the cavity's means and deviations, `[p]` each."""

    moments: Moments
    mean: Tensor
    tau: Tensor


def to_natural(mean: Tensor, rho: Tensor) -> Tensor:
    """Natural parameters `[..., 2 p]` of Gaussians of mean and rho, `[..., p]` each; float64."""
    precision = softplus(rho.double()).square().reciprocal()
    return torch.cat([mean.double() * precision, precision], dim=-1)


def from_natural(natural: Tensor) -> Tensor:
    """Mean and rho `[..., 2 p]` of natural parameters; a precision below `LEAST` is taken for that."""
    linear, precision = natural.chunk(2, dim=-1)
    precision = precision.clamp(min=LEAST)
    sigma = precision.rsqrt()
    return torch.cat([linear / precision, sigma + (-torch.expm1(-sigma)).log()], dim=-1)


def find_posterior(rows: Tensor, prior: float, p: int) -> Tensor:
    """Natural parameters `[..., 2 p]` of the posterior that rows `[..., d]` stand for; float64.

    Args:
        rows: Models.
        prior: Precision of the prior, which the posterior is until it was learned.
        p: Weights of the network.
    """
    learned = to_natural(rows[..., :p], rows[..., p : 2 * p])
    first = torch.cat([torch.zeros_like(learned[..., :p]), torch.full_like(learned[..., :p], prior)], dim=-1)
    return torch.where(rows[..., 4 * p : 4 * p + 1] > 0.5, first, learned)


def find_cavity(rows: Tensor, prior: float, p: int) -> Tensor:
    """Natural parameters `[..., 2 p]` of the posterior without the client's own factor; float64.

    A precision below `LEAST` is taken for that; the linear term stays.

    Args:
        rows: Models as the clients receive them, with their own factors, `[..., d]`.
        prior: Precision of the prior.
        p: Weights of the network.
    """
    linear, precision = (find_posterior(rows, prior, p) - rows[..., 2 * p : 4 * p].double()).chunk(2, dim=-1)
    return torch.cat([linear, precision.clamp(min=LEAST)], dim=-1)


def learn_from_cavity(local: Local, prior: float, p: int) -> Transform:
    """Steps of a client's posterior q by the gradient of `E_q[loss] + KL(q || cavity) / n`, the loss at a draw from q.

    Args:
        local: The optimizer, SGD with its momentum or Adam; the learning rate is the round's.
        prior: Precision of the prior.
        p: Weights of the network.
    """

    def draw(parameters: Tensor, noise: Tensor) -> Tensor:
        mean, rho, rest = parameters.split_with_sizes((p, p, 2 * p + 1), dim=-1)
        return torch.cat([mean + softplus(rho) * noise, rho, rest], dim=-1)

    def init(parameters: Tensor) -> _Learned:
        zero = torch.zeros_like(parameters[..., : 2 * p])
        mean, rho = from_natural(find_cavity(parameters, prior, p)).to(parameters.dtype).chunk(2, dim=-1)
        return _Learned((zero, zero), mean, softplus(rho))

    def update(gradient: Tensor, state: _Learned, parameters: Tensor, context: StepContext) -> tuple[Tensor, _Learned]:
        q, rest = parameters.split_with_sizes((2 * p, 2 * p + 1), dim=-1)
        data = gradient[..., :p]
        spread = data * context.noise * torch.sigmoid(q[..., p:])  # by the chain rule, through the draw
        away = differentiate_in_own(q, state.mean, state.tau) / context.size
        step, moments = find_step(local, torch.cat([data, spread], dim=-1) + away, state.moments, context.step + 1)
        return torch.cat([step, torch.zeros_like(rest)], dim=-1), state._replace(moments=moments)

    return Transform(init, update, True, local.optimizer, numbers=p, at=draw)


def refine_sites(kept: float, sent: float, prior: float, p: int) -> Callable[[Tensor, Tensor], Tensor]:
    """What clients send and keep of what they have trained (`Local.finish`): by what their factors change.

    With D the change of the posterior's natural parameters in local training, the first 2 p numbers change by
    `sent D`, and the client's factor by `kept D`. With PVI both are the damping.

    Args:
        kept: Share of the change by which the factor changes, at least 0.
        sent: Share of the change that is sent, above 0.
        prior: Precision of the prior.
        p: Weights of the network.
    """

    def finish(start: Tensor, final: Tensor) -> Tensor:
        change = to_natural(final[:, :p], final[:, p : 2 * p]) - find_posterior(start, prior, p)
        both = start[:, : 4 * p].double() + torch.cat([sent * change, kept * change], dim=1)
        return torch.cat([both.to(final.dtype), final[:, 4 * p :]], dim=1)

    return finish


def add_sites(base: Server, rows: Rows, prior: float, p: int) -> Server:
    """The posterior is the prior times all factors: what clients send is added to its natural parameters.

    These are kept in the state, in float64, as they are; where a precision is not above 0, the model has `LEAST`.

    Args:
        base: The mean, of which float buffers are.
        rows: The rows of the state.
        prior: Precision of the prior.
        p: Weights of the network.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**base.init(models), NATURAL: make_prior(rows.number, prior, p)}

    def step(state: State, stats: Stats, t: int) -> State:
        natural = state.extra[NATURAL] + stats["sum"].value()[:, : 2 * p]
        return place_posteriors(state, base.step(state, stats, t), natural, stats["weight"].total > 0)

    return Server(init, base.reduce, step)


def make_prior(number: int, prior: float, p: int) -> Tensor:
    """Natural parameters of the prior N(0, 1 / prior) in so many rows, `[number, 2 p]`; float64."""
    natural = torch.zeros(number, 2 * p, dtype=torch.float64)
    natural[:, p:] = prior
    return natural


def place_posteriors(state: State, after: State, natural: Tensor, trained: Tensor) -> State:
    """The next state, of which models that were trained have new Gaussians, and are no prior any more.

    Args:
        state: Before the server's step.
        after: Behind that of the mean, of which float buffers are.
        natural: The posteriors' natural parameters, `[R K, 2 p]` float64; where nobody trained they are as before.
        trained: Which models were trained, `[R K]`.
    """
    p, trained = natural.shape[1] // 2, trained[:, None]
    models = torch.where(trained, after.models, state.models)
    models[:, : 2 * p] = torch.where(trained, from_natural(natural), state.models[:, : 2 * p])
    models[:, 4 * p] = torch.where(trained[:, 0], 0.0, state.models[:, 4 * p])
    return after._replace(models=models, extra={**after.extra, NATURAL: natural})


def answer_with_draws(state: State, seeds: Sequence[int], draws: int, p: int) -> Answer:
    """The networks that answer: S draws from the Gaussian of each model, or with S = 0 the mean weights.

    Args:
        state: Has K models in each world, `[R K, d]`.
        seeds: One for each world.
        draws: S.
        p: Weights of the network.
    """
    models = len(state.models) // len(seeds)
    if draws == 0:
        return Answer(state, models)
    found = state.models.repeat_interleave(draws, 0)
    for row in range(len(state.models)):
        key = rng.keys(seeds[row // models], "posterior", row % models, np.arange(draws))
        noise = torch.from_numpy(rng.normal(key, p)).to(found)
        found[row * draws : (row + 1) * draws, :p] += softplus(state.models[row, p : 2 * p]) * noise
    return Answer(State(found, state.counters.repeat_interleave(draws, 0), {}), models * draws)
