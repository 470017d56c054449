"""From models to rows of metrics: every member and the ensemble, new clients and known ones.

Example:
    >>> pieces = {(0, 500): torch.ones(1, 2, 3), (0, 0): torch.zeros(1, 500, 3), (1, 0): torch.zeros(1, 9, 3)}
    >>> join_pieces(pieces, world=0).shape  # K models, n samples, C classes
    torch.Size([1, 502, 3])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray, State
from fedray.evaluation.clients import (
    measure_clients,
    measure_clients_alike,
    pick_best_pass,
    pick_recorded_clients,
    split_own_scores,
    summarize_clients,
    weigh_models,
)
from fedray.evaluation.own_metrics import score_own_metrics
from fedray.evaluation.regression import decompose_squared_error, read_members, score_regression
from fedray.evaluation.stacking import score_stack
from fedray.metrics import classification, ensemble
from fedray.metrics.clusters import compare_clusters
from fedray.simulation.interfaces import ClientScores, Pieces, Progress, Runtime
from fedray.simulation.study import Study

KeepClients = Callable[[int, int, ClientScores], None]  # (round, world, scores of its clients)
MEMBER_CLASS_SCORES = ("accuracy", "nll", "brier", "ece", "entropy")  # scores of each member by itself


class Measured(NamedTuple):
    """What the runtime computed for one evaluation; what is not needed stays empty.

    Attributes:
        answer: the models that answer.
        test: raw outputs on the test rows.
        held_out: raw outputs on the held-out rows.
        losses: training losses of the models on each known client, `[K, N]` in pieces, for the clients' weights.
        own: accuracies or RMSEs of known clients with models of their own: (world, client) -> `[2, P]`.
        residual: mean training residual variance of each world (regression), in standardised units.
    """

    answer: Answer
    test: Pieces
    held_out: Pieces
    losses: Pieces
    own: dict[tuple[int, int], Tensor]
    residual: dict[int, float]


def make_evaluator(
    study: Study, runtime: Runtime, test: bool = True, keep_clients: KeepClients | None = None
) -> Callable[[Progress], list[dict[str, Any]]]:
    """Makes a function: progress -> one row of metrics a world.

    Args:
        study: what is trained.
        runtime: where the models are evaluated.
        test: whether the test rows are scored; sweeps leave them alone.
        keep_clients: called with the scores of the clients of each world, where `evaluate.clients` asks for some.
    """

    def evaluate(progress: Progress) -> list[dict[str, Any]]:
        measured = _measure(study, runtime, progress.state, test)
        rows = []
        for world in range(study.worlds):
            row, clients = _score_world(study, world, measured, test)
            rows.append(row)
            if keep_clients is not None and clients is not None:
                keep_clients(progress.round, world, clients)
        if test and study.replicates > 1 and study.shards.data.noise is not None:
            parts = decompose_error(study, measured.test, measured.answer)
            rows = [row | more for row, more in zip(rows, parts, strict=True)]
        return rows

    return evaluate


def _measure(study: Study, runtime: Runtime, state: State, test: bool) -> Measured:
    answer = study.answer(state)
    own = runtime.score_known_clients(state) if study.method.phase.is_personal else {}
    weighed = study.evaluation.gamma is not None and not own
    return Measured(
        answer,
        test=runtime.outputs(answer.state, "test", answer.models) if test else {},
        held_out=runtime.outputs(answer.state, "hold_out", answer.models) if study.hold_out else {},
        losses=_losses(study, runtime, answer) if weighed else {},
        own=own,
        residual={} if study.classes else measure_residual_variance(study, runtime, state, answer),
    )


def _losses(study: Study, runtime: Runtime, answer: Answer) -> Pieces:
    """Losses by which known clients weigh the models; where each client has one model, only that one has loss 0."""
    if not study.method.one_model_per_client:
        return runtime.losses(answer.state, answer.models)
    others = 1.0 - torch.eye(answer.models)[:, :EVALUATED_CLIENTS]
    return {(world, 0): others for world in range(study.worlds)}


def _score_world(
    study: Study, world: int, measured: Measured, test: bool
) -> tuple[dict[str, Any], ClientScores | None]:
    """A world's row of metrics, and the scores of its clients one by one, where some are to be recorded."""
    answer, residual = measured.answer, measured.residual.get(world)
    splits = [("test", "", measured.test)] if test else []
    splits += [("hold_out", "hold_out_", measured.held_out)] if study.hold_out else []
    row: dict[str, Any] = {}
    outputs = {split: join_pieces(pieces, world) for split, _, pieces in splits}
    for split, prefix, _ in splits:
        scores = score_answer(study, world, outputs[split], split, answer, residual=residual)
        scores |= score_own_metrics(study, world, outputs[split], split, answer, known=scores)
        row |= scores if split == "test" else {prefix + k: v for k, v in scores.items() if isinstance(v, float)}
    each = _score_clients(study, world, measured, {prefix: outputs[split] for split, prefix, _ in splits})
    for prefix, values in each.items():
        row |= summarize_clients(values, prefix, classes=bool(study.classes))
    row |= _score_clusters(study, world, measured)
    if not study.evaluation.clients:
        return row, None
    chosen, name = pick_recorded_clients(study), "accuracy" if study.classes else "rmse"
    samples = study.shards.sizes(np.full_like(chosen, world), chosen)
    if each:
        scored = {prefix: scores[chosen] for prefix, scores in each.items()}
    else:
        scored = {
            prefix: measure_clients_alike(study, world, drop_absent(outputs[split], answer, world), split, chosen)
            for split, prefix, _ in splits
        }
    return row, ClientScores(chosen, samples, {prefix + name: scores for prefix, scores in scored.items()})


def _score_clients(study: Study, world: int, measured: Measured, outputs: dict[str, Tensor]) -> dict[str, FloatArray]:
    """Scores of the known clients with weights or models of their own, `[N]` by prefix; empty where they have none.

    Args:
        study: what was trained.
        world: number of the world.
        measured: what the runtime computed.
        outputs: raw outputs by prefix: nothing for the test rows, `hold_out_` for those held out.
    """
    if measured.losses:
        weights = _weigh(study, world, measured)
        return {
            prefix: measure_clients(
                study, world, drop_absent(found, measured.answer, world), weights, "hold_out" if prefix else "test"
            )
            for prefix, found in outputs.items()
        }
    if measured.own:
        tested, held_out = split_own_scores(measured.own, world)
        by_prefix = {**({"": tested} if "" in outputs else {}), "hold_out_": held_out}
        return {
            prefix: pick_best_pass(score, held_out, lowest=not study.classes) for prefix, score in by_prefix.items()
        }
    return {}


def _weigh(study: Study, world: int, measured: Measured) -> FloatArray:
    """The weights of the known clients over the models that answer, `[N, K]`."""
    return weigh_models(study, drop_absent(join_pieces(measured.losses, world), measured.answer, world))


def _score_clusters(study: Study, world: int, measured: Measured) -> dict[str, float]:
    """How well the clients' models tell their true clusters apart; nothing where these, or the models, are one."""
    true = study.shards.clusters(world)
    if true is None or not measured.losses or study.method.one_model_per_client or measured.answer.models == 1:
        return {}
    return {"cluster_ari": compare_clusters(true, _weigh(study, world, measured))}


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


def score_answer(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer, *, residual: float | None = None
) -> dict[str, Any]:
    """All scores of a world's ensemble on a split, and of each member by itself.

    Args:
        study: what was trained.
        world: number of the world.
        outputs: raw outputs of all models on the whole split, `[K, n, C]`.
        split: `test` or `hold_out`.
        answer: the models that answer.
        residual: mean training residual variance in standardised units (regression), if known.
    """
    _, y = study.split(split, world)
    if study.parts:
        probs = ensemble.probabilities(outputs.numpy())
        return {**score_stack(study, probs, y.numpy()), **score_members(probs[1:], y.numpy())}
    outputs = drop_absent(outputs, answer, world)
    if study.classes:
        members, mean = ensemble.answer_classes(outputs.numpy(), study.evaluation.average)
        return {**classification.classification_scores(members, y.numpy(), mean), **score_members(members, y.numpy())}
    return score_regression(read_members(study, world, outputs, split, answer, residual=residual))


def score_members(probs: FloatArray, y: IntArray) -> dict[str, list[float]]:
    """Every score of each member by itself, `[K]` each, from probabilities `[K, n, C]` and labels `[n]`."""
    each = [classification.classification_scores(member[None], y) for member in probs]
    return {f"member_{name}": [one[name] for one in each] for name in MEMBER_CLASS_SCORES}


def decompose_error(study: Study, pieces: Pieces, answer: Answer) -> list[dict[str, float]]:
    """Bias, variance and noise of a toy whose test targets are E[y|x]: one dict a world.

    Args:
        study: what was trained, with several replicates.
        pieces: raw outputs on the test rows.
        answer: the models that answer.
    """
    of = [
        read_members(study, world, drop_absent(join_pieces(pieces, world), answer, world), "test", answer)
        for world in range(study.worlds)
    ]
    noise = {"noise": float(study.shards.data.noise or 0.0)}
    return [row | noise for row in decompose_squared_error([one.answer.mean for one in of], of[0].y)]


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
