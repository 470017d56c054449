"""One exchange with the actors: they take chunks of jobs as they finish, and their sums are added as they come.

An actor keeps the sums of its chunks until there is no chunk left for it, and sends them once. Where actors share a
node, they store them there, and one of them adds them up and sends the total. What an actor has lost goes back into its
queue. Exact sums make the result the same, whoever trains what and whoever adds. Nothing here uses Ray.

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

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fedray.core.method import JobRows
from fedray.core.totals import Totals
from fedray.core.types import Stats
from fedray.runtime.chunks import Chunk, Queue
from fedray.runtime.exchange_state import Done, NodeSums, OpenQueue, StoredSums, Task
from fedray.runtime.messages import Reply, in_order
from fedray.runtime.seats import ActorSpec

PULLED_LAPS = 3
LEAST_GAIN = 2.0  # by which sums become fewer where they are added on their node: that takes time, too
ADD_TRIES = 2  # of adding what is stored on a node, before it is trained again
SECONDS_AN_ACTOR = 0.1  # of a round: four calls of an actor take the coordinator some 5 ms

Post = Callable[[int, Task], None]  # (actor, task) -> nothing; the answer comes from `Wait`
Wait = Callable[[], "tuple[int, Reply | None]"]  # -> an actor and its answer; None where it has lost its sums


class _Exchange:
    """One exchange while it goes on."""

    def __init__(self, queues: Sequence[Queue], post: Post, nodes: Sequence[Sequence[int]]) -> None:
        self.post, self.totals, self.done = post, Totals(), Done()
        self.queue_of = {a: queue for queue in map(OpenQueue, queues) for a in queue.actors}
        self.node_of = {a: node for node in map(NodeSums, nodes) for a in node.actors}
        self.doing: dict[int, Task] = {}

    def give(self, actors: Iterable[int]) -> None:
        """Gives actors that have nothing to do their next task, and then has added up what is stored on their nodes."""
        idle = [a for a in actors if a not in self.doing]
        for a in idle:
            queue, node = self.queue_of[a], self.node_of.get(a)
            chunk = queue.take(a, node.actors if node else ())
            if chunk is not None or queue.kept[a]:
                self._ask(a, Task(chunk, len(queue.kept[a]), chunk is None or not queue.pulls))
        for node in {id(one): one for one in map(self.node_of.get, idle) if one is not None}.values():
            if node.stored and self.doing.keys().isdisjoint(node.actors):
                sums = tuple(one.sums for one in node.stored)
                self._ask(node.stored[0].actor, Task(None, 0, True, sums))

    def _ask(self, a: int, task: Task) -> None:
        self.doing[a] = task
        self.post(a, task)

    def receive(self, a: int, reply: Reply | None) -> None:
        """Takes the answer of an actor, and gives out what there is to do next."""
        task = self.doing.pop(a)
        kept = self._end_adding(a, task, reply) if task.sums else self._end_chunk(a, task.chunk, reply)
        if reply is not None and reply.stats is not None:
            self.totals.add(reply.stats)
            self.done += kept
        self.give([a] if reply is not None else self.queue_of)

    def _end_chunk(self, a: int, chunk: Chunk | None, reply: Reply | None) -> Done:
        """Notes what an actor has trained or lost; the chunks whose sums it has sent or stored."""
        queue = self.queue_of[a]
        if reply is None:
            queue.lose(a, chunk)
            return []
        queue.kept[a] += [] if chunk is None or reply.rows is None else [(chunk, reply.rows)]
        kept = queue.kept[a]
        if reply.stats is not None or reply.stored is not None:
            queue.kept[a] = []
        if reply.stored is not None:
            self.node_of[a].stored.append(StoredSums(a, queue, kept, reply.stored))
        return kept

    def _end_adding(self, a: int, task: Task, reply: Reply | None) -> Done:
        """Notes what was added up on a node: the chunks of the sum. What is stored there may be gone with its adder."""
        node, number = self.node_of[a], len(task.sums)
        node.failures += 1
        if reply is None:
            if node.failures >= ADD_TRIES:
                node.give_up()
            return []
        added, node.stored, node.failures = node.stored[:number], node.stored[number:], 0  # others have come meanwhile
        return [one for each in added for one in each.kept]


def exchange(
    queues: Sequence[Queue], post: Post, wait: Wait, nodes: Sequence[Sequence[int]] = ()
) -> tuple[Stats, JobRows]:
    """Has all chunks trained.

    Args:
        queues: The chunks, and who may take them.
        post: Sends an actor a task; it has no other one meanwhile.
        wait: Waits for the answer of any actor that has a task.
        nodes: Actors of a node that store their sums for one of them to add up, node by node.

    Returns:
        The sums of all uploads, and the rows of all jobs in the order of the plan.
    """
    now = _Exchange(queues, post, nodes)
    now.give(now.queue_of)
    while now.doing:
        now.receive(*wait())
    return now.totals.stats, in_order([chunk.places for chunk, _ in now.done], [rows for _, rows in now.done])


def share_nodes(specs: Sequence[ActorSpec], here: str) -> list[list[int]]:
    """The actors of each node that is not the coordinator's, whose memory they share with it.

    Args:
        specs: The actors.
        here: The coordinator's node.

    Example:
        >>> share_nodes([ActorSpec(0, 1.0, 0.0, {}, node) for node in "abbac"], here="a")
        [[1, 2], [4]]
    """
    on: dict[str, list[int]] = {}
    for a, spec in enumerate(specs):
        on.setdefault(spec.node, []).append(a)
    return [actors for node, actors in on.items() if node not in (here, "")]


def choose_adding(nodes: Sequence[Sequence[int]], queues: Sequence[Queue]) -> list[Sequence[int]]:
    """The nodes on which sums are added up: those that send less than half then, because actors train the same models.

    Args:
        nodes: The actors of each node.
        queues: The chunks of an exchange.

    Example:
        Four actors of one node that train four models, each its own; then eight actors of two nodes and two models.

        >>> import numpy as np
        >>> chunks = [Chunk(np.array([j]), np.array([j % 4])) for j in range(8)]
        >>> choose_adding([[0, 1, 2, 3]], [Queue([0, 1, 2, 3], chunks)])
        []
        >>> choose_adding([[0, 1, 2, 3], [4, 5, 6, 7]], [Queue(list(range(8)), chunks[:2])])
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    if not nodes:  # small models, or one node: nothing to find out
        return []
    gains = [load.apart >= LEAST_GAIN * min(load.added, load.models) > 0 for load in _find_loads(nodes, queues)]
    return [actors for actors, gain in zip(nodes, gains, strict=True) if gain]


class _Load(NamedTuple):
    """How many sums of models a node sends, if each actor sends its own or if one adds them up; of how many models."""

    apart: float
    added: float
    models: int


def _find_loads(nodes: Sequence[Sequence[int]], queues: Sequence[Queue]) -> list[_Load]:
    """Estimates: chunks lie in the order of their models, so A actors of a queue with R models have A + R - 1 sums."""
    rows = [frozenset[int]().union(*(chunk.rows.tolist() for chunk in queue.chunks)) for queue in queues]
    queue_of = {a: n for n, queue in enumerate(queues) for a in queue.actors if rows[n]}
    found = []
    for actors in nodes:
        counts = Counter(queue_of[a] for a in actors if a in queue_of)
        beyond = sum((len(rows[n]) - 1) * count / len(queues[n].actors) for n, count in counts.items())
        its = frozenset[int]().union(*(rows[n] for n in counts))
        found.append(_Load(counts.total() + beyond, len(counts) + beyond, len(its)))
    return found


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
