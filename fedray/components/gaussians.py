"""Lets servers and clients keep a Gaussian over the weights of a model (FedAG, FedBE, pFedBayes, PVI, IVON-ADMM).

A world is one combination of a seed and a fold. The state holds M = R K models: K models in each of R worlds. A network
has p weights (trainable parameters).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedray.components.servers import Rows, group_uploads, keep_uploads, mean, upload_weights
from fedray.core import rng
from fedray.core.method import Answer, Local, Server, StepContext, Transform
from fedray.core.sums import exact_sum
from fedray.core.types import State, Stats, Uploads, Weighting

# ---------------------------------------------------------------------------------------------------------------------
# Servers that keep a distribution over the weights: FedAG's Gaussian, and FedBE's teachers.
#
# `gaussian_server` keeps the mean and the population variance of a model's uploads, and a sample of models that
# predict. `teacher_server` adds teachers. Buffers of normalization layers are never sampled: every sample has the
# buffers of the mean.


@dataclass(frozen=True)
class ModelSampler:
    """The settings by which a sample of models is drawn. The drawn models predict.

    Attributes:
        kind: With `bootstrap`, the sample consists of the uploads. With `omc`, it is drawn from N(mean, diag variance).
        slots: Largest number of models in the sample.
        seeds: The seed of each world.
        trainable: Number of trainable parameters, p. Only these are drawn.
    """

    kind: str
    slots: int
    seeds: Sequence[int]
    trainable: int


def gaussian_server(rows: Rows, sampling: ModelSampler, weighting: Weighting = "uniform") -> Server:
    """Returns a server that keeps the mean and the population variance of a model's uploads, and a sample of models.

    This is FedAG Alg. 1, eqs. 3-4. The means are exactly the models that the server `mean` computes.

    The state keeps four more tensors: `variance` `[M, d]`, `sample` `[M, slots, d]`, `sample_weight` `[M, slots]` and
    `sample_client` `[M, slots]`. A slot is a place for one model of the sample. Its weight is 1 if it holds a model,
    otherwise 0. `sample_client` holds the client that sent the upload in a slot (`Flight.sender` in asynchronous
    training), or -1 if the slot holds no upload.
    """
    base, slots, bootstrap = mean(rows, weighting), sampling.slots, sampling.kind == "bootstrap"

    def init(models: Tensor) -> dict[str, Tensor]:
        sample = torch.zeros(len(models), slots, models.shape[1], dtype=models.dtype)
        sample[:, 0] = models
        weight = torch.zeros(len(models), slots, dtype=torch.float64)
        weight[:, 0] = 1.0
        client = torch.full((len(models), slots), -1, dtype=torch.int64)
        extra = {"sample": sample, "sample_weight": weight, "sample_client": client}
        return {"variance": torch.zeros_like(models), **extra}

    def reduce(uploads: Uploads) -> Stats:
        group, weight = rows.of(uploads), upload_weights(uploads, weighting)
        squares = exact_sum(uploads.delta, group, rows.number, weight, limbs=2, square=True)
        stats = {**base.reduce(uploads), "squares": squares}
        if bootstrap:
            stats["uploads"] = keep_uploads(uploads, uploads.delta)
        return stats

    def step(state: State, stats: Stats, t: int) -> State:
        weight = stats["weight"].total.clamp(min=1)[:, None]
        trained = stats["weight"].total > 0
        delta = stats["sum"].value() / weight
        spread = (stats["squares"].value() / weight - delta.square()).clamp(min=0.0).to(state.models.dtype)
        after = base.step(state, stats, t)
        variance = torch.where(trained[:, None], spread, state.extra["variance"])
        drawn = _uploads(state, stats, rows) if bootstrap else _draws(after, variance, trained, sampling, t)
        return after._replace(extra={**state.extra, "variance": variance, **drawn})

    return Server(init, reduce, step, keeps=bootstrap)


def _uploads(state: State, stats: Stats, rows: Rows) -> dict[str, Tensor]:
    """Returns the uploads of each model as its sample. A model without uploads keeps its old sample."""
    sample, weight, client = (state.extra[name].clone() for name in ("sample", "sample_weight", "sample_client"))
    for row, each in group_uploads(rows, stats["uploads"]).items():
        sample[row], weight[row], client[row] = 0.0, 0.0, -1
        for slot, (sender, delta) in enumerate(each):
            sample[row, slot] = state.models[row] + delta
            weight[row, slot], client[row, slot] = 1.0, sender
    return {"sample": sample, "sample_weight": weight, "sample_client": client}


def _draws(after: State, variance: Tensor, trained: Tensor, how: ModelSampler, t: int) -> dict[str, Tensor]:
    """Draws the sample of each trained model from N(mean, diag variance), and returns the samples of all models."""
    sample, weight = after.extra["sample"].clone(), after.extra["sample_weight"].clone()
    each, p = len(sample) // len(how.seeds), how.trainable
    for row in torch.nonzero(trained).flatten().tolist():
        key = rng.keys(how.seeds[row // each], "omc", t, row % each, np.arange(how.slots))
        noise = torch.from_numpy(rng.normal(key, p)).to(sample.dtype)
        sample[row] = after.models[row]
        sample[row, :, :p] += variance[row, :p].sqrt() * noise
        weight[row] = 1.0
    return {"sample": sample, "sample_weight": weight}


Follow = Callable[[int, int, int, Tensor], Tensor]  # (world, model, round, teachers [1 + S + n, d]) -> next model [d]


@dataclass(frozen=True)
class TeacherSampler:
    """The settings by which FedBE draws models, which serve as teachers.

    Attributes:
        kind: With `gaussian`, models are drawn from N(mean, diag variance). With `dirichlet`, they are convex
            combinations of the uploads, with weights from a flat Dirichlet distribution.
        number: Number of sampled models, S.
        trainable: Number of trainable parameters, p. Only these are sampled.

    Example:
        >>> sampler = TeacherSampler("dirichlet", number=2, trainable=1)
        >>> drawn = sampler.draw(rng.keys(0, "fedbe", np.arange(2)), torch.zeros(1), torch.ones(1), torch.eye(2)[:, :1])
        >>> drawn.shape, bool(((drawn >= 0) & (drawn <= 1)).all())
        (torch.Size([2, 1]), True)
    """

    kind: str
    number: int
    trainable: int

    def draw(self, key: rng.Keys, mean: Tensor, variance: Tensor, uploads: Tensor) -> Tensor:
        """Draws S models, `[S, d]`. `key` has one random key for each of these models.

        `mean` and `variance` are the mean and variance of the n `uploads`, `[n, d]`.
        """
        out = mean.repeat(self.number, 1)
        part = slice(0, self.trainable)
        if self.kind == "gaussian":
            noise = torch.from_numpy(rng.normal(key, self.trainable)).to(mean.dtype)
            out[:, part] += variance[part].sqrt() * noise
        else:
            share = -np.log1p(-rng.uniform(key, len(uploads)))  # Exp(1); after normalization a flat Dirichlet
            share /= share.sum(axis=1, keepdims=True)
            out[:, part] = (torch.from_numpy(share) @ uploads[:, part].double()).to(mean.dtype)
        return out


def teacher_server(base: Server, rows: Rows, seeds: Sequence[int], sampler: TeacherSampler, follow: Follow) -> Server:
    """Returns FedBE's server. It makes teachers from the uploads of a model, and the next model from the teachers.

    The teachers of a model are the mean of its uploads, S sampled models and the uploads, at most n of them. In
    addition to the tensors of `base`, the state keeps `teachers` `[M, 1 + S + n, d]` and `teachers_weight` `[M, 1 + S +
    n]`. Each teacher has the weight 1. Entries without a teacher have the weight 0.

    Args:
        base: A `gaussian_server` of the kind `bootstrap`, whose sample has room for n uploads.
        rows: The order of the models in the state.
        seeds: The seed of each world.
        sampler: The settings by which the S models are drawn.
        follow: A function that takes the world, the index of the model, the round, and a matrix with a teacher
            in each row. It returns the next model, `[d]`.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        extra = base.init(models)
        places = 1 + sampler.number + extra["sample"].shape[1]
        teachers = torch.zeros(len(models), places, models.shape[1], dtype=models.dtype)
        teachers[:, 0] = models
        weight = torch.zeros(len(models), places, dtype=torch.float64)
        weight[:, 0] = 1.0
        return {**extra, "teachers": teachers, "teachers_weight": weight}

    def step(state: State, stats: Stats, t: int) -> State:
        after = base.step(state, stats, t)
        models, extra = after.models.clone(), after.extra
        known, weight = extra["teachers"].clone(), extra["teachers_weight"].clone()
        for row in torch.nonzero(stats["weight"].total > 0).flatten().tolist():
            world, k = divmod(row, rows.models)
            uploads = extra["sample"][row][extra["sample_weight"][row] > 0]
            key = rng.keys(seeds[world], "fedbe", t, k, np.arange(sampler.number))
            drawn = sampler.draw(key, models[row], extra["variance"][row], uploads)
            teachers = torch.cat([models[row][None], drawn, uploads])
            known[row, : len(teachers)] = teachers
            weight[row] = (torch.arange(known.shape[1]) < len(teachers)).double()
            models[row] = follow(world, k, t, teachers)
        return after._replace(models=models, extra={**extra, "teachers": known, "teachers_weight": weight})

    return Server(init, base.reduce, step, keeps=base.keeps)


# ---------------------------------------------------------------------------------------------------------------------
# Variational training of Gaussians over weights. A client trains its own posterior and its copy of the global prior.
#
# A model is `[own mean, own rho, prior mean, prior rho]`, each of length p (`models/net.py`). `softplus(rho)` is the
# standard deviation.

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # torch.optim.Adam's defaults
Moments = tuple[Tensor, Tensor]  # the two moments of Adam, or the velocity of SGD and zeros; `[2 p]` each


def differentiate_divergence(own: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `KL(q || w)` with respect to the parameters of q and of w, `[2 p]` each.

    q (`own`) and w (`prior`) are Gaussians over p independent weights. Each is given as p means, followed by p values
    of rho. `softplus(rho)` is the standard deviation. For one weight with `q = N(mu, sigma^2)` and `w = N(nu, tau^2)`
    the divergence is `log(tau / sigma) + (sigma^2 + (mu - nu)^2) / (2 tau^2) - 1/2`.

    Example:
        The means of two Gaussians differ by 0.7. Both have the standard deviation log 2, which is about 0.69.

        >>> slopes = differentiate_divergence(torch.tensor([0.7, 0.0]), torch.tensor([0.0, 0.0]))
        >>> [[round(number, 2) for number in one.tolist()] for one in slopes]
        [[1.46, 0.0], [-1.46, -0.74]]
    """
    (mean, sigma, _), (other, tau, slope) = _read_gaussian(own), _read_gaussian(prior)
    away, ratio = (mean - other) / tau, sigma / tau
    widen = (1.0 - ratio.square() - away.square()) / tau * slope
    return differentiate_in_own(own, other, tau), torch.cat([-away / tau, widen], dim=-1)


def differentiate_in_own(own: Tensor, other: Tensor, tau: Tensor) -> Tensor:
    """Returns the gradient of `KL(q || w)` with respect to the parameters of q, `[2 p]`, exactly 0 if q equals w.

    q and w are Gaussians over p weights. `own` holds the p means of q, followed by the p values of rho, where
    `softplus(rho)` is the standard deviation. w has the means `other` and the standard deviations `tau`.
    """
    mean, sigma, slope = _read_gaussian(own)
    return torch.cat([(mean - other) / tau / tau, (sigma / tau / tau - 1.0 / sigma) * slope], dim=-1)


def learn_posterior(local: Local, zeta: float, personal_steps: int, p: int) -> Transform:
    """Returns the optimizer by which a client trains its two Gaussians: the posterior q, and w, a copy of the prior.

    Every step moves q by the gradient of the loss plus the gradient of `zeta / n KL(q || w)`. The loss is computed at
    weights that are drawn from q. After every `personal_steps` steps of q, w makes one step by the gradient of `zeta /
    n KL(q || w)` with respect to w. q and w have separate optimizers.

    Args:
        local: The settings of local training. The optimizer is SGD with momentum or Adam.
        zeta: Weight of the divergence, at least 0. It is divided by n, the number of the client's training samples.
        personal_steps: Number of steps of q for each step of w, at least 1.
        p: Number of weights of the network.
    """

    def init(parameters: Tensor) -> tuple[Moments, Moments]:
        zero = torch.zeros_like(parameters[..., : 2 * p])
        return (zero, zero), (zero, zero)

    def update(
        gradient: Tensor, state: tuple[Moments, Moments], parameters: Tensor, context: StepContext
    ) -> tuple[Tensor, tuple[Moments, Moments]]:
        own, prior = parameters.chunk(2, dim=-1)
        data, weight, count = gradient[..., :p], zeta / context.size, context.step + 1
        spread = data * context.noise * torch.sigmoid(own[..., p:])  # gradient in rho, by the chain rule
        away = differentiate_in_own(own, prior[..., :p], softplus(prior[..., p:]))
        slope = torch.cat([data, spread], dim=-1) + weight * away
        change, moments = find_step(local, slope, state[0], count)
        if count % personal_steps:
            return torch.cat([change, torch.zeros_like(prior)], dim=-1), (moments, state[1])
        slope = weight * differentiate_divergence(own - context.lr * change, prior)[1]
        step, others = find_step(local, slope, state[1], count // personal_steps)
        return torch.cat([change, step], dim=-1), (moments, others)

    return Transform(init, update, True, local.optimizer, numbers=p, at=draw_weights)


def draw_weights(parameters: Tensor, noise: Tensor) -> Tensor:
    """Draws weights from the Gaussian in each model, and returns the models with these weights in place of the means.

    A model `[..., d]` begins with p means and p values of rho, where `softplus(rho)` is the standard deviation. `noise`
    is standard normal, `[..., p]`.
    """
    p = noise.shape[-1]
    mean, rho, rest = parameters.split_with_sizes((p, p, parameters.shape[-1] - 2 * p), dim=-1)
    return torch.cat([mean + softplus(rho) * noise, rho, rest], dim=-1)


def answer_with_prior(server: Server, p: int) -> Server:
    """Returns a server that makes the step of `server`, and then replaces each model's Gaussian by the model's prior.

    So new clients predict with the prior.
    """

    def step(state: State, stats: Stats, t: int) -> State:
        after = server.step(state, stats, t)
        prior, rest = after.models[:, 2 * p : 4 * p], after.models[:, 2 * p :]
        return after._replace(models=torch.cat([prior, rest], dim=1))

    return server._replace(step=step)


def find_step(local: Local, slope: Tensor, moments: Moments, count: int) -> tuple[Tensor, Moments]:
    """Returns the step of an optimizer, and the optimizer's new memory.

    The step is not yet multiplied by the learning rate. The optimizer is SGD with momentum or Adam. `slope` is the
    gradient. `moments` is the memory, which is 0 before the first step. `count` is the index of the step, from 1.
    """
    first, second = moments
    if local.optimizer == "sgd":
        velocity = local.momentum * first + slope
        return velocity, (velocity, second)
    first, second = torch.lerp(first, slope, 1.0 - _BETA1), _BETA2 * second + (1.0 - _BETA2) * slope.square()
    root = (second / (1.0 - _BETA2**count)).sqrt() + _EPS
    return first / (1.0 - _BETA1**count) / root, (first, second)


def _read_gaussian(row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns means, standard deviations, and the derivative of each standard deviation by its rho, `[p]` each."""
    mean, rho = row.chunk(2, dim=-1)
    return mean, softplus(rho), torch.sigmoid(rho)


# ---------------------------------------------------------------------------------------------------------------------
# Partitioned variational inference. A client trains against the cavity, which is the posterior without its own factor.
#
# A model is `[mean, rho, linear, precision, is_prior]` (`models/net.py`). The natural parameters of a Gaussian are
# `[mean / sigma^2, 1 / sigma^2]`. A factor `exp(linear w - precision w^2 / 2)` has the natural parameters `[linear,
# precision]`. In a product of Gaussians and factors, the natural parameters are added.

LEAST = 1e-6  # replaces a precision that is not above 0, as MIN_PRECISION in MattAshman/pvi
NATURAL = "natural"  # name of the tensor in `State.extra` with the posterior's natural parameters


class _Learned(NamedTuple):
    """A client's memory during local training. The cavity is the received posterior without the client's own factor.

    Attributes:
        moments: The memory of the optimizer.
        mean: Means of the cavity, `[p]`.
        tau: Standard deviations of the cavity, `[p]`.
    """

    moments: Moments
    mean: Tensor
    tau: Tensor


def to_natural(mean: Tensor, rho: Tensor) -> Tensor:
    """Converts Gaussians' means and values of rho, `[..., p]` each, to natural parameters, `[..., 2 p]` float64."""
    precision = softplus(rho.double()).square().reciprocal()
    return torch.cat([mean.double() * precision, precision], dim=-1)


def from_natural(natural: Tensor) -> Tensor:
    """Converts natural parameters `[..., 2 p]` of Gaussians to means and values of rho, `[..., 2 p]`.

    A precision below 1e-6 is replaced by 1e-6.
    """
    linear, precision = natural.chunk(2, dim=-1)
    precision = precision.clamp(min=LEAST)
    sigma = precision.rsqrt()
    return torch.cat([linear / precision, sigma + (-torch.expm1(-sigma)).log()], dim=-1)


def find_posterior(rows: Tensor, prior: float, p: int) -> Tensor:
    """Returns the natural parameters of the posterior in each model, `[..., 2 p]` float64.

    The models are `rows`, `[..., d]`. The posterior of a model that was never trained is the prior: the mean is 0, and
    the precision is `prior`.
    """
    learned = to_natural(rows[..., :p], rows[..., p : 2 * p])
    first = torch.cat([torch.zeros_like(learned[..., :p]), torch.full_like(learned[..., :p], prior)], dim=-1)
    return torch.where(rows[..., 4 * p : 4 * p + 1] > 0.5, first, learned)


def find_cavity(rows: Tensor, prior: float, p: int) -> Tensor:
    """Returns the natural parameters of the cavity (the posterior without the client's factor), `[..., 2 p]` float64.

    `rows` are models `[..., d]`, which contain the client's factor. A precision below 1e-6 is replaced by 1e-6.
    The other natural parameter (precision times mean) is not changed.

    Example:
        The posterior is N(1, 1/4), and the client's own factor in it has precision 3 and linear term 4. Without this
        factor, the standard normal distribution is left.

        >>> import math
        >>> rho = math.log(math.expm1(0.5))  # softplus(rho) is 1/2
        >>> [round(number, 5) for number in find_cavity(torch.tensor([1.0, rho, 4.0, 3.0, 0.0]), 9.0, 1).tolist()]
        [0.0, 1.0]
    """
    linear, precision = (find_posterior(rows, prior, p) - rows[..., 2 * p : 4 * p].double()).chunk(2, dim=-1)
    return torch.cat([linear, precision.clamp(min=LEAST)], dim=-1)


def learn_from_cavity(local: Local, prior: float, p: int) -> Transform:
    """Returns the optimizer by which a client trains its posterior q in partitioned variational inference (PVI).

    The steps minimize `E_q[loss] + KL(q || cavity) / n`. The cavity is the received posterior without the client's own
    factor, and n is the number of the client's training samples. The loss is computed at weights that are drawn from q.
    The optimizer is SGD with momentum or Adam, as `local` says.
    """

    def init(parameters: Tensor) -> _Learned:
        zero = torch.zeros_like(parameters[..., : 2 * p])
        mean, rho = from_natural(find_cavity(parameters, prior, p)).to(parameters.dtype).chunk(2, dim=-1)
        return _Learned((zero, zero), mean, softplus(rho))

    def update(gradient: Tensor, state: _Learned, parameters: Tensor, context: StepContext) -> tuple[Tensor, _Learned]:
        q, rest = parameters.split_with_sizes((2 * p, 2 * p + 1), dim=-1)
        data = gradient[..., :p]
        spread = data * context.noise * torch.sigmoid(q[..., p:])  # gradient in rho, by the chain rule
        away = differentiate_in_own(q, state.mean, state.tau) / context.size
        step, moments = find_step(local, torch.cat([data, spread], dim=-1) + away, state.moments, context.step + 1)
        return torch.cat([step, torch.zeros_like(rest)], dim=-1), state._replace(moments=moments)

    return Transform(init, update, True, local.optimizer, numbers=p, at=draw_weights)


def refine_sites(kept: float, sent: float, prior: float, p: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function that `Finish` calls to damp the change of a model in local training (PVI).

    Let D be the change of the posterior's natural parameters. The client sends `sent D`, so the first 2 p values of the
    model change by `sent D`. The client's factor, which is in the model, changes by `kept D`. In PVI, `sent` and `kept`
    are both equal to the damping. `prior` is the precision of the prior, and p is the number of weights.
    """

    def finish(start: Tensor, final: Tensor) -> Tensor:
        change = to_natural(final[:, :p], final[:, p : 2 * p]) - find_posterior(start, prior, p)
        both = start[:, : 4 * p].double() + torch.cat([sent * change, kept * change], dim=1)
        return torch.cat([both.to(final.dtype), final[:, 4 * p :]], dim=1)

    return finish


def add_sites(base: Server, rows: Rows, prior: float, p: int) -> Server:
    """Returns a server that keeps a posterior: the prior times the factors of all clients.

    The state keeps the natural parameters of the posterior in float64, and the uploads are added to them. A precision
    below 1e-6 is replaced by 1e-6 in the model, but not in the state. Float buffers come from `base`, a server
    that averages.
    """

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**base.init(models), NATURAL: make_prior(rows.number, prior, p)}

    def step(state: State, stats: Stats, t: int) -> State:
        natural = state.extra[NATURAL] + stats["sum"].value()[:, : 2 * p]
        return place_posteriors(state, base.step(state, stats, t), natural, stats["weight"].total > 0)

    return Server(init, base.reduce, step)


def make_prior(number: int, prior: float, p: int) -> Tensor:
    """Returns the natural parameters of the prior N(0, 1 / prior) for `number` models, `[number, 2 p]` float64."""
    natural = torch.zeros(number, 2 * p, dtype=torch.float64)
    natural[:, p:] = prior
    return natural


def place_posteriors(state: State, after: State, natural: Tensor, trained: Tensor) -> State:
    """Returns the next state, in which each trained model holds its new posterior.

    Args:
        state: The state before the server's step.
        after: The state after the step of a server that averages. The float buffers are taken from this state.
        natural: Natural parameters of each model's posterior, `[R K, 2 p]` float64 (R worlds, K models).
        trained: Whether each model was trained, `[R K]`.
    """
    p, trained = natural.shape[1] // 2, trained[:, None]
    models = torch.where(trained, after.models, state.models)
    models[:, : 2 * p] = torch.where(trained, from_natural(natural), state.models[:, : 2 * p])
    models[:, 4 * p] = torch.where(trained[:, 0], 0.0, state.models[:, 4 * p])
    return after._replace(models=models, extra={**after.extra, NATURAL: natural})


def answer_with_draws(state: State, seeds: Sequence[int], draws: int, p: int) -> Answer:
    """Returns the models that predict: `draws` models that are drawn from each Gaussian.

    If `draws` is 0, the Gaussian's mean predicts.
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


# ---------------------------------------------------------------------------------------------------------------------
# IVON-ADMM. A client's Gaussian is trained by the optimizer IVON, and the server makes a step of ADMM.
#
# A model has the same form as in PVI, `[mean, rho, linear, precision, is_prior]`. The client's factor is `exp(linear w
# - precision w^2 / 2)`. The dual variables of the paper are v = -linear and V = -precision.

SITES = "sites"  # name of the tensor in `State.extra` with the natural parameters of the product of all factors


class _LearnedVariance(NamedTuple):
    """IVON's memory during local training: four vectors of length p.

    Attributes:
        momentum: Running mean of the gradients. It is 0 at the start.
        precision: Precisions of the client's Gaussian, S.
        center: Means of the received Gaussian.
        received: Precisions of the received Gaussian, S_g.
    """

    momentum: Tensor
    precision: Tensor
    center: Tensor
    received: Tensor


def learn_by_ivon(*, penalty: float, temperature: float, prior: float, beta1: float, beta2: float, p: int) -> Transform:
    """Returns the optimizer IVON, by which a client trains its Gaussian q over the weights.

    The steps minimize `n / tau E_q[loss] + E_q[linear w - precision w^2 / 2] + rho KL(q || received)`. Here n is the
    number of the client's training samples, and `linear` and `precision` describe the client's factor. The loss is
    computed at weights w that are drawn from q. Each step multiplies a precision by `1 + y + y^2 / 2` for some y, so
    precisions stay above 0. At a learning rate of 0, nothing changes.

    Args:
        penalty: rho, above 0: the weight of the divergence of the client's Gaussian from the received Gaussian.
        temperature: tau, above 0: the divisor of the sum of all samples' losses.
        prior: Precision of the prior, S_0, above 0.
        beta1: Weight of earlier gradients in the running mean of gradients, in [0, 1).
        beta2: Weight of earlier curvatures in the running mean of curvatures, in (0, 1]. With 1, precisions do not
            change.
        p: Number of weights of the network.

    Source: Shen, Daheim, Cong, et al., *Variational Learning is Effective for Large Deep Networks*, ICML 2024, Alg. 1.
    """

    def init(parameters: Tensor) -> _LearnedVariance:
        mean, own = parameters[..., :p], softplus(parameters[..., p : 2 * p].double()).square().reciprocal()
        received = find_posterior(parameters, prior, p)[..., p:].to(parameters.dtype)
        center = torch.where(parameters[..., 4 * p : 4 * p + 1] > 0.5, torch.zeros_like(mean), mean)
        return _LearnedVariance(torch.zeros_like(mean), own.to(parameters.dtype), center, received)

    def update(
        gradient: Tensor, state: _LearnedVariance, parameters: Tensor, context: StepContext
    ) -> tuple[Tensor, _LearnedVariance]:
        mean, width, linear, precision, _ = parameters.split_with_sizes((p, p, p, p, 1), dim=-1)
        data, scale = gradient[..., :p], context.size / (temperature * penalty)
        # of loss and duals, at the draw
        curvature = scale * data * context.noise / softplus(width) - precision / penalty
        y = (1.0 - beta2) * (curvature - (state.precision - state.received)) / state.precision
        own = state.precision * (1.0 + y + 0.5 * y.square())
        momentum = beta1 * state.momentum + (1.0 - beta1) * data
        pull = (linear - precision * mean) / penalty + state.received * (mean - state.center)
        step = (scale * momentum / (1.0 - beta1 ** (context.step + 1)) + pull) / own
        wider = from_natural(torch.cat([torch.zeros_like(own), own], dim=-1)).chunk(2, dim=-1)[1] - width
        widen = -wider / context.lr if context.lr else torch.zeros_like(wider)
        kept = state._replace(momentum=momentum, precision=own)
        return torch.cat([step, widen, torch.zeros_like(parameters[..., 2 * p :])], dim=-1), kept

    return Transform(init, update, True, "ivon", numbers=p, at=draw_weights)


def step_by_admm(base: Server, rows: Rows, *, alpha: float, kept: float, prior: float, p: int) -> Server:
    """Returns a server that mixes the mean of the clients' posteriors with the prior and the clients' factors.

    The natural parameters of the new posterior are a weighted sum. The mean of the clients' posteriors has the weight
    `1 - alpha`. The product of the prior and all factors has the weight alpha. The state keeps the posterior and the
    product of all factors in float64. In a model, a precision below 1e-6 is replaced by 1e-6.

    Args:
        base: A server that averages. Its step computes the float buffers.
        rows: The order of the models in the state.
        alpha: Weight of the product of the prior and all factors, in (0, 1].
        kept: In a round, a client's factor changes by `kept` times the client's upload.
        prior: Precision of the prior.
        p: Number of weights of the network.
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
