"""Models that belong to the clients: layers that stay with the client, and personal models.

LG-FedAvg keeps some layers with the client (`Phase.private`), Ditto trains a second model (`Phase.personal`). Both are
private vectors of the worker on which the client lives, one row for each (name, world, client, model). Where a row was
never written, the broadcast model takes its place.

Example:
    >>> plan, private = Plan(*np.array([[3, 8], [0, 0], [0, 0]])), Private(2, torch.float32)
    >>> private.write("layers", plan.take(slice(1)), torch.tensor([[5.0, 5.0]]))
    >>> own_rows(private, "layers", plan, broadcast=torch.zeros(2, 2)).tolist()
    [[5.0, 5.0], [0.0, 0.0]]
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.local import Reading, reads_ensemble
from fedray.core.method import LAYERS, PARTICLES, PERSONAL_PREFIX, PREVIOUS, Local, Phase
from fedray.core.types import Layout, Plan, State
from fedray.runtime.client_state import Private
from fedray.runtime.jobs import Jobs
from fedray.simulation.study import Study


def own_rows(private: Private, name: str, plan: Plan, broadcast: Tensor) -> Tensor:
    """The clients' own rows of a private vector, or the broadcast rows where they have none.

    Args:
        private: The private vectors of a worker.
        name: Name of the vector.
        plan: The jobs, `[J]`.
        broadcast: The broadcast models of the jobs, `[J, d]`.

    Returns:
        The rows, `[J, d]`.
    """
    has = torch.tensor(private.has(name, plan), device=broadcast.device)[:, None]
    return torch.where(has, private.read(name, plan).to(broadcast), broadcast)


def start_rows(private: Private, layout: Layout, phase: Phase, plan: Plan, broadcast: Tensor) -> Tensor:
    """The rows from which jobs start: the broadcast models, with the clients' own rows in the private layers.

    Args:
        private: The private vectors of a worker.
        layout: How a row is divided into layers.
        phase: Its `private` names the layers that stay with the client.
        plan: The jobs, `[J]`.
        broadcast: The broadcast models of the jobs, `[J, d]`.

    Returns:
        The rows, `[J, d]`.
    """
    if not phase.private:
        return broadcast
    mask = torch.from_numpy(layout.mask(phase.private)).to(broadcast.device)
    return torch.where(mask, own_rows(private, LAYERS, plan, broadcast), broadcast)


def read_factor(private: Private, study: Study, plan: Plan, like: Tensor) -> dict[str, Tensor]:
    """The particles that clients keep, by name, `[J, d]`; the first models where a client was never trained.

    A client draws these by their addresses, as the server has. Nothing is there where clients keep no particles.

    Args:
        private: The private vectors of a worker.
        study: Says how first models are drawn.
        plan: The jobs, `[J]`.
        like: Where the rows shall be, and of which type.
    """
    if study.method.phase.local.particles is None:
        return {}
    rows = private.read(PARTICLES, plan).to(like)
    for job in np.flatnonzero(~np.array(private.has(PARTICLES, plan))):
        rows[job] = study.net.init(int(rng.keys(study.init_seeds[plan.world[job]], "init", plan.model[job]))).to(like)
    return {PARTICLES: rows}


def rows_of(models: Tensor, row: Tensor) -> Tensor:
    """The models `[J, d]` of some jobs, for reading only: one model is not copied for each job."""
    return models.expand(len(row), *models.shape[1:]) if len(models) == 1 else models.index_select(0, row)


def find_reading(
    private: Private,
    local: Local,
    t: int,
    jobs: Jobs,
    broadcast: Tensor,
    *,
    state: State,
    models: int,
    factor: Tensor | None = None,
) -> Reading | None:
    """What the code of a local training may read of its clients; None where there is no code.

    Args:
        private: The private vectors of a worker.
        local: How the clients train.
        t: The round, from 0.
        jobs: The jobs, `[J]`.
        broadcast: The models that the jobs received, `[J, d]`, with the clients' own layers in them.
        state: The broadcast models; all of them, where a loss reads them.
        models: K.
        factor: The clients' own particles, `[J, d]`; None where they keep none.
    """
    if not local.has_code:
        return None
    plan = jobs.plan
    previous = own_rows(private, PREVIOUS, plan, broadcast) if local.keeps_model else None
    every = _ensembles(state.models, plan, models) if reads_ensemble(local.loss) else None
    columns = (plan.client, plan.model, jobs.size)
    client, model, size = (torch.from_numpy(column).to(broadcast.device) for column in columns)
    shared = None
    if local.loss is not None and local.loss.shared is not None:
        row = torch.from_numpy(jobs.row).to(broadcast.device)
        shared = rows_of(state.extra[local.loss.shared].to(broadcast), row)
    return Reading(t, client, model, broadcast, previous, every, size, factor, shared)


def _ensembles(rows: Tensor, plan: Plan, models: int) -> Tensor:
    """The K models of each job's world, `[J, K, d]`; those of one world are not copied for each job."""
    each = rows.view(-1, models, rows.shape[1])
    if (plan.world == plan.world[0]).all():
        return each[int(plan.world[0])].expand(len(plan.world), -1, -1)
    return each.index_select(0, torch.from_numpy(plan.world).to(rows.device))


def withhold_private(layout: Layout, phase: Phase, start: Tensor, final: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Separates what leaves the client from what stays there.

    A compression of the rest sends 0 in private layers too, but that of a user's own phase may take whole rows.

    Args:
        layout: How a row is divided into layers.
        phase: Its `private` names the layers that stay with the client.
        start: The rows before training, `[J, d]`.
        final: The rows after training, `[J, d]`; they may be overwritten.

    Returns:
        The difference `final - start` `[J, d]`, 0 in private layers; and the private vectors to keep, by name.
    """
    if not phase.private:
        return final.sub_(start), {}
    mask = torch.from_numpy(layout.mask(phase.private)).to(final.device)
    return (final - start).masked_fill_(mask, 0.0), {LAYERS: torch.where(mask, final, torch.zeros_like(final))}


def sent_counters(layout: Layout, phase: Phase, counters: Tensor) -> Tensor:
    """The counters that leave the client: those of private layers are 0.

    Args:
        layout: Names the counters.
        phase: Its `private` names the layers that stay with the client.
        counters: The counters after training, `[J, c]`.

    Returns:
        The counters, `[J, c]`.
    """
    if not phase.private or not layout.counters:
        return counters
    stays = torch.tensor([name.rpartition(".")[0] in phase.private for name in layout.counters])
    return counters.masked_fill(stays, 0)


def own_models(private: Private, study: Study, state: State, world: int, client: int) -> Tensor:
    """The models with which a known client answers.

    Args:
        private: The private vectors of the worker on which the client lives.
        study: Its method has K models and P personal passes (P = 1 where only layers are private).
        state: The broadcast models.
        world: The world.
        client: The client's id.

    Returns:
        The models, `[P * K, d]`: K personal models of each pass, or the broadcast ones with the client's own layers, or
        those with 0 outside of its tier's slice.
    """
    phase, k = study.method.phase, study.method.phase.models
    plan = Plan(np.full(k, client), np.arange(k), np.full(k, world))
    broadcast = state.models[world * k : (world + 1) * k]
    if phase.personal:
        passes = [f"{PERSONAL_PREFIX}{p}" for p in range(len(phase.personal))]
        return torch.cat([own_rows(private, name, plan, broadcast) for name in passes])
    if phase.slices is not None:
        return phase.slices.keep_slice(broadcast, int(study.clients.tier_of(np.array([client]))[0]))
    return start_rows(private, study.net.layout, phase, plan, broadcast)
