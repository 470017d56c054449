"""Variational training of Gaussians over weights: a client's posterior beside its copy of the global prior.

A row is `[own mean, own rho, prior mean, prior rho]`, p numbers each (`models/mean_field.py`); `softplus(rho)` is the
standard deviation.

Example:
    Two Gaussians that differ in their means alone, by one standard deviation: log 2.

    >>> slopes = differentiate_divergence(torch.tensor([0.7, 0.0]), torch.tensor([0.0, 0.0]))
    >>> [[round(number, 2) for number in one.tolist()] for one in slopes]
    [[1.46, 0.0], [-1.46, -0.74]]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedray.core.local import StepContext, Transform
from fedray.core.method import Local, Server
from fedray.core.types import State, Stats

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # torch.optim.Adam's defaults
Moments = tuple[Tensor, Tensor]  # of Adam, or the velocity of SGD and nothing; `[2 p]` each


class Slopes(NamedTuple):
    """Gradients of `KL(q || w)` for two Gaussians `[mean, rho]`, `[2 p]` each."""

    own: Tensor
    prior: Tensor


def differentiate_divergence(own: Tensor, prior: Tensor) -> Slopes:
    """Gradients of `KL(q || w)`, summed over independent numbers, for q and for w.

    With sigma and tau their standard deviations it is `log(tau / sigma) + (sigma^2 + (mu - nu)^2) / (2 tau^2) - 1/2`.

    Args:
        own: q, means mu and rhos, `[2 p]`.
        prior: w, means nu and rhos, `[2 p]`.
    """
    (mean, sigma, _), (other, tau, slope) = _read_gaussian(own), _read_gaussian(prior)
    away, ratio = (mean - other) / tau, sigma / tau
    widen = (1.0 - ratio.square() - away.square()) / tau * slope
    return Slopes(differentiate_in_own(own, other, tau), torch.cat([-away / tau, widen], dim=-1))


def differentiate_in_own(own: Tensor, other: Tensor, tau: Tensor) -> Tensor:
    """The gradient of `KL(q || w)` for q alone, `[2 p]`; 0 where q is w, to the bit.

    Args:
        own: q, means and rhos, `[2 p]`.
        other: means of w, `[p]`.
        tau: standard deviations of w, `[p]`.
    """
    mean, sigma, slope = _read_gaussian(own)
    return torch.cat([(mean - other) / tau / tau, (sigma / tau / tau - 1.0 / sigma) * slope], dim=-1)


def learn_posterior(local: Local, zeta: float, personal_steps: int, p: int) -> Transform:
    """Steps of a client's posterior q against its prior w, and of w towards q.

    Every step moves q by the gradient of the loss at a draw from q, and of `zeta / n KL(q || w)`; every one of
    `personal_steps` then moves w by the gradient of that divergence. Both have an optimizer of their own.

    Args:
        local: the optimizer, SGD with its momentum or Adam; the learning rate is the round's.
        zeta: weight of the divergence, at least 0; n are the client's training rows.
        personal_steps: steps of q for one of w, at least 1.
        p: weights of the network.
    """

    def draw(parameters: Tensor, noise: Tensor) -> Tensor:
        mean, rho, rest = parameters.split_with_sizes((p, p, 2 * p), dim=-1)
        return torch.cat([mean + softplus(rho) * noise, rho, rest], dim=-1)

    def init(parameters: Tensor) -> tuple[Moments, Moments]:
        zero = torch.zeros_like(parameters[..., : 2 * p])
        return (zero, zero), (zero, zero)

    def update(
        gradient: Tensor, state: tuple[Moments, Moments], parameters: Tensor, context: StepContext
    ) -> tuple[Tensor, tuple[Moments, Moments]]:
        own, prior = parameters.chunk(2, dim=-1)
        data, weight, count = gradient[..., :p], zeta / context.size, context.step + 1
        spread = data * context.noise * torch.sigmoid(own[..., p:])  # by the chain rule, through the draw
        away = differentiate_in_own(own, prior[..., :p], softplus(prior[..., p:]))
        slope = torch.cat([data, spread], dim=-1) + weight * away
        change, moments = find_step(local, slope, state[0], count)
        if count % personal_steps:
            return torch.cat([change, torch.zeros_like(prior)], dim=-1), (moments, state[1])
        slope = weight * differentiate_divergence(own - context.lr * change, prior).prior
        step, others = find_step(local, slope, state[1], count // personal_steps)
        return torch.cat([change, step], dim=-1), (moments, others)

    return Transform(init, update, True, local.optimizer, numbers=p, at=draw)


def answer_with_prior(server: Server, p: int) -> Server:
    """A server whose next models have the prior as their own Gaussian, with which new clients start and answer.

    Args:
        server: of the prior; nothing is sent of the clients' own Gaussians.
        p: weights of the network.
    """

    def step(state: State, stats: Stats, t: int) -> State:
        after = server.step(state, stats, t)
        prior, rest = after.models[:, 2 * p : 4 * p], after.models[:, 2 * p :]
        return after._replace(models=torch.cat([prior, rest], dim=1))

    return server._replace(step=step)


def find_step(local: Local, slope: Tensor, moments: Moments, count: int) -> tuple[Tensor, Moments]:
    """What the learning rate is multiplied by in an optimizer's step, and what the optimizer remembers.

    Args:
        local: The optimizer, SGD with its momentum or Adam.
        slope: The gradient.
        moments: What it remembers, 0 at first.
        count: Number of the step, from 1.
    """
    first, second = moments
    if local.optimizer == "sgd":
        velocity = local.momentum * first + slope
        return velocity, (velocity, second)
    first, second = torch.lerp(first, slope, 1.0 - _BETA1), _BETA2 * second + (1.0 - _BETA2) * slope.square()
    root = (second / (1.0 - _BETA2**count)).sqrt() + _EPS
    return first / (1.0 - _BETA1**count) / root, (first, second)


def _read_gaussian(row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means, standard deviations, and the slopes of these in rho, `[p]` each."""
    mean, rho = row.chunk(2, dim=-1)
    return mean, softplus(rho), torch.sigmoid(rho)
