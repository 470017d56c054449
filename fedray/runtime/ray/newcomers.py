"""Client actors that start beside those of a run, which trains on meanwhile.

Example:
    >>> Newcomers(Reservation([], None, []), lambda _seats: [], kernels=None).actors  # before they have seats
    []
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from fedray.runtime.ray.seats import Reservation

log = logging.getLogger("fedray")
SEAT_SECONDS = 30.0  # in which Ray seats them, or their room went to another job
Arrival = Literal["starting", "ready", "failed"]


class Newcomers:
    """Further actors.

    Attributes:
        seats: What they reserve.
        kernels: The digest that their compiled kernels must have; None where it does not matter.
        actors: The actors; none before their seats are reserved.
        differ: Whether their kernels are others.
    """

    def __init__(self, seats: Reservation, make: Callable[[Reservation], list[Any]], kernels: str | None) -> None:
        self.seats, self._make, self.kernels = seats, make, kernels
        self.actors: list[Any] = []
        self.differ = False
        self._answers: list[Any] = []
        self._began = time.monotonic()

    def look(self) -> Arrival:
        """Tells how far they are, without waiting."""
        if not self.actors:
            if not self.seats.is_ready():
                return "failed" if time.monotonic() - self._began > SEAT_SECONDS else "starting"
            self.actors = self._make(self.seats)
            self._answers = [call.remote() for actor in self.actors for call in (actor.ready, actor.hash_kernels)]
        if len(ray.wait(self._answers, num_returns=len(self._answers), timeout=0)[0]) < len(self._answers):
            return "starting"
        try:
            found = set(ray.get(self._answers)[1::2])
        except RayError:  # they died; where they cannot start, the run has begun without them
            return "failed"
        self.differ = self.kernels is not None and found != {self.kernels}
        if self.differ:
            log.info("further actors are not used: their nodes have other compiled kernels")
        return "failed" if self.differ else "ready"

    def close(self) -> None:
        """Ends them."""
        for actor in self.actors:
            ray.kill(actor)
        self.seats.release()
