"""What a worker does for jobs of asynchronous training: where they start, which train together, how they are added up.

Example:
    >>> group_versions(Local(lr=0.1, lr_decay=0.5, lr_decay_every=2), np.array([0, 1, 2])).tolist()
    [1, 1, 0]
"""

from __future__ import annotations

import numpy as np
import torch

from fedray.core.method import Local
from fedray.core.types import Flight, IntArray, Plan, Uploads


def rows_of_state(plan: Plan, flight: Flight | None, models: int) -> IntArray:
    """The row of the broadcast that each job starts from, `[J]`.

    Args:
        plan: The jobs.
        flight: Of asynchronous training; None: in rounds.
        models: K.
    """
    return plan.world * models + plan.model if flight is None else flight.row


def group_versions(local: Local, version: IntArray) -> IntArray:
    """A number below J for each job, `[J]`, equal where jobs of different versions may share a block.

    They may where their learning rates are equal; code in local training may read the round itself.

    Args:
        local: How the clients train.
        version: The version of its model from which each job starts, `[J]`.
    """
    rounds = version if local.has_code else np.array([local.lr_at(int(v)) for v in version])
    place: IntArray = np.unique(rounds, return_inverse=True)[1]
    return place


def to_groups(uploads: Uploads, flight: Flight) -> Uploads:
    """Uploads as the server of asynchronous training adds them up: weighted, one world for each group."""
    weight = torch.from_numpy(flight.weight).to(uploads.delta)[:, None]
    delta = uploads.delta if bool((weight == 1).all()) else uploads.delta * weight
    return uploads._replace(delta=delta, client=flight.sender, world=flight.group, model=np.zeros_like(flight.group))
