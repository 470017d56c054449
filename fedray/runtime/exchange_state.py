"""Where an exchange stands: queues of chunks, and sums that are stored on nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedray.core.method import JobRows
from fedray.runtime.chunks import Chunk, Queue

Done = list[tuple[Chunk, JobRows]]


class Task(NamedTuple):
    """What an actor is asked for.

    Attributes:
        chunk: The jobs that it trains; None: only sums are wanted.
        kept: Chunks of this exchange whose sums it has.
        sends: Whether it sends its sums, or stores them on its node.
        sums: Those that are stored on nodes, which it adds up, and does nothing else.
    """

    chunk: Chunk | None
    kept: int
    sends: bool
    sums: tuple[Any, ...] = ()


class OpenQueue:
    """A queue while its actors take from it."""

    def __init__(self, queue: Queue) -> None:
        self.pulls = len(queue.chunks) > len(queue.actors)  # otherwise an actor sends its sums with its only chunk
        self.actors = queue.actors
        self.left: list[tuple[Chunk, frozenset[int]]] = []
        self.kept: dict[int, Done] = {a: [] for a in queue.actors}
        self.rows: dict[int, frozenset[int]] = dict.fromkeys(queue.actors, frozenset())
        self.requeue(queue.chunks)

    def take(self, a: int, neighbors: Sequence[int]) -> Chunk | None:
        """The next chunk of an actor: one whose models it has had already, else one whose models its node has had."""
        if not self.left:
            return None
        n, own = None, self.rows[a]
        if own:
            near = own.union(*(self.rows[b] for b in neighbors if b in self.rows))
            known = (n for had in (own, near) for n, (_, rows) in enumerate(self.left) if had >= rows)
            n = next(known, None)
        chunk, rows = self.left.pop(n or 0)
        self.rows[a] = own | rows
        return chunk

    def requeue(self, chunks: Iterable[Chunk]) -> None:
        """Has chunks trained again."""
        self.left += [(chunk, frozenset(chunk.rows.tolist())) for chunk in chunks]

    def lose(self, a: int, chunk: Chunk | None) -> None:
        """Has trained again what an actor has lost."""
        self.requeue([*(one for one, _ in self.kept[a]), *([] if chunk is None else [chunk])])
        self.kept[a], self.rows[a] = [], frozenset()


class StoredSums(NamedTuple):
    """Sums that stay on the node of the actor that has them, and the chunks that they are of."""

    actor: int
    queue: OpenQueue
    kept: Done
    sums: Any


class NodeSums:
    """The sums that are stored on a node, until one of its actors adds them up."""

    def __init__(self, actors: Sequence[int]) -> None:
        self.actors, self.failures = actors, 0
        self.stored: list[StoredSums] = []

    def give_up(self) -> None:
        """Has all chunks trained again whose sums are stored here."""
        for one in self.stored:
            one.queue.requeue(chunk for chunk, _ in one.kept)
        self.stored, self.failures = [], 0
