"""Computes the arrays for the report's pictures of a finished run, and writes them to `pictures.npz`.

The pictures show the first world of the run. A *world* is one combination of a seed and a fold of the data. The
*members* are the models of the ensemble.
"""

import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import FloatArray, IntArray, Objective, State
from fedray.evaluation import answers, evaluate, personal
from fedray.evaluation.conformal import measure_all_sets
from fedray.evaluation.evaluate import find_client_weights, has_client_weights
from fedray.evaluation.regression import read_members
from fedray.files import plain
from fedray.metrics import classification, regression
from fedray.models.net import measure_losses, split_gaussian
from fedray.simulation import study as studies
from fedray.simulation.stacking import collect_stack_report
from fedray.simulation.study import Host, Progress, Question, Runtime, Study, join_pieces
from fedray.training.choice import choose_engine

# ---------------------------------------------------------------------------------------------------------------------
# Drift scores. They say how uncertain the final ensemble is about each client's data, compared with other clients.
# `metrics.classification.score_drift` turns the uncertainties into z-scores and flags, which the report draws.

MOST_COMPARED_CLIENTS = 2_000  # with more clients, a run does not compare them


def sample_uncertainty(objective: Objective, outputs: Tensor) -> Tensor:
    """Returns the total and the knowledge uncertainty of an ensemble for each sample, `[2, n]` float64.

    For classification both are in nats (`metrics.classification.uncertainty`). For regression both are variances in
    squared units of the standardized targets, averaged over the targets. In a regression, the total is the variance of
    the mixture of the models' predictions. The knowledge uncertainty is the variance of the models' means.

    Args:
        objective: Name of the loss with which the models were trained.
        outputs: Raw outputs of the models, `[K, n, C]`.

    Example:
        >>> agreed, guessed = torch.tensor([[4.0, 0.0], [4.0, 0.0]]), torch.tensor([[4.0, 0.0], [0.0, 4.0]])
        >>> outputs = torch.stack([agreed, guessed], dim=1)  # [K = 2 models, n = 2 samples, C = 2 classes]
        >>> sample_uncertainty("cross_entropy", outputs).round(decimals=2).tolist()  # total, knowledge
        [[0.09, 0.69], [0.0, 0.6]]
    """
    if objective == "cross_entropy":
        both = classification.uncertainty(classification.probabilities(outputs.cpu().numpy()))
        return torch.from_numpy(np.stack([both.total, both.knowledge]))
    means, predicted = split_gaussian(outputs.double()) if objective == "gaussian_nll" else (outputs.double(), None)
    knowledge = means.var(dim=0, correction=0)  # [n, q]
    total = knowledge if predicted is None else knowledge + predicted.mean(dim=0)
    return torch.stack([total.mean(-1), knowledge.mean(-1)])


def mean_uncertainty(host: Host, state: State, world: int, client: IntArray, *, models: int) -> Tensor:
    """Returns total and knowledge uncertainty of a world's ensemble as means over each client's training samples.

    Returns:
        The two uncertainties of `sample_uncertainty` for each of the c clients, `[2, c]`. A client without samples has
        NaN.
    """

    def uncertainty(x: Tensor, _targets: Tensor) -> Tensor:
        return sample_uncertainty(
            host.study.net.objective, studies.compute_outputs(host, state, world, x, models=models)
        )

    means = studies.mean_scores(host, world, client, uncertainty, 2)
    size = host.study.shards.sizes(np.full(len(client), world), client)
    return means.masked_fill_(torch.from_numpy(size == 0), torch.nan)


def measure_drift(study: Study, runtime: Runtime, state: State) -> list[classification.Drift] | None:
    """Returns the drift scores of the clients in each world.

    Returns:
        A list with one entry for each world. The result is None for a single model, for more than 2,000 clients, or if
        the models that predict are not the trained models.
    """
    models = study.method.phase.models
    if study.method.answer is not None or models < 2 or study.clients.number > MOST_COMPARED_CLIENTS:
        return None
    pieces = runtime.ask(Question(partial(mean_uncertainty, models=models), numbers=2), state)
    drifts = []
    for world in range(study.worlds):
        total, knowledge = join_pieces(pieces, world).numpy()  # [N] each
        unit = 1.0 if study.classes else study.target_scale(world) ** 2
        drifts.append(classification.score_drift(unit * total, unit * knowledge))
    return drifts


# ---------------------------------------------------------------------------------------------------------------------
# The loss on the plane through three models (Fed-ensemble Fig. 3). It shows whether there is a valley between members.

PLANE_RESOLUTION = {"mlp": (25, 500), "conv": (15, 100)}  # engine -> (points per side of the grid, training samples)
PLANE_CLIENTS = 100  # number of clients that have these samples
MOST_CONV_PARAMETERS = 100_000  # convolutional networks with more parameters would take more than a few seconds
PLANE_MARGIN = 0.25  # margin around the three members, as a share of their extent
MODELS_AT_ONCE = 64


def find_plane_basis(models: Tensor) -> tuple[Tensor, FloatArray]:
    """Returns an orthonormal basis of the plane through the parameters of three models.

    The basis is computed by Gram-Schmidt from w1 - w0 and w2 - w0.

    Args:
        models: The parameters of the three models, `[3, d]`.

    Returns:
        The basis `[2, d]`, and the coordinates of the three models in it, `[3, 2]`.

    Example:
        >>> _, points = find_plane_basis(torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]]))
        >>> points.tolist()
        [[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]]
    """
    w = models.double()
    a, b = w[1] - w[0], w[2] - w[0]
    e1 = a / a.norm().clamp(min=1e-300)
    rest = b - (b @ e1) * e1
    e2 = rest / rest.norm().clamp(min=1e-300)
    axes = torch.stack([e1, e2])
    return axes, ((w - w[0]) @ axes.T).numpy()


def measure_loss_plane(study: Study, state: State) -> dict[str, FloatArray]:
    """Measures the loss on the plane through the parameters of models 0, 1 and 2 of the first world.

    The result is empty if there are fewer than three models. It is also empty if the network is large, or has layers
    other than linear layers and convolutions with their activations and pooling.

    Returns:
        Three arrays. `loss_plane` has the logarithm of the mean training loss on a grid of g points per side, `[g, g]`,
        beginning with the lowest row. `loss_plane_points` has the coordinates of the three models, `[3, 2]`.
        `loss_plane_extent` has the left, right, bottom and top end of the grid, `[4]`. Coordinates are Euclidean
        distances between parameters.
    """
    engine = choose_engine(study.net, example=study.example)
    if study.method.phase.models < 3 or engine.name not in PLANE_RESOLUTION:
        return {}
    if engine.name == "conv" and study.net.layout.d > MOST_CONV_PARAMETERS:
        return {}
    grid, samples = PLANE_RESOLUTION[engine.name]
    x, y = study.pool_rows(0, PLANE_CLIENTS)
    chosen = torch.linspace(0, len(x) - 1, min(samples, len(x))).long()
    x, y = x[chosen], y[chosen]

    def measure(rows: Tensor) -> Tensor:
        n = len(rows)
        outputs = engine.outputs(study.net, rows, state.counters[:1].expand(n, -1), x.expand(n, *x.shape))
        return measure_losses(study.net.objective, outputs, y.expand(n, *y.shape)).double().mean(1)

    axes, points = find_plane_basis(state.models[:3])
    low, high = points.min(axis=0), points.max(axis=0)
    edge = PLANE_MARGIN * max(float((high - low).max()), 1e-12)
    across, up = (np.linspace(a - edge, b + edge, grid) for a, b in zip(low, high, strict=True))
    at = torch.from_numpy(np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2))
    rows = (state.models[0].double() + at @ axes).to(state.models.dtype)
    losses = torch.cat([measure(part) for part in torch.split(rows, MODELS_AT_ONCE)])
    log = losses.clamp(min=1e-12).log().reshape(grid, grid)
    extent = np.array([across[0], across[-1], up[0], up[-1]])
    return {"loss_plane": log.numpy(), "loss_plane_points": points, "loss_plane_extent": extent}


# ---------------------------------------------------------------------------------------------------------------------
# All arrays of `pictures.npz`.

MOST_COMPARED_MEMBERS = 2_000  # most members whose pairs are compared and drawn
COVERAGE_LEVELS = (*(round(0.1 * step, 1) for step in range(1, 10)), 0.95)  # nominal levels of the coverage curve


def write_report_data(
    study: Study, runtime: Runtime, progress: Progress, path: Path, *, drift: classification.Drift | None
) -> None:
    """Computes the arrays of the report and writes them to one file.

    `drift` has the drift scores of the first world's clients. None means that clients were not compared.
    """
    answer = study.answer(progress.state)
    pieces = studies.ask_outputs(runtime, answer, "test", worlds=1)
    every = join_pieces(pieces, 0)
    outputs, y = answer.drop_absent(every, 0), study.split("test", 0)[1].numpy()
    if study.classes:
        members, mean = evaluate.answer_world(every, study.evaluation.average, answer, 0)
        table = classification.calibration(mean, y)
        arrays: dict[str, Any] = {
            "class_names": np.array(study.shards.data.class_names, dtype=str),
            "confusion": classification.confusion(mean, y),
            "calibration": np.stack([table.confidence, table.accuracy, table.samples.astype(np.float64)], axis=1),
            "disagreement": compare_members(members),
        }
        if study.parts:
            arrays |= collect_stack_report(study, progress.state, classification.probabilities(every.numpy()), y)
    else:
        arrays = _target_arrays(study, outputs, answer, progress)
    if study.evaluation.ood:
        unknown = join_pieces(studies.ask_outputs(runtime, answer, studies.OOD, worlds=1), 0)
        arrays |= evaluate.collect_ood_report(study, every, unknown, answer)
    arrays |= measure_loss_plane(study, progress.state)
    clusters = study.shards.clusters(0)
    if clusters is not None:
        arrays["clusters"] = clusters
    if study.scenario["data"].get("test_clients"):
        arrays["client_ids"] = study.client_ids(0, np.arange(study.clients.number))
    if study.method.phase.walk is not None:
        arrays["graph_edges"] = study.method.phase.walk.edges
    wanted = study.method.answer is None or study.evaluation.gamma is not None or answer.tiers is not None
    if study.clients.number <= MOST_COMPARED_CLIENTS and wanted:  # not for distillation, whose teachers predict
        arrays |= _client_arrays(study, runtime, progress.state, outputs)
    if study.evaluation.conformal is not None:
        arrays |= _conformal_arrays(study, runtime, progress.state)
    if drift is not None:
        arrays["client_scores"] = drift.z_knowledge
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    plain.write_atomically(path, buffer.getvalue())


def compare_members(members: FloatArray) -> FloatArray:
    """Returns for each pair of models the share of samples for which they predict different classes, `[K, K]`.

    `members` has the probabilities that each of K models predicts, `[K, n, C]`. The result is empty for more than
    2,000 models.

    Example:
        >>> compare_members(np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]])).tolist()
        [[0.0, 0.5], [0.5, 0.0]]
    """
    if len(members) > MOST_COMPARED_MEMBERS:
        return np.empty((0, 0))
    chosen = members.argmax(-1).astype(np.min_scalar_type(members.shape[-1]))
    return np.asarray(np.stack([np.count_nonzero(chosen != one, axis=1) for one in chosen]) / chosen.shape[1])


def _client_arrays(study: Study, runtime: Runtime, state: State, outputs: Tensor) -> dict[str, Any]:
    """Returns arrays with one row for each client of the run: weights over the models, and scores.

    For classification, there are also label counts, and the scores are accuracies. For regression, there are two
    scores: the RMSE with the client's own weights or models, and the RMSE with the common weights.
    """
    answer = study.answer(state)
    common_weights = answer.weigh_present(0)
    if common_weights is None:
        common_weights = np.full(len(outputs), 1.0 / len(outputs))
    known = np.arange(answers.count_known(study))
    equal = np.tile(common_weights, (len(known), 1))
    weights = find_client_weights(study, runtime, answer, [known])[0] if has_client_weights(study, answer) else equal
    if study.method.phase.is_personal:
        scores = personal.pick_own_scores(personal.ask_own_scores(runtime, state), 0, lowest=not study.classes)
    else:
        scores = answers.measure_clients(study, 0, outputs, weights)
    if study.classes:
        return {"alpha": weights, "label_counts": study.shards.label_counts(0), "client_accuracy": scores}
    common = answers.measure_clients(study, 0, outputs, equal)
    return {"alpha": weights, "client_rmse": scores, "client_rmse_equal": common}


def _conformal_arrays(study: Study, runtime: Runtime, state: State) -> dict[str, Any]:
    """Returns coverage and size of each client's conformal sets, and alpha (the share of labels that sets may miss)."""
    study = replace(study, evaluation=replace(study.evaluation, ood=False, train=False))
    measured = evaluate.measure_models(study, runtime, state, test=True)
    sets = measure_all_sets(study, runtime, state, measured, worlds=1)[0][1]
    assert sets is not None and study.evaluation.conformal is not None
    return {
        "conformal_clients": np.stack(sets, axis=1),
        "conformal_alpha": np.array([study.evaluation.conformal.alpha]),
    }


def _target_arrays(study: Study, outputs: Tensor, answer: Answer, progress: Progress) -> dict[str, Any]:
    found = progress.metrics[0].get("residual_sd") if progress.metrics else None
    residual = None if found is None else float(found / study.target_scale(0)) ** 2
    of = read_members(study, 0, outputs, "test", answer, residual=residual)
    mean, variance = of.moments
    x = study.split("test", 0)[0].numpy().reshape(len(of.y), -1)
    first = x[:, 0] if x.shape[1] == 1 else np.full(len(x), np.nan)  # with NaN the report draws target by target
    order = np.arange(len(x)) if x.shape[1] == 1 else np.argsort(of.y)
    covered = [(level, regression.coverage(mean, variance, of.y, level)) for level in COVERAGE_LEVELS]
    return {
        "predictive": np.stack([first, of.y, mean, np.sqrt(variance)], axis=1)[order],
        "pit": regression.pit(mean, variance, of.y),
        "coverage": np.array(covered),
    }
