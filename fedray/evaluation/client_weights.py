"""The weights of known clients over the models that answer: by their losses, by their tiers, or those of everybody.

Example:
    >>> rank_own_models(3, np.array([2, 0])).T.tolist()
    [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import FloatArray, IntArray
from fedray.evaluation.present import drop_absent, weigh_present
from fedray.metrics import ensemble
from fedray.simulation.study import Study


def has_client_weights(study: Study, answer: Answer) -> bool:
    """Whether known clients are scored with weights of their own: the scenario asks for it, or the method has tiers."""
    return not study.method.phase.is_personal and (study.evaluation.gamma is not None or answer.tiers is not None)


def needs_losses(study: Study, answer: Answer) -> bool:
    """Whether the losses of the models at the clients decide these weights, and not the tiers alone."""
    return answer.tiers is None or study.evaluation.gamma not in (None, np.inf)


def weigh_models(study: Study, answer: Answer, world: int, losses: Tensor, client: IntArray) -> FloatArray:
    """Each client's weights over the models that answer (FE eqs. 3-4).

    Where gamma is infinite or not given, a client takes over the weights of its tier, or those of everybody. A finite
    gamma weighs the models that its tier has, or all. Where each client has a model of its own, that one answers; if it
    has no weight, the client gets everybody's answer.

    Args:
        study: what was trained.
        answer: the models that answer.
        world: number of the world.
        losses: of each model at each client, `[A, n]`, also of those that do not answer.
        client: ids of the clients, `[n]`.

    Returns:
        The weights over the K models that answer, `[n, K]`.
    """
    if answer.tiers is not None:
        return _weigh_in_tiers(study, answer, world, losses, client)
    gamma = 0.0 if study.method.one_model_per_client else study.evaluation.gamma
    gamma = np.inf if gamma is None else gamma
    everybody = weigh_present(answer, world)
    if everybody is not None and gamma == np.inf:
        return np.tile(everybody, (len(client), 1))
    present = drop_absent(losses, answer, world).double().numpy()
    weights = ensemble.personal_weights(present.T, gamma)
    if everybody is not None and study.method.one_model_per_client:
        weights[(present > 0).all(axis=0)] = everybody
    return weights


def _weigh_in_tiers(study: Study, answer: Answer, world: int, losses: Tensor, client: IntArray) -> FloatArray:
    """The same where tiers have weights: those of a tier are for its clients what `weights` is for everybody."""
    assert answer.tiers is not None
    tier, weights = study.clients.tier_of(client), np.zeros((len(client), answer.models))
    for t in np.unique(tier).tolist():
        mine, heard = np.flatnonzero(tier == t), np.flatnonzero(answer.tiers[world, t] > 0)
        of_tier = answer._replace(weights=answer.tiers[:, t], tiers=None)
        found = weigh_models(study, of_tier, world, losses[:, torch.from_numpy(mine)], client[mine])
        weights[np.ix_(mine, heard)] = found
    return weights if answer.weights is None else weights[:, answer.weights[world] > 0]


def rank_own_models(models: int, client: IntArray) -> Tensor:
    """Losses by which client i chooses model i, `[K, n]`: 0 of that model, 1 of every other.

    Args:
        models: K.
        client: ids of the clients, `[n]`.
    """
    return torch.from_numpy((np.arange(models)[:, None] != client).astype(np.float32))
