"""When the server steps where clients do not wait for each other, and what a late upload weighs.

Example:
    >>> rule = AsyncRule("async", concurrency=8, alpha=0.6, staleness="hinge", a=10.0)
    >>> rule.weigh(np.array([0, 5])).round(3).tolist()
    [0.6, 0.055]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedray.core.types import FloatArray, IntArray, Mode, Staleness


@dataclass(frozen=True)
class AsyncRule:
    """When the server steps, and how much a late upload weighs.

    Attributes:
        mode: `semi`: every `tick` seconds; `buffered`: when a model has `goal` uploads (FedBuff, Nguyen et al. 2022);
            `async`: at every arrival (FedAsync, Xie et al. 2019).
        concurrency: Clients that train at the same time.
        goal: Uploads of a model that make the server step.
        tick: Virtual seconds between two steps of the server.
        alpha: Of `async`: weight of an upload that is not late, in (0, 1].
        staleness: Which function of the staleness tau weighs an upload: 1, `(1 + tau) ** -a`, or 1 up to b and
            `1 / (a (tau - b) + 1)` above.
        a: Of `polynomial` and `hinge`.
        b: Of `hinge`.
        dropout: Probability that a client sends nothing; its place is free when it would have been done.
        deadline: Virtual seconds after which the server gives a client up; None: never.
    """

    mode: Mode
    concurrency: int
    goal: int = 1
    tick: float = 1.0
    alpha: float = 1.0
    staleness: Staleness = "constant"
    a: float = 0.5
    b: float = 4.0
    dropout: float = 0.0
    deadline: float | None = None

    def weigh(self, tau: IntArray) -> FloatArray:
        """Returns s(tau), times alpha if arrivals are mixed in one by one, `[J]`.

        Example:
            >>> AsyncRule("buffered", 1, staleness="polynomial").weigh(np.array([0, 3])).tolist()
            [1.0, 0.5]
        """
        late = tau.astype(np.float64)
        if self.staleness == "polynomial":
            weight = (1.0 + late) ** -self.a
        elif self.staleness == "hinge":
            weight = np.where(late <= self.b, 1.0, 1.0 / (self.a * np.maximum(late - self.b, 0.0) + 1.0))
        else:
            weight = np.ones(len(tau))
        return (self.alpha if self.mode == "async" else 1.0) * weight
