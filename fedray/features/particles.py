"""Trains the K models of a client together, as draws (*particles*) from one distribution over parameters (DSVGD).

A *lane* is one job (a client trains a model) of a block of jobs that are trained together. The K lanes of a client are
side by side in a block (`runtime/exchange.py`), so a step can use all K models of the client.

Example:
    The particles of each client all move by the mean of their gradients.

    >>> share = Particles(2, lambda g, *_: g.mean(0, keepdim=True).expand_as(g), lambda now, *_: now)
    >>> for_each_client(2, lambda lanes: share.move(lanes), torch.tensor([[1.0], [3.0], [5.0], [5.0]])).T
    tensor([[2., 2., 5., 5.]])

    Two particles with gradients of 0 move away from each other.

    >>> find_direction(torch.zeros(2, 1), torch.tensor([[-1.0], [1.0]])).flatten()
    tensor([-0.1221,  0.1221])

Source: Liu, Wang, *Stein Variational Gradient Descent*, NeurIPS 2016 (the direction); Kassab, Simeone, *Federated
Generalized Bayesian Learning via Distributed Stein Variational Gradient Descent*, IEEE TSP 2022 (the target densities).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedray.core import rng
from fedray.core.errors import FedrayError
from fedray.core.method import Local, Piece, StepContext, Transform
from fedray.training.block import Couple, make_optimizer
from fedray.training.update import Update

PARTICLES = "particles"  # name of the private vectors that hold a client's own particles, one for each model
_FUDGE = 1e-6  # added to the root of a running mean of squares


@dataclass(frozen=True)
class Particles(Piece):
    """Trains the K models of a client together, as particles of one distribution (DSVGD).

    A client also keeps K particles of its own, which represent the client's factor of the distribution. These own
    particles start at the initial models. After each training they move, so that the factor contains what the training
    has changed. The functions below take tensors of one client, `[K, p]` each, for p parameters.

    Attributes:
        models: Number of models, K.
        move: A function that returns the direction in which the current particles descend. It takes the gradients of
            the loss, the received particles, the current particles, the own particles, and the number of the client's
            samples.
        learn: A function that returns the direction in which the own particles descend. It takes the current own
            particles, the received particles, the trained particles, and the own particles before this round.
        further_steps: Number of steps that the client's own particles make after training.
    """

    models: int
    move: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    learn: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    further_steps: int = 0

    keeps = (PARTICLES,)
    couples = True
    reads_final = True

    def begin(self, update: Update) -> Update:
        own = self._read(update)
        size = torch.from_numpy(update.jobs.size).to(update.start.device)
        return update.keep(**{PARTICLES: own})._replace(couple=self._couple(update.start, own, size))

    def end(self, update: Update) -> Update:
        """Moves the clients' own particles after the training.

        The particles start at their last positions. Their optimizer is new, with the settings of the training.
        """
        assert update.block is not None and update.final is not None
        own, received, trained = update.own[PARTICLES], update.block.start, update.final
        now, move = own.clone(), _make_step(update.block.local, update.block.lr, own)
        for step in range(self.further_steps):
            move(now, for_each_client(self.models, self.learn, now, received, trained, own), step)
        return update.keep(**{PARTICLES: now})

    def _couple(self, received: Tensor, own: Tensor, size: Tensor) -> Couple:
        """Returns a function that turns the gradients of the clients' models into the directions of their steps."""

        def move(g: Tensor, received: Tensor, now: Tensor, own: Tensor, size: Tensor) -> Tensor:
            return self.move(g, received, now, own, size[0])

        def couple(g: Tensor, now: Tensor) -> Tensor:
            n = len(now)
            return for_each_client(self.models, move, g, received[:n], now, own[:n], size[:n])

        return couple

    def _read(self, update: Update) -> Tensor:
        """Returns the clients' own particles, `[W, d]`. Before the first training, these are the initial models."""
        site, plan, like = update.site, update.jobs.plan, update.start
        rows = site.private.read(PARTICLES, plan).to(like)
        for job in np.flatnonzero(~np.array(site.private.has(PARTICLES, plan))):
            key = rng.keys(site.init_seeds[plan.world[job]], "init", plan.model[job])
            rows[job] = site.net.init(int(key)).to(like)
        return rows


def for_each_client(models: int, function: Callable[..., Tensor], *lanes: Tensor) -> Tensor:
    """Applies a function to the K lanes of each client, and returns all results, `[W, p]`.

    Args:
        models: Number of models of a client, K.
        function: A function that takes tensors of one client, `[K, ...]`, and returns `[K, p]`.
        lanes: Tensors of all clients, `[W, ...]`.
    """
    return torch.cat([function(*parts) for parts in zip(*(torch.split(each, models) for each in lanes), strict=True)])


def _make_step(local: Local, lr: float, like: Tensor) -> Callable[[Tensor, Tensor, int], None]:
    """Returns a function that moves parameters `[W, p]` in place by one optimizer step along a direction."""
    rule = local.step
    if not isinstance(rule, Transform):
        optimize = make_optimizer(local, lr, [], [])
        return lambda now, g, _step: optimize([now], [g], None)
    state, number = vmap(rule.init)(like), torch.tensor(0)

    def move(now: Tensor, g: Tensor, step: int) -> None:
        nonlocal state

        def update(g: Tensor, state: object, now: Tensor) -> tuple[Tensor, object]:
            context = StepContext(0, number, step, number, lr, number, _refuse_data, _refuse_data)
            return rule.update(g, state, now, context)

        change, state = vmap(update)(g, state, now)
        now.sub_(change, alpha=lr)

    return move


def _refuse_data(_parameters: Tensor) -> Tensor:
    """Raises an error. A client's own particles move without samples, so there is no gradient of a loss."""
    raise FedrayError("local.step reads a gradient or a loss, but the particles that clients keep have no rows")


# ---------------------------------------------------------------------------------------------------------------------
# Stein variational gradient descent of the models, and of the particles that represent a client's factor.
# The density of particles is the sum of Gaussian kernels, one around each particle, with the bandwidth lambda.


def find_direction(score: Tensor, particles: Tensor) -> Tensor:
    """Returns the directions in which K particles move to become draws from a density, `[K, p]`.

    The direction at w is `mean_j k(w_j, w) score_j + grad_{w_j} k(w_j, w)`. Here `score` is the gradient of the
    density's logarithm at each particle. The kernel `k(v, w)` is `exp(-|v - w|^2 / (2 h))` with `h = m / (2 log(K +
    1))`. Here m is the median of all K x K squared distances. A single particle moves along its own score.
    """
    k = len(particles)
    squares = _square_distances(particles, particles)
    ranked = squares.flatten().sort().values
    median = (ranked[(k * k - 1) // 2] + ranked[k * k // 2]) / 2
    width = torch.where(median > 0, median / (2.0 * math.log(k + 1)), torch.ones_like(median))
    kernel = torch.exp(-squares / (2.0 * width))
    away = particles - particles[:1]  # the force between equal particles is then exactly 0
    apart = (kernel.sum(1, keepdim=True) * away - kernel @ away) / width
    return (kernel @ score + apart) / k


def find_nearby(at: Tensor, particles: Tensor, bandwidth: float) -> Tensor:
    """Returns a mean of the particles for each of n points, `[n, p]`, weighted by a Gaussian kernel around the point.

    The gradient of the logarithm of the particles' density at a point is `(mean - point) / bandwidth^2`.
    """
    weight = torch.softmax(_square_distances(at, particles) / (-2.0 * bandwidth**2), dim=1)
    return weight @ particles


def approach(models: int, steps: int, *, temperature: float, precision: float, bandwidth: float) -> Particles:
    """Returns a `Piece` by which clients move particles to a posterior, and learn their own factors of this posterior.

    The posterior is the prior p_0 times one factor t_k for each client k. The own particles of client k have the
    density `r = p_0 t_k`. They start at the initial models, as draws from the prior (`t_k = 1`). The received particles
    have the density q. Training moves the received particles towards the density `(q / r) p_0 exp(-losses /
    temperature)`. The trained particles have the density q_new. Afterwards, the own particles make `steps` steps
    towards the density `(q_new / q) r`.

    Args:
        models: Number of particles, K.
        steps: Number of steps of the own particles.
        temperature: alpha, the divisor of the sum of all samples' losses, above 0.
        precision: Precision of the prior p_0, which is `N(0, 1 / precision)` for each parameter. 0 means a flat prior.
        bandwidth: lambda, the width of the Gaussian kernels around the particles.
    """
    scale = 1.0 / bandwidth**2

    def move(gradient: Tensor, received: Tensor, now: Tensor, own: Tensor, size: Tensor) -> Tensor:
        without = find_nearby(now, received, bandwidth) - find_nearby(now, own, bandwidth)
        data = gradient * (size / temperature)
        return -find_direction(scale * without - data - precision * now, now)

    def learn(now: Tensor, received: Tensor, trained: Tensor, own: Tensor) -> Tensor:
        new, old, before = (find_nearby(now, each, bandwidth) for each in (trained, received, own))
        return -find_direction(scale * (new - old + before - now), now)

    return Particles(models, move, learn, steps)


def divide_by_root(decay: float) -> Transform:
    """Returns a transformation that divides gradients by the square root of a running mean of their squares.

    The mean starts with the squares of the first gradient. `decay` is the weight of the earlier mean in each step, in
    [0, 1).
    """

    def update(g: Tensor, mean: Tensor, _parameters: Tensor, context: StepContext) -> tuple[Tensor, Tensor]:
        mean = g.square() if context.step == 0 else decay * mean + (1.0 - decay) * g.square()
        return g / (_FUDGE + mean.sqrt()), mean

    return Transform(torch.zeros_like, update, name="divide_by_root")


def _square_distances(one: Tensor, other: Tensor) -> Tensor:
    """Returns `|v - w|^2` of all pairs, `[n, m]`.

    v are the n rows of `one`, and w are the m rows of `other`.
    """
    v, w = one - other[:1], other - other[:1]
    return (v.square().sum(1)[:, None] + w.square().sum(1) - 2.0 * v @ w.T).clamp(min=0.0)
