"""The arrays behind the report's pictures of a finished run (its first world), in `pictures.npz`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from fedray import checkpoint, metrics, predict
from fedray.engine import Progress, Runtime
from fedray.evaluate import client_accuracy, joined, own_accuracy
from fedray.known import best_pass
from fedray.study import Study

MOST_CLIENTS = 2_000


def pictures(study: Study, runtime: Runtime, progress: Progress, path: Path) -> None:
    """Computes and writes them."""
    models = study.method.phases[0].models
    answer = study.answer(progress.state)
    outputs = joined(runtime.outputs(answer.state, "test", answer.models), 0)
    _, y = study.split("test", 0)
    arrays = _classes(study, outputs, y.numpy()) if study.classes else _targets(study, outputs, y.double().numpy())
    if study.classes and study.clients.number <= MOST_CLIENTS and study.method.answer is None:
        losses = joined(runtime.losses(progress.state, models), 0).double().numpy().T  # [N, K]
        gamma = study.evaluation.gamma if study.evaluation.gamma is not None else np.inf
        alpha = predict.personal_weights(losses, gamma)
        arrays |= {"alpha": alpha, "client_losses": losses, "label_counts": study.shards.label_counts(0)}
        arrays["client_accuracy"] = client_accuracy(study, 0, outputs, alpha)
        if study.method.phases[0].is_personal:
            arrays["client_accuracy"] = best_pass(*own_accuracy(runtime.known(progress.state), 0))
        arrays["client_scores"] = drift(study, runtime, progress, models)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    checkpoint.write_atomically(path, buffer.getvalue())


def _classes(study: Study, outputs: Any, y: Any) -> dict[str, Any]:
    members = predict.probabilities(outputs.numpy())
    answer = predict.average(outputs.numpy(), "logits" if study.evaluation.average == "logits" else "probabilities")
    table = metrics.calibration(answer, y)
    return {
        "confusion": metrics.confusion(answer, y),
        "calibration": np.stack([table.confidence, table.accuracy, table.samples.astype(np.float64)], axis=1),
        "disagreement": np.array([[float((a.argmax(-1) != b.argmax(-1)).mean()) for b in members] for a in members]),
    }


def _targets(study: Study, outputs: Any, y: Any) -> dict[str, Any]:
    means = study.unscaled(outputs, 0).numpy()[..., 0]
    moments = predict.moments(means)
    x, _ = study.split("test", 0)
    sd = np.sqrt(moments.variance)
    flat = x.numpy().reshape(len(y), -1)
    return {
        "predictive": np.stack([flat[:, 0], y.reshape(len(y), -1)[:, 0], moments.mean, sd], axis=1),
        "pit": metrics.pit(moments.mean, np.maximum(moments.variance, 1e-12), y.reshape(len(y), -1)[:, 0]),
    }


def drift(study: Study, runtime: Runtime, progress: Progress, models: int) -> Any:
    """How unusual each client's data look to the ensemble: z-scores of its knowledge uncertainty, `[N]`."""
    pieces = runtime.uncertainty(progress.state, models)
    return predict.z_scores(joined(pieces, 0)[0].numpy())
