"""How conformal sets do for each known client: which of its rows count, and coverage and size over them.

Example:
    >>> sets = Sets(covered=np.array([1.0, 0.0, 1.0]), size=np.array([2.0, 1.0, 3.0]))
    >>> rows = [WeightedRows(np.array([0, 1]), np.array([0.5, 0.5])), WeightedRows(np.array([2]), np.ones(1))]
    >>> cover_alike(sets, lambda client: rows[client], clients=2)
    ClientSets(coverage=array([0.5, 1. ]), size=array([1.5, 3. ]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray
from fedray.evaluation.clients import RowsOfClient, WeightedRows, held_out_rows
from fedray.evaluation.row_scores import RowAnswers, cover_rows, score_rows
from fedray.metrics.conformal import Sets, Threshold
from fedray.simulation.study import Study


class ClientSets(NamedTuple):
    """How the sets of the known clients do, NaN for a client without rows.

    Attributes:
        coverage: share of the client's rows whose answer is inside, `[N]`.
        size: mean labels in a set, or width of an interval, `[N]`.
    """

    coverage: FloatArray
    size: FloatArray


def list_withheld(study: Study, world: int) -> list[IntArray]:
    """The places of each known client's rows among the withheld ones, `[n_k]` each."""
    find = held_out_rows(study, world)
    return [find(client).rows for client in range(min(study.clients.number, EVALUATED_CLIENTS))]


def keep_scored(own: WeightedRows) -> WeightedRows:
    """Every second of a client's withheld rows, which held-out metrics score; they calibrate on the others.

    Args:
        own: all of its withheld rows.
    """
    rows = own.rows[1::2]
    return WeightedRows(rows, np.full(len(rows), 1.0 / max(1, len(rows))))


def cover_alike(sets: Sets, find: RowsOfClient, clients: int) -> ClientSets:
    """How the sets that everybody shares do on the rows of each client.

    Args:
        sets: of all rows of a split.
        find: the rows of a client.
        clients: N.
    """
    return _join(weigh_sets(sets, find(client)) for client in range(clients))


def cover_weighted(
    study: Study, of: RowAnswers, find: RowsOfClient, weights: FloatArray, threshold: Threshold
) -> ClientSets:
    """How the sets of clients with weights of their own do on their rows.

    Args:
        study: what was trained.
        of: what the models say of a split.
        find: the rows of a client.
        weights: of the clients over the models, `[N, K]`.
        threshold: the largest score inside of a set.
    """

    def cover(client: int) -> tuple[float, float]:
        own = find(client)
        sets = cover_rows(score_rows(study, of, own.rows, weights[client]), threshold.value)
        return weigh_sets(sets, own._replace(rows=np.arange(len(own.rows))))

    return _join(cover(client) for client in range(len(weights)))


def weigh_sets(sets: Sets, own: WeightedRows) -> tuple[float, float]:
    """Coverage and mean size over a client's rows; NaN without any.

    Args:
        sets: of rows, among which the client's are.
        own: their places, and the weight of each.
    """
    if not len(own.rows):
        return np.nan, np.nan
    return float(own.mean(sets.covered[own.rows])), float(own.mean(sets.size[own.rows]))


def _join(pairs: Any) -> ClientSets:
    table = np.array(list(pairs), dtype=np.float64).reshape(-1, 2)
    return ClientSets(table[:, 0], table[:, 1])
