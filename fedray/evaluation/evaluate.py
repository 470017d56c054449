"""From models to rows of metrics: every member and the ensemble, new clients and known ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import FloatArray, IntArray, State
from fedray.evaluation.clients import PERSONAL_CLIENTS, best_pass, held_out, over_clients, questions
from fedray.evaluation.regression import decomposition, members, scored
from fedray.evaluation.stacking import stack_scores
from fedray.metrics import classification, ensemble
from fedray.simulation.interfaces import Progress, Runtime
from fedray.simulation.study import Study

Pieces = dict[tuple[int, int], Tensor]  # (world, first row or client) -> `[K, n, ...]`
ALONE = ("accuracy", "nll", "brier", "ece", "entropy")  # scores of each member by itself


def evaluator(study: Study, runtime: Runtime, test: bool = True) -> Callable[[Progress], list[dict[str, Any]]]:
    """A function: progress -> one row of metrics a world; without `test` the test set is left alone (sweeps)."""

    def evaluate(progress: Progress) -> list[dict[str, Any]]:
        answer = study.answer(progress.state)
        pieces = runtime.outputs(answer.state, "test", answer.models) if test else {}
        kept = runtime.outputs(answer.state, "hold_out", answer.models) if study.hold_out else {}
        residual = residuals(study, runtime, progress.state, answer) if not study.classes else {}
        own = runtime.known(progress.state) if study.method.phases[0].is_personal and study.classes else {}
        weighed = study.evaluation.gamma is not None and bool(study.classes) and not own
        losses = runtime.losses(answer.state, answer.models) if weighed and not study.method.mine else {}
        if weighed and study.method.mine:
            ones = 1.0 - torch.eye(answer.models)[:, :PERSONAL_CLIENTS]
            losses = {(world, 0): ones for world in range(study.worlds)}
        rows = []
        for world in range(study.worlds):
            row: dict[str, Any] = {}
            if test:
                row |= scores(study, world, joined(pieces, world), "test", answer, residual.get(world))
            if study.hold_out:
                held = scores(study, world, joined(kept, world), "hold_out", answer, residual.get(world))
                row |= {f"hold_out_{name}": value for name, value in held.items() if isinstance(value, float)}
            if losses:
                alpha = client_weights(study, present(joined(losses, world), answer, world))
                row |= personal(study, world, pieces, answer, alpha, "test") if test else {}
                row |= personal(study, world, kept, answer, alpha, "hold_out") if study.hold_out else {}
            if own:
                tested, withheld = own_accuracy(own, world)
                row |= over_clients(best_pass(tested, withheld)) if test else {}
                row |= over_clients(best_pass(withheld, withheld), "hold_out_")
            rows.append(row)
        if test and study.replicates > 1 and study.shards.data.noise is not None:
            rows = [row | more for row, more in zip(rows, decomposed(study, pieces, answer), strict=True)]
        return rows

    return evaluate


def joined(pieces: Pieces, world: int) -> Tensor:
    """The pieces of a world in order: `[K, n, ...]`."""
    return torch.cat([pieces[key] for key in sorted(pieces) if key[0] == world], dim=1)


def scores(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer, residual: float | None = None
) -> dict[str, Any]:
    """All scores of a world's ensemble on a split; `residual`: training residual variance in standardised units."""
    _, y = study.split(split, world)
    if study.parts:
        probs = ensemble.probabilities(outputs.numpy())
        return {**stack_scores(study, probs, y.numpy()), **alone(probs[1:], y.numpy())}
    outputs = present(outputs, answer, world)
    if study.classes:
        probs = ensemble.probabilities(outputs.numpy())
        kind: ensemble.Kind = "logits" if study.evaluation.average == "logits" else "probabilities"
        voice = ensemble.average(outputs.numpy(), kind) if kind == "logits" else None
        return {**classification.classification(probs, y.numpy(), voice), **alone(probs, y.numpy())}
    return scored(members(study, world, outputs, split, answer, residual))


def alone(probs: FloatArray, y: IntArray) -> dict[str, list[float]]:
    """Every score of each member by itself, `[K]` each, from probabilities `[K, n, C]` and labels `[n]`."""
    each = [classification.classification(member[None], y) for member in probs]
    return {f"member_{name}": [one[name] for one in each] for name in ALONE}


def present(outputs: Tensor, answer: Answer, world: int) -> Tensor:
    """The outputs (or losses) `[K, n, ...]` of a world's models that have a weight."""
    return outputs if answer.weights is None else outputs[torch.from_numpy(answer.weights[world] > 0)]


def decomposed(study: Study, pieces: Pieces, answer: Answer) -> list[dict[str, float]]:
    """Bias, variance and noise of toys, whose test targets are E[y|x]: one dict a world."""
    of = [
        members(study, world, present(joined(pieces, world), answer, world), "test", answer, None)
        for world in range(study.worlds)
    ]
    noise = {"noise": float(study.shards.data.noise or 0.0)}
    return [row | noise for row in decomposition([one.answer.mean for one in of], of[0].y)]


def residuals(study: Study, runtime: Runtime, state: State, answer: Answer) -> dict[int, float]:
    """The clients' mean training residual variance in each world, in standardised units.

    Each client's is that of its own upload where the uploads answer, else that of the broadcast models.
    """
    if study.net.objective not in ("half_mse", "mse"):
        return {}
    factor = 2.0 if study.net.objective == "half_mse" else 1.0
    if answer.owner is None or not (answer.owner >= 0).any():
        pieces = runtime.losses(state, study.method.phases[0].models)
        return {world: factor * float(joined(pieces, world).mean()) for world in range(study.worlds)}
    pieces, found = runtime.losses(answer.state, answer.models), {}
    for world, owner in enumerate(answer.owner):
        known = np.flatnonzero((owner >= 0) & (owner < PERSONAL_CLIENTS))
        found[world] = factor * float(joined(pieces, world)[known, owner[known]].mean())
    return found


def personal(
    study: Study, world: int, pieces: Pieces, answer: Answer, alpha: FloatArray, split: str
) -> dict[str, float]:
    """Known clients (FE eqs. 3-4): each answers with its own weights `alpha` `[N, K]`, on its own rows of a split."""
    each = client_accuracy(study, world, present(joined(pieces, world), answer, world), alpha, split)
    return over_clients(each, "" if split == "test" else "hold_out_")


def client_weights(study: Study, losses: Tensor) -> FloatArray:
    """Each client's weights over the models that answer (FE eqs. 3-4), `[N, K]`, from its losses `[K, N]`."""
    gamma = 0.0 if study.method.mine else study.evaluation.gamma
    return ensemble.personal_weights(losses.double().numpy().T, np.inf if gamma is None else gamma)


def client_accuracy(study: Study, world: int, outputs: Tensor, alpha: FloatArray, split: str = "test") -> FloatArray:
    """Accuracy of each client's weighted ensemble on its own test (or its held-out rows), `[N]`; NaN without rows."""
    labels = study.split(split, world)[1].numpy()
    ask = questions(study, world) if split == "test" else held_out(study, world)
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
