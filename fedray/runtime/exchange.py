"""One exchange with the actors: they take chunks of jobs as they finish, and their sums are added as they come.

An actor keeps the sums of its chunks until there is no chunk left for it, and sends them once. What an actor has lost
goes back into its queue. Exact sums make the result the same, whoever trains what. Nothing here uses Ray.

Example:
    Two actors share four chunks of a job each; the second never answers a second time before the first has none left.

    >>> import numpy as np, torch
    >>> from fedray.core.exact_sum import ExactSum
    >>> from fedray.core.totals import thin
    >>> chunks = [Chunk(np.array([j]), np.array([0])) for j in range(4)]
    >>> posted, kept = [], {0: 0.0, 1: 0.0}
    >>> def post(a, task):
    ...     posted.append((a, task))
    ...     kept[a] += 0.0 if task.chunk is None else 10.0 ** task.chunk.places[0]
    >>> def wait():
    ...     a, task = min(posted, key=lambda one: one[0])
    ...     posted.remove((a, task))
    ...     rows = None if task.chunk is None else JobRows(np.array([float(a)]))
    ...     return a, Reply(thin({"sum": ExactSum({0: torch.tensor([[kept[a]]])})}) if task.sends else None, rows)
    >>> stats, rows = exchange([Queue([0, 1], chunks)], post, wait)
    >>> stats["sum"].value().item(), rows.loss.tolist()
    (1111.0, [0.0, 1.0, 0.0, 0.0])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedray.core.method import JobRows
from fedray.core.totals import Totals
from fedray.core.types import Stats
from fedray.runtime.chunks import Chunk, Queue
from fedray.runtime.messages import Reply, in_order

PULLED_LAPS = 3
SECONDS_AN_ACTOR = 0.1  # of a round: four calls of an actor take the coordinator some 5 ms


class Task(NamedTuple):
    """What an actor is asked for.

    Attributes:
        chunk: The jobs that it trains; None: only its sums are wanted.
        kept: Chunks of this exchange whose sums it has.
        sends: Whether it sends its sums.
    """

    chunk: Chunk | None
    kept: int
    sends: bool


Post = Callable[[int, Task], None]  # (actor, task) -> nothing; the answer comes from `Wait`
Wait = Callable[[], "tuple[int, Reply | None]"]  # -> an actor and its answer; None where it has lost its sums


class _Desk:
    """A queue while its actors take from it."""

    def __init__(self, queue: Queue) -> None:
        self.pulls = len(queue.chunks) > len(queue.actors)  # otherwise an actor sends its sums with its only chunk
        self.actors, self.left = queue.actors, list(queue.chunks)
        self.kept: dict[int, list[tuple[Chunk, JobRows]]] = {a: [] for a in queue.actors}
        self.rows: dict[int, set[int]] = {a: set() for a in queue.actors}

    def take(self, a: int) -> Chunk | None:
        """The next chunk of an actor: one whose models it has had already, if there is such a one."""
        if not self.left:
            return None
        known = (n for n, chunk in enumerate(self.left) if self.rows[a].issuperset(chunk.rows.tolist()))
        chunk = self.left.pop(next(known, 0))
        self.rows[a].update(chunk.rows.tolist())
        return chunk

    def lose(self, a: int, chunk: Chunk | None) -> None:
        """Puts back what an actor has lost."""
        self.left += [one for one, _ in self.kept[a]] + ([] if chunk is None else [chunk])
        self.kept[a], self.rows[a] = [], set()


def exchange(queues: Sequence[Queue], post: Post, wait: Wait) -> tuple[Stats, JobRows]:
    """Has all chunks trained.

    Args:
        queues: The chunks, and who may take them.
        post: Sends an actor a task; it has no other one meanwhile.
        wait: Waits for the answer of any actor that has a task.

    Returns:
        The sums of all uploads, and the rows of all jobs in the order of the plan.
    """
    totals, done = Totals(), list[tuple[Chunk, JobRows]]()
    desk_of = {a: desk for desk in map(_Desk, queues) for a in desk.actors}
    doing: dict[int, Chunk | None] = {}

    def give(a: int) -> None:
        desk = desk_of[a]
        chunk = desk.take(a)
        if chunk is not None or desk.kept[a]:
            doing[a] = chunk
            post(a, Task(chunk, len(desk.kept[a]), chunk is None or not desk.pulls))

    for a in desk_of:
        give(a)
    while doing:
        a, reply = wait()
        desk, chunk = desk_of[a], doing.pop(a)
        if reply is None:
            desk.lose(a, chunk)
        else:
            desk.kept[a] += [] if chunk is None or reply.rows is None else [(chunk, reply.rows)]
            if reply.stats is not None:
                totals.add(reply.stats)
                done += desk.kept[a]
                desk.kept[a] = []
        for b in desk.actors if reply is None else (a,):
            if b not in doing:
                give(b)
    return totals.stats, in_order([chunk.places for chunk, _ in done], [rows for _, rows in done])


def choose_laps(seconds: float, actors: int) -> int:
    """How many laps a round is cut into: one where it is short, because every chunk costs a call.

    Args:
        seconds: How long the last one took; infinity before the first.
        actors: How many actors there are.

    Example:
        >>> choose_laps(0.05, actors=2), choose_laps(60.0, actors=2), choose_laps(60.0, actors=1)
        (1, 3, 1)
    """
    return PULLED_LAPS if actors > 1 and seconds > SECONDS_AN_ACTOR * actors else 1
