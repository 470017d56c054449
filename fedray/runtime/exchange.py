"""One exchange of a round with the actors: messages, jobs in chunks, and who trains which."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fedray.core.errors import BadInput
from fedray.core.method import SENT, JobRows, Phase
from fedray.core.sums import Totals
from fedray.core.types import Clients, Flight, IntArray, Net, Plan, SizedPlan, State, Stats, Uploads
from fedray.data.shards import share_array
from fedray.runtime.placement import ActorSpec, assign_homes, list_serving
from fedray.simulation.study import Study, choose_study_engine
from fedray.training.block import choose_batch_width, split_into_blocks
from fedray.training.choice import Engine, count_block_jobs

# ---------------------------------------------------------------------------------------------------------------------
# The jobs of a round: where they start, which share a block, and which engine trains it.

# ---------------------------------------------------------------------------------------------------------------------
# What a worker does for jobs of asynchronous training: where they start, which train together, how they are added up.


def rows_of_state(plan: Plan, flight: Flight | None, models: int) -> IntArray:
    """Returns the row of the broadcast that each job starts from, `[J]`.

    Args:
        plan: The jobs.
        flight: Of asynchronous training; None: in rounds.
        models: K.
    """
    return plan.world * models + plan.model if flight is None else flight.row


def group_versions(phase: Phase, version: IntArray) -> IntArray:
    """Returns a number below J for each job, `[J]`, equal for jobs of different versions that may share a block.

    They may where their learning rates are equal and their pieces do alike; code in local training may read the round
    itself.

    Args:
        phase: How the clients train.
        version: The version of its model from which each job starts, `[J]`.

    Example:
        >>> from fedray.core.method import Local
        >>> local = Local(lr=0.1, lr_decay=0.5, lr_decay_every=2)
        >>> group_versions(Phase(1, None, local, None, None), np.array([0, 1, 2])).tolist()
        [0, 0, 1]
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


# ---------------------------------------------------------------------------------------------------------------------
# Which jobs of a round share a block.


def split_jobs(study: Study, phase: Phase, jobs: SizedPlan, engine: Engine) -> list[IntArray]:
    """Places of the jobs of each block; a block has one learning rate and one width of its batches.

    Args:
        study: What is trained.
        phase: The training that the jobs belong to.
        jobs: The jobs, `[J]`, with samples and steps.
        engine: What trains them.
    """
    width = choose_batch_width(jobs.size, phase.local.batch_size)
    kind = width + (width.max(initial=0) + 1) * study.rate_group(jobs.plan.world)
    if jobs.flight is not None:
        kind = kind * len(kind) + group_versions(phase, jobs.flight.version)
    numbers = int((jobs.steps * width).max(initial=0)) * int(np.prod(study.input_shape))
    most, together = count_block_jobs(engine, numbers, study.client_timeout is not None), phase.together
    if together == 1:
        return split_into_blocks(jobs.steps, kind, most)
    client, model, world = (column[: len(kind) // together * together].reshape(-1, together) for column in jobs.plan)
    alike = (client == client[:, :1]).all() and (world == world[:, :1]).all() and (model == np.arange(together)).all()
    if client.size < len(kind) or not alike:
        raise BadInput(
            f"the {together} models of a client move together, but the schedule does not give all of them to it, one "
            "after another: leave schedule.kind out"
        )
    blocks = split_into_blocks(jobs.steps[::together], kind[::together], max(1, most // together))
    return [(together * block[:, None] + np.arange(together)).ravel() for block in blocks]


def batch_address(phase: Phase, plan: Plan) -> IntArray:
    """Returns what stands for the model in each job's batch address, `[J]`: one number if models move together."""
    return plan.model if phase.together == 1 else np.zeros_like(plan.model)


# ---------------------------------------------------------------------------------------------------------------------
# The engine of each block of a round: that of the network, or of the part of it that the clients of a tier train.


class TierEngine(NamedTuple):
    """What trains the clients of a tier.

    Attributes:
        net: The network of the tier's slice, on the worker's device.
        engine: What trains it, for rows of the slice.
    """

    net: Net
    engine: Engine


def choose_tier_engines(study: Study, device: torch.device) -> tuple[TierEngine | None, ...]:
    """Chooses what trains the clients of each tier, None for the whole network; empty if all train it.

    Args:
        study: What is trained.
        device: Where tensors are computed.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> tiers = {"strong": {"number": 2}, "weak": {"number": 2, "width": 0.5}}
        >>> scenario = {"method": "heterofl", "clients": {"tiers": tiers}, "lanes": "torch"}
        >>> study = build_study(read_scenario(scenario))
        >>> strong, weak = choose_tier_engines(study, torch.device("cpu"))
        >>> strong is None, weak.engine.why
        (True, 'linear layers only, 1,885 parameters')
    """
    found: list[TierEngine | None] = []
    for net in study.method.phase.nets:
        if net is study.net:
            found.append(None)
            continue
        moved = net if device.type == "cpu" else replace(net, module=copy.deepcopy(net.module).to(device))
        found.append(TierEngine(moved, choose_study_engine(replace(study, net=moved), device.type)))
    return tuple(found)


def split_by_tier(
    study: Study, phase: Phase, jobs: SizedPlan, whole: Engine, tiers: Sequence[TierEngine | None]
) -> list[IntArray]:
    """Places of the jobs of each block; where tiers train slices, a block has the clients of one of them.

    Args:
        study: What is trained.
        phase: The training that the jobs belong to.
        jobs: The jobs, `[J]`, with samples and steps.
        whole: What trains the whole network.
        tiers: What trains the clients of each tier; empty: all train the whole network.
    """
    if not any(tiers):
        return split_jobs(study, phase, jobs, whole)
    tier = study.clients.tier_of(jobs.plan.client)
    blocks: list[IntArray] = []
    for i, one in enumerate(tiers):
        places = np.flatnonzero(tier == i)
        engine = whole if one is None else one.engine
        blocks += [places[block] for block in split_jobs(study, phase, jobs.take(places), engine)]
    return blocks


# ---------------------------------------------------------------------------------------------------------------------
# One exchange of a round with the actors: messages, jobs in chunks, and who trains which.

# ---------------------------------------------------------------------------------------------------------------------
# Messages between the coordinator and the client actors: NumPy arrays in plain tuples, no pickled code, no tensors.

Piece = tuple[int, int]  # a piece of an evaluation: a world, and the first row or client of the piece


class Page(NamedTuple):
    """A state that travels.

    Attributes:
        models: Its models, `[M, d]`.
        counters: Their counters, `[M, c]`.
        extra: Further arrays of the state that are broadcast, by name.
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
        kept: Chunks of this exchange whose sums it has.
        sends: Whether it sends its sums.
    """

    exchange: int
    t: int
    jobs: SizedPlan | None
    kept: int
    sends: bool


class Reply(NamedTuple):
    """The answer of an actor.

    Attributes:
        stats: Sums of its uploads as `thin` makes them; None where it keeps them.
        rows: One row for each of its jobs; None without jobs.
    """

    stats: Stats | None
    rows: JobRows | None


def to_page(state: State) -> Page:
    """Packs a state without copying; of its extra tensors only those called `broadcast/...` are sent."""
    extra = {name: value.numpy() for name, value in state.extra.items() if name.startswith(SENT)}
    return Page(state.models.numpy(), state.counters.numpy(), extra)


def to_state(page: Page) -> State:
    """Unpacks a state. Its tensors share the page's read-only memory and must not be written."""
    extra = {name: share_array(one) for name, one in page.extra.items()}
    return State(share_array(page.models), share_array(page.counters), extra)


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
    row = rows_of_state(jobs.plan, jobs.flight, models)
    if at_home:
        home = assign_homes(clients, specs, jobs.plan.client)
        each = [(a, np.flatnonzero(home == a)) for a in np.unique(home).tolist()]
        return [Queue([a], [_chunk(places, row)]) for a, places in each]
    serving, queues = list_serving(clients, specs), []
    kind = np.array([serving.index(actors) for actors in serving])[clients.tier_of(jobs.plan.client)]
    for k in np.unique(kind).tolist():
        actors, of_kind = list(serving[k]), np.flatnonzero(kind == k)
        order = of_kind[np.lexsort((-jobs.steps[of_kind], row[of_kind]))]
        work = np.maximum(jobs.steps[order], 1)
        within = 1.0 - 0.5 ** np.arange(laps)  # where laps begin in an actor's equal share of the work: 0, 1/2, 3/4
        starts = (np.arange(len(actors))[:, None] + within).ravel() / len(actors)
        begins, kept = np.searchsorted(np.cumsum(work) / work.sum(), starts + 1e-9), [0]
        least = 1 if laps == 1 else LEAST_JOBS
        for n, begin in enumerate(begins.tolist()):  # parts with too few jobs join the one before them
            if begin - begins[kept[-1]] >= least and len(order) - begin >= least:
                kept.append(n)
        parts = np.split(order, begins[kept][1:])
        first = np.argsort(np.tile(np.arange(laps), len(actors))[kept], kind="stable").tolist()
        queues.append(Queue(actors, [_chunk(parts[n], row) for n in first]))
    return queues


def _chunk(places: IntArray, row: IntArray) -> Chunk:
    return Chunk(np.sort(places), np.unique(row[places]))


# ---------------------------------------------------------------------------------------------------------------------
# One exchange with the actors: they take chunks of jobs as they finish, and their sums are added as they come.
#
# An actor keeps the sums of its chunks until there is no chunk left for it, and sends them once. What an actor has
# lost goes back into its queue. Exact sums make the result the same, whoever trains what. Nothing here uses Ray.

PULLED_LAPS = 3
SECONDS_AN_ACTOR = 0.1  # of a round: four calls of an actor take the coordinator some 5 ms


class Task(NamedTuple):
    """What an actor is asked for.

    Attributes:
        chunk: The jobs that it trains; None: only sums are wanted.
        kept: Chunks of this exchange whose sums it has.
        sends: Whether it sends its sums.
    """

    chunk: Chunk | None
    kept: int
    sends: bool


Post = Callable[[int, Task], None]  # (actor, task) -> nothing; the answer comes from `Wait`
Wait = Callable[[], "tuple[int, Reply | None]"]  # -> an actor and its answer; None where it has lost its sums


def exchange(queues: Sequence[Queue], post: Post, wait: Wait) -> tuple[Stats, JobRows]:
    """Has all chunks trained.

    Args:
        queues: The chunks, and who may take them.
        post: Sends an actor a task; it has no other one meanwhile.
        wait: Waits for the answer of any actor that has a task.

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
    queue_of = {a: n for n, queue in enumerate(queues) for a in queue.actors}
    left = [list(queue.chunks) for queue in queues]
    pulls = [len(queue.chunks) > len(queue.actors) for queue in queues]  # else sums come with an actor's only chunk
    kept: dict[int, list[tuple[Chunk, JobRows]]] = {a: [] for a in queue_of}
    totals, done, doing = Totals(), list[tuple[Chunk, JobRows]](), dict[int, Task]()

    def give(actors: Iterable[int]) -> None:
        for a in actors:
            n, chunk = queue_of[a], None
            if left[n]:  # best a chunk of whose models the actor has sums anyway
                had = {row for one, _ in kept[a] for row in one.rows.tolist()}
                known = (i for i, one in enumerate(left[n]) if had.issuperset(one.rows.tolist()))
                chunk = left[n].pop(next(known, 0))
            if chunk is not None or kept[a]:
                doing[a] = Task(chunk, len(kept[a]), chunk is None or not pulls[n])
                post(a, doing[a])

    give(queue_of)
    while doing:
        a, reply = wait()
        chunk = doing.pop(a).chunk
        if reply is None:  # what it had is trained again, by whoever has nothing to do
            left[queue_of[a]] += [*(one for one, _ in kept[a]), *([] if chunk is None else [chunk])]
            kept[a] = []
            give([idle for idle in queue_of if idle not in doing])
            continue
        if chunk is not None and reply.rows is not None:
            kept[a].append((chunk, reply.rows))
        if reply.stats is not None:
            totals.add(reply.stats)
            done += kept[a]
            kept[a] = []
        give([a])
    return totals.stats, in_order([chunk.places for chunk, _ in done], [rows for _, rows in done])


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
