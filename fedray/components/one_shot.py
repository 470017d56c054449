"""Defines servers of methods with a single round (FedFisher, FedBEns), and draws samples from clients' posteriors.

A *world* is one combination of a seed and a fold.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.components import servers
from fedray.components.servers import Rows, group_uploads, keep_uploads, sum_uploads, upload_weights
from fedray.core.method import Server, StepContext, Transform
from fedray.core.sums import Counts, check_finite, exact_sum
from fedray.core.types import State, Stats, Uploads, Weighting

# ---------------------------------------------------------------------------------------------------------------------
# A server that weights each parameter of an upload by its Fisher information on the client's samples (FedFisher).
#
# Sources: Matena, Raffel, *Merging Models with Fisher-Weighted Averaging*, NeurIPS 2022 (the closed form);
# Jhunjhunwala, Wang, Joshi, *FedFisher*, AISTATS 2024 (the steps towards it).
#
# Let client k's loss be `1/2 (w - w_k)' F_k (w - w_k)` with a diagonal F_k. Then the sum of all losses, weighted by
# p_k, has the optimum `sum p_k F_k w_k / sum p_k F_k`. For a parameter whose F_k are all 0, the mean of the uploads is
# used.

LEAST = 1e-12  # the plain mean is used for a parameter with less mean curvature (exact sums have a resolution of 5e-20)

Score = Callable[[int, Tensor], float]  # (world, model [d]) -> score on the server's samples; higher is better
# gradient `[d]`, number of the step from 1, the two memories -> what is subtracted from the model `[d]`, the memories
Step = Callable[[Tensor, int, Any, Any], tuple[Tensor, Any, Any]]


class Descent(NamedTuple):
    """The settings by which a server minimizes a known function of a model, step by step.

    Attributes:
        steps: Number of steps.
        each: Number of steps after which the model is scored again.
        step: The optimizer.
        score: A function that takes a world and a model `[d]`, and returns the model's score on the server's samples.
            The model with the highest score is kept. None means that the last model is kept.
    """

    steps: int
    each: int
    step: Step
    score: Score | None = None


def descend(how: Descent, start: Tensor, gradient: Callable[[Tensor], Tensor], world: int) -> Tensor:
    """Minimizes a function of a model, step by step, and returns the model `[d]` with the best score.

    `start` is the first model, `[d]` float64. It is scored, too. `gradient` takes a model and returns the gradient of
    the function. Among models with the same score, the earliest is returned. If `how` has no score, the last model is
    returned. `world` is the world of the model.
    """
    now, first, second = start, 0.0, 0.0
    best, most = start, -math.inf if how.score is None else how.score(world, start)
    for done in range(1, how.steps + 1):
        change, first, second = how.step(gradient(now), done, first, second)
        now = now - change
        if how.score is not None and (done % how.each == 0 or done == how.steps):
            found = how.score(world, now)
            best, most = (now, found) if found > most else (best, most)
    return now if how.score is None else best


def adam(lr: float) -> Step:
    """Makes Adam with betas 0.9 and 0.999 and epsilon 1e-6, as in the code of FedBEns.

    Source: Kingma, Ba 2015.
    """

    def step(g: Tensor, t: int, first: Any, second: Any) -> tuple[Tensor, Any, Any]:
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        return lr * first / (1.0 - 0.9**t) / ((second / (1.0 - 0.999**t)).sqrt() + 1e-6), first, second

    return step


def summing_adam(lr: float) -> Step:
    """Makes the optimizer of FedFisher's code: Adam with sums instead of means.

    The memory of the optimizer is m and v: `m <- 0.9 m + g` and `v <- 0.99 v + g^2`. The step is `lr m / (sqrt(v) +
    0.01)`.
    """

    def step(g: Tensor, _t: int, first: Any, second: Any) -> tuple[Tensor, Any, Any]:
        first, second = 0.9 * first + g, 0.99 * second + g * g
        return lr * first / (second.sqrt() + 0.01), first, second

    return step


def fisher_mean(
    rows: Rows, weighting: Weighting = "uniform", damping: float = 0.0, how: Descent | None = None
) -> Server:
    """Returns a server that averages each parameter of a model over the uploads, weighted by curvature (FedFisher).

    The result is `w <- sum p_k (F_k + damping) w_k / sum p_k (F_k + damping)`. Client k uploads the model w_k and the
    curvature F_k (diagonal of its Fisher matrix). With the weighting `uniform`, the weights p_k are equal. With
    `examples`, they are the clients' shares of the samples, n_k / n. If `how` is given, the server descends from the
    plain mean towards this result. Parameters with a mean curvature of at most 1e-12, and float buffers, become the
    plain mean. A larger damping brings the result nearer to the plain mean.

    Example:
        For the first parameter, the first client's curvature is three times the second client's. For the second
        parameter, the curvatures are equal.

        >>> import numpy as np
        >>> both = np.array([0, 1])
        >>> sent, sure = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[3.0, 1.0], [1.0, 1.0]])
        >>> zero = 0 * both
        >>> uploads = Uploads(sent, client=both, model=zero, world=zero, tier=zero, size=1 + both, beside=sure)
        >>> server = fisher_mean(Rows(worlds=1, models=1))
        >>> state = State(torch.zeros(1, 2), torch.zeros(1, 0, dtype=torch.int64), {})
        >>> server.step(state, server.reduce(uploads), 0).models.tolist()
        [[0.75, 0.5]]
    """

    def reduce(uploads: Uploads) -> Stats:
        assert uploads.beside is not None
        group, weight = rows.of(uploads), upload_weights(uploads, weighting)
        sure = uploads.beside.double() + damping
        sums = {"curvature": sure, "weighed": sure * uploads.delta}
        exact = {name: exact_sum(each, group, rows.number, weight, limbs=2) for name, each in sums.items()}
        return {**sum_uploads(uploads, group, weight, rows.number), **exact}

    def step(state: State, stats: Stats, _t: int) -> State:
        weight = stats["weight"].total.clamp(min=1)[:, None]
        mean, sure = stats["sum"].value() / weight, stats["curvature"].value() / weight
        known = sure > LEAST
        best = torch.where(known, stats["weighed"].value() / weight / sure.where(known, torch.ones_like(sure)), mean)
        if how is None:
            return servers.apply_delta(state, best, stats)
        after = mean.clone()
        for row in torch.nonzero(stats["weight"].total).flatten().tolist():
            before = state.models[row].double()
            goal, weigh = before + best[row], sure[row]

            def pull(now: Tensor, goal: Tensor = goal, weigh: Tensor = weigh) -> Tensor:
                return weigh * (now - goal)  # the gradient of `1/2 (w - goal)' F (w - goal)`

            found = descend(how, before + mean[row], pull, row // rows.models)
            after[row] = found - before
        return servers.apply_delta(state, after, stats)

    return Server(servers.no_extra, reduce, step)


# ---------------------------------------------------------------------------------------------------------------------
# A server that looks for modes of the product of the clients' posteriors, which are mixtures (FedBEns).
#
# Source: Talpini, Savi, Neglia, *FedBEns: One-Shot Federated Learning based on Bayesian Ensemble*, ICML 2025, Alg. 1.
#
# Client k trains from each of M starts, and reaches a local optimum w_km from each start. The client's posterior is
# approximated by a mixture of M Gaussians with equal weights. The Gaussians have the means w_km and the precisions
# `P_km = n_k F_km / T + c` (Laplace). The global posterior is in proportion to the product of all mixtures. The prior,
# with precision c_0 and mean 0, should count only once in this product:
#
#     log p(w) = sum_k log sum_m N(w; w_km, 1 / P_km) + (N - 1) c_0 / 2 |w|^2

MOST_CLIMBS = 100  # largest number of fixed-point steps; they end earlier when the shares no longer change


class ClientMode(NamedTuple):
    """An upload of a client.

    Attributes:
        client: Id of the client.
        mode: Index of the trained model among the M models of the client, from 0.
        model: The trained model, `[d]`.
        curvature: Diagonal of the Fisher matrix at the trained model, summed over the client's samples, `[d]`.
    """

    client: int
    mode: int
    model: Tensor
    curvature: Tensor


@dataclass(frozen=True)
class Mixtures:
    """The posteriors of N clients over p weights. Each posterior is a mixture of at most M Gaussians (modes).

    Attributes:
        mean: Mean of each mode, `[N, M, p]` float64. Where a mode does not exist, the values have no meaning.
        sure: Precisions of each mode, `[N, M, p]`, above 0.
        there: Whether each mode exists, `[N, M]`. Every client has at least one mode.
        prior: c_0, the precision of the prior. The prior is a factor of every client's posterior.
    """

    mean: Tensor
    sure: Tensor
    there: Tensor
    prior: float

    @cached_property
    def pulls(self) -> Tensor:
        """Returns the precision times the mean of each mode, `[N, M, p]`."""
        return self.sure * self.mean

    @cached_property
    def heights(self) -> Tensor:
        """Returns `log(weight * density at 0)` of each mode, `[N, M]`. A mode that does not exist has -inf.

        The factor `(2 pi)^(-p/2)` of each density is left out.
        """
        height = 0.5 * (self.sure.log() - self.pulls * self.mean).sum(-1)
        height -= self.there.sum(1, keepdim=True).double().log()
        return height.masked_fill(~self.there, -torch.inf)

    @property
    def surplus(self) -> float:
        """Returns the precision of the N - 1 superfluous priors in the product of N posteriors.

        Each posterior contains the prior, but the product should contain the prior only once.
        """
        return (len(self.mean) - 1) * self.prior


def weigh_modes(known: Mixtures, w: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the share of each mode in its client's posterior density at w, `[N, M]`, and log p(w) up to a constant.

    w is a vector of a network's weights, float64. p(w) is the product of the clients' posteriors, with the prior
    counted once.
    """
    each = known.heights - 0.5 * (known.sure @ w.square()) + known.pulls @ w
    return each.softmax(1), each.logsumexp(1).sum() + 0.5 * known.surplus * w.square().sum()


def find_gradient(known: Mixtures, w: Tensor) -> Tensor:
    """Returns the gradient of -log p(w) at the weights w, float64, with the density p of `weigh_modes`."""
    sure, pull = _add_up(known, weigh_modes(known, w)[0])
    return sure * w - pull


def _add_up(known: Mixtures, share: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the precision of a product of N Gaussians, and the precision times the mean, `[p]` each.

    To get a client's Gaussian, the natural parameters of its modes are averaged with the weights `share`, `[N, M]`. The
    prior counts once.
    """
    sure, pull = (share.flatten() @ part.flatten(0, 1) for part in (known.sure, known.pulls))
    return sure - known.surplus, pull


def climb(known: Mixtures, w: Tensor) -> Tensor:
    """Climbs from the weights w to a maximum of the global posterior, and returns the weights there.

    The global posterior p is the product of the clients' posteriors, with the prior counted once. Each step is a step
    of EM, which never makes log p smaller. Let r_km be the share of mode m in the density of client k at the present w.
    The next w minimizes `sum r_km P_km (w - w_km)^2 / 2 - (N - 1) c_0 / 2 |w|^2`. Up to a constant, this function is
    nowhere below -log p, and equals it at the present w. All precisions P_km must be above c_0, the precision of the
    prior.

    Example:
        Each of two clients has one Gaussian. The product's mode is the mean of 0 and 4, weighted by precision.

        >>> means, sure = torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([[[1.0]], [[3.0]]])
        >>> known = torch.ones(2, 1, dtype=torch.bool)
        >>> climb(Mixtures(means.double(), sure.double(), known, 0.0), torch.zeros(1)).tolist()
        [3.0]
    """
    w, before = w.double(), None
    for _ in range(MOST_CLIMBS):
        share, _ = weigh_modes(known, w)
        if before is not None and torch.equal(share, before):
            break
        sure, pull = _add_up(known, share)
        w = pull / sure
        before = share
    return w


class Laplace(NamedTuple):
    """The settings by which a client's uploads become Gaussians (Laplace's approximation).

    Attributes:
        temperature: T, above 0. The curvature is divided by T.
        precision: c, above 0. The precision of a Gaussian is the divided curvature plus c.
        prior: c_0, the precision of the prior, at most c.
        trainable: p, the number of trainable parameters. Only these have a posterior. Buffers are averaged.
    """

    temperature: float
    precision: float
    prior: float
    trainable: int

    def gather(self, sent: Sequence[ClientMode]) -> Mixtures:
        """Computes the posteriors of clients from their uploads. There must be at least one upload."""
        clients, modes = sorted({one.client for one in sent}), 1 + max(one.mode for one in sent)
        mean = torch.zeros(len(clients), modes, self.trainable, dtype=torch.float64)
        sure, there = torch.ones_like(mean), torch.zeros(len(clients), modes, dtype=torch.bool)
        for one in sent:
            place = clients.index(one.client), one.mode
            mean[place], there[place] = one.model[: self.trainable].double(), True
            sure[place] = one.curvature[: self.trainable].double() / self.temperature + self.precision
        return Mixtures(mean, sure, there, self.prior)


def mixture_server(rows: Rows, weighting: Weighting, laplace: Laplace, how: Descent | None = None) -> Server:
    """Returns a server that moves each of M models to a maximum of the product of the clients' posteriors (FedBEns).

    A model starts from the median of its uploads. It moves by the steps in `how`. If `how` is None, `climb` computes
    the maximum. With the weighting `examples`, the curvature of client k is multiplied by n_k, the client's number of
    samples. With `uniform`, all curvatures of a world are multiplied by the mean of the n_k.
    """
    base = servers.mean(rows, weighting)

    def reduce(uploads: Uploads) -> Stats:
        assert uploads.beside is not None
        times, group = upload_weights(uploads, weighting)[:, None] * uploads.beside, rows.of(uploads)
        check_finite(times)
        size = torch.zeros(rows.number, dtype=torch.int64).index_add_(0, group, torch.from_numpy(uploads.size))
        kept = {"uploads": keep_uploads(uploads, uploads.delta), "curvature": keep_uploads(uploads, times)}
        return {**base.reduce(uploads), **kept, "rows": Counts(size)}

    def step(state: State, stats: Stats, t: int) -> State:
        after = base.step(state, stats, t)
        models = after.models.clone()
        size, jobs = (stats[name].total.view(rows.worlds, -1).sum(1) for name in ("rows", "weight"))
        each = torch.ones(rows.worlds) if weighting == "examples" else size.double() / jobs.clamp(min=1)
        for world, sent in _find_sent(rows, state, stats, each.tolist()).items():
            known = laplace.gather(sent)
            for mode in sorted({one.mode for one in sent}):
                row = world * rows.models + mode
                start = torch.stack([one.model for one in sent if one.mode == mode]).double().median(0).values
                models[row] = _find_mode(known, start, after.models[row], how, world)
        return after._replace(models=models)

    return Server(base.init, reduce, step, keeps=True)


def _find_sent(rows: Rows, state: State, stats: Stats, times: Sequence[float]) -> dict[int, list[ClientMode]]:
    """Returns the uploads of each world, sorted by model and then by client.

    `times` holds a multiplier of the curvatures for each world.
    """
    found: dict[int, list[ClientMode]] = {}
    curvature = stats["curvature"].rows
    for row, each in group_uploads(rows, stats["uploads"]).items():
        world, mode = divmod(row, rows.models)
        for client, delta in each:
            sure = times[world] * curvature[world, mode, client]
            found.setdefault(world, []).append(ClientMode(client, mode, state.models[row] + delta, sure))
    return found


def _find_mode(known: Mixtures, start: Tensor, mean: Tensor, how: Descent | None, world: int) -> Tensor:
    """Returns the model `[d]` to which `climb` or the descent `how` moves `start`, with the float buffers of `mean`."""
    p = known.mean.shape[2]

    def complete(now: Tensor) -> Tensor:
        return torch.cat([now.to(mean.dtype), mean[p:]])

    if how is None:
        return complete(climb(known, start[:p]))
    score = how.score
    looked = how if score is None else how._replace(score=lambda world, now: score(world, complete(now)))
    return complete(descend(looked, start[:p], lambda now: find_gradient(known, now), world))


# ---------------------------------------------------------------------------------------------------------------------
# Samples of a client's posterior, drawn by cyclical stochastic gradient Hamiltonian Monte Carlo (SGHMC).
#
# Source: Chen, Fox, Guestrin, *Stochastic Gradient Hamiltonian Monte Carlo*, ICML 2014; Zhang, Li, Zhang, Chen,
# Wilson, *Cyclical Stochastic Gradient MCMC for Bayesian Deep Learning*, ICLR 2020. With friction a, rate l,
# temperature T, n training samples and gradient g, a step is
#
#     b <- (1 - a) b - l g + sqrt(2 a l T / n) noise,    w <- w + b.
#
# The rate falls along a cosine in each cycle. The first part of a cycle (`exploration`) has no noise. In the rest of
# the cycle samples are taken at equal distances. The last sample is taken at the end of the cycle.

_ROUNDING = 1e-9  # tolerance for rounding errors in fractions of a training


class Cycles(NamedTuple):
    """The cycles of a Markov chain. They decide when noise is added and when the chain's weights are kept as a sample.

    Attributes:
        number: Number of cycles of a local training.
        per_cycle: Number of samples taken in each cycle.
        samples: Number of kept samples, M. The last M samples of a local training are kept.
        exploration: Fraction of a cycle that passes before noise is added, in [0, 1).

    Example:
        There are two cycles. Samples are taken after 3/4 of each cycle and at the end. The last three are kept.

        >>> Cycles(number=2, per_cycle=2, samples=3, exploration=0.5).ends()
        (0.5, 0.875, 1.0)
    """

    number: int
    per_cycle: int
    samples: int
    exploration: float

    def ends(self) -> tuple[float, ...]:
        """Returns when each of M kept samples is taken, as a fraction of the training, in (0, 1]."""
        left = [(self.per_cycle - 1 - q) / self.per_cycle for q in range(self.per_cycle)]
        each = [(c + 1 - (1 - self.exploration) * one) / self.number for c in range(self.number) for one in left]
        return tuple(each[-self.samples :])

    def taken(self, steps: Tensor) -> Tensor:
        """Returns after how many steps each of M kept samples is taken, `[M]` float64, at least 1."""
        shares = torch.tensor(self.ends(), dtype=torch.float64, device=steps.device)
        return ((shares - _ROUNDING) * steps).ceil().clamp(min=1)


def sample_posterior(cycles: Cycles, momentum: float, temperature: float, p: int) -> Transform:
    """Returns the steps of a Markov chain (SGHMC), by which a client draws M samples from its posterior.

    A model has M p values, p for each sample. The last p values are the position of the chain, at which the gradient is
    computed. The values of a sample move with the chain until the sample is taken. In a later round, the chain
    continues from its last position.

    Args:
        cycles: The cycles, which decide when samples are taken.
        momentum: The value 1 - a for the friction a, in [0, 1).
        temperature: The temperature T, at least 0. With 1, the chain samples the posterior. With 0, the steps are SGD
            with momentum.
        p: Number of weights in a sample.
    """

    def init(parameters: Tensor) -> Tensor:
        return torch.zeros_like(parameters[..., :p])

    def update(gradient: Tensor, state: Tensor, parameters: Tensor, context: StepContext) -> tuple[Tensor, Tensor]:
        if not context.lr:  # nothing moves
            return torch.zeros_like(gradient), state
        inside = (context.step * cycles.number % context.steps).double() / context.steps  # place in the cycle, [0, 1)
        rate = 0.5 * (1.0 + torch.cos(math.pi * inside))  # as a fraction of the round's learning rate
        spread = (2.0 * (1.0 - momentum) * temperature / context.lr * rate / context.size).sqrt()
        spread = torch.where(inside >= cycles.exploration - _ROUNDING, spread, 0.0)
        velocity = momentum * state + rate.to(gradient) * gradient[..., -p:] - spread.to(gradient) * context.noise
        moves = context.step < cycles.taken(context.steps)
        change = moves.to(gradient)[:, None] * velocity  # [M, p]
        if context.step == 0:
            rows = parameters.reshape(cycles.samples, p)
            change = change + (rows - rows[-1]) / context.lr  # samples of an earlier round join the chain
        return change.reshape(-1), velocity

    return Transform(init, update, noise=True, name="sghmc", numbers=p)


# ---------------------------------------------------------------------------------------------------------------------
# The upload of FedPA is (mean of the samples - start) times the precision of the samples.
#
# Source: Al-Shedivat, Gillenwater, Xing, Rostamizadeh, *Federated Learning via Posterior Averaging*, ICLR 2021.


def correct_by_precision(rho: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function that computes FedPA's upload, `S^-1 (mean of samples - start)`.

    The function takes the start `[p]` and l sampled models `[l, p]`. S lies between the identity I and the covariance C
    of the samples (with the divisor l - 1): `S = r I + (1 - r) C` with `r = 1 / (1 + (l - 1) rho)`. With one sample, or
    if rho is 0, S is the identity.

    The samples are added one by one, which takes `l^2 p` operations. After t samples, the next sample x adds a term of
    rank one to S / r. The inverse A of S / r changes by the formula of Sherman and Morrison: `A <- A - g v v' / (1 + g
    v'u)`. Here u is x minus the mean of the t samples, `v = A u`, and `g = rho t / (t + 1)`.

    Example:
        The samples differ only along the first axis, so the step is shorter along this axis.

        >>> samples = torch.tensor([[0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
        >>> correct_by_precision(1.0)(torch.zeros(2, dtype=torch.float64), samples).tolist()
        [0.6666666666666667, 2.0]
    """

    def combine(start: Tensor, samples: Tensor) -> Tensor:
        vs, factors = torch.zeros_like(samples), samples.new_zeros(len(samples))  # v and g / (1 + g v'u) determine A

        def multiply(vector: Tensor, t: int) -> Tensor:
            v = vs[1:t]
            return vector - ((factors[1:t] * (v * vector).sum(1))[:, None] * v).sum(0)

        mean = samples[0]
        for t in range(1, len(samples)):
            u, g = samples[t] - mean, rho * t / (t + 1)
            vs[t] = multiply(u, t)
            factors[t] = g / (1.0 + g * (vs[t] * u).sum())
            mean = mean + u / (t + 1)
        return multiply(mean - start, len(samples)) * (1.0 + (len(samples) - 1) * rho)

    return combine
