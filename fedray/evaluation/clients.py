"""Known clients, one by one: which test rows are a client's own, and the scores over clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray
from fedray.simulation.study import Study


class WeightedRows(NamedTuple):
    """Rows of a split `[n]` that a client is asked, and their weights `[n]`, which sum to 1 (nothing: n = 0)."""

    rows: IntArray
    weight: FloatArray


def known_clients(study: Study) -> list[tuple[int, int]]:
    """(world, client) of everyone who is evaluated one by one."""
    number = min(study.clients.number, EVALUATED_CLIENTS)
    return [(world, client) for world in range(study.worlds) for client in range(number)]


def client_labels(study: Study, world: int) -> FloatArray:
    """Share of each class in each client's training data, `[N, C]`."""
    counts = study.shards.label_counts(world)[:EVALUATED_CLIENTS].astype(np.float64)
    shares: FloatArray = counts / np.maximum(counts.sum(1, keepdims=True), 1.0)
    return shares


def known_questions(study: Study, world: int) -> Callable[[int], WeightedRows]:
    """A function: client -> its test.

    A client with test rows of its own is tested on them; otherwise on the test rows of the classes it holds, reweighted
    to its label shares, which is the expectation over test samples that follow its distribution.
    """
    labels = study.split("test", world)[1].numpy()
    count = np.bincount(labels, minlength=study.classes)
    shares = client_labels(study, world)

    def ask(client: int) -> WeightedRows:
        own = study.shards.client_test(world, client)
        if own is not None:
            return WeightedRows(own, np.full(len(own), 1.0 / max(1, len(own))))
        each = np.where(count > 0, shares[client], 0.0) / np.maximum(count, 1)
        rows = np.flatnonzero(each[labels] > 0)
        weight = each[labels[rows]]
        return WeightedRows(rows, weight / max(float(weight.sum()), 1e-300))

    return ask


def held_out_rows(study: Study, world: int) -> Callable[[int], WeightedRows]:
    """A function: client -> its held-out rows, which all weigh the same."""

    def ask(client: int) -> WeightedRows:
        rows = study.shards.client_holdout(world, client) if study.hold_out else np.empty(0, np.int64)
        return WeightedRows(rows, np.full(len(rows), 1.0 / max(1, len(rows))))

    return ask


def over_known_clients(each: FloatArray, prefix: str = "") -> dict[str, float]:
    """Mean, 10th percentile and worst of the clients' accuracies `[N]`; NaN (nothing was asked) is left out."""
    known = each[np.isfinite(each)]
    if not len(known):
        return {}
    return {
        f"{prefix}personal_accuracy": float(known.mean()),
        f"{prefix}personal_p10": float(np.quantile(known, 0.1)),
        f"{prefix}personal_worst": float(known.min()),
    }


def best_pass(test: FloatArray, held: FloatArray) -> FloatArray:
    """Each client's accuracy with the pass that did best on its own held-out rows, `[N]`; the first one in a tie.

    Args:
        test, held: `[N, P]` accuracies; held is NaN where nothing was held out.
    """
    chosen = np.nan_to_num(held, nan=-1.0).argmax(axis=1)
    result: FloatArray = np.take_along_axis(test, chosen[:, None], axis=1)[:, 0]
    return result
