"""From models to rows of metrics: every member and the ensemble, new clients and known ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray import metrics, predict
from fedray.core import Answer, FloatArray, State
from fedray.engine import Progress, Runtime
from fedray.known import best_pass, held_out, over_clients, questions
from fedray.metrics import VARIANCE_FLOOR
from fedray.models.loss import gaussian
from fedray.study import Study


def evaluator(study: Study, runtime: Runtime) -> Callable[[Progress], list[dict[str, Any]]]:
    """A function: progress -> one row of metrics a world."""

    def evaluate(progress: Progress) -> list[dict[str, Any]]:
        models = study.method.phases[0].models
        answer = study.answer(progress.state)
        pieces = runtime.outputs(answer.state, "test", answer.models)
        kept = runtime.outputs(answer.state, "hold_out", answer.models) if study.hold_out else {}
        residual = residuals(study, runtime, progress.state) if not study.classes else {}
        own = runtime.known(progress.state) if study.method.phases[0].is_personal and study.classes else {}
        weighed = study.evaluation.gamma is not None and not own
        losses = runtime.losses(progress.state, models) if weighed else {}
        rows = []
        for world in range(study.worlds):
            row = scores(study, world, joined(pieces, world), "test", answer, residual.get(world))
            if study.hold_out:
                held = scores(study, world, joined(kept, world), "hold_out", answer, residual.get(world))
                row |= {f"hold_out_{name}": value for name, value in held.items() if isinstance(value, float)}
            if losses:
                row |= personal(study, world, joined(pieces, world), joined(losses, world))
                if study.hold_out and study.classes:
                    alpha = client_weights(study, joined(losses, world))
                    each = client_accuracy(study, world, joined(kept, world), alpha, "hold_out")
                    row |= over_clients(each, "hold_out_")
            if own:
                test, held = own_accuracy(own, world)
                row |= over_clients(best_pass(test, held)) | over_clients(best_pass(held, held), "hold_out_")
            rows.append(row)
        return rows

    return evaluate


def joined(pieces: dict[tuple[int, int], Tensor], world: int) -> Tensor:
    """The pieces of a world in order: `[K, n, ...]`."""
    return torch.cat([pieces[key] for key in sorted(pieces) if key[0] == world], dim=1)


def scores(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer, residual: float | None = None
) -> dict[str, Any]:
    """All scores of a world's ensemble on a split; `residual`: training residual variance in standardised units."""
    _, y = study.split(split, world)
    weights = None if answer.weights is None else answer.weights[world]
    present = np.ones(len(outputs), dtype=bool) if weights is None else weights > 0
    outputs = outputs[torch.from_numpy(present)]
    if study.classes:
        members = predict.probabilities(outputs.numpy())
        kind = "logits" if study.evaluation.average == "logits" else "probabilities"
        voice = predict.average(outputs.numpy(), kind) if kind == "logits" else None
        each = [metrics.accuracy(member, y.numpy()) for member in members]
        return {**metrics.classification(members, y.numpy(), voice), "member_accuracy": each}
    target = y.double().numpy().reshape(len(y), -1)[:, 0]
    means, variances = regression_members(study, world, outputs, split, answer)
    scale = study.target_scale(world) ** 2
    noise = {"none": 0.0, "residual": residual or 0.0, "fixed": 1.0}[study.evaluation.noise]
    each = [metrics.rmse(mean, target) for mean in means]
    found = metrics.regression(
        means, target, variances=variances, noise=noise * scale, floor=VARIANCE_FLOOR * scale,
        residual=None if residual is None else residual * scale,
    )  # fmt: skip
    return {**found, "member_rmse": each}


def regression_members(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer
) -> tuple[FloatArray, FloatArray | None]:
    """Each member's mean `[K, n]` and, where it predicts one, its variance `[K, n]`, in original units."""
    scale = study.target_scale(world) ** 2
    if study.net.objective == "gaussian_nll":
        head = gaussian(outputs)
        return study.unscaled(head.mean, world).numpy()[..., 0], head.variance.double().numpy()[..., 0] * scale
    means: FloatArray = study.unscaled(outputs, world).numpy()[..., 0]
    if answer.spread is None:
        return means, None
    x = study.shards.normalise(study.split(split, world)[0][None], torch.tensor([world]))[0].double().flatten(1)
    spread = answer.spread[world].double()  # a linear layer: weights first, then the bias, if any
    variance = x.square() @ spread[: x.shape[1]] + spread[x.shape[1] :].sum()
    return means, (variance.numpy() * scale)[None]


def residuals(study: Study, runtime: Runtime, state: State) -> dict[int, float]:
    """The clients' mean training residual variance of each world's models, in standardised units."""
    if study.net.objective not in ("half_mse", "mse"):
        return {}
    models = study.method.phases[0].models
    pieces = runtime.losses(state, models)
    factor = 2.0 if study.net.objective == "half_mse" else 1.0
    return {world: factor * float(joined(pieces, world).mean()) for world in range(study.worlds)}


def personal(study: Study, world: int, outputs: Tensor, losses: Tensor) -> dict[str, Any]:
    """Known clients (FE eqs. 3-4): each answers with its own weights over the models, on its own test."""
    if not study.classes:
        return {}
    return over_clients(client_accuracy(study, world, outputs, client_weights(study, losses)))


def client_weights(study: Study, losses: Tensor) -> FloatArray:
    """Each client's weights over the models, `[N, K]`, from its losses `[K, N]`."""
    gamma = study.evaluation.gamma
    return predict.personal_weights(losses.double().numpy().T, np.inf if gamma is None else gamma)


def client_accuracy(study: Study, world: int, outputs: Tensor, alpha: FloatArray, split: str = "test") -> FloatArray:
    """Accuracy of each client's weighted ensemble on its own test (or its held-out rows), `[N]`; NaN without rows."""
    labels = study.split(split, world)[1].numpy()
    ask = questions(study, world) if split == "test" else held_out(study, world)
    probs = predict.probabilities(outputs.numpy()).astype(np.float32)
    right = np.full(len(alpha), np.nan)
    for client, weights in enumerate(alpha):
        asked = ask(client)
        if len(asked.rows):
            said = np.tensordot(weights.astype(np.float32), probs[:, asked.rows], axes=1).argmax(-1)
            right[client] = ((said == labels[asked.rows]) * asked.weight).sum()
    return right


def own_accuracy(own: dict[tuple[int, int], Tensor], world: int) -> tuple[FloatArray, FloatArray]:
    """Accuracies of a world's clients with models of their own, on their test and held-out rows: `[N, P]` each."""
    both = torch.stack([own[key] for key in sorted(own) if key[0] == world], dim=1).numpy()
    return both[0], both[1]
