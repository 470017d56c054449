"""The outputs, losses and residuals of the models that answer, which one evaluation asks the runtime for.

Example:
    >>> pieces = {(0, 500): torch.ones(1, 2, 3), (0, 0): torch.zeros(1, 500, 3), (1, 0): torch.zeros(1, 9, 3)}
    >>> join_pieces(pieces, world=0).shape  # K models, n samples, C classes
    torch.Size([1, 502, 3])
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray, State
from fedray.evaluation.client_weights import has_client_weights, needs_losses, rank_own_models, weigh_models
from fedray.evaluation.conformal import WorldOutputs
from fedray.evaluation.mixture import measure_weights
from fedray.evaluation.present import drop_absent, refuse_own_rule
from fedray.simulation.interfaces import Pieces, Runtime
from fedray.simulation.study import OOD, Study


class Measured(NamedTuple):
    """What the runtime computed for one evaluation; what is not needed stays empty.

    Attributes:
        answer: the models that answer.
        test: raw outputs on the test rows.
        held_out: raw outputs on the held-out rows.
        weights: of the known clients over the models that answer, `[N, K]` by world.
        own: accuracies or RMSEs of known clients with models of their own: (world, client) -> `[2, P]`.
        residual: mean training residual variance of each world (regression), in standardised units.
        ood: raw outputs on the out-of-distribution inputs.
    """

    answer: Answer
    test: Pieces
    held_out: Pieces
    weights: dict[int, FloatArray]
    own: dict[tuple[int, int], Tensor]
    residual: dict[int, float]
    ood: Pieces


def measure_models(study: Study, runtime: Runtime, state: State, test: bool) -> Measured:
    """What one evaluation needs of the runtime.

    Args:
        study: what was trained.
        runtime: where the models are evaluated.
        state: the broadcast models.
        test: whether the test rows are answered.
    """
    answer = study.answer(state)
    refuse_own_rule(study, answer)
    own = runtime.score_known_clients(state) if study.method.phase.is_personal else {}
    return Measured(
        answer,
        test=runtime.outputs(answer.state, "test", answer.models) if test else {},
        held_out=runtime.outputs(answer.state, "hold_out", answer.models) if study.hold_out else {},
        weights=find_client_weights(study, runtime, answer) if has_client_weights(study, answer) else {},
        own=own,
        residual={} if study.classes else measure_residual_variance(study, runtime, state, answer),
        ood=runtime.outputs(answer.state, OOD, answer.models) if study.evaluation.ood else {},
    )


def find_client_weights(
    study: Study, runtime: Runtime, answer: Answer, worlds: int | None = None
) -> dict[int, FloatArray]:
    """The weights of the known clients over the models that answer, `[N, K]` by world.

    They are those that the clients keep (FedEM), those of their tiers, or follow from the losses on their rows. A
    client with a model of its own gives it all weight, or if that one does not answer, has everybody's weights.

    Args:
        study: what was trained.
        runtime: where the clients are.
        answer: the models that answer.
        worlds: only the first worlds; None: all.
    """
    count, client = worlds or study.worlds, np.arange(min(study.clients.number, EVALUATED_CLIENTS))
    if study.method.phase.mixture:
        return measure_weights(study, runtime, answer.state, count)
    if study.method.one_model_per_client:
        owner = np.arange(min(answer.models, EVALUATED_CLIENTS))
        ranks = rank_own_models(answer.models, owner)
        return {world: weigh_models(study, answer, world, ranks, owner) for world in range(count)}
    if not needs_losses(study, answer):
        none = torch.zeros(answer.models, len(client))
        return {world: weigh_models(study, answer, world, none, client) for world in range(count)}
    losses = runtime.losses(answer.state, answer.models, worlds)
    return {world: weigh_models(study, answer, world, join_pieces(losses, world), client) for world in range(count)}


def gather_outputs(study: Study, world: int, measured: Measured) -> WorldOutputs:
    """What the runtime computed for the conformal sets of one world.

    Args:
        study: what was trained.
        world: number of the world.
        measured: what the runtime computed for the first worlds, or for all.
    """
    answer, weights = measured.answer, None if study.parts else measured.weights.get(world)

    def read(pieces: Pieces) -> Tensor:
        joined = join_pieces(pieces, world)
        return joined if study.parts else drop_absent(joined, answer, world)

    tested = read(measured.test) if measured.test else None
    return WorldOutputs(answer, read(measured.held_out), tested, weights, measured.residual.get(world))


def join_pieces(pieces: Pieces, world: int) -> Tensor:
    """The pieces of a world in order: `[K, n, ...]`."""
    return torch.cat([pieces[key] for key in sorted(pieces) if key[0] == world], dim=1)


def measure_residual_variance(study: Study, runtime: Runtime, state: State, answer: Answer) -> dict[int, float]:
    """The mean training residual variance of the clients with rows in each world, in standardised units.

    Each client's is that of its own model or upload where those answer, else that of the broadcast models.

    Args:
        study: what was trained.
        runtime: where the losses are computed.
        state: the broadcast models.
        answer: the models that answer.

    Returns:
        World -> variance; empty where the loss is no squared error.
    """
    if study.net.objective not in ("half_mse", "mse"):
        return {}
    factor, owner = 2.0 if study.net.objective == "half_mse" else 1.0, find_owners(study, answer)
    owned = (owner >= 0).any(axis=1)
    losses = measure_own_losses(study, runtime, answer, owner) if owned.any() else {}
    if not owned.all():
        pieces = runtime.losses(state, study.method.phase.models)
        losses |= {
            world: drop_empty(study, join_pieces(pieces, world), world) for world in np.flatnonzero(~owned).tolist()
        }
    return {world: factor * float(losses[world].mean()) for world in range(study.worlds)}


def find_owners(study: Study, answer: Answer) -> IntArray:
    """The client with rows whose own model or upload each model is, `[R, A]`, -1 where it is nobody's.

    Args:
        study: what was trained.
        answer: the models that answer.
    """
    if not study.method.one_model_per_client:
        return np.full((study.worlds, answer.models), -1) if answer.owner is None else answer.owner
    client = np.arange(answer.models)
    size = [study.shards.sizes(np.full_like(client, world), client) for world in range(study.worlds)]
    return np.where(np.stack(size) > 0, client, -1)


def measure_own_losses(study: Study, runtime: Runtime, answer: Answer, owner: IntArray) -> dict[int, Tensor]:
    """The loss of each model on its owner's rows, by world; of a large population only the owners compute it.

    Args:
        study: what was trained.
        runtime: where the losses are computed.
        answer: the models that answer.
        owner: the client whose model each one is, `[R, A]`, -1 where it is nobody's.

    Returns:
        World -> `[j]`, of the models with an owner; without the worlds where no model has one.
    """
    found = {}
    if study.clients.number <= EVALUATED_CLIENTS:
        asked = [np.arange(study.clients.number)] * study.worlds
    else:
        asked = [np.unique(some[some >= 0])[:EVALUATED_CLIENTS] for some in owner]
    pieces = runtime.losses(answer.state, answer.models, clients=asked)
    for world in np.flatnonzero((owner >= 0).any(axis=1)).tolist():
        model = np.flatnonzero(np.isin(owner[world], asked[world]))
        place = np.searchsorted(asked[world], owner[world, model])
        found[world] = join_pieces(pieces, world)[model, place]
    return found


def drop_empty(study: Study, losses: Tensor, world: int) -> Tensor:
    """The losses `[K, n]` on those of the first n clients of a world that have rows.

    Args:
        study: what was trained.
        losses: on the first n clients, `[K, n]`.
        world: number of the world.
    """
    client = np.arange(losses.shape[1])
    filled = study.shards.sizes(np.full_like(client, world), client) > 0
    return losses if filled.all() else losses[:, torch.from_numpy(filled)]
