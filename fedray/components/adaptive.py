"""The adaptive schedule's memory: a state that keeps the last loss of every client on every model, and their odds."""

from __future__ import annotations

import numpy as np
import torch

from fedray.components.kept_state import keep_in_state
from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.core.types import FloatArray, Plan, State

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
    models = method.phase.models
    if worlds * clients * models > MOST_LOSSES:
        raise BadInput(
            f"schedule.kind = adaptive keeps a loss per client and model: {worlds * clients * models:,} of them "
            "are too many: lower clients.number, or choose permutation"
        )
    first = {"job_loss": lambda: torch.full((worlds, clients, models), float("nan"))}
    return keep_in_state(method, first, write_losses)


def write_losses(_t: int, state: State, plan: Plan, loss: FloatArray) -> State:
    """The state with the losses `[J]` of a plan's jobs in its `job_loss`.

    Args:
        state: has `job_loss`.
        plan: the jobs of a round, J of them.
        loss: the mean training loss of each, `[J]`.
    """
    losses = state.extra["job_loss"].clone()
    losses[plan.world, plan.client, plan.model] = torch.from_numpy(loss).float()
    return state._replace(extra={**state.extra, "job_loss": losses})


def find_odds(loss: FloatArray) -> FloatArray:
    """The odds with which clients draw their models, which grow with the losses.

    They are the losses themselves. At a client with a negative loss (a density may be above 1) they are `exp(loss)`, as
    shares of the largest: of a Gaussian's negative log likelihood they do not depend on the units of the target.

    Args:
        loss: The last loss of each client on each model, `[P, K]`, NaN before the first: such a model has the largest
            odds.

    Returns:
        `[P, K]`, above 0.

    Example:
        >>> find_odds(np.array([[1.0, np.nan, 3.0], [0.0, -1.0, -2.0]])).round(2).tolist()
        [[1.0, 3.0, 3.0], [1.0, 0.37, 0.14]]
    """
    most = np.nanmax(np.where(np.isnan(loss), 1e-12, loss), axis=1, keepdims=True)
    known = np.where(np.isnan(loss), most, loss)
    less = np.clip(known, -1e300, 1e300) - np.clip(most, -1e300, 1e300)  # infinity less infinity is no number
    return np.where((known < 0).any(axis=1, keepdims=True), np.exp(less), known) + 1e-12
