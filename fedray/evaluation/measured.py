"""What one evaluation needs of the runtime: outputs, losses and residuals of the models that answer.

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
from fedray.core.types import EVALUATED_CLIENTS, FloatArray, State
from fedray.evaluation.clients import weigh_models
from fedray.evaluation.conformal import WorldOutputs
from fedray.evaluation.mixture import measure_weights
from fedray.simulation.interfaces import Pieces, Runtime
from fedray.simulation.study import Study


class Measured(NamedTuple):
    """What the runtime computed for one evaluation; what is not needed stays empty.

    Attributes:
        answer: the models that answer.
        test: raw outputs on the test rows.
        held_out: raw outputs on the held-out rows.
        weights: of the known clients over the models that answer, `[N, K]` by world.
        own: accuracies or RMSEs of known clients with models of their own: (world, client) -> `[2, P]`.
        residual: mean training residual variance of each world (regression), in standardised units.
    """

    answer: Answer
    test: Pieces
    held_out: Pieces
    weights: dict[int, FloatArray]
    own: dict[tuple[int, int], Tensor]
    residual: dict[int, float]


def measure_models(study: Study, runtime: Runtime, state: State, test: bool) -> Measured:
    """What one evaluation needs of the runtime.

    Args:
        study: what was trained.
        runtime: where the models are evaluated.
        state: the broadcast models.
        test: whether the test rows are answered.
    """
    answer = study.answer(state)
    own = runtime.score_known_clients(state) if study.method.phase.is_personal else {}
    weighed = study.evaluation.gamma is not None and not own
    return Measured(
        answer,
        test=runtime.outputs(answer.state, "test", answer.models) if test else {},
        held_out=runtime.outputs(answer.state, "hold_out", answer.models) if study.hold_out else {},
        weights=find_client_weights(study, runtime, answer) if weighed else {},
        own=own,
        residual={} if study.classes else measure_residual_variance(study, runtime, state, answer),
    )


def find_client_weights(
    study: Study, runtime: Runtime, answer: Answer, worlds: int | None = None
) -> dict[int, FloatArray]:
    """The weights of the known clients over the models that answer, `[N, K]` by world.

    They are those that the clients keep (FedEM), or follow from the losses on their rows; where each client has one
    model, only that one has loss 0.

    Args:
        study: what was trained.
        runtime: where the clients are.
        answer: the models that answer.
        worlds: only the first worlds; None: all.
    """
    count = worlds or study.worlds
    if study.method.phase.mixture:
        return measure_weights(study, runtime, answer.state, count)
    if study.method.one_model_per_client:
        others = 1.0 - torch.eye(answer.models)[:, :EVALUATED_CLIENTS]
        return {world: weigh_models(study, drop_absent(others, answer, world)) for world in range(count)}
    losses = runtime.losses(answer.state, answer.models, worlds)
    return {
        world: weigh_models(study, drop_absent(join_pieces(losses, world), answer, world)) for world in range(count)
    }


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


def drop_absent(outputs: Tensor, answer: Answer, world: int) -> Tensor:
    """The outputs (or losses) of a world's models that have a weight.

    Args:
        outputs: one row a model, `[K, n, ...]`.
        answer: the models that answer, with their weights.
        world: number of the world.
    """
    return outputs if answer.weights is None else outputs[torch.from_numpy(answer.weights[world] > 0)]


def measure_residual_variance(study: Study, runtime: Runtime, state: State, answer: Answer) -> dict[int, float]:
    """The clients' mean training residual variance in each world, in standardised units.

    Each client's is that of its own upload where the uploads answer, else that of the broadcast models.

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
    factor = 2.0 if study.net.objective == "half_mse" else 1.0
    if answer.owner is None or not (answer.owner >= 0).any():
        pieces = runtime.losses(state, study.method.phase.models)
        return {world: factor * float(join_pieces(pieces, world).mean()) for world in range(study.worlds)}
    pieces, found = runtime.losses(answer.state, answer.models), {}
    for world, owner in enumerate(answer.owner):
        known = np.flatnonzero((owner >= 0) & (owner < EVALUATED_CLIENTS))
        found[world] = factor * float(join_pieces(pieces, world)[known, owner[known]].mean())
    return found
