"""How the chunks of an exchange reach the client actors, and their answers the coordinator.

The rows of the state travel as pages: one model a page where models are large, so that a node gets only those that its
actors need, and each of them once.

Example:
    >>> rows_a_page(np.zeros((5, 10), np.float32)), rows_a_page(np.zeros((5, 10**6), np.float32))
    (5, 1)
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import RayTaskError

from fedray.core.errors import FedrayError
from fedray.core.totals import sum_bytes
from fedray.core.types import IntArray, SizedPlan, State
from fedray.runtime.exchange_state import Task
from fedray.runtime.messages import Order, Page, Reply, page_bytes, to_page
from fedray.runtime.ray.cluster import GONE, MOST_DEATHS, describe_cluster, explain_error
from fedray.runtime.ray.connection import KeepsDying
from fedray.runtime.ray.seats import PATIENCE

PAGE_BYTES = 1 << 20  # of a page of small rows
CALL_BYTES = 100 << 10  # Ray copies smaller arguments into the call
NUMBERS = itertools.count()  # of exchanges: what actors keep belongs to one


def rows_a_page(models: Any) -> int:
    """How many rows of an array `[M, d]` a page has."""
    return max(1, min(len(models), PAGE_BYTES // max(1, int(models[0].nbytes))))


class Round(NamedTuple):
    """What is trained.

    Attributes:
        t: The round, from 0.
        jobs: All jobs.
        state: The server's state.
        whole: Whether actors need all rows of the state.
    """

    t: int
    jobs: SizedPlan
    state: State
    whole: bool


class Calls:
    """The calls of one exchange.

    Attributes:
        actors: The client actors, by number.
        recover: Waits until an actor that has died is there again.
        apart: Actors whose sums stay on their node, for one of them to add up.
        traffic: Bytes of models that were sent, each page once, and of sums that came back.
    """

    def __init__(
        self, actors: list[Any], recover: Callable[[int], None], round_: Round, apart: Collection[int] = ()
    ) -> None:
        self.actors, self.recover, self.round, self.apart = actors, recover, round_, apart
        self._number, self.traffic = next(NUMBERS), [0, 0]
        models = round_.state.models.numpy()
        self._rows = len(models) if round_.whole else rows_a_page(models)
        self._pages: dict[int, Page | Any] = {}
        self._pending: dict[Any, tuple[int, Any]] = {}  # an answer -> its actor, and where its sums are stored
        self._deaths: Counter[int] = Counter()

    def post(self, a: int, task: Task) -> None:
        """Calls an actor."""
        if task.sums:
            self._pending[self.actors[a].add.remote(*task.sums)] = a, None
            return
        t, jobs = self.round[:2]
        if task.chunk is None:
            order, pages = Order(self._number, t, None, None, task.kept, task.sends), list[Any]()
        else:
            numbers = np.unique(task.chunk.rows // self._rows) if not self.round.whole else np.zeros(1, np.int64)
            order = Order(self._number, t, jobs.take(task.chunk.places), self._held(numbers), task.kept, task.sends)
            pages = [self._page(int(number)) for number in numbers]
        if task.sends and a in self.apart:
            answer, stored = self.actors[a].train_apart.options(num_returns=2).remote(order, *pages)
        else:
            answer, stored = self.actors[a].train.remote(order, *pages), None
        self._pending[answer] = a, stored

    def _held(self, numbers: IntArray) -> IntArray | None:
        """The rows of some pages; None where they are all."""
        rows = (numbers[:, None] * self._rows + np.arange(self._rows)).ravel()
        held: IntArray = rows[rows < len(self.round.state.models)]
        return None if len(held) == len(self.round.state.models) else held

    def _page(self, number: int) -> Any:
        """A page, or a reference to it."""
        if number not in self._pages:
            page = to_page(self.round.state, slice(number * self._rows, (number + 1) * self._rows))
            self.traffic[0] += page_bytes(page)
            self._pages[number] = page if page_bytes(page) < CALL_BYTES else ray.put(page)
        return self._pages[number]

    def wait(self) -> tuple[int, Reply | None]:
        """Waits for any answer; None where the actor has died, or has lost its sums."""
        done, _ = ray.wait(list(self._pending), timeout=PATIENCE)
        if not done:
            a = min(a for a, _ in self._pending.values())
            raise FedrayError(
                f"waited {PATIENCE:g} s for client actor {a} to answer a call; {describe_cluster()}: is it stuck? "
                "If its work takes longer, set FEDRAY_PATIENCE"
            )
        a, stored = self._pending.pop(done[0])
        try:
            reply: Reply | None = ray.get(done[0])
        except RayTaskError as error:
            if isinstance(error.cause, GONE):  # what it was to add up is gone with another node
                return a, None
            raise explain_error(error, f"client actor {a}") from error
        except GONE:
            self._deaths[a] += 1
            if self._deaths[a] >= MOST_DEATHS:
                raise KeepsDying(
                    f"client actor {a} died {MOST_DEATHS} times over one call: has it enough memory?"
                ) from None
            self.recover(a)
            return a, None
        self.traffic[1] += 0 if reply is None or reply.stats is None else sum_bytes(reply.stats)
        return a, reply if reply is None else reply._replace(stored=stored)
