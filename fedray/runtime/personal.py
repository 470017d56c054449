"""Models of the clients' own: layers that stay with the client, personal passes, and how known clients answer.

LG-FedAvg keeps layers (`Phase.private`), Ditto trains a second model (`Phase.personal`). Both live in the host's
private store, one row per (name, world, client, model); a row that was never written is the broadcast model's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import LAYERS, PERSONAL_PREFIX, Phase
from fedray.core.types import EVALUATED_ROWS, Layout, Plan, State
from fedray.evaluation.clients import WeightedRows, held_out_rows, known_questions
from fedray.metrics import ensemble
from fedray.runtime.client_state import Private
from fedray.simulation.study import Study

Forward = Callable[[Tensor, Tensor, int, Tensor], Tensor]  # (rows [M, d], counters, world, x [n, ...]) -> [M, n, C]


def own_rows(private: Private, name: str, plan: Plan, broadcast: Tensor) -> Tensor:
    """The clients' own rows, or the broadcast ones where they have none, `[J, d]`."""
    has = torch.tensor(private.has(name, plan), device=broadcast.device)[:, None]
    return torch.where(has, private.read(name, plan).to(broadcast), broadcast)


def start_rows(private: Private, layout: Layout, phase: Phase, plan: Plan, broadcast: Tensor) -> Tensor:
    """Where each job starts: the broadcast model, its private layers the client's own, `[J, d]`."""
    if not phase.private:
        return broadcast
    mask = torch.from_numpy(layout.mask(phase.private)).to(broadcast.device)
    return torch.where(mask, own_rows(private, LAYERS, plan, broadcast), broadcast)


def rows_of(models: Tensor, row: Tensor) -> Tensor:
    """The models of some jobs, `[J, d]`, only to be read; one model is not copied for each job."""
    return models.expand(len(row), -1) if len(models) == 1 else models.index_select(0, row)


def withhold_private(layout: Layout, phase: Phase, start: Tensor, final: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """What may leave the client of `final - start` `[J, d]`, and what stays, by name; `final` is written over."""
    if not phase.private:
        return final.sub_(start), {}
    mask = torch.from_numpy(layout.mask(phase.private)).to(final.device)
    return (final - start).masked_fill_(mask, 0.0), {LAYERS: torch.where(mask, final, torch.zeros_like(final))}


def sent_counters(layout: Layout, phase: Phase, counters: Tensor) -> Tensor:
    """Counters `[J, c]` as they leave the client: those of private layers do not."""
    if not phase.private or not layout.counters:
        return counters
    stays = torch.tensor([name.rpartition(".")[0] in phase.private for name in layout.counters])
    return counters.masked_fill(stays, 0)


def personal_answers(
    study: Study, private: Private, forward: Forward, state: State, keys: list[tuple[int, int]]
) -> dict[tuple[int, int], Tensor]:
    """Accuracy of (world, client) pairs with models of their own, `[2, P]` each: on its test and its held-out rows.

    A client answers with the average over its K models of each pass; NaN where it has no such rows.
    """
    phase = study.method.phase
    out = {}
    for world in sorted({world for world, _ in keys}):
        tests, held = known_questions(study, world), held_out_rows(study, world)
        splits = [study.split(name, world) for name in ("test", "hold_out")]
        here = slice(world * phase.models, (world + 1) * phase.models)
        for client in (c for w, c in keys if w == world):
            rows = own_models(private, study.net.layout, phase, state, world, client)  # [P * K, d]
            counters = state.counters[here].repeat(len(rows) // phase.models, 1)
            said = partial(forward, rows, counters, world)
            kind = study.evaluation.average
            asks = zip(splits, (tests, held), strict=True)
            both = [_right(said, split, ask(client), phase, kind == "logits") for split, ask in asks]
            out[world, client] = torch.stack(both)
    return out


def own_models(private: Private, layout: Layout, phase: Phase, state: State, world: int, client: int) -> Tensor:
    """A client's models `[P * K, d]`: of each pass its K personal ones, or the broadcast ones with its own layers."""
    k = phase.models
    plan = Plan(np.full(k, client), np.arange(k), np.full(k, world))
    broadcast = state.models[world * k : (world + 1) * k]
    if phase.personal:
        return torch.cat(
            [own_rows(private, f"{PERSONAL_PREFIX}{p}", plan, broadcast) for p in range(len(phase.personal))]
        )
    return start_rows(private, layout, phase, plan, broadcast)


def _right(
    outputs: Callable[[Tensor], Tensor], split: tuple[Tensor, Tensor], asked: WeightedRows, phase: Phase, logits: bool
) -> Tensor:
    """Weighted accuracy of each pass on some rows of a split, `[P]` float64; logits: those are averaged."""
    total = np.full(max(1, len(phase.personal)), 0.0 if len(asked.rows) else np.nan)
    for a in range(0, len(asked.rows), EVALUATED_ROWS):
        part = torch.from_numpy(asked.rows[a : a + EVALUATED_ROWS])
        each = outputs(split[0][part]).cpu().numpy()  # [P * K, n, C]
        each = each if logits else ensemble.probabilities(each)
        said = each.reshape(-1, phase.models, *each.shape[1:]).mean(axis=1).argmax(axis=-1)  # [P, n]
        total += ((said == split[1][part].numpy()) * asked.weight[a : a + EVALUATED_ROWS]).sum(axis=1)
    return torch.from_numpy(total)
