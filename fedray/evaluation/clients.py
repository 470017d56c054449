"""Known clients, one by one: the rows each is scored on, its weights over the models, and the scores over clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray
from fedray.metrics import ensemble
from fedray.simulation.study import Study


class WeightedRows(NamedTuple):
    """The rows of a split that one client is scored on.

    Attributes:
        rows: places in the split, `[n]`; n = 0 where the client has none.
        weight: the weight of each row, `[n]`; they sum to 1.
    """

    rows: IntArray
    weight: FloatArray


RowsOfClient = Callable[[int], WeightedRows]


def known_clients(study: Study) -> list[tuple[int, int]]:
    """(world, client) of everyone who is evaluated one by one."""
    number = min(study.clients.number, EVALUATED_CLIENTS)
    return [(world, client) for world in range(study.worlds) for client in range(number)]


def label_shares(study: Study, world: int) -> FloatArray:
    """Share of each class in each client's training data, `[N, C]`."""
    counts = study.shards.label_counts(world)[:EVALUATED_CLIENTS].astype(np.float64)
    shares: FloatArray = counts / np.maximum(counts.sum(1, keepdims=True), 1.0)
    return shares


def own_test_rows(study: Study, world: int) -> RowsOfClient:
    """A function: client -> the test rows it is scored on.

    A client with test rows of its own is tested on them; otherwise on the test rows of the classes it holds, reweighted
    to its label shares, which is the expectation over test samples that follow its distribution.
    """
    labels = study.split("test", world)[1].numpy()
    count = np.bincount(labels, minlength=study.classes)
    shares = label_shares(study, world)

    def find(client: int) -> WeightedRows:
        own = study.shards.client_test(world, client)
        if own is not None:
            return WeightedRows(own, np.full(len(own), 1.0 / max(1, len(own))))
        each = np.where(count > 0, shares[client], 0.0) / np.maximum(count, 1)
        rows = np.flatnonzero(each[labels] > 0)
        weight = each[labels[rows]]
        return WeightedRows(rows, weight / max(float(weight.sum()), 1e-300))

    return find


def held_out_rows(study: Study, world: int) -> RowsOfClient:
    """A function: client -> its held-out rows, which all weigh the same."""

    def find(client: int) -> WeightedRows:
        rows = study.shards.client_holdout(world, client) if study.hold_out else np.empty(0, np.int64)
        return WeightedRows(rows, np.full(len(rows), 1.0 / max(1, len(rows))))

    return find


def weigh_models(study: Study, losses: Tensor) -> FloatArray:
    """Each client's weights over the models that answer (FE eqs. 3-4), `[N, K]`, from its losses `[K, N]`."""
    gamma = 0.0 if study.method.one_model_per_client else study.evaluation.gamma
    return ensemble.personal_weights(losses.double().numpy().T, np.inf if gamma is None else gamma)


def measure_client_accuracy(
    study: Study, world: int, outputs: Tensor, weights: FloatArray, split: str = "test"
) -> FloatArray:
    """Accuracy of each client's weighted ensemble on its own rows of a split.

    Args:
        study: what was trained.
        world: number of the world.
        outputs: raw outputs of the models that answer on the whole split, `[K, n, C]`.
        weights: each client's weights over the models, `[N, K]`; rows sum to 1.
        split: `test` or `hold_out`.

    Returns:
        `[N]`, 0 to 1; NaN for a client without such rows.
    """
    labels = study.split(split, world)[1].numpy()
    find = own_test_rows(study, world) if split == "test" else held_out_rows(study, world)
    votes = ensemble.member_votes(outputs.numpy(), study.evaluation.average).astype(np.float32)
    accuracy = np.full(len(weights), np.nan)
    for client, row in enumerate(weights):
        own = find(client)
        if len(own.rows):
            chosen = np.tensordot(row.astype(np.float32), votes[:, own.rows], axes=1).argmax(-1)
            accuracy[client] = ((chosen == labels[own.rows]) * own.weight).sum()
    return accuracy


def split_own_accuracy(own: dict[tuple[int, int], Tensor], world: int) -> tuple[FloatArray, FloatArray]:
    """Accuracies of a world's clients with models of their own, on their test and held-out rows: `[N, P]` each.

    Args:
        own: (world, client) -> `[2, P]`, one column for each personal pass.
        world: number of the world.
    """
    both = torch.stack([own[key] for key in sorted(own) if key[0] == world], dim=1).numpy()
    return both[0], both[1]


def pick_best_pass(test: FloatArray, held_out: FloatArray) -> FloatArray:
    """Each client's accuracy with the pass that did best on its own held-out rows, `[N]`; the first one in a tie.

    Args:
        test: accuracy of each client with each pass, `[N, P]`.
        held_out: the same on its held-out rows, `[N, P]`; NaN where nothing was held out.
    """
    best = np.nan_to_num(held_out, nan=-1.0).argmax(axis=1)
    result: FloatArray = np.take_along_axis(test, best[:, None], axis=1)[:, 0]
    return result


def summarize_clients(accuracy: FloatArray, prefix: str = "") -> dict[str, float]:
    """Mean, 10th percentile and worst of the clients' accuracies `[N]`; a client without a score (NaN) is left out.

    Example:
        >>> summarize_clients(np.array([0.5, 1.0, np.nan]))
        {'personal_accuracy': 0.75, 'personal_p10': 0.55, 'personal_worst': 0.5}
    """
    known = accuracy[~np.isnan(accuracy)]
    if not len(known):
        return {}
    scores = {"accuracy": known.mean(), "p10": np.quantile(known, 0.1), "worst": known.min()}
    return {f"{prefix}personal_{name}": float(value) for name, value in scores.items()}
