"""The arrays behind the report's pictures of a finished run (its first world), in `pictures.npz`.

Example:
    >>> compare_members(np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]])).tolist()
    [[0.0, 0.5], [0.5, 0.0]]
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray, State
from fedray.evaluation.client_weights import has_client_weights, weigh_models
from fedray.evaluation.clients import measure_clients, pick_best_pass, split_own_scores
from fedray.evaluation.conformal import measure_all_sets
from fedray.evaluation.drift import MOST_COMPARED_CLIENTS
from fedray.evaluation.loss_plane import measure_loss_plane
from fedray.evaluation.measured import Measured, find_client_weights, gather_outputs, join_pieces
from fedray.evaluation.ood import collect_ood_report
from fedray.evaluation.present import answer_world, drop_absent, weigh_present
from fedray.evaluation.regression import read_members
from fedray.evaluation.row_scores import get_rule
from fedray.evaluation.stacking import collect_stack_report
from fedray.files import plain
from fedray.metrics import classification, ensemble, regression
from fedray.metrics.drift import Drift
from fedray.simulation.interfaces import Pieces, Progress, Runtime
from fedray.simulation.study import OOD, Study

MOST_TEXT = 200  # characters of the name of a class
MOST_COMPARED_MEMBERS = 2_000  # pair by pair, as many as the page draws
COVERAGE_LEVELS = (*(round(0.1 * step, 1) for step in range(1, 10)), 0.95)  # nominal, of the coverage curve


def write_report_data(study: Study, runtime: Runtime, progress: Progress, path: Path, *, drift: Drift | None) -> None:
    """Computes the arrays and writes them to one file.

    Args:
        study: what was trained.
        runtime: where the models are evaluated.
        progress: the end of the run.
        path: of the file.
        drift: the drift scores of the first world's clients, if they were compared.
    """
    answer = study.answer(progress.state)
    pieces = runtime.outputs(answer.state, "test", answer.models, worlds=1)
    every = join_pieces(pieces, 0)
    outputs, y = drop_absent(every, answer, 0), study.split("test", 0)[1].numpy()
    if study.classes:
        arrays = _class_arrays(study, every, y, answer)
        if study.parts:
            arrays |= collect_stack_report(study, progress.state, ensemble.probabilities(every.numpy()), y)
    else:
        arrays = _target_arrays(study, outputs, answer, _find_residual(study, progress))
    if study.evaluation.ood:
        unknown = join_pieces(runtime.outputs(answer.state, OOD, answer.models, worlds=1), 0)
        arrays |= collect_ood_report(study, every, unknown, answer)
    arrays |= _plane_arrays(study, progress.state)
    clusters = study.shards.clusters(0)
    if clusters is not None:
        arrays["clusters"] = clusters[:EVALUATED_CLIENTS]
    if study.method.phase.walk is not None:
        arrays["graph_edges"] = study.method.phase.walk.edges
    wanted = study.method.answer is None or study.evaluation.gamma is not None or answer.tiers is not None
    if study.clients.number <= MOST_COMPARED_CLIENTS and wanted:  # a hundred teachers only on request
        arrays |= _client_arrays(study, runtime, progress.state, outputs)
    if study.evaluation.conformal is not None:
        arrays |= _conformal_arrays(study, runtime, progress, answer, pieces)
    if drift is not None:
        arrays["client_scores"] = drift.z_knowledge
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    plain.write_atomically(path, buffer.getvalue())


def compare_members(members: FloatArray) -> FloatArray:
    """Share of the samples on which two members choose different classes, `[K, K]`, from probabilities `[K, n, C]`.

    It is empty where there are more members than the page draws.
    """
    if len(members) > MOST_COMPARED_MEMBERS:
        return np.empty((0, 0))
    chosen = members.argmax(-1).astype(np.min_scalar_type(members.shape[-1]))
    pairs: FloatArray = np.stack([np.count_nonzero(chosen != one, axis=1) for one in chosen]) / chosen.shape[1]
    return pairs


def _class_arrays(study: Study, outputs: Tensor, y: IntArray, answer: Answer) -> dict[str, Any]:
    members, mean = answer_world(outputs, study.evaluation.average, answer, 0)
    table = classification.calibration(mean, y)
    return {
        "class_names": np.array([name[:MOST_TEXT] for name in study.shards.data.class_names], dtype=str),
        "confusion": classification.confusion(mean, y),
        "calibration": np.stack([table.confidence, table.accuracy, table.samples.astype(np.float64)], axis=1),
        "disagreement": compare_members(members),
    }


def _client_arrays(study: Study, runtime: Runtime, state: State, outputs: Tensor) -> dict[str, Any]:
    """Known clients, one row each: losses of the models, weights over them, and how well the client is answered.

    With classes that is its accuracy, beside its label counts. In a regression it is its RMSE with its own weights or
    models, and the RMSE of the answer that clients get whom nobody knows.
    """
    answer = study.answer(state)
    pieces = runtime.losses(answer.state, answer.models, worlds=1)
    every = join_pieces(pieces, 0)  # [A, N]
    if study.method.phase.mixture or study.method.one_model_per_client:
        weights = find_client_weights(study, runtime, answer, worlds=1)[0]
    else:
        weights = weigh_models(study, answer, 0, every, np.arange(every.shape[1]))
    if study.method.phase.is_personal:
        own = split_own_scores(runtime.score_known_clients(state), 0)
        scores = pick_best_pass(*own, lowest=not study.classes)
    else:
        scores = measure_clients(study, 0, outputs, weights)
    arrays = {"alpha": weights, "client_losses": drop_absent(every, answer, 0).double().numpy().T}
    if study.classes:
        return arrays | {"label_counts": study.shards.label_counts(0), "client_accuracy": scores}
    everybody = weigh_present(answer, 0)
    everybody = np.full(weights.shape[1], 1.0 / weights.shape[1]) if everybody is None else everybody
    equal = measure_clients(study, 0, outputs, np.tile(everybody, (len(weights), 1)))
    return arrays | {"client_rmse": scores, "client_rmse_equal": equal}


def _conformal_arrays(
    study: Study, runtime: Runtime, progress: Progress, answer: Answer, tested: Pieces
) -> dict[str, Any]:
    """Coverage and size of the sets of known clients, and the share that may be outside."""
    measured = Measured(
        answer,
        test=tested,
        held_out=runtime.outputs(answer.state, "hold_out", answer.models, worlds=1),
        weights=find_client_weights(study, runtime, answer, worlds=1) if has_client_weights(study, answer) else {},
        own={},
        residual={0: known} if (known := _find_residual(study, progress)) is not None else {},
        ood={},
    )
    sets = measure_all_sets(study, runtime, progress.state, [gather_outputs(study, 0, measured)])[0][1]
    assert sets is not None
    return {"conformal_clients": np.stack(sets, axis=1), "conformal_alpha": np.array([get_rule(study).alpha])}


def _find_residual(study: Study, progress: Progress) -> float | None:
    """The clients' mean training residual variance in standardized units, as the newest row of metrics has it."""
    found = progress.metrics[0].get("residual_sd") if progress.metrics else None
    return None if found is None else float(found / study.target_scale(0)) ** 2


def _target_arrays(study: Study, outputs: Tensor, answer: Answer, residual: float | None) -> dict[str, Any]:
    of = read_members(study, 0, outputs, "test", answer, residual=residual)
    mean, variance = of.answer
    x = study.split("test", 0)[0].numpy().reshape(len(of.y), -1)
    first = x[:, 0] if x.shape[1] == 1 else np.full(len(x), np.nan)  # a curve over one input, else target by target
    order = np.arange(len(x)) if x.shape[1] == 1 else np.argsort(of.y)
    covered = [(level, regression.coverage(mean, variance, of.y, level)) for level in COVERAGE_LEVELS]
    return {
        "predictive": np.stack([first, of.y, mean, np.sqrt(variance)], axis=1)[order],
        "pit": regression.pit(mean, variance, of.y),
        "coverage": np.array(covered),
        "errors": np.stack([np.sqrt(variance), np.abs(of.y - mean)], axis=1),
    }


def _plane_arrays(study: Study, state: State) -> dict[str, Any]:
    plane = measure_loss_plane(study, state)
    if plane is None:
        return {}
    return {"loss_plane": plane.loss, "loss_plane_points": plane.points, "loss_plane_extent": plane.extent}
