"""Weighs a client's samples before training. The client's data are assumed to come from a mixture of K models (FedEM).

The *responsibility* of a model for a sample is the probability that the sample comes from this model. `Mixture` weighs
the samples of each batch by these probabilities. `fit_weights` computes a client's weights of the models, for
prediction. A *lane* is one job (a client trains a model) of a block of jobs that are trained together.

Example:
    Model 0 explains the first of two samples better. Both models explain the second sample equally well.

    >>> found = compute_responsibilities(np.array([[0.0, 1.0], [50.0, 1.0]]), np.array([0.5, 0.5]))
    >>> found.round(2).tolist(), found.mean(axis=1).round(2).tolist()
    ([[1.0, 0.5], [0.0, 0.5]], [0.75, 0.25])
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedray.core.method import FORWARD, Piece
from fedray.core.types import EVALUATED_ROWS, FloatArray, Net, Plan, State
from fedray.data.shards import read_clients
from fedray.metrics.classification import to_floats
from fedray.models.net import measure_losses
from fedray.training.update import Site, Update

MIXTURE = "mixture"  # name of the private value that holds a client's weight of each model
LEAST_RESPONSIBILITY = 1e-12  # replaces a responsibility of 0: weight 0 marks padding, and 0 would stay 0 forever
STEPS = 20  # E steps for a client whose weights are not known yet


@dataclass(frozen=True)
class Mixture(Piece):
    """Computes the models' responsibilities: the probabilities that a client's samples come from each model (E step).

    Each model is then trained on all samples of the client, which are weighted by the model's responsibilities.
    """

    keeps = (MIXTURE,)
    kept_numbers = 1
    reads_models = True
    weighs = True

    def count_rows(self, net: Net, size: FloatArray) -> FloatArray:
        return FORWARD * size  # the loss of the job's model, for the E step

    def begin(self, update: Update) -> Update:
        return update._replace(weigh=self._find_responsibilities(update).of_places)

    def end(self, update: Update) -> Update:
        return update.keep(**{MIXTURE: self._find_responsibilities(update).weights(update.jobs.plan)})

    def _find_responsibilities(self, update: Update) -> "Responsibilities":
        """Returns the object that computes the models' responsibilities for each sample. It is made once per round."""
        made = Responsibilities(update.site, update.state, update.phase.models)
        found: Responsibilities = update.memo.setdefault(MIXTURE, made)
        return found


def compute_responsibilities(losses: ArrayLike, weights: ArrayLike) -> FloatArray:
    """Returns the probabilities that sample j comes from model m, `[K, n]`.

    The probability is proportional to `pi_m exp(-l(h_m(x_j), y_j))` (E step). `losses` are the negative log-likelihoods
    l of K models for n samples, `[K, n]`. `weights` are the weights pi of the models, `[K]`, at least 0. The
    probabilities of a sample add up to 1. Then a probability below 1e-12 is replaced by 1e-12.

    Source: Marfoq et al. 2021, equation 11.
    """
    with np.errstate(divide="ignore"):
        score = np.log(to_floats(weights))[:, None] - to_floats(losses)
    odds = np.exp(score - score.max(axis=0, keepdims=True))
    return np.asarray(np.maximum(odds / odds.sum(axis=0), LEAST_RESPONSIBILITY))


def fit_weights(losses: ArrayLike, steps: int = STEPS) -> FloatArray:
    """Returns a client's weights of K fixed models, `[K]`.

    The weights start equal. In each of `steps` E steps, the new weight of a model is its mean responsibility for the
    client's samples. `losses` holds the loss of each model on each sample, `[K, n]`. Without samples, the weights stay
    equal.

    Example:
        >>> fit_weights([[0.0, 0.0], [3.0, 3.0]]).round(3).tolist()
        [1.0, 0.0]
    """
    found = to_floats(losses)
    weights = np.full(len(found), 1.0 / len(found))
    for _ in range(steps if found.shape[1] else 0):
        weights = compute_responsibilities(found, weights).mean(axis=1)
    return weights


class _EStep(NamedTuple):
    """The result of a client's E step: the models' responsibilities, `[K, n]` float32, and their weights, `[K]`."""

    responsibilities: Tensor
    weights: FloatArray


class Responsibilities:
    """Computes the models' responsibilities: the probabilities that a client's samples come from each model.

    The responsibilities of a client are computed when its first job of the round needs them. They depend on the
    client's samples, on its private weights of the models, and on the models of the round.
    """

    def __init__(self, site: Site, state: State, models: int) -> None:
        """Stores the worker, the state with the models of the round, and their number K."""
        self._site, self._state, self._models = site, state, models
        self._known: dict[tuple[int, int], _EStep] = {}

    def of_places(self, plan: Plan, place: Tensor) -> Tensor:
        """Returns the responsibility of each lane's model for each sample of the lane's S batches, `[S, W, B]`.

        `place` holds the indices of these samples among all samples of the lane's client, `[S, W, B]`.
        """
        lanes = [
            self._of(world, client).responsibilities[model][place[:, lane]]
            for lane, (client, model, world) in enumerate(zip(*(column.tolist() for column in plan), strict=True))
        ]
        return torch.stack(lanes, dim=1)

    def weights(self, plan: Plan) -> Tensor:
        """Returns for each of J jobs the client's weight of the job's model after the E step, `[J, 1]` float64."""
        rows = zip(*(column.tolist() for column in plan), strict=True)
        return torch.tensor([[self._of(world, client).weights[model]] for client, model, world in rows])

    def _of(self, world: int, client: int) -> _EStep:
        key = world, client
        if key not in self._known:
            k, private = self._models, self._site.private
            plan = Plan(np.full(k, client), np.arange(k), np.full(k, world))
            known = all(private.has(MIXTURE, plan))
            before = private.read(MIXTURE, plan)[:, 0].numpy() if known else np.full(k, 1.0 / k)
            found = compute_responsibilities(sample_losses(self._site, self._state, k, world, client).numpy(), before)
            self._known[key] = _EStep(torch.from_numpy(found.astype(np.float32)), found.mean(axis=1))
        return self._known[key]


def sample_losses(site: Site, state: State, models: int, world: int, client: int) -> Tensor:
    """Returns the loss of each of K models on each training sample of a client, `[K, n]` float64.

    The loss of the worker's network must be a negative log-likelihood.
    """
    k, where = models, torch.tensor([world])
    samples, of_world = read_clients(site.shards, world, [client]), slice(world * k, (world + 1) * k)
    pieces = [torch.zeros(k, 0, dtype=torch.float64)]
    for x, raw in zip(*(torch.split(part, EVALUATED_ROWS) for part in samples), strict=True) if len(samples[0]) else []:
        outputs = site.forward(state.models[of_world], state.counters[of_world], world, x)
        y = site.shards.scaling.targets(raw[None], where)[0].to(outputs.device)
        y = y.to(outputs.dtype) if y.is_floating_point() else y
        pieces.append(measure_losses(site.net.objective, outputs, y.expand(k, *y.shape)).double().cpu())
    return torch.cat(pieces, dim=1)
