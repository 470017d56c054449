"""Clients that choose the model they train: the plan of a round after they were asked.

Example:
    >>> plan = Plan(client=np.array([4, 7, 9]), model=np.zeros(3, np.int64), world=np.zeros(3, np.int64))
    >>> pick_least_loss(plan, np.array([[0.3, 0.1], [0.2, 0.2], [np.nan, np.nan]])).model.tolist()
    [1, 0, 0]
"""

from __future__ import annotations

import numpy as np

from fedray.components.schedule import Assignment, Drawn, WorldRound
from fedray.core.types import FloatArray, IntArray, Plan, State


def one_job_each(_models: int, _rows: str = "client") -> Assignment:
    """Every participant has one job, of model 0 until it has chosen."""

    def assign(_now: WorldRound, drawn: Drawn, _m: IntArray, _state: State | None) -> tuple[IntArray, IntArray]:
        return np.arange(len(drawn.client)), np.zeros(len(drawn.client), dtype=np.int64)

    return assign


def pick_least_loss(plan: Plan, losses: FloatArray) -> Plan:
    """Returns the plan in which each client trains the model of least loss on its training rows, in a tie the first.

    Args:
        plan: The jobs, `[J]`.
        losses: Mean loss of each model at each job's client, `[J, K]`; NaN and infinite ones are worse than all others.
            A client that could tell none trains the model that the plan says.
    """
    told = np.isfinite(losses)
    best = np.where(told, losses, np.inf).argmin(axis=1)
    return plan._replace(model=np.where(told.any(axis=1), best, plan.model))


def every_model(models: int, _rows: str = "client") -> Assignment:
    """Every participant trains all K models."""

    def assign(_now: WorldRound, drawn: Drawn, _m: IntArray, _state: State | None) -> tuple[IntArray, IntArray]:
        number = len(drawn.client)
        return np.repeat(np.arange(number), models), np.tile(np.arange(models), number)

    return assign
