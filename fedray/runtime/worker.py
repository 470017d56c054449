"""What one worker process does in training: it trains the jobs it is given, and reduces their uploads to statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedray.core import rng
from fedray.core.errors import Overflow
from fedray.core.method import MIXTURE, PARTICLES, PERSONAL_PREFIX, PREVIOUS, JobRows, Local, Phase
from fedray.core.sums import check_finite, map_arrays, merge_stats
from fedray.core.types import IntArray, Plan, SizedPlan, State, Stats, Uploads
from fedray.models import dropout
from fedray.runtime import failures, flights, measured, personal, slices
from fedray.runtime.client_state import Private
from fedray.runtime.jobs import Jobs, batch_address, count_together
from fedray.runtime.mixture import Shares
from fedray.simulation.study import Study, choose_study_engine
from fedray.training import block as lanes
from fedray.training.block import Steps, change_batches
from fedray.training.choice import Engine, is_shareable
from fedray.training.particles import learn_factor
from fedray.training.windows import returns_change, train_block

# ---------------------------------------------------------------------------------------------------------------------
# Copies of the clients' rows on a GPU: batches are gathered there, and only the places of their rows travel.

SHARE = 0.25  # of the memory that this process may still take there


class Resident:
    """The rows that lie on a device, as long as those in main memory are used.

    Example:
        >>> rows, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
        >>> Resident(torch.device("cpu")).place(rows, labels)[0] is rows
        True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies = WeakTensorKeyDictionary()

    def place(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Rows where batches are gathered: on a GPU, copied once, unless they fill over a quarter of its free memory.

        Args:
            x: Raw inputs, `[n, ...]`.
            y: Labels or targets, `[m, ...]`.
        """
        if self.device.type == "cpu":
            return x, y
        if x not in self._copies and x.nbytes + y.nbytes > SHARE * count_free_bytes(self.device):
            return x, y
        return self._copy(x), self._copy(y)

    def _copy(self, rows: Tensor) -> Tensor:
        """The copy of some rows, made once."""
        if rows not in self._copies:
            self._copies[rows] = rows.to(self.device)
        copy: Tensor = self._copies[rows]
        return copy


def count_free_bytes(device: torch.device) -> int:
    """Memory of a GPU that nobody uses and this process may take: it may be held to a share (`limit_gpu_memory`)."""
    free, total = torch.cuda.mem_get_info(device)
    find_share = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # early releases of torch lack it
    share = 1.0 if find_share is None else find_share(device.index)  # None: the current one; it refuses plain "cuda"
    return min(free, int(share * total) - torch.cuda.memory_reserved(device))


# ---------------------------------------------------------------------------------------------------------------------
# The batches of a block: which rows of the clients' data each lane reads in which step.


class DealtData(NamedTuple):
    """The batches of a block; the fields are those of `Block`.

    Attributes:
        read: A function (first step, one past the last) -> inputs and targets of these steps.
        weight: Weight of each row in its batch's loss, `[S, W, B]`.
        source: Where `read` takes them from; None where they are changed on the way.
    """

    read: Callable[[int, int], tuple[Tensor, Tensor]]
    weight: Tensor
    source: lanes.BatchSource | None


def deal_data(
    study: Study,
    plan: Plan,
    size: IntArray,
    steps: IntArray,
    *,
    key: rng.Keys,
    local: Local,
    move: Callable[[Tensor], Tensor],
    resident: Resident | None = None,
    shares: Shares | None = None,
) -> DealtData:
    """Deals the rows of each lane's client into batches.

    Args:
        study: What is trained.
        plan: Client, model and world of each lane, `[W]`.
        size: Training samples of each lane, `[W]`.
        steps: Optimizer steps of each lane, `[W]`, falling.
        key: Address of each lane, `[W]`.
        local: How the clients train.
        move: Moves a tensor to where it is used, in the type of the study's networks.
        resident: Where the rows lie from which batches are gathered; None: in main memory.
        shares: How the clients weigh their samples; None: all of a batch weigh the same.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.core import rng
        >>> from fedray.scenario.loader import read_scenario
        >>> study = build_study(read_scenario({"data": {"name": "cubic"}, "clients": {"number": 2}}))
        >>> one = Plan(*np.array([[1], [0], [0]]))
        >>> size, key = study.shards.sizes(one.world, one.client), rng.keys(0, "example", one.client)
        >>> dealt = deal_data(study, one, size, np.array([3]), key=key, local=Local(batch_size=4), move=lambda x: x)
        >>> inputs, targets = dealt.read(0, 3)
        >>> dealt.weight.shape, inputs.shape
        (torch.Size([3, 1, 4]), torch.Size([3, 1, 4, 1]))
    """
    shards = study.shards
    fetched = shards.fetch(plan.world, plan.client)
    width = int(lanes.choose_batch_width(size[:1], local.batch_size)[0])
    index, weight = lanes.deal_batches(fetched.rows.numpy(), size, steps, width, key)
    dealt = weight
    if shares is not None:
        place = np.broadcast_to(np.arange(fetched.rows.shape[1]), fetched.rows.shape)
        weight = weight * shares.of_places(plan, lanes.deal_batches(place, size, steps, width, key).index)
    world = torch.from_numpy(plan.world)
    x_rows, y_rows = fetched.x, fetched.y
    if resident is not None and all(rule.form == "rows" for rule in local.augment):  # users' functions read main memory
        x_rows, y_rows = resident.place(fetched.x, fetched.y)
    placed = fetched._replace(x=x_rows, y=y_rows)

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        at = index[lo:hi]
        x = x_rows.index_select(0, at.flatten().to(x_rows.device)).view(*at.shape, *x_rows.shape[1:])
        y = placed.labels(at, torch.arange(at.shape[1])[:, None])
        if local.augment:
            real = (dealt[lo:hi] > 0).sum(-1).numpy()
            x, y = change_batches(local.augment, x, y, Steps(key, lo, real, shards.data.classes))
        x = shards.normalize(x.transpose(0, 1), world).transpose(0, 1)
        y = shards.targets(y.transpose(0, 1), world).transpose(0, 1)
        return move(x), move(y)

    source = lanes.BatchSource(fetched.x, fetched.y, index, fetched.first, *shards.standardization(plan.world))
    return DealtData(read, move(weight), None if local.augment else source)


# ---------------------------------------------------------------------------------------------------------------------
# Both runtimes use this code. The inline runtime has one worker; on Ray each client actor has one. A worker is a pure
# function of state, data and address: its results for a job do not depend on which other jobs it gets. How a
# worker answers questions is in `fedray.runtime.inline`.


class StackWorker(Protocol):
    """What a worker delegates to: the workers of a stack's parts, or one that fits learners."""

    @property
    def workers(self) -> Sequence[Worker]:
        """The worker of each part that is trained by descent."""

    @property
    def engine(self) -> Engine:
        """The engine of the first part."""

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Trains the jobs of round t, part by part."""

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Raw outputs of the stack and of its sub models on raw inputs `[n, ...]` of a world."""

    def state(self) -> dict[str, Tensor]:
        """The private vectors of all parts."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Replaces the private vectors of all parts."""


class Worker:
    """Holds the data, the network and the engine of one process.

    Attributes:
        study: What is trained; its network lies on the worker's device.
        device: Where tensors are computed.
        engine: How blocks of jobs are trained.
        tiers: How those of each tier are, where tiers train slices of the network; else empty.
        threads: Blocks that are trained at the same time, at least 1.
        parts: The workers of a stack's parts, or the one that fits learners; None for every other study.
        resident: The clients' rows on the device.
        private: The private vectors of the clients that live here.
        store: All private vectors: `private`, or those of the parts of a stack.
    """

    def __init__(self, study: Study, device: str = "cpu", threads: int = 1, parts: StackWorker | None = None) -> None:
        self.device, given = torch.device(device), study
        if parts is None and self.device.type != "cpu":  # report pictures and closed forms need the study's own on CPU
            study = replace(study, net=replace(study.net, module=copy.deepcopy(study.net.module).to(self.device)))
        self.study, self.parts = study, parts
        self.engine: Engine = parts.engine if parts else choose_study_engine(study, self.device.type)
        self.tiers = slices.choose_tier_engines(given, self.device)
        shareable = all(is_shareable(one) for one in (self.engine, *(tier.engine for tier in self.tiers if tier)))
        calls_module = study.method.phase.measure is not None  # which holds the weights of one lane at a time
        single = self.device.type != "cpu" or study.client_timeout is not None or calls_module or not shareable
        self.threads = 1 if single else threads
        self.resident = Resident(self.device)
        self.private = Private(study.net.layout.d, study.dtype)
        self.store: Private | StackWorker = parts or self.private

    def train(
        self, t: int, jobs: SizedPlan, state: State, phase: Phase, held: IntArray | None = None
    ) -> tuple[Stats, JobRows]:
        """Trains the jobs of a round.

        Args:
            t: The round, from 0.
            jobs: The jobs, `[J]`, with samples and steps.
            state: The server's state that is broadcast.
            phase: The training that the jobs belong to.
            held: Which rows of the server's state these are, ascending; None: all of them.

        Returns:
            The reduced statistics of all uploads, and the losses `[J]` and tracebacks in the order of the plan.
        """
        failures.check_limit(self.study.client_timeout)
        if self.parts is not None:
            return self.parts.train(t, jobs, state)
        plan, size, steps, flight, _ = jobs
        turn = t if flight is None else flight.turn
        key = rng.keys(self.study.seeds[plan.world], "batches", turn, plan.client, batch_address(phase, plan))
        row = flights.rows_of_state(plan, flight, phase.models, held)
        state = state._replace(models=state.models.to(self.device), counters=state.counters.to(self.device))
        shares = Shares(self.study, self.private, self.forward, state) if phase.mixture else None

        def train_block(index: IntArray) -> tuple[Stats, Tensor]:
            part = jobs.take(index)
            some = Jobs(*part[:3], key[index], row[index], part.flight, shares, part.losses)
            version = t if flight is None else int(flight.version[index[0]])
            with failures.limit_seconds(self.study.client_timeout):
                uploads, loss = self._train_block(version, some, state, phase)
            return self._send(t, uploads, some, phase), loss

        def name(job: int) -> str:
            return f"round {t + 1}: client {plan.client[job]} (model {plan.model[job]})"

        attempt = partial(failures.try_jobs, train_block, name, self.study.skip, atom=count_together(phase))
        blocks = slices.split_by_tier(self.study, phase, jobs, self.engine, self.tiers)
        stats, loss, errors = Stats(), np.full(len(size), np.nan), failures.Tracebacks()
        with ThreadPoolExecutor(self.threads) if self.threads > 1 else nullcontext() as pool:
            for trained, failed in pool.map(attempt, blocks) if pool is not None else map(attempt, blocks):
                for index, reduced, summed in trained:
                    stats = merge_stats([stats, reduced])  # at once: the sums of all blocks would fill the memory
                    loss[index] = summed.double().cpu().numpy() / steps[index]
                errors |= failed
        return map_arrays(stats, Tensor.cpu), JobRows(loss, failures.shorten_tracebacks(errors))

    def _train_block(self, t: int, real: Jobs, state: State, phase: Phase) -> tuple[Uploads, Tensor]:
        """Trains one block of lanes, from data to uploads and losses `[W]`; it writes nothing."""
        study = self.study
        local = study.local(phase.local, int(real.plan.world[0]))
        engine, columns = slices.find_engine(self.engine, self.tiers, phase, t, study.clients.tier_of(real.plan.client))
        jobs = real.doubled() if len(real.size) < min(engine.min_lanes, engine.width) else real
        row = torch.from_numpy(jobs.row).to(self.device)
        broadcast = personal.rows_of(state.models, row)
        start = personal.start_rows(self.private, study.net.layout, phase, jobs.plan, broadcast)
        own = {name: self.private.read(name, jobs.plan).to(self.device) for name in phase.own if name != MIXTURE}
        own |= personal.read_factor(self.private, study, jobs.plan, start)
        shared = self._shared_rows(state, phase, row)
        counters = state.counters.index_select(0, row)
        block = self._make_block(t, jobs, local, self._deal(jobs, local), start=start, counters=counters)._replace(
            offset=None if local.correction is None else local.correction.offset(own[local.correction.name], shared),
            wants_change=returns_change(engine, local, t) and not phase.private,
            reading=personal.find_reading(
                self.private, local, t, jobs, start, state=state, models=phase.models, factor=own.get(PARTICLES)
            ),
        )
        trained = train_block(engine, study.net, block, t)
        own |= {} if local.particles is None else {PARTICLES: learn_factor(block, trained.final)}
        delta, kept = trained.final, {PREVIOUS: trained.final.clone()} if local.keeps_model else dict[str, Tensor]()
        if not block.wants_change:
            delta, stays = personal.withhold_private(study.net.layout, phase, start, trained.final)
            kept |= stays
        own |= kept | self._train_personal(t, jobs, broadcast, state, phase)
        own |= {} if jobs.shares is None else {MIXTURE: jobs.shares.weights(jobs.plan)}
        beside = None
        if (how := phase.measure) is not None:
            models, buffers = trained.final if phase.private else start + delta, trained.counters
            beside = measured.measure_rows(study, how, t, real.plan, models, counters=buffers, move=self.to_device)
        if local.correction is not None:
            name, rate = local.correction.name, torch.from_numpy(jobs.steps * block.lr).to(delta)[:, None]
            before, own[name] = own[name], local.correction.update(own[name], shared, delta, rate)
            beside = own[name] - before
        sent = personal.sent_counters(study.net.layout, phase, trained.counters.cpu())
        stay = phase.server.on_device and phase.compress.on_device and not own and real.flight is None  # where they are
        uploads = self._pack_uploads(real, delta if stay else delta.cpu(), sent, own, beside)
        return uploads._replace(columns=columns, losses=real.losses), trained.loss[: len(real.size)]

    def _make_block(
        self, t: int, jobs: Jobs, local: Local, data: DealtData, *, start: Tensor, counters: Tensor
    ) -> lanes.Block:
        """The lanes of some jobs, which start at `start` `[W, d]`, without what only some methods add to them."""
        return lanes.Block(
            start=start,
            counters=counters,
            read=data.read,
            weight=data.weight,
            steps=jobs.steps,
            local=local,
            lr=local.lr_at(t),
            keys=jobs.key,
            sample=int(np.prod(self.study.input_shape)),
            source=data.source,
        )

    def _pack_uploads(
        self, jobs: Jobs, delta: Tensor, counters: Tensor, own: dict[str, Tensor], beside: Tensor | None
    ) -> Uploads:
        """The uploads of a block, without the copy that was trained beside a lone job."""
        n = len(jobs.size)
        return Uploads(
            delta=delta[:n],
            client=jobs.plan.client,
            model=jobs.plan.model,
            world=jobs.plan.world,
            tier=self.study.clients.tier_of(jobs.plan.client),
            size=jobs.size,
            counters=counters[:n],
            own={name: value[:n].cpu() for name, value in own.items()},
            beside=None if beside is None else beside[:n].cpu(),
            key=jobs.key,
            steps=jobs.steps[:n],
        )

    def _train_personal(self, t: int, jobs: Jobs, broadcast: Tensor, state: State, phase: Phase) -> dict[str, Tensor]:
        """Trains the clients' personal models, which are pulled towards the broadcast one; by name, `[J, d]` each."""
        if not phase.personal:
            return {}
        plan, study = jobs.plan, self.study
        turn = t if jobs.flight is None else jobs.flight.turn
        own = jobs._replace(key=rng.keys(study.seeds[plan.world], "personal", turn, plan.client, plan.model))
        data, out = self._deal(own, phase.local), {}
        for p, each in enumerate(phase.personal):
            name, local = f"{PERSONAL_PREFIX}{p}", study.local(each, int(plan.world[0]))
            start = personal.own_rows(self.private, name, plan, broadcast)
            reads = personal.find_reading(self.private, local, t, own, broadcast, state=state, models=phase.models)
            zeros = torch.zeros(len(own.key), len(study.net.layout.counters), dtype=torch.int64, device=self.device)
            block = self._make_block(t, own, local, data, start=start, counters=zeros)
            out[name] = self.engine.train(study.net, block._replace(anchor=broadcast, reading=reads)).final
        return out

    def _shared_rows(self, state: State, phase: Phase, row: Tensor) -> Tensor | None:
        """The server's broadcast vector for each lane, `[W, d]`, where the correction reads one."""
        name = phase.local.correction.shared if phase.local.correction else None
        return None if name is None else state.extra[name].to(self.device).index_select(0, row)

    def _send(self, t: int, uploads: Uploads, jobs: Jobs, phase: Phase) -> Stats:
        """Compresses and reduces the uploads of a block, and keeps the clients' private vectors."""
        plan = jobs.plan
        try:
            sent = phase.compress.apply(uploads)
            if sent.delta is not uploads.delta or phase.server.keeps:  # compression may drop the entries that diverged
                check_finite(uploads.delta)
            received = uploads._replace(delta=sent.delta)
            stats = phase.server.reduce(received if jobs.flight is None else flights.to_groups(received, jobs.flight))
        except Overflow as overflow:
            raise failures.explain_divergence(self.study.scenario, t, plan, overflow.rows) from None
        for name, value in {**uploads.own, **sent.own}.items():
            self.private.write(name, plan, value)
        return stats

    def _deal(self, jobs: Jobs, local: Local) -> DealtData:
        """The batches of a block."""
        deal = partial(deal_data, self.study, jobs.plan, jobs.size, jobs.steps, key=jobs.key, shares=jobs.shares)
        return deal(local=local, move=self.to_device, resident=self.resident)

    def to_device(self, x: Tensor) -> Tensor:
        """A tensor on the worker's device; floating-point numbers get the type of the study's networks."""
        return x.to(self.device, self.study.dtype if x.is_floating_point() else x.dtype)

    def own_models(self, state: State, world: int, client: int) -> Tensor:
        """The models with which a known client answers that lives here, `[P * K, d]`; see `personal.own_models`."""
        return personal.own_models(self.private, self.study, state, world, client)

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Computes raw outputs of some models.

        Args:
            rows: The models, `[M, d]`.
            counters: Their counters, `[M, c]`.
            world: The world whose normalization applies to the inputs.
            x: Raw inputs, `[n, ...]`.

        Returns:
            Raw outputs, `[M, n, C]`; for a stack (M = 1) those of the stack and of its P sub models, `[1 + P, n, C]`.
        """
        if self.parts is not None:
            return self.parts.forward(rows, counters, world, x)
        models, rows, counters = len(rows), rows.to(self.device), counters.to(self.device)
        if self.engine.evaluates == "torch" and models < min(lanes.MIN_LANES, self.engine.width):
            rows, counters = rows.expand(2, -1), counters.expand(2, -1)
        raw = x.to(self.device)[None]  # bytes are fewer than the numbers that they become
        inputs = self.to_device(self.study.shards.normalize(raw, torch.tensor([world])))
        inputs = inputs.expand(len(rows), *inputs.shape[1:])

        def answer(some: slice) -> Tensor:
            return failures.compute_answers(self.engine, self.study.net, rows[some], counters[some], inputs[some])

        if not self.study.evaluation.dropout_at_test:
            return answer(slice(None))[:models]
        keys = dropout.key_rows(rng.keys(int(self.study.seeds[world]), "dropout at test"), x)
        return dropout.answer_with_dropout(self.study.net.module, keys, models, lambda m: answer(slice(m, m + 1)))
