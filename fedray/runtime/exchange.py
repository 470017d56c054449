"""Divides the jobs of a round into blocks and among actors, and finds the clients whose training fails.

A *job* trains one model of one world (a seed and a fold) at one client. A *block* is a set of jobs that are trained
together as one computation, and a *lane* is one job of a block. An *exchange* is all messages of a round between the
coordinator, which runs the round loop, and the actors, which train. A *study* is everything that a run needs except a
runtime.
"""

import copy
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.errors import BadInput, Diverged, FedrayError
from fedray.core.method import SENT, JobRows, Phase
from fedray.core.sums import Totals
from fedray.core.types import Clients, Flight, IntArray, Net, Plan, SizedPlan, State, Stats, Uploads
from fedray.data.shards import share_array
from fedray.models.nets import MODEL_NAMES
from fedray.models.network_checks import check_finite_outputs
from fedray.own_code.user_code import blame_user_code, describe_exception
from fedray.runtime.placement import ActorSpec, assign_homes, list_serving
from fedray.scenario.names import method_spec_of
from fedray.simulation.study import Study, choose_study_engine
from fedray.training.block import choose_batch_width, split_into_blocks
from fedray.training.choice import LOOP_NUMBERS, Engine

# ---------------------------------------------------------------------------------------------------------------------
# Jobs that fail or take too long. A user's own code may raise an exception, diverge or hang.
#
# If a block of jobs fails, each half of it is trained again, until every job that fails is alone. The results of the
# other jobs keep the same bits, for three reasons: a lane does not depend on the other lanes of its block, a sum does
# not depend on the order of its terms, and a block that fails has stored nothing.

MOST_TRACEBACK = 4_000  # characters of a traceback that are kept
LONE_ROW = (
    "batch normalization cannot train on one row: set local.last_batch to drop or merge, or choose layer or group "
    "normalization (model.norm) or clients with more rows (data.partition.min_rows)"
)


class TrainedBlock(NamedTuple):
    """Jobs that were trained together as one computation (a block). None of them failed.

    Attributes:
        jobs: Indexes of the jobs in the plan, `[W]`.
        stats: Sums over the jobs' uploads, for the server's step.
        loss: For each job, the sum of the losses of its steps, `[W]`.
    """

    jobs: IntArray
    stats: Stats
    loss: Tensor


TrainJobs = Callable[[IntArray], tuple[Stats, Tensor]]  # indexes in the plan `[W]` -> statistics and losses `[W]`
Tracebacks = dict[int, str]  # index of a job in the plan -> its traceback


class BlockFailed(Exception):
    """A function of the server or of the compression failed for a block of uploads. No client is the cause."""


def try_jobs(
    train: TrainJobs, name: Callable[[int], str], skip: bool, index: IntArray, *, atom: int = 1
) -> tuple[list[TrainedBlock], Tracebacks]:
    """Trains some jobs together, and leaves out the jobs that fail.

    Args:
        train: A function that takes indexes of jobs and trains these jobs as one block. It returns the sums over their
            uploads, and their losses `[W]`.
        name: A function that takes the index of a job and describes the job for the error message.
        skip: Whether jobs that fail are left out. Otherwise the first failure is raised.
        index: Indexes of the jobs in the plan, `[W]`.
        atom: Number of consecutive jobs that must be trained together. They also fail together.

    Returns:
        The blocks that were trained, and the tracebacks of the jobs that failed.

    Raises:
        FedrayError: A job failed, and `skip` is False. The message names the job. The error is also raised if a
            function of the server or of the compression failed.

    Example:
        >>> def train(jobs):
        ...     if 2 in jobs:
        ...         raise ValueError("client 2 has a bad row")
        ...     return {}, torch.zeros(len(jobs))
        >>> blocks, errors = try_jobs(train, "client {}".format, skip=True, index=np.arange(4))
        >>> [block.jobs.tolist() for block in blocks], list(errors)
        ([[0, 1], [3]], [2])
    """
    try:
        return [TrainedBlock(index, *train(index))], {}
    except Exception as error:
        if isinstance(error, BlockFailed) and error.__cause__ is not None:
            raise error.__cause__ from None  # a smaller block might hide it
        if isinstance(error, Diverged) and not skip:
            raise  # its message names the clients
        if len(index) <= atom:
            if isinstance(error, torch.OutOfMemoryError):  # not the client's fault, so the job must not be skipped
                raise explain_full_gpu(error) from error
            if skip:
                return [], dict.fromkeys(index.tolist(), "".join(traceback.format_exception(error))[-MOST_TRACEBACK:])
            who = name(int(index[0]))
            lone = isinstance(error, ValueError) and str(error).startswith("Expected more than 1 value per channel")
            remedy = LONE_ROW if lone else "correct it"  # `lone` means torch's error of batch normalization
            told = f"{who} failed: {describe_exception(error)}: {remedy}"
            raise FedrayError(f"{told}, or set on_client_error: skip") from error
    halves = np.array_split(index.reshape(-1, atom), 2)
    first, second = (try_jobs(train, name, skip, half.ravel(), atom=atom) for half in halves)
    return first[0] + second[0], first[1] | second[1]


def score_clients(
    score: Callable[[IntArray], Tensor], client: IntArray, rows: int, skip: bool, limit: float | None
) -> Tensor:
    """Computes the scores of some clients.

    If `skip` is True, a client gets NaN if the computation of its scores fails or takes too long.

    Args:
        score: A function that takes ids of clients `[c]` and returns their scores `[rows, c]`.
        client: Ids of the clients, `[c]`.
        rows: Number of scores of each client.
        skip: Whether a failed client gets NaN. If False, the first failure raises an error.
        limit: Wall seconds that one call of `score` may take. None means no limit.

    Returns:
        The scores, `[rows, c]`.

    Raises:
        FedrayError: A client failed, and `skip` is False. The message names the client.
    """

    def compute(index: IntArray) -> tuple[Stats, Tensor]:
        with limit_seconds(limit):
            return {}, score(client[index])

    blocks, _ = try_jobs(compute, lambda i: f"the scoring of client {client[i]}", skip, np.arange(len(client)))
    rows = len(blocks[0].loss) if blocks else rows  # a stack also scores its sub models
    found = torch.full((rows, len(client)), torch.nan, dtype=torch.float64)
    for jobs, _, scores in blocks:
        found[:, jobs] = scores
    return found


def compute_answers(engine: Engine, net: Net, rows: Tensor, counters: Tensor, inputs: Tensor) -> Tensor:
    """Returns the raw outputs of M models for a prediction, `[M, n, C]`.

    Args:
        engine: The engine that computes the outputs.
        net: The network.
        rows: The models, `[M, d]`.
        counters: The integer buffers of the models, `[M, c]`.
        inputs: Inputs of each model, `[M, n, ...]`.

    Raises:
        FedrayError: A user's network raised an exception, or its outputs are not finite.
    """
    try:
        outputs = engine.outputs(net, rows, counters, inputs)
    except torch.OutOfMemoryError as error:
        raise explain_full_gpu(error) from error
    except Exception:
        if net.name in MODEL_NAMES:
            raise
        with blame_user_code(f"model.name = {net.name} in evaluation"):
            raise
    if net.name not in MODEL_NAMES:
        check_finite_outputs(net, outputs, " in evaluation")
    return outputs


def name_job(study: Study, plan: Plan, job: int) -> str:
    """Returns the name of a job of a plan. It has the client's id in the whole population, as tables have."""
    return f"client {study.client_ids(plan.world[job], plan.client[job])} (model {plan.model[job]})"


def explain_divergence(study: Study, t: int, plan: Plan, jobs: Iterable[int]) -> Diverged:
    """Returns the error for a round t (from 0) in which some jobs of the plan diverged.

    The message names the clients and the keys to lower.
    """
    names = ", ".join(name_job(study, plan, j) for j in jobs)
    step = method_spec_of(study.scenario.get("method", {}).get("name")).step
    steps = f"local.lr or method.{step}" if step else "local.lr"
    return Diverged(f"round {t + 1}: training diverged (NaN, infinite or huge weights) at {names}: lower {steps}")


def explain_full_gpu(error: BaseException) -> FedrayError:
    """Returns the error for a GPU whose memory is full.

    Example:
        >>> full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
        >>> print(explain_full_gpu(full))  # doctest: +ELLIPSIS
        the memory of the GPU is full (CUDA out of memory. Tried to allocate 2.00 GiB): raise clients.tiers.NAME...
    """
    why = ". ".join(" ".join(str(error).split()).split(". ")[:2])[:200]
    return FedrayError(
        f"the memory of the GPU is full ({why}): raise clients.tiers.NAME.num_gpus so that fewer actors share it, or "
        "lower local.batch_size, method.models, replicates or the model's size"
    )


@contextmanager
def limit_seconds(seconds: float | None) -> Iterator[None]:
    """Raises TimeoutError in the `with` block after a number of seconds of wall time.

    A timer signal raises the error. The limit therefore works only in the main thread, and cannot interrupt a long call
    into C code.
    """
    if seconds is None:
        yield
        return
    inside = [True]

    def stop(_number: int, _frame: Any) -> None:
        if inside:
            raise TimeoutError(f"it took longer than client_timeout = {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # repeats, because the body may catch the first exception
    try:
        try:
            yield
        finally:
            inside.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def check_limit(seconds: float | None) -> None:
    """Raises an error if a time limit is set outside the main thread, where a limit has no effect."""
    if seconds is not None and threading.current_thread() is not threading.main_thread():
        raise BadInput(
            f"client_timeout = {seconds:g} is kept by the main thread only, and this is another one: run it there, "
            "with runtime: ray, or leave client_timeout out"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Jobs of asynchronous training. A job starts from a row of the state; sums are kept per server step.


def rows_of_state(plan: Plan, flight: Flight | None, models: int) -> IntArray:
    """Returns the row of the broadcast state from which each job starts, `[J]`.

    In asynchronous training, `flight` holds these rows. In synchronous training, `flight` is None.
    """
    return plan.world * models + plan.model if flight is None else flight.row


def group_versions(phase: Phase, version: IntArray) -> IntArray:
    """Returns a number for each job of asynchronous training, `[J]`. Jobs with equal numbers may share a block.

    Jobs that start from different versions of a model may share a block if two conditions hold. Their learning rates
    are equal, and all additions of the method (`Phase.pieces`) treat both versions in the same way. If local training
    calls code of a method or of a user, such jobs never share a block, because the code may use the version as the
    round's number.

    Example:
        >>> from fedray.core.method import Local
        >>> local = Local(lr=0.1, lr_decay=0.5, lr_decay_every=2)
        >>> group_versions(Phase(1, None, local, None, None), np.array([0, 1, 2])).tolist()
        [0, 0, 1]
    """
    versions, place = np.unique(version, return_inverse=True)  # there are few versions, even if there are many jobs
    code, rate = phase.local.has_code or phase.couples, phase.local.lr_at
    kinds = [v if code else (rate(v), *(piece.group(v) for piece in phase.pieces)) for v in versions.tolist()]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return np.array([numbers[kind] for kind in kinds], dtype=np.int64)[place]


def to_groups(uploads: Uploads, flight: Flight) -> Uploads:
    """Prepares uploads for the server of asynchronous training.

    The function multiplies the uploads, in place, by their weights. The uploads of one model in one server step are a
    group. The field `world` of the result has the index of each upload's group. The server then adds up each group
    separately.
    """
    if (flight.weight != 1).any():
        uploads.delta.mul_(torch.from_numpy(flight.weight).to(uploads.delta)[:, None])
    return uploads._replace(client=flight.sender, world=flight.group, model=np.zeros_like(flight.group))


# ---------------------------------------------------------------------------------------------------------------------
# The blocks of a round.


def split_jobs(study: Study, jobs: SizedPlan, engine: Engine) -> list[IntArray]:
    """Splits jobs into blocks, and returns the indexes of each block's jobs.

    The jobs of a block are trained together. They have the same learning rate and the same batch width.
    """
    phase = study.method.phase
    width = choose_batch_width(jobs.size, phase.local)
    kind = width
    if study.rates is not None:  # worlds with the same rate have the same number
        rate = np.unique(study.rates, return_inverse=True)[1]
        kind = width + (width.max(initial=0) + 1) * rate[jobs.plan.world]
    if jobs.flight is not None:
        kind = kind * len(kind) + group_versions(phase, jobs.flight.version)
    numbers = int((jobs.steps * width).max(initial=0)) * int(np.prod(study.input_shape))
    most, together = engine.width, phase.together
    if most == 1 and study.client_timeout is None:  # a block costs as much overhead as two steps of a small network
        most = max(1, min(engine.jobs, LOOP_NUMBERS // max(1, numbers)))
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


# ---------------------------------------------------------------------------------------------------------------------
# The engines of a worker: one for the whole network, and one for each tier that trains a slice of the network.


class TierEngine(NamedTuple):
    """The engine of a tier (class of devices) whose clients train a slice of the network.

    Attributes:
        net: The network of the slice, on the worker's device.
        engine: The engine that trains this network.
    """

    net: Net
    engine: Engine


def choose_tier_engines(study: Study, device: torch.device) -> tuple[TierEngine | None, ...]:
    """Returns the engine of each tier (class of devices) that trains a slice of the network.

    The tuple has None for a tier that trains the whole network. It is empty if all tiers do so.

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


def split_by_tier(study: Study, jobs: SizedPlan, whole: Engine, tiers: Sequence[TierEngine | None]) -> list[IntArray]:
    """Splits jobs into blocks, and returns the indexes of each block's jobs.

    The jobs of a block are trained together. If tiers train slices of the network, all clients of a block belong to the
    same tier.

    Args:
        study: The objects of the run.
        jobs: The jobs, `[J]`, with samples and steps.
        whole: The engine of the whole network.
        tiers: The engine of each tier. The sequence is empty if all tiers train the whole network.
    """
    if not any(tiers):
        return split_jobs(study, jobs, whole)
    tier = study.clients.tier_of(jobs.plan.client)
    blocks: list[IntArray] = []
    for i, one in enumerate(tiers):
        places = np.flatnonzero(tier == i)
        engine = whole if one is None else one.engine
        blocks += [places[block] for block in split_jobs(study, jobs.take(places), engine)]
    return blocks


# ---------------------------------------------------------------------------------------------------------------------
# Messages between the coordinator and the client actors. They are tuples of NumPy arrays. They hold no code or tensors.

PieceKey = tuple[int, int]  # (world, index of the first sample or client) of a piece of a `Question`


class ModelRows(NamedTuple):
    """A state of the server as a message to an actor.

    Attributes:
        models: The models, `[M, d]`.
        counters: The integer buffers of the models, `[M, c]`.
        extra: Further arrays that clients receive, by name.
    """

    models: Any
    counters: Any
    extra: dict[str, Any]


class TrainRequest(NamedTuple):
    """The message that makes a client actor train jobs, send the sums of its uploads, or both.

    Attributes:
        exchange: Number that identifies the exchange. An exchange is all messages of a round.
        t: The round, from 0.
        jobs: The jobs to train (a chunk). None means that the actor must only send its sums.
        kept: Number of earlier chunks of this exchange that the actor's sums should contain. If the actor does not have
            these sums, Ray has restarted it.
        sends: Whether the actor must send its sums with the reply.
    """

    exchange: int
    t: int
    jobs: SizedPlan | None
    kept: int
    sends: bool


class TrainReply(NamedTuple):
    """The message with which a client actor replies to a request.

    Attributes:
        stats: Sums of the actor's uploads, in the compact form of `core.sums.thin`. None means that the actor keeps the
            sums.
        rows: Loss and error of each job. None means that the request had no jobs.
    """

    stats: Stats | None
    rows: JobRows | None


def pack_state(state: State) -> ModelRows:
    """Packs a state into a message without copying.

    An extra tensor of the state is sent only if its name begins with `broadcast/`.
    """
    extra = {name: value.numpy() for name, value in state.extra.items() if name.startswith(SENT)}
    return ModelRows(state.models.numpy(), state.counters.numpy(), extra)


def unpack_state(packed: ModelRows) -> State:
    """Unpacks a state from a message.

    Its tensors share the message's read-only memory, and must not be changed.
    """
    extra = {name: share_array(one) for name, one in packed.extra.items()}
    return State(share_array(packed.models), share_array(packed.counters), extra)


def in_order(parts: Sequence[IntArray], rows: Sequence[JobRows]) -> JobRows:
    """Joins the losses and errors of all actors' jobs, in the order of the plan.

    For each item of `rows`, `parts` has the indexes of the item's jobs in the plan.

    Example:
        >>> rows = [JobRows(np.array([0.1, 0.2])), JobRows(np.array([0.3]), {0: "ValueError: bad row"})]
        >>> in_order([np.array([0, 2]), np.array([1])], rows)
        JobRows(loss=array([0.1, 0.3, 0.2]), errors={1: 'ValueError: bad row'})
    """
    order = np.argsort(np.concatenate(parts), kind="stable")
    loss = np.concatenate([each.loss for each in rows])[order]
    errors = {int(part[j]): text for part, each in zip(parts, rows, strict=True) for j, text in each.errors.items()}
    return JobRows(loss, errors)


# ---------------------------------------------------------------------------------------------------------------------
# Chunks. The jobs of a round are cut into chunks, which actors take one after the other. Nothing here uses Ray.
#
# Exact sums do not depend on which actor trains which job. So a quick actor may take more chunks than a slow one. The
# chunks of a queue are ordered by model, so that most actors receive, train and send only a few models. Tiers share a
# queue if their actors reserve the same resources. Since the speed of a device is only simulated, any of these actors
# can train the jobs of these tiers.

LEAST_JOBS = 2  # fewest jobs of a chunk if an actor takes several: engines train a lone job together with a copy of it


class Chunk(NamedTuple):
    """Jobs that one actor trains in one call.

    Attributes:
        places: Indexes of the jobs in the plan, `[j]`, in ascending order.
        rows: Rows of the state with the models that the jobs train, in ascending order.
    """

    places: IntArray
    rows: IntArray


class Queue(NamedTuple):
    """Chunks of jobs, and the actors that may take them.

    The actors of a queue have equal resources. If the jobs need data that their clients keep between rounds, the queue
    has only the actor that holds these data.

    Attributes:
        actors: Indexes of the actors.
        chunks: The chunks, in the order in which actors should take them.
    """

    actors: list[int]
    chunks: list[Chunk]


def cut_chunks(
    clients: Clients, specs: Sequence[ActorSpec], jobs: SizedPlan, models: int, *, at_home: bool = False, laps: int = 1
) -> list[Queue]:
    """Cuts the jobs of a round into chunks, which actors take.

    The cut does not change the bits of the trained models.

    Args:
        clients: The tiers of clients.
        specs: The actors of the run.
        jobs: The jobs, `[J]`. The cost of a job is its number of optimizer steps.
        models: Number of models of a world, K.
        at_home: Whether each job must run on the actor that holds its client's data of earlier rounds. If True, each
            actor has one chunk.
        laps: Number of chunks per actor. The first chunk of an actor has half of the actor's share of the work, the
            second has a quarter, and so on. The last chunks are small, so all actors finish at about the same time.

    Returns:
        The queues. An actor belongs to at most one queue.

    Example:
        Six jobs of two models, for two actors. Each actor gets one model and half of the work.

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
        within = 1.0 - 0.5 ** np.arange(laps)  # chunks begin at 0, 1/2 and 3/4 of an actor's share of the work
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
# The exchange. An actor that finishes takes the next chunk of jobs, and sums are added as they arrive.
#
# An actor keeps the sums of its chunks until no chunk is left, and then sends them once. If an actor is restarted and
# loses its sums, its chunks go back into its queue. Since sums are exact, the result does not depend on which actor
# trains which chunk. Nothing here uses Ray.

PULLED_LAPS = 3  # chunks of each actor in a long round
SECONDS_AN_ACTOR = 0.1  # a round must take so long per actor for several chunks: four calls of an actor cost some 5 ms


# (actor, chunk to train or None, kept, sends) -> nothing. `TrainRequest` describes the last two.
Post = Callable[[int, Chunk | None, int, bool], None]
Wait = Callable[[], "tuple[int, TrainReply | None]"]  # -> an actor and its reply, or None if its sums are lost


def exchange(queues: Sequence[Queue], post: Post, wait: Wait) -> tuple[Stats, JobRows]:
    """Sends all chunks of jobs to actors for training, and adds up the statistics of the uploads.

    Args:
        queues: The chunks, and the actors that may take them.
        post: A function that sends a task to an actor that has none.
        wait: A function that waits for the next reply, and returns the actor's index and this reply. The reply is None
            if the actor has lost its sums.

    Returns:
        The sums of all uploads, and the losses and errors of all jobs in the order of the plan.

    Example:
        Two actors share four chunks of one job each. The second actor replies only when the first has no task left.

        >>> import numpy as np, torch
        >>> from fedray.core.sums import ExactSum
        >>> from fedray.core.sums import thin
        >>> chunks = [Chunk(np.array([j]), np.array([0])) for j in range(4)]
        >>> posted, kept = [], {0: 0.0, 1: 0.0}
        >>> def post(a, chunk, _kept, sends):
        ...     posted.append((a, chunk, sends))
        ...     kept[a] += 0.0 if chunk is None else 10.0 ** chunk.places[0]
        >>> def wait():
        ...     a, chunk, sends = task = min(posted, key=lambda one: one[0])
        ...     posted.remove(task)
        ...     rows = None if chunk is None else JobRows(np.array([float(a)]))
        ...     total = {"sum": ExactSum({0: torch.tensor([[kept[a]]])})}
        ...     return a, TrainReply(thin(total) if sends else None, rows)
        >>> stats, rows = exchange([Queue([0, 1], chunks)], post, wait)
        >>> stats["sum"].value().item(), rows.loss.tolist()
        (1111.0, [0.0, 1.0, 0.0, 0.0])
    """
    queue_of = {a: n for n, queue in enumerate(queues) for a in queue.actors}
    left = [list(queue.chunks) for queue in queues]
    pulls = [len(queue.chunks) > len(queue.actors) for queue in queues]  # if False, actors send their sums at once
    kept: dict[int, list[tuple[Chunk, JobRows]]] = {a: [] for a in queue_of}
    totals, done, doing = Totals(), list[tuple[Chunk, JobRows]](), dict[int, Chunk | None]()

    def give(actors: Iterable[int]) -> None:
        for a in actors:
            n, chunk = queue_of[a], None
            if left[n]:  # prefers a chunk with models of which the actor already has sums
                had = {row for one, _ in kept[a] for row in one.rows.tolist()}
                known = (i for i, one in enumerate(left[n]) if had.issuperset(one.rows.tolist()))
                chunk = left[n].pop(next(known, 0))
            if chunk is not None or kept[a]:
                doing[a] = chunk
                post(a, chunk, len(kept[a]), chunk is None or not pulls[n])

    give(queue_of)
    while doing:
        a, reply = wait()
        chunk = doing.pop(a)
        if reply is None:  # idle actors train the chunks of this actor again
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
