"""Conformal scores and sets of known clients that answer with models of their own, where these clients live."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Answer
from fedray.core.types import EVALUATED_ROWS, FloatArray, IntArray, State
from fedray.evaluation.client_sets import keep_scored, weigh_sets
from fedray.evaluation.clients import WeightedRows, held_out_rows, own_test_rows
from fedray.evaluation.row_scores import RowScores, cover_rows, find_true_scores, read_answers, score_rows
from fedray.runtime.evaluation import pick_own_models
from fedray.runtime.worker import Worker


def score_own_sets(
    worker: Worker, state: State, keys: list[tuple[int, int]], thresholds: FloatArray | None, split: str = "test"
) -> dict[tuple[int, int], Tensor]:
    """What known clients say of their own answers: scores to calibrate by, or how their sets do.

    Args:
        worker: The worker on which the clients live.
        state: The broadcast models.
        keys: World and client of each.
        thresholds: The largest score inside of a set, `[worlds]`; None: it is not known yet.
        split: Where the sets are asked for: `test`, or `hold_out` for the withheld rows that are scored.

    Returns:
        By key: scores of the right answers of the client's withheld rows, `[n_k]`; with thresholds coverage and mean
        size of the sets of its rows, `[2]`, NaN where it has none.
    """
    study, out = worker.study, {}
    split = "hold_out" if thresholds is None else split
    for world in sorted({world for world, _ in keys}):
        find = (own_test_rows if split == "test" else held_out_rows)(study, world)
        for client in (client for key_world, client in keys if key_world == world):
            own = find(client)
            if thresholds is not None and split == "hold_out":
                own = keep_scored(own)
            found = _score_own_rows(worker, state, (world, client), split, own.rows) if len(own.rows) else None
            if thresholds is None:
                out[world, client] = torch.from_numpy(np.empty(0) if found is None else find_true_scores(found))
            else:
                out[world, client] = _cover_own_rows(found, own, float(thresholds[world]))
    return out


def _cover_own_rows(found: RowScores | None, own: WeightedRows, threshold: float) -> Tensor:
    """Coverage and mean size of the sets of a client's rows, `[2]`; NaN where it has no rows."""
    if found is None:
        return torch.full((2,), torch.nan, dtype=torch.float64)
    in_order = own._replace(rows=np.arange(len(own.rows)))
    return torch.tensor(weigh_sets(cover_rows(found, threshold), in_order), dtype=torch.float64)


def _score_own_rows(worker: Worker, state: State, key: tuple[int, int], split: str, rows: IntArray) -> RowScores:
    """The scores of some rows of a split under the models of a client, key: (world, client)."""
    (world, client), study, models = key, worker.study, worker.study.method.phase.models
    own = pick_own_models(worker, state, world, client)
    shared = state.counters[world * models : (world + 1) * models]
    x = study.split(split, world)[0][torch.from_numpy(rows)]
    outputs = torch.cat([worker.forward(own, shared, world, part).cpu() for part in torch.split(x, EVALUATED_ROWS)], 1)
    answer = Answer(State(own, shared, {}), models)
    return score_rows(study, read_answers(study, world, outputs, split, answer, rows=rows))
