"""The arrays behind the report's pictures of a finished run (its first world), in `pictures.npz`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedray.core import files
from fedray.core.method import Answer
from fedray.core.types import State
from fedray.evaluation.clients import best_pass
from fedray.evaluation.evaluate import client_accuracy, client_weights, drop_absent, join_pieces, own_accuracy
from fedray.evaluation.loss_plane import measure_loss_plane
from fedray.evaluation.regression import read_members
from fedray.evaluation.stacking import stack_report_data
from fedray.metrics import classification, ensemble, regression
from fedray.simulation.interfaces import Progress, Runtime
from fedray.simulation.study import Study

LEVELS = (*(round(0.1 * step, 1) for step in range(1, 10)), 0.95)  # of the coverage curve
MOST_CLIENTS = 2_000


def write_report_data(study: Study, runtime: Runtime, progress: Progress, path: Path) -> None:
    """Computes and writes them."""
    answer = study.answer(progress.state)
    every = join_pieces(runtime.outputs(answer.state, "test", answer.models, worlds=1), 0)
    outputs = drop_absent(every, answer, 0)
    if study.classes:
        arrays = _classes(study, outputs, study.split("test", 0)[1].numpy())
        if study.parts:
            probs = ensemble.probabilities(every.numpy())
            arrays |= stack_report_data(study, progress.state, probs, study.split("test", 0)[1].numpy())
    else:
        arrays = _targets(study, outputs, answer, progress.metrics[0] if progress.metrics else {})
    arrays |= _plane(study, progress.state)
    if study.method.phase.walk is not None:
        arrays["graph_edges"] = study.method.phase.walk.edges
    asked = study.method.answer is None or study.evaluation.gamma is not None  # a hundred teachers only if asked
    if study.classes and study.clients.number <= MOST_CLIENTS and asked:
        pieces = runtime.losses(answer.state, answer.models, worlds=1)
        losses = drop_absent(join_pieces(pieces, 0), answer, 0)  # [K, N]
        alpha = client_weights(study, 1.0 - torch.eye(*losses.shape) if study.method.one_model_per_client else losses)
        arrays |= {"alpha": alpha, "client_losses": losses.double().numpy().T}  # [N, K] both
        arrays["label_counts"] = study.shards.label_counts(0)
        arrays["client_accuracy"] = client_accuracy(study, 0, outputs, alpha)
        if study.method.phase.is_personal:
            arrays["client_accuracy"] = best_pass(*own_accuracy(runtime.known(progress.state), 0))
        if study.method.answer is None:
            arrays["client_scores"] = measure_drift(study, runtime, progress, answer.models)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    files.write_atomically(path, buffer.getvalue())


def _classes(study: Study, outputs: Any, y: Any) -> dict[str, Any]:
    members = ensemble.probabilities(outputs.numpy())
    answer = ensemble.average(outputs.numpy(), "logits" if study.evaluation.average == "logits" else "probabilities")
    table = classification.calibration(answer, y)
    return {
        "confusion": classification.confusion(answer, y),
        "calibration": np.stack([table.confidence, table.accuracy, table.samples.astype(np.float64)], axis=1),
        "disagreement": np.array([[float((a.argmax(-1) != b.argmax(-1)).mean()) for b in members] for a in members]),
    }


def _targets(study: Study, outputs: Any, answer: Answer, scores: dict[str, Any]) -> dict[str, Any]:
    residual = scores.get("residual_sd")  # in original units
    known = None if residual is None else (residual / study.target_scale(0)) ** 2
    of = read_members(study, 0, outputs, "test", answer, known)
    mean, variance = of.answer
    x = study.split("test", 0)[0].numpy().reshape(len(of.y), -1)
    first = x[:, 0] if x.shape[1] == 1 else np.full(len(x), np.nan)  # a curve over one input, else target by target
    order = np.arange(len(x)) if x.shape[1] == 1 else np.argsort(of.y)
    covered = [(level, regression.coverage(mean, variance, of.y, level)) for level in LEVELS]
    return {
        "predictive": np.stack([first, of.y, mean, np.sqrt(variance)], axis=1)[order],
        "pit": regression.pit(mean, variance, of.y),
        "coverage": np.array(covered),
        "errors": np.stack([np.sqrt(variance), np.abs(of.y - mean)], axis=1),
    }


def _plane(study: Study, state: State) -> dict[str, Any]:
    plane = measure_loss_plane(study, state)
    if plane is None:
        return {}
    return {"loss_plane": plane.loss, "loss_plane_points": plane.points, "loss_plane_extent": plane.extent}


def measure_drift(study: Study, runtime: Runtime, progress: Progress, models: int) -> Any:
    """How unusual each client's data look to the ensemble: z-scores of its knowledge uncertainty, `[N]`."""
    pieces = runtime.uncertainty(progress.state, models, worlds=1)
    return ensemble.z_scores(join_pieces(pieces, 0)[0].numpy())
