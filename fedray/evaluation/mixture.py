"""Reads and fits the private weights that clients give to the models (FedEM), for an evaluation.

Example:
    >>> private = {"mixture/keys": torch.tensor([[0, 1, 0], [0, 1, 1]]), "mixture/rows": torch.tensor([[0.2], [0.6]])}
    >>> read_weights(private, world=0, clients=2, models=2).round(2).tolist()
    [[nan, nan], [0.25, 0.75]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray, State
from fedray.features.mixture import MIXTURE, fit_weights, sample_losses
from fedray.simulation.study import Host, Question, Runtime, Study


def read_weights(private: Mapping[str, Tensor], world: int, clients: int, models: int) -> FloatArray:
    """Returns the weights of the first clients of a world, `[clients, K]`; NaN for a client that has no weights yet.

    Args:
        private: The private vectors of the clients, as in a checkpoint.
        world: Index of the world.
        clients: Number of clients.
        models: K, the number of models.
    """
    weights = np.full((clients, models), np.nan)
    keys, rows = (private.get(f"{MIXTURE}/{part}", torch.zeros(0, 3)).numpy() for part in ("keys", "rows"))
    own = (keys[:, 0] == world) & (keys[:, 1] < clients)
    weights[keys[own, 1].astype(np.int64), keys[own, 2].astype(np.int64)] = rows[own, 0]
    known: FloatArray = weights / weights.sum(axis=1, keepdims=True)  # a job that failed leaves its old weight
    return known


def measure_weights(study: Study, runtime: Runtime, state: State, worlds: int) -> dict[int, FloatArray]:
    """Returns, by world, the weights of the run's clients over the models, `[N, K]`. Clients without weights fit them.

    Args:
        study: The study that is trained.
        runtime: The runtime that has the private vectors of the clients.
        state: The state with the models.
        worlds: Number of worlds.
    """
    number, models = min(study.clients.number, EVALUATED_CLIENTS), study.method.phase.models
    private = runtime.private((MIXTURE,))
    weights = {world: read_weights(private, world, number, models) for world in range(worlds)}
    new = [np.flatnonzero(np.isnan(weights[world]).any(axis=1)) for world in range(worlds)]
    for (world, first), fitted in runtime.ask(mixtures_of(models, new), state).items():
        client = new[world][first : first + fitted.shape[1]]
        weights[world][client] = np.nan_to_num(fitted.numpy().T, nan=1.0 / models)
    return weights


def mixtures_of(models: int, clients: Sequence[IntArray]) -> Question:
    """Makes the question by which clients without weights fit their weights. The answer for c clients is `[K, c]`.

    Args:
        models: K, the number of models of each world.
        clients: Ids of the clients of each world, `[n]` each.
    """
    return Question(fit_mixtures, clients=clients, numbers=models)


def fit_mixtures(host: Host, state: State, world: int, client: IntArray) -> Tensor:
    """Fits weights over a world's models at clients without weights, by E steps with unchanged models (FedEM).

    Args:
        host: The process that computes the outputs.
        state: The state with the models.
        world: Index of the world.
        client: Ids of the clients, `[c]`.

    Returns:
        The weights, `[K, c]` float64; they sum to 1 over K.
    """
    models = host.study.method.phase.models
    each = [sample_losses(host, state, models, world, i).numpy() for i in client.tolist()]
    return torch.from_numpy(np.stack([fit_weights(losses) for losses in each], axis=1))
