"""What a worker does for jobs of asynchronous training: where they start, which train together, how they are added up.

Example:
    >>> from fedray.core.method import Local
    >>> local = Local(lr=0.1, lr_decay=0.5, lr_decay_every=2)
    >>> group_versions(Phase(1, None, local, None, None), np.array([0, 1, 2])).tolist()
    [0, 0, 1]
"""

from __future__ import annotations

import numpy as np
import torch

from fedray.core.method import Phase
from fedray.core.types import Flight, IntArray, Plan, Uploads


def rows_of_state(plan: Plan, flight: Flight | None, models: int, held: IntArray | None = None) -> IntArray:
    """Returns the row of the broadcast that each job starts from, `[J]`.

    Args:
        plan: The jobs.
        flight: Of asynchronous training; None: in rounds.
        models: K.
        held: Which rows of the state the broadcast has, ascending; None: all of them.
    """
    row = plan.world * models + plan.model if flight is None else flight.row
    return row if held is None else np.searchsorted(held, row)


def group_versions(phase: Phase, version: IntArray) -> IntArray:
    """Returns a number below J for each job, `[J]`, equal for jobs of different versions that may share a block.

    They may where their learning rates are equal and their pieces do alike; code in local training may read the round
    itself.

    Args:
        phase: How the clients train.
        version: The version of its model from which each job starts, `[J]`.
    """
    versions, place = np.unique(version, return_inverse=True)  # few, where there are many jobs
    code, rate = phase.local.has_code or phase.couples, phase.local.lr_at
    kinds = [v if code else (rate(v), *(piece.group(v) for piece in phase.pieces)) for v in versions.tolist()]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    found: IntArray = np.array([numbers[kind] for kind in kinds], dtype=np.int64)[place]
    return found


def to_groups(uploads: Uploads, flight: Flight) -> Uploads:
    """Uploads as the server of asynchronous training adds them up: weighted in place, one world for each group."""
    if (flight.weight != 1).any():
        uploads.delta.mul_(torch.from_numpy(flight.weight).to(uploads.delta)[:, None])
    return uploads._replace(client=flight.sender, world=flight.group, model=np.zeros_like(flight.group))
