"""Where the work and the sums of an exchange lie: desks with chunks, trays of nodes, and the shelf of all nodes.

Example:
    >>> Task(None, kept=2, sends=True).part is None
    True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedray.core.method import JobRows
from fedray.core.types import Stats
from fedray.runtime.chunks import Chunk, Queue

Done = list[tuple[Chunk, JobRows]]


class Task(NamedTuple):
    """What an actor is asked for.

    Attributes:
        chunk: The jobs that it trains; None: only sums are wanted.
        kept: Chunks of this exchange whose sums it has.
        sends: Whether it sends its sums, or lays them down.
        parcels: Sums that lie on nodes, which it adds up, and does nothing else.
        cuts: Into how many parts of columns it cuts what it has added up, which then stay on its node; 0: it sends it.
        part: Which part of columns the parcels are; None: all columns.
    """

    chunk: Chunk | None
    kept: int
    sends: bool
    parcels: tuple[Any, ...] = ()
    cuts: int = 0
    part: int | None = None


class Desk:
    """A queue while its actors take from it."""

    def __init__(self, queue: Queue) -> None:
        self.pulls = len(queue.chunks) > len(queue.actors)  # otherwise an actor sends its sums with its only chunk
        self.actors = queue.actors
        self.left: list[tuple[Chunk, frozenset[int]]] = []
        self.kept: dict[int, Done] = {a: [] for a in queue.actors}
        self.rows: dict[int, frozenset[int]] = dict.fromkeys(queue.actors, frozenset())
        self.put_back(queue.chunks)

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

    def put_back(self, chunks: Iterable[Chunk]) -> None:
        """Has chunks trained again."""
        self.left += [(chunk, frozenset(chunk.rows.tolist())) for chunk in chunks]

    def lose(self, a: int, chunk: Chunk | None) -> None:
        """Puts back what an actor has lost."""
        self.put_back([*(one for one, _ in self.kept[a]), *([] if chunk is None else [chunk])])
        self.kept[a], self.rows[a] = [], frozenset()


class Laid(NamedTuple):
    """Sums that an actor has laid down, and the chunks that they are of."""

    actor: int
    desk: Desk
    kept: Done
    parcel: Any


class Tray:
    """What lies on a node: the sums of its actors, until one of them adds them up."""

    def __init__(self, actors: Sequence[int]) -> None:
        self.actors, self.failures = actors, 0
        self.laid: list[Laid] = []

    def put_back(self) -> None:
        """Puts all chunks back whose sums lay here."""
        put_back(self.laid)
        self.laid, self.failures = [], 0


def put_back(laid: Iterable[Laid]) -> None:
    """Has the chunks trained again whose sums have lain somewhere."""
    for one in laid:
        one.desk.put_back(chunk for chunk, _ in one.kept)


class Shelf:
    """The sums of nodes, each cut into the same parts of columns, until all parts are added up."""

    def __init__(self, adders: Sequence[int], parts: int) -> None:
        self.adders, self.parts, self.failures = adders, parts, 0
        self.laid: list[Laid] = []
        self.cut: list[Sequence[Any]] = []  # the parts of each node's sums
        self.added: dict[int, Stats] = {}

    def lay_down(self, laid: Iterable[Laid], cut: Sequence[Any]) -> None:
        """Takes the parts of a node's sums; what its actors had laid down is not needed any more."""
        self.laid += [one._replace(parcel=None) for one in laid]
        self.cut.append(cut)

    def list_tasks(self) -> list[tuple[int, Task]]:
        """Who adds up which of the parts that are missing."""
        missing = [part for part in range(self.parts) if part not in self.added]
        parcels = [tuple(cut[part] for cut in self.cut) for part in missing]
        each = zip(self.adders, missing, parcels, strict=False)
        return [(a, Task(None, 0, True, sums, part=part)) for a, part, sums in each]

    def clear(self) -> list[Laid]:
        """Takes everything away; what lay here."""
        laid = self.laid
        self.laid, self.cut, self.added, self.failures = [], [], {}, 0
        return laid
