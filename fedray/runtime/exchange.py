"""One exchange of a round with the actors: jobs in chunks, messages, and sums that are added where they arise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedray.core.local import SENT
from fedray.core.method import JobRows
from fedray.core.sums import Totals
from fedray.core.types import Clients, IntArray, SizedPlan, State, Stats
from fedray.data.shards import share_array
from fedray.runtime import jobs as flights
from fedray.runtime.placement import ActorSpec, assign_homes, list_serving

# ---------------------------------------------------------------------------------------------------------------------
# Messages between the coordinator and the client actors: NumPy arrays in plain tuples, no pickled code, no tensors.

EVERY_ROW = slice(None)
Piece = tuple[int, int]  # a piece of an evaluation: a world, and the first row or client of the piece


class Page(NamedTuple):
    """Rows of a state that travel together.

    Attributes:
        models: Their numbers, `[m, d]`.
        counters: Their counters, `[m, c]`.
        extra: Further arrays of the state that are broadcast, by name, `[m, ...]`.
    """

    models: Any
    counters: Any
    extra: dict[str, Any]


class Order(NamedTuple):
    """What a client actor is asked to train.

    Attributes:
        exchange: Number of the exchange to which it belongs.
        t: The round, from 0.
        jobs: Its jobs; None: only its sums are wanted.
        held: Which rows of the state it gets, ascending; None: all of them.
        kept: Chunks of this exchange whose sums it has.
        sends: Whether it sends its sums.
    """

    exchange: int
    t: int
    jobs: SizedPlan | None
    held: IntArray | None
    kept: int
    sends: bool


class Reply(NamedTuple):
    """The answer of an actor.

    Attributes:
        stats: Sums of its uploads as `thin` makes them; None where it keeps them.
        rows: One row for each of its jobs; None without jobs.
        stored: Where the sums are that stay on its node; None where there are none.
    """

    stats: Stats | None
    rows: JobRows | None
    stored: Any = None


def to_page(state: State, rows: slice = EVERY_ROW) -> Page:
    """Packs rows of a state without copying; of its extra tensors only those called `broadcast/...` are sent."""
    extra = {name: value[rows].numpy() for name, value in state.extra.items() if name.startswith(SENT)}
    return Page(state.models[rows].numpy(), state.counters[rows].numpy(), extra)


def to_state(*pages: Page) -> State:
    """Unpacks rows. The tensors of one page share its read-only memory and must not be written; others are joined."""
    if len(pages) == 1:
        models, counters, extra = pages[0]
    else:
        models, counters = (np.concatenate(parts) for parts in list(zip(*pages, strict=True))[:2])
        extra = {name: np.concatenate([page.extra[name] for page in pages]) for name in pages[0].extra}
    return State(share_array(models), share_array(counters), {name: share_array(one) for name, one in extra.items()})


def page_bytes(page: Page) -> int:
    """Bytes of the arrays of a page.

    Example:
        >>> page_bytes(Page(np.zeros((3, 100), np.float32), np.zeros((3, 0)), {}))
        1200
    """
    return int(page.models.nbytes + page.counters.nbytes + sum(value.nbytes for value in page.extra.values()))


def in_order(parts: Sequence[IntArray], rows: Sequence[JobRows]) -> JobRows:
    """Joins the rows of all actors in the order of the plan; `parts` are the places of each actor's jobs in it.

    Example:
        >>> rows = [JobRows(np.array([0.1, 0.2])), JobRows(np.array([0.3]), {0: "ValueError: bad row"})]
        >>> in_order([np.array([0, 2]), np.array([1])], rows)
        JobRows(loss=array([0.1, 0.3, 0.2]), errors={1: 'ValueError: bad row'})
    """
    if not parts:
        return JobRows(np.zeros(0))
    order = np.argsort(np.concatenate(parts), kind="stable")
    loss = np.concatenate([each.loss for each in rows])[order]
    errors = {int(part[j]): text for part, each in zip(parts, rows, strict=True) for j, text in each.errors.items()}
    return JobRows(loss, errors)


# ---------------------------------------------------------------------------------------------------------------------
# Cuts the jobs of a round into chunks that actors take one after the other. Nothing here uses Ray.
#
# Exact sums do not depend on who trains what, so an actor that is quick may take more chunks than one that is slow.
# The chunks of a queue lie in the order of their models, so that most actors train, receive and send few of them.
# Tiers whose actors reserve the same share a queue: a device's speed is simulated, and any of these actors can train
# its jobs.

LEAST_JOBS = 2  # of a chunk where actors take several: engines train a lone job beside a copy of itself


class Chunk(NamedTuple):
    """Jobs that one actor trains in one call.

    Attributes:
        places: Their places in the plan, `[j]`, ascending.
        rows: The rows of the state that they start from, ascending.
    """

    places: IntArray
    rows: IntArray


class Queue(NamedTuple):
    """Chunks, and the actors that may take them: those that reserve the same, or the home of private vectors.

    Attributes:
        actors: Numbers of the actors.
        chunks: In the order in which actors should take them.
    """

    actors: list[int]
    chunks: list[Chunk]


def cut_chunks(
    clients: Clients,
    specs: Sequence[ActorSpec],
    jobs: SizedPlan,
    models: int,
    *,
    at_home: bool = False,
    laps: int = 1,
    mixed: bool = True,
) -> list[Queue]:
    """Cuts the jobs of a round. How they are cut never changes a bit of the result.

    Args:
        clients: The tiers.
        specs: The actors of the run.
        jobs: The jobs, `[J]`; their optimizer steps are their cost.
        models: Models of a world, K.
        at_home: Whether jobs run where their client lives, because it has private vectors there: a chunk an actor.
        laps: Chunks of each actor's share: 1, or the first has half of it, the next a quarter, and so on, so that what
            is taken last is small.
        mixed: Whether a chunk may have jobs of several rows of the state; not where rows are large.

    Returns:
        Queues without common actors; an actor may have none.

    Example:
        Six jobs of two models, for two actors: each gets one model, and nearly the same work.

        >>> from fedray.runtime.placement import ActorSpec
        >>> from fedray.core.types import Plan, Tier
        >>> specs = [ActorSpec(0, 1.0, 0.0, {})] * 2
        >>> jobs = SizedPlan(Plan(*np.array([[0, 1, 2, 3, 4, 5], [1, 0, 1, 0, 1, 0], [0] * 6])), np.ones(6), np.ones(6))
        >>> [queue] = cut_chunks(Clients((Tier("all", 9),)), specs, jobs, models=2)
        >>> [(chunk.places.tolist(), chunk.rows.tolist()) for chunk in queue.chunks]
        [([1, 3, 5], [0]), ([0, 2, 4], [1])]
    """
    row = flights.rows_of_state(jobs.plan, jobs.flight, models)
    if at_home:
        home = assign_homes(clients, specs, jobs.plan.client)
        each = [(a, np.flatnonzero(home == a)) for a in np.unique(home).tolist()]
        return [Queue([a], [_chunk(places, row)]) for a, places in each]
    serving, queues = list_serving(clients, specs), []
    kind = np.array([serving.index(actors) for actors in serving])[clients.tier_of(jobs.plan.client)]
    for k in np.unique(kind).tolist():
        actors, of_kind = list(serving[k]), np.flatnonzero(kind == k)
        order = of_kind[np.lexsort((-jobs.steps[of_kind], row[of_kind]))]
        begins, lap = _share_work(jobs.steps[order], len(actors), laps)
        kept = _keep_apart(begins, len(order), 1 if laps == 1 else LEAST_JOBS)
        parts = np.split(order, begins[kept][1:])
        inside = [np.empty(0, np.int64) if mixed else np.flatnonzero(np.diff(row[part])) + 1 for part in parts]
        first = np.argsort(lap[kept], kind="stable").tolist()
        chunks = [_chunk(one, row) for n in first for one in np.split(parts[n], inside[n])]
        queues.append(Queue(actors, chunks))
    return queues


def _chunk(places: IntArray, row: IntArray) -> Chunk:
    return Chunk(np.sort(places), np.unique(row[places]))


def _share_work(work: IntArray, actors: int, laps: int) -> tuple[IntArray, IntArray]:
    """Cuts jobs in a given order into an equal share for each actor, and each share into laps.

    Args:
        work: Cost of each job, `[J]`.
        actors: A.
        laps: As in `cut_chunks`.

    Returns:
        Where each part begins, ascending, and its lap, `[A * laps]`.
    """
    done = np.cumsum(np.maximum(work, 1)) / np.maximum(work, 1).sum()
    within = 1.0 - 0.5 ** np.arange(laps)  # 0, 1/2, 3/4
    starts = (np.arange(actors)[:, None] + within).ravel() / actors
    return np.searchsorted(done, starts + 1e-9), np.tile(np.arange(laps), actors)


def _keep_apart(begins: IntArray, jobs: int, least: int) -> list[int]:
    """Returns which parts stay, so that each has enough jobs; the others join the one before them."""
    kept = [0]
    for n, begin in enumerate(begins.tolist()):
        if begin - begins[kept[-1]] >= least and jobs - begin >= least:
            kept.append(n)
    return kept


# ---------------------------------------------------------------------------------------------------------------------
# Where an exchange stands: queues of chunks, and sums that are stored on nodes.

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
        """Takes the next chunk of an actor: one whose models it has had, else one whose models its node has had."""
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


# ---------------------------------------------------------------------------------------------------------------------
# One exchange with the actors: they take chunks of jobs as they finish, and their sums are added as they come.
#
# An actor keeps the sums of its chunks until there is no chunk left for it, and sends them once. Where actors share a
# node, they store them there, and one of them adds them up and sends the total. What an actor has lost goes back into
# its queue. Exact sums make the result the same, whoever trains what and whoever adds. Nothing here uses Ray.

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

    Example:
        Two actors share four chunks of a job each; the second does not answer again before the first has none left.

        >>> import numpy as np, torch
        >>> from fedray.core.sums import ExactSum
        >>> from fedray.core.sums import thin
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
    now = _Exchange(queues, post, nodes)
    now.give(now.queue_of)
    while now.doing:
        now.receive(*wait())
    return now.totals.stats, in_order([chunk.places for chunk, _ in now.done], [rows for _, rows in now.done])


def share_nodes(specs: Sequence[ActorSpec], here: str) -> list[list[int]]:
    """Returns the actors of each node that is not the coordinator's; they share the node's memory.

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
    """Chooses the nodes on which sums are added up: those that send less than half then.

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
    """Chooses how many laps a round is cut into: one for a short round, because every chunk costs a call.

    Args:
        seconds: How long the last one took; infinity before the first.
        actors: How many actors there are.

    Example:
        >>> choose_laps(0.05, actors=2), choose_laps(60.0, actors=2), choose_laps(60.0, actors=1)
        (1, 3, 1)
    """
    return PULLED_LAPS if actors > 1 and seconds > SECONDS_AN_ACTOR * actors else 1
