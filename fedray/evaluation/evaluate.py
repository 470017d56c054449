"""From models to rows of metrics: every member and the ensemble, new clients and known ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray, State
from fedray.evaluation.clients import best_pass, held_out_rows, known_questions, over_known_clients
from fedray.evaluation.regression import bias_variance, read_members, score_regression
from fedray.evaluation.stacking import score_stack
from fedray.metrics import classification, ensemble
from fedray.simulation.interfaces import Progress, Runtime
from fedray.simulation.study import Study

Pieces = dict[tuple[int, int], Tensor]  # (world, first row or client) -> `[K, n, ...]`
ALONE = ("accuracy", "nll", "brier", "ece", "entropy")  # scores of each member by itself


def make_evaluator(study: Study, runtime: Runtime, test: bool = True) -> Callable[[Progress], list[dict[str, Any]]]:
    """A function: progress -> one row of metrics a world; without `test` the test set is left alone (sweeps)."""

    def evaluate(progress: Progress) -> list[dict[str, Any]]:
        answer = study.answer(progress.state)
        pieces = runtime.outputs(answer.state, "test", answer.models) if test else {}
        kept = runtime.outputs(answer.state, "hold_out", answer.models) if study.hold_out else {}
        residual = residual_variance(study, runtime, progress.state, answer) if not study.classes else {}
        own = runtime.known(progress.state) if study.method.phase.is_personal and study.classes else {}
        weighed = study.evaluation.gamma is not None and bool(study.classes) and not own
        losses = (
            runtime.losses(answer.state, answer.models) if weighed and not study.method.one_model_per_client else {}
        )
        if weighed and study.method.one_model_per_client:
            ones = 1.0 - torch.eye(answer.models)[:, :EVALUATED_CLIENTS]
            losses = {(world, 0): ones for world in range(study.worlds)}
        rows = []
        for world in range(study.worlds):
            row: dict[str, Any] = {}
            if test:
                row |= score_answer(study, world, join_pieces(pieces, world), "test", answer, residual.get(world))
            if study.hold_out:
                held = score_answer(study, world, join_pieces(kept, world), "hold_out", answer, residual.get(world))
                row |= {f"hold_out_{name}": value for name, value in held.items() if isinstance(value, float)}
            if losses:
                alpha = client_weights(study, drop_absent(join_pieces(losses, world), answer, world))
                row |= score_known_clients(study, world, pieces, answer, alpha, "test") if test else {}
                row |= score_known_clients(study, world, kept, answer, alpha, "hold_out") if study.hold_out else {}
            if own:
                tested, withheld = own_accuracy(own, world)
                row |= over_known_clients(best_pass(tested, withheld)) if test else {}
                row |= over_known_clients(best_pass(withheld, withheld), "hold_out_")
            rows.append(row)
        if test and study.replicates > 1 and study.shards.data.noise is not None:
            rows = [row | more for row, more in zip(rows, decompose_error(study, pieces, answer), strict=True)]
        return rows

    return evaluate


def join_pieces(pieces: Pieces, world: int) -> Tensor:
    """The pieces of a world in order: `[K, n, ...]`."""
    return torch.cat([pieces[key] for key in sorted(pieces) if key[0] == world], dim=1)


def score_answer(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer, residual: float | None = None
) -> dict[str, Any]:
    """All scores of a world's ensemble on a split; `residual`: training residual variance in standardised units."""
    _, y = study.split(split, world)
    if study.parts:
        probs = ensemble.probabilities(outputs.numpy())
        return {**score_stack(study, probs, y.numpy()), **score_members(probs[1:], y.numpy())}
    outputs = drop_absent(outputs, answer, world)
    if study.classes:
        probs = ensemble.probabilities(outputs.numpy())
        kind: ensemble.Kind = "logits" if study.evaluation.average == "logits" else "probabilities"
        voice = ensemble.average(outputs.numpy(), kind) if kind == "logits" else None
        return {**classification.classification_scores(probs, y.numpy(), voice), **score_members(probs, y.numpy())}
    return score_regression(read_members(study, world, outputs, split, answer, residual))


def score_members(probs: FloatArray, y: IntArray) -> dict[str, list[float]]:
    """Every score of each member by itself, `[K]` each, from probabilities `[K, n, C]` and labels `[n]`."""
    each = [classification.classification_scores(member[None], y) for member in probs]
    return {f"member_{name}": [one[name] for one in each] for name in ALONE}


def drop_absent(outputs: Tensor, answer: Answer, world: int) -> Tensor:
    """The outputs (or losses) `[K, n, ...]` of a world's models that have a weight."""
    return outputs if answer.weights is None else outputs[torch.from_numpy(answer.weights[world] > 0)]


def decompose_error(study: Study, pieces: Pieces, answer: Answer) -> list[dict[str, float]]:
    """Bias, variance and noise of toys, whose test targets are E[y|x]: one dict a world."""
    of = [
        read_members(study, world, drop_absent(join_pieces(pieces, world), answer, world), "test", answer, None)
        for world in range(study.worlds)
    ]
    noise = {"noise": float(study.shards.data.noise or 0.0)}
    return [row | noise for row in bias_variance([one.answer.mean for one in of], of[0].y)]


def residual_variance(study: Study, runtime: Runtime, state: State, answer: Answer) -> dict[int, float]:
    """The clients' mean training residual variance in each world, in standardised units.

    Each client's is that of its own upload where the uploads answer, else that of the broadcast models.
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


def score_known_clients(
    study: Study, world: int, pieces: Pieces, answer: Answer, alpha: FloatArray, split: str
) -> dict[str, float]:
    """Known clients (FE eqs. 3-4): each answers with its own weights `alpha` `[N, K]`, on its own rows of a split."""
    each = client_accuracy(study, world, drop_absent(join_pieces(pieces, world), answer, world), alpha, split)
    return over_known_clients(each, "" if split == "test" else "hold_out_")


def client_weights(study: Study, losses: Tensor) -> FloatArray:
    """Each client's weights over the models that answer (FE eqs. 3-4), `[N, K]`, from its losses `[K, N]`."""
    gamma = 0.0 if study.method.one_model_per_client else study.evaluation.gamma
    return ensemble.personal_weights(losses.double().numpy().T, np.inf if gamma is None else gamma)


def client_accuracy(study: Study, world: int, outputs: Tensor, alpha: FloatArray, split: str = "test") -> FloatArray:
    """Accuracy of each client's weighted ensemble on its own test (or its held-out rows), `[N]`; NaN without rows."""
    labels = study.split(split, world)[1].numpy()
    ask = known_questions(study, world) if split == "test" else held_out_rows(study, world)
    logits = study.evaluation.average == "logits"  # their mean has the same largest entry as its softmax
    said_by = (outputs.numpy() if logits else ensemble.probabilities(outputs.numpy())).astype(np.float32)
    right = np.full(len(alpha), np.nan)
    for client, weights in enumerate(alpha):
        asked = ask(client)
        if len(asked.rows):
            said = np.tensordot(weights.astype(np.float32), said_by[:, asked.rows], axes=1).argmax(-1)
            right[client] = ((said == labels[asked.rows]) * asked.weight).sum()
    return right


def own_accuracy(own: dict[tuple[int, int], Tensor], world: int) -> tuple[FloatArray, FloatArray]:
    """Accuracies of a world's clients with models of their own, on their test and held-out rows: `[N, P]` each."""
    both = torch.stack([own[key] for key in sorted(own) if key[0] == world], dim=1).numpy()
    return both[0], both[1]
