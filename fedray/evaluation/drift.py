"""Drift of known clients: how unsure the final ensemble is about the data of each, compared with the other clients.

`metrics.drift` turns the uncertainties into z-scores and flags; `storage.drift` writes them; the report draws them.

Example:
    >>> agreed, guessed = torch.tensor([[4.0, 0.0], [4.0, 0.0]]), torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> outputs = torch.stack([agreed, guessed], dim=1)  # [K = 2 models, n = 2 samples, C = 2 classes]
    >>> sample_uncertainty("cross_entropy", outputs).round(decimals=2).tolist()  # total, knowledge
    [[0.09, 0.69], [0.0, 0.6]]
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import IntArray, Objective, State
from fedray.metrics import ensemble
from fedray.metrics.unknown import Drift, score_drift
from fedray.models.net import split_gaussian
from fedray.simulation.questions import compute_outputs, join_pieces, mean_scores
from fedray.simulation.study import Host, Question, Runtime, Study

MOST_COMPARED_CLIENTS = 2_000  # beyond this number of clients they are not compared one by one


def sample_uncertainty(objective: Objective, outputs: Tensor) -> Tensor:
    """Returns total and knowledge uncertainty of an ensemble on each sample, `[2, n]` float64.

    For classification they are in nats (`metrics.ensemble.uncertainty`). For regression they are variances in units of
    the standardised targets, means over the targets: of the mixture of the members, and of the members' means.

    Args:
        objective: the loss that the models were trained with.
        outputs: raw outputs of the models, `[K, n, C]`.
    """
    if objective == "cross_entropy":
        both = ensemble.uncertainty(ensemble.probabilities(outputs.cpu().numpy()))
        return torch.from_numpy(np.stack([both.total, both.knowledge]))
    means, predicted = split_gaussian(outputs.double()) if objective == "gaussian_nll" else (outputs.double(), None)
    knowledge = means.var(dim=0, correction=0)  # [n, q]
    total = knowledge if predicted is None else knowledge + predicted.mean(dim=0)
    return torch.stack([total.mean(-1), knowledge.mean(-1)])


def mean_uncertainty(host: Host, state: State, world: int, client: IntArray, *, models: int) -> Tensor:
    """Returns the mean total and knowledge uncertainty of a world's ensemble on the training rows of some clients.

    Args:
        host: computes.
        state: holds the models.
        world: the world.
        client: ids of the clients, `[c]`.
        models: models of each world, K.

    Returns:
        The uncertainties as in `sample_uncertainty`, `[2, c]`, NaN for a client without rows.
    """

    def uncertainty(x: Tensor, _targets: Tensor) -> Tensor:
        return sample_uncertainty(host.study.net.objective, compute_outputs(host, state, world, x, models=models))

    means = mean_scores(host, world, client, uncertainty, 2)
    size = host.study.shards.sizes(np.full(len(client), world), client)
    return means.masked_fill_(torch.from_numpy(size == 0), torch.nan)


def measure_drift(study: Study, runtime: Runtime, state: State) -> list[Drift] | None:
    """Returns the drift scores of the known clients in each world.

    Args:
        study: what was trained.
        runtime: where the models are evaluated, on the training rows of the clients.
        state: the final models.

    Returns:
        One entry a world; None where the trained models do not answer themselves, where only one answers, and beyond
        `MOST_COMPARED_CLIENTS` clients.
    """
    models = study.method.phase.models
    if study.method.answer is not None or models < 2 or study.clients.number > MOST_COMPARED_CLIENTS:
        return None
    pieces = runtime.ask(Question(partial(mean_uncertainty, models=models), numbers=2), state)
    drifts = []
    for world in range(study.worlds):
        total, knowledge = join_pieces(pieces, world).numpy()  # [N] each
        unit = 1.0 if study.classes else study.target_scale(world) ** 2
        drifts.append(score_drift(unit * total, unit * knowledge))
    return drifts
