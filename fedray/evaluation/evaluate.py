"""From models to rows of metrics: every member and the ensemble, new clients and known ones.

Example:
    >>> probs = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]])  # of two members
    >>> score_members(probs, np.array([0, 1]))["member_accuracy"]
    [1.0, 0.5]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import FloatArray, IntArray, State
from fedray.evaluation.client_sets import ClientSets
from fedray.evaluation.clients import (
    measure_clients,
    measure_clients_alike,
    pick_best_pass,
    pick_recorded_clients,
    split_own_scores,
    summarize_clients,
)
from fedray.evaluation.conformal import add_client_sets, measure_all_sets
from fedray.evaluation.measured import Measured, gather_outputs, join_pieces, measure_models
from fedray.evaluation.ood import score_ood
from fedray.evaluation.own_metrics import score_own_metrics
from fedray.evaluation.present import answer_world, drop_absent, join_voters, weigh_present
from fedray.evaluation.regression import decompose_squared_error, read_members, score_regression
from fedray.evaluation.stacking import score_stack
from fedray.metrics import classification, ensemble
from fedray.metrics.clusters import compare_clusters
from fedray.simulation.interfaces import ClientScores, Pieces, Progress, Runtime
from fedray.simulation.study import Study

KeepClients = Callable[[int, int, ClientScores], None]  # (round, world, scores of its clients)


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
        measured = measure_models(study, runtime, progress.state, test)
        sets = _measure_sets(study, runtime, progress.state, measured)
        rows = []
        for world in range(study.worlds):
            row, clients = _score_world(study, world, measured, test)
            if sets:
                row |= sets[world][0]
                clients = add_client_sets(study, clients, sets[world][1])
            rows.append(row)
            if keep_clients is not None and clients is not None:
                keep_clients(progress.round, world, clients)
        if test and study.replicates > 1 and study.shards.data.noise is not None:
            parts = decompose_error(study, measured.test, measured.answer)
            rows = [row | more for row, more in zip(rows, parts, strict=True)]
        return rows

    return evaluate


def _measure_sets(
    study: Study, runtime: Runtime, state: State, measured: Measured
) -> list[tuple[dict[str, Any], ClientSets | None]]:
    """Metrics of conformal sets and what clients get, one entry a world; empty where the scenario asks for none."""
    if study.evaluation.conformal is None:
        return []
    given = [gather_outputs(study, world, measured) for world in range(study.worlds)]
    return measure_all_sets(study, runtime, state, given)


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
        scores |= score_own_metrics(study, world, outputs[split], split, answer, residual=residual)
        if measured.ood:
            scores |= score_ood(study, world, outputs[split], join_pieces(measured.ood, world), answer)
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
            prefix: measure_clients_alike(
                study,
                world,
                join_voters(outputs[split], answer, world),
                split,
                chosen,
                weights=weigh_present(answer, world),
            )
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
    if measured.weights:
        weights = measured.weights[world]
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


def _score_clusters(study: Study, world: int, measured: Measured) -> dict[str, float]:
    """How well the clients' models tell their true clusters apart; nothing where these, or the models, are one."""
    true = study.shards.clusters(world)
    if true is None or not measured.weights or study.method.one_model_per_client or measured.answer.models == 1:
        return {}
    if study.evaluation.gamma is None:  # the weights are those of tiers, which are no clusters
        return {}
    return {"cluster_ari": compare_clusters(true, measured.weights[world])}


def score_answer(
    study: Study, world: int, outputs: Tensor, split: str, answer: Answer, *, residual: float | None
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
    if study.classes:
        members, mean = answer_world(outputs, study.evaluation.average, answer, world)
        return {**classification.classification_scores(members, y.numpy(), mean), **score_members(members, y.numpy())}
    outputs = drop_absent(outputs, answer, world)
    return score_regression(read_members(study, world, outputs, split, answer, residual=residual))


def score_members(probs: FloatArray, y: IntArray) -> dict[str, list[float]]:
    """Every score of each member by itself, `[K]` each, from probabilities `[K, n, C]` and labels `[n]`."""
    return {f"member_{name}": values for name, values in classification.member_scores(probs, y).items()}


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
