"""The jobs of a block, as a worker trains them.

Example:
    >>> key, row = np.array([7], dtype=np.uint64), np.array([0])
    >>> jobs = Jobs(Plan(*np.array([[3], [0], [0]])), np.array([20]), np.array([5]), key, row)
    >>> jobs.doubled().plan.client.tolist()
    [3, 3]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.types import Flight, IntArray, Plan
from fedray.runtime.mixture import Shares


class Jobs(NamedTuple):
    """Some jobs of a round.

    Attributes:
        plan: Client, model and world of each job, `[J]`.
        size: Training samples of each job, `[J]`.
        steps: Optimizer steps of each job, `[J]`.
        key: Address of each job's random numbers, `[J]`.
        row: The row of the broadcast that each job starts from, `[J]`.
        flight: Where they start and where their uploads go in asynchronous training; None: in rounds.
        shares: How the clients weigh their samples by all models; None: all samples weigh the same.
    """

    plan: Plan
    size: IntArray
    steps: IntArray
    key: rng.Keys
    row: IntArray
    flight: Flight | None = None
    shares: Shares | None = None

    def doubled(self) -> Jobs:
        """The first job and a copy of it."""
        first = np.array([0, 0])
        flight = None if self.flight is None else self.flight.take(first)
        size, steps, key, row = self.size[first], self.steps[first], self.key[first], self.row[first]
        return Jobs(self.plan.take(first), size, steps, key, row, flight, self.shares)
