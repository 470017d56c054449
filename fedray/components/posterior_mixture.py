"""A server that looks for modes of the product of the clients' posteriors, each of which is a mixture (FedBEns).

Source: Talpini, Savi, Neglia, *FedBEns: One-Shot Federated Learning based on Bayesian Ensemble*, ICML 2025, Alg. 1.

Client k ends at a local optimum w_km from each of M starts. Its posterior is taken for the mixture, with equal weights,
of the Gaussians with these means and the precisions `P_km = n_k F_km / T + c` (Laplace). The global posterior is in
proportion to the product of all of them, in which the prior of precision c_0 and mean 0 counts once:

    log p(w) = sum_k log sum_m N(w; w_km, 1 / P_km) + (N - 1) c_0 / 2 |w|^2

Example:
    Two clients of one Gaussian each: the product's mode is the mean by precision.

    >>> means, sure = torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([[[1.0]], [[3.0]]])
    >>> climb(Mixtures(means.double(), sure.double(), torch.ones(2, 1, dtype=torch.bool), 0.0), torch.zeros(1)).tolist()
    [3.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.components.aggregation import Rows, group_uploads, keep_uploads, mean, upload_weights
from fedray.components.fisher import Descent, descend
from fedray.core.exact_sum import Counts, check_finite
from fedray.core.method import Server
from fedray.core.types import State, Stats, Uploads, Weighting

MOST_CLIMBS = 100  # fixed-point steps; shares that no longer change end them before


class SentMode(NamedTuple):
    """An upload of a client.

    Attributes:
        client: Its id.
        mode: Which of the M models it has trained.
        model: Where it has ended, `[d]`.
        curvature: The diagonal of the Fisher there, summed over its rows, `[d]`.
    """

    client: int
    mode: int
    model: Tensor
    curvature: Tensor


@dataclass(frozen=True)
class Mixtures:
    """The posteriors of N clients, of at most M modes each.

    Attributes:
        mean: local optima, `[N, M, p]` float64; any number where there is none.
        sure: their precisions, `[N, M, p]`, above 0.
        there: which of them there are, `[N, M]`; every client has one at least.
        prior: c_0, the precision of the prior that is in all of them.
    """

    mean: Tensor
    sure: Tensor
    there: Tensor
    prior: float

    @cached_property
    def pulls(self) -> Tensor:
        """Precisions times optima, `[N, M, p]`."""
        return self.sure * self.mean

    @cached_property
    def heights(self) -> Tensor:
        """Logarithms of the weighted densities at 0, `[N, M]`, without the power of 2 pi; -inf: no mode."""
        height = (
            0.5 * (self.sure.log() - self.pulls * self.mean).sum(-1) - self.there.sum(1, keepdim=True).double().log()
        )
        return height.masked_fill(~self.there, -torch.inf)

    @property
    def surplus(self) -> float:
        """The precision of the priors that the product has beside the first one."""
        return (len(self.mean) - 1) * self.prior


def weigh_modes(known: Mixtures, w: Tensor) -> tuple[Tensor, Tensor]:
    """The share of each mode in its client's density at w, `[N, M]`, and log p(w) up to a constant.

    Args:
        known: the posteriors.
        w: `[p]` float64.
    """
    each = known.heights - 0.5 * (known.sure @ w.square()) + known.pulls @ w
    return each.softmax(1), each.logsumexp(1).sum() + 0.5 * known.surplus * w.square().sum()


def find_gradient(known: Mixtures, w: Tensor) -> Tensor:
    """The gradient of -log p at w, `[p]`.

    Args:
        known: the posteriors.
        w: `[p]` float64.
    """
    sure, pull = _add_up(known, weigh_modes(known, w)[0])
    return sure * w - pull


def _add_up(known: Mixtures, share: Tensor) -> tuple[Tensor, Tensor]:
    """The precision of the product with these shares of the modes, and that times its mean, `[p]` each."""
    sure, pull = (share.flatten() @ part.flatten(0, 1) for part in (known.sure, known.pulls))
    return sure - known.surplus, pull


def climb(known: Mixtures, w: Tensor) -> Tensor:
    """A mode of p that is reached from w, `[p]`: log p never falls on the way.

    With the shares r_km of w, `sum r P (w - w_km)^2 / 2 - (N - 1) c_0 / 2 |w|^2` touches -log p from above (EM); its
    minimum is next.

    Args:
        known: the posteriors; the precisions of all clients are above that of the prior.
        w: `[p]`.
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
    """How uploads become Gaussians.

    Attributes:
        temperature: T, above 0.
        precision: c, what every client adds to the curvature of its rows, above 0.
        prior: c_0, at most c.
        trainable: p, the numbers of a row that have a posterior; those behind are averaged.
    """

    temperature: float
    precision: float
    prior: float
    trainable: int

    def gather(self, sent: Sequence[SentMode]) -> Mixtures:
        """The posteriors of the clients of one world.

        Args:
            sent: what they have sent; at least one upload.
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
    """Each of the M models of a world goes on from the median of its uploads to a mode of the product.

    Args:
        rows: the rows of the state.
        weighting: by examples, the curvature of client k counts n_k times; uniform: as often for all of a world,
            the mean of their n_k.
        laplace: how uploads become Gaussians.
        how: the steps by which a model goes there; None: it goes to the mode (`climb`).
    """
    base = mean(rows, weighting)

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
    """What was sent, by world, in the order of models and of clients; the curvature of each world has its factor."""
    found: dict[int, list[SentMode]] = {}
    curvature = stats["curvature"].rows
    for row, each in group_uploads(rows, stats["uploads"]).items():
        world, mode = divmod(row, rows.models)
        for client, delta in each:
            sure = times[world] * curvature[world, mode, client]
            found.setdefault(world, []).append(SentMode(client, mode, state.models[row] + delta, sure))
    return found


def _find_mode(known: Mixtures, start: Tensor, mean: Tensor, how: Descent | None, world: int) -> Tensor:
    """The model `[d]` that is reached from the start `[d]`; its float buffers are those of the mean."""
    p = known.mean.shape[2]

    def complete(now: Tensor) -> Tensor:
        return torch.cat([now.to(mean.dtype), mean[p:]])

    if how is None:
        return complete(climb(known, start[:p]))
    score = how.score
    looked = how if score is None else how._replace(score=lambda world, now: score(world, complete(now)))
    return complete(descend(looked, start[:p], lambda now: find_gradient(known, now), world))
