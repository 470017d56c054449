"""Servers for clients that send once: Fisher information, modes of a product of posteriors, posterior samples."""

from __future__ import annotations

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
# A server that weights every number of an upload by the information of the client's data about it (FedFisher).
#
# Sources: Matena, Raffel, *Merging Models with Fisher-Weighted Averaging*, NeurIPS 2022 (the closed form);
# Jhunjhunwala, Wang, Joshi, *FedFisher*, AISTATS 2024 (the steps towards it).
#
# If client k's loss is `1/2 (w - w_k)' F_k (w - w_k)` with a diagonal F_k, the sum of all losses, weighed by p_k, has
# its optimum at `sum p_k F_k w_k / sum p_k F_k`. Where the F_k are equal, or nothing is known, that is the mean.

LEAST = 1e-12  # mean curvature below which a number counts as unknown: exact sums have a resolution of 5e-20

Score = Callable[[int, Tensor], float]  # (world, model [d]) -> score on the server's samples; higher is better
Step = Callable[[Tensor], Tensor]  # gradient `[d]` -> change that is subtracted from the model, `[d]`


class Descent(NamedTuple):
    """The steps of a server towards a known optimum; the server keeps the model that is best on its own samples.

    Attributes:
        steps: Number of steps.
        each: Number of steps from one score on the server's samples to the next.
        start: Function that makes the optimizer, with an empty memory.
        score: Function that scores a model; None means that the last model is kept.
    """

    steps: int
    each: int
    start: Callable[[], Step]
    score: Score | None = None


def descend(how: Descent, start: Tensor, gradient: Callable[[Tensor], Tensor], world: int) -> Tensor:
    """Returns the model `[d]` after all steps, or, with scores, the first of the best among the scored models.

    Args:
        how: The number of steps, the optimizer and the score. The start is scored, too.
        start: The model from which the steps begin, `[d]` float64.
        gradient: Function that gives the gradient of the objective at a model.
        world: Number of the world whose samples at the server give the score.
    """
    now, step = start, how.start()
    best, most = start, -math.inf if how.score is None else how.score(world, start)
    for done in range(1, how.steps + 1):
        now = now - step(gradient(now))
        if how.score is not None and (done % how.each == 0 or done == how.steps):
            found = how.score(world, now)
            best, most = (now, found) if found > most else (best, most)
    return now if how.score is None else best


def adam(lr: float, eps: float = 1e-6) -> Callable[[], Step]:
    """Returns Adam with beta 0.9 and 0.999 (Kingma, Ba 2015), as in the code of FedBEns.

    Args:
        lr: Learning rate.
        eps: Number that is added to the root.
    """

    def start() -> Step:
        memory: list[Any] = [0, 0.0, 0.0]

        def step(g: Tensor) -> Tensor:
            t, first, second = memory[0] + 1, 0.9 * memory[1] + 0.1 * g, 0.999 * memory[2] + 0.001 * g * g
            memory[:] = t, first, second
            moved: Tensor = lr * first / (1.0 - 0.9**t) / ((second / (1.0 - 0.999**t)).sqrt() + eps)
            return moved

        return step

    return start


def summing_adam(lr: float) -> Callable[[], Step]:
    """Returns the optimizer of FedFisher's code: Adam whose memories are sums, `m <- 0.9 m + g`, `v <- 0.99 v + g^2`.

    Args:
        lr: Learning rate.
    """

    def start() -> Step:
        memory: list[Any] = [0.0, 0.0]

        def step(g: Tensor) -> Tensor:
            memory[:] = 0.9 * memory[0] + g, 0.99 * memory[1] + g * g
            moved: Tensor = lr * memory[0] / (memory[1].sqrt() + 0.01)
            return moved

        return step

    return start


def fisher_mean(
    rows: Rows, weighting: Weighting = "uniform", damping: float = 0.0, how: Descent | None = None
) -> Server:
    """Returns a server that averages uploads with curvatures as weights, in each number of the model.

    The result is `w <- sum p_k (F_k + damping) w_k / sum p_k (F_k + damping)`, or the end of steps from the mean
    towards it. Numbers whose mean curvature is below `LEAST` are averaged with the weights p_k alone, and so are float
    buffers, which have no curvature. With an infinite damping all numbers are.

    Args:
        rows: The order of the models in the state.
        weighting: The weights p_k: `uniform`, or `examples` (n_k / n).
        damping: Number that is added to every F_k, at least 0.
        how: The steps from the mean towards the result; None means that the result is taken directly.

    Example:
        The first client is three times as sure of the first number as the second one, and equally of the second number.

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
# A server that looks for modes of the product of the clients' posteriors, each of which is a mixture (FedBEns).
#
# Source: Talpini, Savi, Neglia, *FedBEns: One-Shot Federated Learning based on Bayesian Ensemble*, ICML 2025, Alg. 1.
#
# Client k ends at a local optimum w_km from each of M starts. Its posterior is approximated by a mixture, with equal
# weights, of the Gaussians with these means and the precisions `P_km = n_k F_km / T + c` (Laplace). The global
# posterior is in proportion to the product of all mixtures, in which the prior of precision c_0 and mean 0 counts once:
#
#     log p(w) = sum_k log sum_m N(w; w_km, 1 / P_km) + (N - 1) c_0 / 2 |w|^2

MOST_CLIMBS = 100  # fixed-point steps; shares that no longer change end them before


class SentMode(NamedTuple):
    """An upload of a client.

    Attributes:
        client: Id of the client.
        mode: Number of the trained model, among the M of the client.
        model: The trained model, `[d]`.
        curvature: Diagonal of the Fisher matrix at the trained model, summed over the client's samples, `[d]`.
    """

    client: int
    mode: int
    model: Tensor
    curvature: Tensor


@dataclass(frozen=True)
class Mixtures:
    """The posteriors of N clients, of at most M modes each.

    Attributes:
        mean: Local optima, `[N, M, p]` float64; any number where there is no mode.
        sure: Precisions of the modes, `[N, M, p]`, above 0.
        there: Which modes exist, `[N, M]`; every client has at least one.
        prior: c_0, the precision of the prior that every client's posterior contains.
    """

    mean: Tensor
    sure: Tensor
    there: Tensor
    prior: float

    @cached_property
    def pulls(self) -> Tensor:
        """Returns precisions times optima, `[N, M, p]`."""
        return self.sure * self.mean

    @cached_property
    def heights(self) -> Tensor:
        """Returns the logarithms of the weighted densities at 0, `[N, M]`, without the power of 2 pi; -inf: no mode."""
        height = 0.5 * (self.sure.log() - self.pulls * self.mean).sum(-1)
        height -= self.there.sum(1, keepdim=True).double().log()
        return height.masked_fill(~self.there, -torch.inf)

    @property
    def surplus(self) -> float:
        """Returns the precision of the surplus priors: the product contains N priors, of which one should count."""
        return (len(self.mean) - 1) * self.prior


def weigh_modes(known: Mixtures, w: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the share of each mode in its client's density at w, `[N, M]`, and log p(w) up to a constant.

    Args:
        known: The posteriors of the clients.
        w: The weights at which the densities are computed, `[p]` float64.
    """
    each = known.heights - 0.5 * (known.sure @ w.square()) + known.pulls @ w
    return each.softmax(1), each.logsumexp(1).sum() + 0.5 * known.surplus * w.square().sum()


def find_gradient(known: Mixtures, w: Tensor) -> Tensor:
    """Returns the gradient of -log p at w, `[p]`.

    Args:
        known: The posteriors of the clients.
        w: The weights at which the gradient is computed, `[p]` float64.
    """
    sure, pull = _add_up(known, weigh_modes(known, w)[0])
    return sure * w - pull


def _add_up(known: Mixtures, share: Tensor) -> tuple[Tensor, Tensor]:
    """Returns, for these shares of the modes, the product's precision, and its precision times its mean, `[p]` each."""
    sure, pull = (share.flatten() @ part.flatten(0, 1) for part in (known.sure, known.pulls))
    return sure - known.surplus, pull


def climb(known: Mixtures, w: Tensor) -> Tensor:
    """Climbs from w to a mode of p and returns the mode, `[p]`; log p never falls on the way.

    With the shares r_km at w, `sum r P (w - w_km)^2 / 2 - (N - 1) c_0 / 2 |w|^2` touches -log p from above (EM). The
    minimum of that function is the next w.

    Args:
        known: The posteriors of the clients; their precisions are above that of the prior.
        w: The weights from which the climb starts, `[p]`.

    Example:
        Two clients of one Gaussian each: the product's mode is the mean by precision.

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
    """The settings by which uploads become Gaussians.

    Attributes:
        temperature: T, above 0.
        precision: c, the number that every client adds to the curvature of its samples, above 0.
        prior: c_0, the precision of the prior, at most c.
        trainable: p; the first p numbers of a model have a posterior, and the numbers after them are averaged.
    """

    temperature: float
    precision: float
    prior: float
    trainable: int

    def gather(self, sent: Sequence[SentMode]) -> Mixtures:
        """Returns the posteriors of the clients of one world.

        Args:
            sent: The uploads of these clients, at least one.
        """
        clients, modes = sorted({one.client for one in sent}), 1 + max(one.mode for one in sent)
        mean = torch.zeros(len(clients), modes, self.trainable, dtype=torch.float64)
        sure, there = torch.ones_like(mean), torch.zeros(len(clients), modes, dtype=torch.bool)
        for one in sent:
            place = clients.index(one.client), one.mode
            mean[place], there[place] = one.model[: self.trainable].double(), True
            sure[place] = one.curvature[: self.trainable].double() / self.temperature + self.precision
        return Mixtures(mean, sure, there, self.prior)


def mixture_server(rows: Rows, weighting: Weighting, laplace: Laplace, how: Descent | None = None) -> Server:
    """Returns a server that moves each of the M models of a world to a mode of the product of posteriors.

    A model starts from the median of its uploads.

    Args:
        rows: The order of the models in the state.
        weighting: With `examples`, the curvature of client k counts n_k times. With `uniform`, all curvatures of a
            world count equally often, namely the mean of the n_k times.
        laplace: The settings by which uploads become Gaussians.
        how: The steps of a model towards a mode; None means that it climbs to the mode itself (`climb`).
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


def _find_sent(rows: Rows, state: State, stats: Stats, times: Sequence[float]) -> dict[int, list[SentMode]]:
    """Returns the uploads by world, in the order of models and clients; each world's curvatures get its factor."""
    found: dict[int, list[SentMode]] = {}
    curvature = stats["curvature"].rows
    for row, each in group_uploads(rows, stats["uploads"]).items():
        world, mode = divmod(row, rows.models)
        for client, delta in each:
            sure = times[world] * curvature[world, mode, client]
            found.setdefault(world, []).append(SentMode(client, mode, state.models[row] + delta, sure))
    return found


def _find_mode(known: Mixtures, start: Tensor, mean: Tensor, how: Descent | None, world: int) -> Tensor:
    """Returns the model `[d]` that is reached from the start `[d]`; float buffers are those of the mean."""
    p = known.mean.shape[2]

    def complete(now: Tensor) -> Tensor:
        return torch.cat([now.to(mean.dtype), mean[p:]])

    if how is None:
        return complete(climb(known, start[:p]))
    score = how.score
    looked = how if score is None else how._replace(score=lambda world, now: score(world, complete(now)))
    return complete(descend(looked, start[:p], lambda now: find_gradient(known, now), world))


# ---------------------------------------------------------------------------------------------------------------------
# Samples of a client's posterior by cyclical stochastic gradient Hamiltonian Monte Carlo (SGHMC).
#
# Source: Chen, Fox, Guestrin, *Stochastic Gradient Hamiltonian Monte Carlo*, ICML 2014; Zhang, Li, Zhang, Chen,
# Wilson, *Cyclical Stochastic Gradient MCMC for Bayesian Deep Learning*, ICLR 2020. With friction a, rate l,
# temperature T and n rows a step is
#
#     b <- (1 - a) b - l g + sqrt(2 a l T / n) noise,    w <- w + b.
#
# The rate falls along a cosine in each cycle. The first part of a cycle (`exploration`) has no noise; samples are
# taken at equal distances in the rest of it, the last one at its end.

_ROUNDING = 1e-9  # for rounding errors in shares of a training


class Cycles(NamedTuple):
    """The cycles of a chain: when it moves fast, when it has noise, and when samples are taken.

    Attributes:
        number: Number of cycles of a local training.
        per_cycle: Number of samples taken in each cycle.
        samples: M, the number of samples that are kept, namely the last ones.
        exploration: Share of a cycle before the noise, in [0, 1).

    Example:
        Two cycles, of which the second half has the samples: at 3/4 and at the end of each. The last three are kept.

        >>> Cycles(number=2, per_cycle=2, samples=3, exploration=0.5).ends()
        (0.5, 0.875, 1.0)
    """

    number: int
    per_cycle: int
    samples: int
    exploration: float

    def ends(self) -> tuple[float, ...]:
        """Returns the share of the steps after which each kept sample is taken, `[M]`, in (0, 1]."""
        left = [(self.per_cycle - 1 - q) / self.per_cycle for q in range(self.per_cycle)]
        each = [(c + 1 - (1 - self.exploration) * one) / self.number for c in range(self.number) for one in left]
        return tuple(each[-self.samples :])

    def taken(self, steps: Tensor) -> Tensor:
        """Returns the number of steps after which each kept sample is taken, `[M]` float64, at least 1."""
        shares = torch.tensor(self.ends(), dtype=torch.float64, device=steps.device)
        return ((shares - _ROUNDING) * steps).ceil().clamp(min=1)


def sample_posterior(cycles: Cycles, momentum: float, temperature: float, p: int) -> Transform:
    """Returns the steps of a chain that leaves its M samples in a model of M times p numbers.

    The last p numbers are the position of the chain, and the gradient is taken there. The numbers of a sample move with
    the chain until the sample is taken. A later round begins where the chain has ended.

    Args:
        cycles: The cycles, which decide when samples are taken.
        momentum: 1 - a, at least 0 and below 1.
        temperature: T, at least 0; 1 is the posterior, 0 is SGD with momentum at a cyclical rate.
        p: Length of a sample.
    """

    def init(parameters: Tensor) -> Tensor:
        return torch.zeros_like(parameters[..., :p])

    def update(gradient: Tensor, state: Tensor, parameters: Tensor, context: StepContext) -> tuple[Tensor, Tensor]:
        inside = (context.step * cycles.number % context.steps).double() / context.steps  # of the cycle, [0, 1)
        rate = 0.5 * (1.0 + torch.cos(math.pi * inside))  # as a share of the round's
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
# The upload of a client with samples of its posterior: the difference to their mean, times their precision (FedPA).
#
# Source: Al-Shedivat, Gillenwater, Xing, Rostamizadeh, *Federated Learning via Posterior Averaging*, ICLR 2021.


def correct_by_precision(rho: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function (start `[p]`, samples `[l, p]`) -> `S^-1 (mean of samples - start)` `[p]`, in time `l^2 p`.

    S is the samples' covariance, shrunk to the identity: `S = r I + (1 - r) C`, `r = 1 / (1 + (l - 1) rho)`, where C is
    the covariance with the divisor l - 1. With one sample or `rho = 0` it is the identity.

    The samples are added one by one. A sample x after t others adds a term of rank one to S / r. Its inverse A follows
    by Sherman and Morrison: `A <- A - g v v' / (1 + g v'u)`, where u is x minus the mean of the others, `v = A u`, and
    `g = rho t / (t + 1)`.

    Args:
        rho: Number that says how fast the shrinkage fades with the number of samples, at least 0.

    Example:
        Samples that spread along the first axis alone say less about it: the step there is shorter than the other.

        >>> samples = torch.tensor([[0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
        >>> correct_by_precision(1.0)(torch.zeros(2, dtype=torch.float64), samples).tolist()
        [0.6666666666666667, 2.0]
    """

    def combine(start: Tensor, samples: Tensor) -> Tensor:
        vs, factors = torch.zeros_like(samples), samples.new_zeros(len(samples))  # v and g / (1 + g v'u): they are A

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
