"""Weighs a client's samples before training, as a mixture of the distributions of K models (FedEM).

`runtime/worker.py` (`deal_data`) multiplies the weights of a batch by the weights of its samples.
`evaluation/mixture.py` computes the weights of the models with which such clients predict.

Example:
    Model 0 explains the first of two samples better. Both models explain the second sample equally well.

    >>> share = share_samples(np.array([[0.0, 1.0], [50.0, 1.0]]), np.array([0.5, 0.5]))
    >>> share.round(2).tolist(), share.mean(axis=1).round(2).tolist()
    ([[1.0, 0.5], [0.0, 0.5]], [0.75, 0.25])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedray.core.method import FORWARD, Piece
from fedray.core.types import EVALUATED_ROWS, FloatArray, Net, Plan, State
from fedray.metrics.classification import to_floats
from fedray.models.net import per_sample
from fedray.training.update import Site, Update

MIXTURE = "mixture"  # name of the private number that a client gives to each model as its weight
LEAST_SHARE = 1e-12  # no share is 0: samples of weight 0 are padding, and a model of share 0 would keep it
STEPS = 20  # E steps of a client whose weights are not known yet


@dataclass(frozen=True)
class Mixture(Piece):
    """Divides each client's samples among all models (the E step), and trains each model on its shares."""

    @property
    def keeps(self) -> tuple[str, ...]:
        return (MIXTURE,)

    @property
    def kept_numbers(self) -> int:
        return 1

    @property
    def reads_models(self) -> bool:
        return True

    @property
    def weighs(self) -> bool:
        return True

    def count_rows(self, net: Net, size: FloatArray) -> FloatArray:
        return FORWARD * size  # the loss of the job's model, for the E step

    def begin(self, update: Update) -> Update:
        return update._replace(weigh=self._shares(update).of_places)

    def end(self, update: Update) -> Update:
        return update.keep(**{MIXTURE: self._shares(update).weights(update.jobs.plan)})

    def _shares(self, update: Update) -> Shares:
        """Returns the shares of the round; all blocks of the round use the same ones."""
        found: Shares = update.memo.setdefault(MIXTURE, Shares(update.site, update.state, update.phase.models))
        return found


def share_samples(losses: ArrayLike, weights: ArrayLike) -> FloatArray:
    """Returns the shares of the E step, `q_j(m)` in proportion to `pi_m exp(-l(h_m(x_j), y_j))`, `[K, n]`.

    The shares of a sample sum to 1 over the models.

    Args:
        losses: Loss of each model on each sample (a negative log-likelihood), `[K, n]`.
        weights: Weight pi of each model, `[K]`, at least 0.

    Source: Marfoq et al. 2021, equation 11.
    """
    with np.errstate(divide="ignore"):
        score = np.log(to_floats(weights))[:, None] - to_floats(losses)
    odds = np.exp(score - score.max(axis=0, keepdims=True))
    share: FloatArray = np.maximum(odds / odds.sum(axis=0), LEAST_SHARE)
    return share


def fit_weights(losses: ArrayLike, steps: int = STEPS) -> FloatArray:
    """Returns a client's weights of models that stay unchanged, `[K]`, after E steps from equal weights.

    Args:
        losses: Loss of each model on each of the client's samples, `[K, n]`; without samples the weights stay equal.
        steps: Number of E steps.

    Example:
        >>> fit_weights([[0.0, 0.0], [3.0, 3.0]]).round(3).tolist()
        [1.0, 0.0]
    """
    found = to_floats(losses)
    weights = np.full(len(found), 1.0 / len(found))
    for _ in range(steps if found.shape[1] else 0):
        weights = share_samples(found, weights).mean(axis=1)
    return weights


class _Shared(NamedTuple):
    """The result of a client's E step: shares of its samples, `[K, n]` float32, and its new weights, `[K]`."""

    share: Tensor
    weights: FloatArray


class Shares:
    """The shares of samples in a round; a client's shares are computed when the first job of the client needs them.

    A client's shares depend only on the client's samples, the models of the round and the client's private weights. The
    other clients of a block do not change them.
    """

    def __init__(self, site: Site, state: State, models: int) -> None:
        """Stores the site, the state and the number of models of the round.

        Args:
            site: The site, which holds the weights of clients that took part before.
            state: The state with the models of the round.
            models: K, the number of models.
        """
        self._site, self._state, self._models = site, state, models
        self._known: dict[tuple[int, int], _Shared] = {}

    def of_places(self, plan: Plan, place: Tensor) -> Tensor:
        """Returns, for each sample in the batches of each lane, the share of the lane's model, `[S, W, B]`.

        Args:
            plan: The lanes, `[W]`.
            place: Indices of the samples among the samples of the lane's client, `[S, W, B]`.
        """
        lanes = [
            self._of(world, client).share[model][place[:, lane]]
            for lane, (client, model, world) in enumerate(zip(*(column.tolist() for column in plan), strict=True))
        ]
        return torch.stack(lanes, dim=1)

    def weights(self, plan: Plan) -> Tensor:
        """Returns the weight that each job's client gives to the job's model after the E step, `[J, 1]` float64."""
        rows = zip(*(column.tolist() for column in plan), strict=True)
        return torch.tensor([[self._of(world, client).weights[model]] for client, model, world in rows])

    def _of(self, world: int, client: int) -> _Shared:
        key = world, client
        if key not in self._known:
            k, private = self._models, self._site.private
            plan = Plan(np.full(k, client), np.arange(k), np.full(k, world))
            known = all(private.has(MIXTURE, plan))
            before = private.read(MIXTURE, plan)[:, 0].numpy() if known else np.full(k, 1.0 / k)
            share = share_samples(sample_losses(self._site, self._state, k, world, client).numpy(), before)
            self._known[key] = _Shared(torch.from_numpy(share.astype(np.float32)), share.mean(axis=1))
        return self._known[key]


def sample_losses(site: Site, state: State, models: int, world: int, client: int) -> Tensor:
    """Returns the loss of each model of a world on each training sample of a client, `[K, n]` float64.

    Args:
        site: The site of the worker. The loss of the site's network must be a negative log-likelihood.
        state: The state with the models.
        models: K, the number of models.
        world: Number of the world.
        client: Id of the client.
    """
    k, where = models, torch.tensor([world])
    fetched = site.shards.fetch(np.array([world]), np.array([client]))
    rows, of_world = fetched.rows[0, : int(fetched.size[0])], slice(world * k, (world + 1) * k)
    pieces = [torch.zeros(k, 0, dtype=torch.float64)]
    for part in torch.split(rows, EVALUATED_ROWS) if len(rows) else []:
        outputs = site.forward(state.models[of_world], state.counters[of_world], world, fetched.x[part])
        y = site.shards.targets(fetched.labels(part, 0)[None], where)[0].to(outputs.device)
        y = y.to(outputs.dtype) if y.is_floating_point() else y
        pieces.append(per_sample(site.net.objective, outputs, y.expand(k, *y.shape)).double().cpu())
    return torch.cat(pieces, dim=1)
