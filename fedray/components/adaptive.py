"""The adaptive schedule's memory: a state that keeps the last loss of every client on every model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.core.types import FloatArray, Plan, State, Stats

MOST_LOSSES = 50_000_000


def remember_losses(method: Method, worlds: int, clients: int) -> Method:
    """The method with `job_loss` `[worlds, N, K]` in its state, NaN before the first job.

    Args:
        method: any method with a server.
        worlds: number of worlds.
        clients: N.

    Raises:
        BadInput: there are too many losses to keep.

    Example:
        >>> import fedray
        >>> scenario = {"schedule": {"kind": "adaptive"}, "rounds": 1, "clients": {"number": 4}}
        >>> run = fedray.run(scenario, runtime="inline", report=False)
        >>> run.progress.state.extra["job_loss"].shape
        torch.Size([1, 4, 5])
    """
    phase = method.phase
    if worlds * clients * phase.models > MOST_LOSSES:
        raise BadInput(
            f"schedule.kind = adaptive keeps a loss per client and model: {worlds * clients * phase.models:,} of them "
            "are too many: lower clients.number, or choose permutation"
        )

    def init(models: Tensor) -> dict[str, Tensor]:
        return {**phase.server.init(models), "job_loss": torch.full((worlds, clients, phase.models), float("nan"))}

    def step(state: State, stats: Stats, t: int) -> State:
        loss = state.extra["job_loss"]
        after = phase.server.step(state, stats, t)
        return after._replace(extra={**after.extra, "job_loss": loss})

    server = phase.server._replace(init=init, step=step)
    return replace(method, phase=replace(phase, server=server, remember=write_losses))


def write_losses(state: State, plan: Plan, loss: FloatArray) -> State:
    """The state with the losses `[J]` of a plan's jobs in its `job_loss`.

    Args:
        state: has `job_loss`.
        plan: the jobs of a round, J of them.
        loss: the mean training loss of each, `[J]`.
    """
    losses = state.extra["job_loss"].clone()
    losses[plan.world, plan.client, plan.model] = torch.from_numpy(loss).float()
    return state._replace(extra={**state.extra, "job_loss": losses})
