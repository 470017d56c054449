"""What the adaptive schedule needs from any method: a state that keeps every job's last loss."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.core.types import State, Stats

MOST_LOSSES = 50_000_000


def remember_losses(method: Method, worlds: int, clients: int) -> Method:
    """The method with `job_loss` `[worlds, clients, K]` in its state, NaN before the first job."""
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
    return replace(method, phase=replace(phase, server=server))
