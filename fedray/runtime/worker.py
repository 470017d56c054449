"""Trains jobs in one process, and adds up the statistics of their uploads for the server's step.

A *job* trains one model of one world (a seed and a fold) at one client. A *block* is a set of jobs that are trained
together as one computation, and a *lane* is one job of a block. A *study* is everything that a run needs except a
runtime. A *stack* is an ensemble of networks or classifiers (`fedray.runtime.stacking`).
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedray.core import rng
from fedray.core.errors import FedrayError, Overflow
from fedray.core.method import JobRows
from fedray.core.sums import add_stats, check_finite, map_arrays
from fedray.core.types import IntArray, Plan, SizedPlan, State, Stats, Uploads
from fedray.features.slices import for_slice
from fedray.models.net import answer_with_dropout, key_rows
from fedray.runtime import exchange
from fedray.simulation.study import Study, choose_study_engine
from fedray.training import block as lanes
from fedray.training.choice import COMPILED, SHAREABLE, Engine
from fedray.training.update import BlockBatches, Jobs, Private, Update, find_reading

if TYPE_CHECKING:
    from fedray.runtime.stacking import StackWorkers

# ---------------------------------------------------------------------------------------------------------------------
# Copies of the clients' data on a GPU. Batches are gathered there, so only the indexes of their samples are sent.

IMAGES_AT_ONCE = 100  # on a CPU; in a ResNet-18 500 images of 32 x 32 took 1 GB, and a fourth more time
SHARE = 0.25  # largest share that samples take of the GPU memory that this process may still use


class RowsOnDevice:
    """Keeps copies of samples on a device. A copy is deleted when its original in main memory is deleted.

    Example:
        >>> rows, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
        >>> RowsOnDevice(torch.device("cpu")).place(rows, labels)[0] is rows
        True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies = WeakTensorKeyDictionary()

    def place(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Returns samples on the device. Only the first call copies them.

        Samples stay in main memory if they need more than a quarter of the free GPU memory (`count_free_bytes`).
        """
        if self.device.type == "cpu":
            return x, y
        if x not in self._copies and x.nbytes + y.nbytes > SHARE * count_free_bytes(self.device):
            return x, y
        return self._copy(x), self._copy(y)

    def _copy(self, rows: Tensor) -> Tensor:
        """Returns the copy of some samples. The first call makes the copy."""
        if rows not in self._copies:
            self._copies[rows] = rows.to(self.device)
        copy: Tensor = self._copies[rows]
        return copy


def count_free_bytes(device: torch.device) -> int:
    """Returns how many free bytes of a GPU this process may use, within the limit that `limit_gpu_memory` sets."""
    free, total = torch.cuda.mem_get_info(device)
    find_share = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # old releases of torch lack it
    share = 1.0 if find_share is None else find_share(device.index)  # an index of None means the current device
    return min(free, int(share * total) - torch.cuda.memory_reserved(device))


# ---------------------------------------------------------------------------------------------------------------------
# The worker. The runtime without Ray has one worker; on Ray each client actor has one. The result of a job depends only
# on the state, the data and the keys of random numbers, and not on other jobs. `fedray.runtime.session` has the
# function with which a worker answers questions.


class Worker:
    """Holds the data, the network and the engine of one process.

    Attributes:
        study: The study that is trained, with its network on the worker's device. The study's `net`, `shards`,
            `clients`, `seeds`, `init_seeds` and `local` are attributes of the worker, too.
        device: Device on which tensors are computed.
        engine: The engine that trains blocks of jobs.
        tiers: The engine of each tier that trains a slice of the network, and None for each other tier. The tuple is
            empty if all tiers train the whole network.
        threads: Number of blocks that are trained at the same time, at least 1.
        parts: The workers of a stack's parts. None means that the study is no stack.
        rows_on_device: The copies of the clients' data on the device.
        kept: A cache for later rounds, if clients do not train by gradient descent (`Phase.work`).
        private: Private vectors, which the clients of this process keep between rounds.
        store: The object with all private vectors: `parts` for a stack, and `private` otherwise.
    """

    def __init__(
        self, study: Study, device: str = "cpu", threads: int = 1, parts: "StackWorkers | None" = None
    ) -> None:
        self.device, given = torch.device(device), study
        # the study's own network stays on the CPU, where report pictures and closed forms use it
        if parts is None and self.device.type != "cpu":
            study = replace(study, net=replace(study.net, module=copy.deepcopy(study.net.module).to(self.device)))
        self.study, self.parts = study, parts
        self.net, self.shards, self.clients = study.net, study.shards, study.clients
        self.seeds, self.init_seeds, self.local = study.seeds, study.init_seeds, study.local
        self.engine: Engine = parts.workers[0].engine if parts else choose_study_engine(study, self.device.type)
        self.tiers = exchange.choose_tier_engines(given, self.device)
        shareable = all(one.name in SHAREABLE for one in (self.engine, *(tier.engine for tier in self.tiers if tier)))
        calls_module = any(piece.calls_module for piece in study.method.phase.pieces)  # which holds one lane's weights
        single = self.device.type != "cpu" or study.client_timeout is not None or calls_module or not shareable
        self.threads = 1 if single else threads
        self.rows_on_device = RowsOnDevice(self.device)
        self.kept: dict[Any, Any] = {}
        self.private = Private(study.net.layout.d, study.dtype)
        self.store: Private | StackWorkers = parts or self.private

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Trains the jobs of a round.

        Returns:
            Sums over the jobs' uploads, for the server's step. Also the jobs' losses, `[J]`, in the order of the plan,
            and the tracebacks of the jobs that failed.
        """
        exchange.check_limit(self.study.client_timeout)
        if self.parts is not None:
            return self.parts.train(t, jobs, state)
        plan, size, steps, flight, _ = jobs
        phase = self.study.method.phase
        turn = t if flight is None else flight.turn
        model = plan.model if phase.together == 1 else 0 * plan.model  # models trained jointly get equal batches
        key = rng.keys(self.study.seeds[plan.world], "batches", turn, plan.client, model)
        row = exchange.rows_of_state(plan, flight, phase.models)
        state = state._replace(models=state.models.to(self.device), counters=state.counters.to(self.device))
        memo: dict[Any, Any] = {}

        if phase.work is not None:
            phase.work.begin(self, self.kept, t, state)

        def train_block(index: IntArray) -> tuple[Stats, Tensor]:
            part = jobs.take(index)
            if phase.work is not None:
                with exchange.limit_seconds(self.study.client_timeout):
                    return phase.work.do(self, self.kept, t, part, state)
            some = Jobs(*part[:3], key[index], row[index], part.flight, part.losses)
            version = t if flight is None else int(flight.version[index[0]])
            with exchange.limit_seconds(self.study.client_timeout):
                uploads, loss = self._train_block(version, some, state, memo)
            return self._send(t, uploads, some), loss

        def name(job: int) -> str:
            return f"round {t + 1}: {exchange.name_job(self.study, plan, job)}"

        attempt = partial(exchange.try_jobs, train_block, name, self.study.skip, atom=phase.together)
        if phase.work is None:
            blocks = exchange.split_by_tier(self.study, jobs, self.engine, self.tiers)
        else:
            blocks = list(np.arange(len(size))[:, None])
        stats, loss, errors = Stats(), np.full(len(size), np.nan), exchange.Tracebacks()
        with ThreadPoolExecutor(self.threads) if self.threads > 1 else nullcontext() as pool:
            for trained, failed in pool.map(attempt, blocks) if pool is not None else map(attempt, blocks):
                for index, reduced, summed in trained:
                    add_stats(stats, reduced)  # now, because the sums of all blocks would fill the memory
                    reduced.clear()  # else the sums stay in memory until the next block has trained
                    loss[index] = summed.double().cpu().numpy() / steps[index]
                errors |= failed
        return map_arrays(stats, Tensor.cpu), JobRows(loss, errors)

    def _train_block(self, t: int, real: Jobs, state: State, memo: dict[Any, Any]) -> tuple[Uploads, Tensor]:
        """Trains one block of jobs, and returns their uploads and losses `[W]`. The worker is not changed."""
        study, phase, layout = self.study, self.study.method.phase, self.net.layout
        local = study.local(phase.local, int(real.plan.world[0]))
        engine, columns = self.engine, None
        tier = int(study.clients.tier_of(real.plan.client)[0])  # the same for all lanes
        if self.tiers and phase.nets and (one := self.tiers[tier]) is not None:
            columns = phase.columns(t, tier)
            engine = for_slice(one.engine, one.net, columns)
        jobs = real.doubled() if len(real.size) < min(engine.min_lanes, engine.width) else real
        row = torch.from_numpy(jobs.row).to(self.device)
        broadcast, counters = lanes.rows_of(state.models, row), state.counters.index_select(0, row)
        own = {name: self.private.read(name, jobs.plan).to(self.device) for name in phase.compress.own}
        update = Update(
            self, phase, t, jobs, real, state, local, engine, broadcast, broadcast, counters, memo, own,
            gives_change=engine.name in COMPILED,
        )  # fmt: skip
        for piece in phase.chain:
            update = piece.begin(update)
        reads_final = any(piece.reads_final for piece in phase.chain)
        block = self.make_block(update, self.deal(update))
        block = block._replace(offset=update.offset, couple=update.couple)
        block = block._replace(wants_change=update.gives_change and not reads_final)
        trained = update.engine.train(study.net, block)
        delta, final = trained.final, trained.final if reads_final else None
        if not block.wants_change:
            delta = delta.sub_(update.start) if final is None else final - update.start
        if phase.stays:
            delta = delta.masked_fill_(torch.from_numpy(layout.mask(phase.stays)).to(delta.device), 0.0)
        update = update._replace(block=block, final=final, delta=delta, counters=trained.counters)
        for piece in phase.chain:
            update = piece.end(update)
        return self._pack_uploads(update, columns), trained.loss[: len(real.size)]

    def deal(self, update: Update) -> BlockBatches:
        """Divides the samples of each job's client into batches, and returns the batches of the jobs in `update`."""
        jobs, local, shards = update.jobs, update.local, self.shards
        fetched = shards.fetch(jobs.plan.world, jobs.plan.client)
        width = int(lanes.choose_batch_width(jobs.size[:1], local)[0])
        deal = partial(lanes.deal_batches, size=jobs.size, steps=jobs.steps, width=width, key=jobs.key, local=local)
        index, weight = deal(fetched.rows.numpy())
        dealt = weight
        if update.weigh is not None:
            place = np.broadcast_to(np.arange(fetched.rows.shape[1]), fetched.rows.shape)
            weight = weight * update.weigh(jobs.plan, deal(place).index)
        world = torch.from_numpy(jobs.plan.world)
        x_rows, y_rows = fetched.x, fetched.y
        # augmentations that are users' functions (other forms than `rows`) get tensors in main memory
        if all(rule.form == "rows" for rule in local.augment):
            x_rows, y_rows = self.rows_on_device.place(fetched.x, fetched.y)
        placed = fetched._replace(x=x_rows, y=y_rows)

        def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
            at = index[lo:hi]
            x = x_rows.index_select(0, at.flatten().to(x_rows.device)).view(*at.shape, *x_rows.shape[1:])
            y = placed.labels(at, torch.arange(at.shape[1])[:, None])
            if local.augment:
                real = (dealt[lo:hi] > 0).sum(-1).numpy()
                x, y = lanes.change_batches(local.augment, x, y, lanes.Steps(jobs.key, lo, real, shards.data.classes))
            x = shards.scaling.normalize(x.transpose(0, 1), world).transpose(0, 1)
            y = shards.scaling.targets(y.transpose(0, 1), world).transpose(0, 1)
            return self.to_device(x), self.to_device(y)

        normalization = shards.scaling.standardization(jobs.plan.world)
        source = lanes.BatchSource(fetched.x, fetched.y, index, fetched.first, *normalization)
        return BlockBatches(read, self.to_device(weight), None if local.augment else source)

    def make_block(self, update: Update, dealt: BlockBatches) -> lanes.Block:
        """Makes the block of the jobs in `update`, without the terms that additions (`Piece`) add to the gradient."""
        return lanes.Block(
            start=update.start,
            counters=update.counters,
            read=dealt.read,
            weight=dealt.weight,
            steps=update.jobs.steps,
            local=update.local,
            lr=update.local.lr_at(update.t),
            keys=update.jobs.key,
            sample=int(np.prod(self.study.input_shape)),
            source=dealt.source,
            reading=find_reading(update) if update.local.has_code else None,
        )

    def _pack_uploads(self, update: Update, columns: Tensor | None) -> Uploads:
        """Returns the uploads of a block of jobs.

        If a block has a single job, a copy of this job is trained with it. The copy sends nothing. The uploads stay on
        a GPU under three conditions: compression and server can work there, clients keep no data between rounds, and
        training is synchronous. Integer buffers of layers that clients do not send are 0.
        """
        real, phase, delta, counters = update.real, update.phase, update.delta, update.counters.cpu()
        assert delta is not None
        if phase.stays and (names := self.net.layout.counters):
            counters = counters.masked_fill(torch.tensor([n.rpartition(".")[0] in phase.stays for n in names]), 0)
        stay = phase.server.on_device and phase.compress.on_device and not update.own and real.flight is None
        n = len(real.size)
        return Uploads(
            delta=(delta if stay else delta.cpu())[:n],
            client=real.plan.client,
            model=real.plan.model,
            world=real.plan.world,
            tier=self.study.clients.tier_of(real.plan.client),
            size=real.size,
            counters=counters[:n],
            own={name: value[:n].cpu() for name, value in update.own.items()},
            beside=None if update.beside is None else update.beside[:n].cpu(),
            key=real.key,
            steps=real.steps[:n],
            columns=columns,
            losses=real.losses,
        )

    def _send(self, t: int, uploads: Uploads, jobs: Jobs) -> Stats:
        """Compresses the uploads of a block, adds up their statistics, and stores the clients' new private vectors."""
        plan, phase = jobs.plan, self.study.method.phase
        try:
            sent = phase.compress.apply(uploads)
            if sent.delta is not uploads.delta or phase.server.keeps:  # compression may drop infinite entries
                check_finite(uploads.delta)
            received = uploads._replace(delta=sent.delta)
            stats = phase.server.reduce(received if jobs.flight is None else exchange.to_groups(received, jobs.flight))
        except Overflow as overflow:
            raise exchange.explain_divergence(self.study, t, plan, overflow.rows) from None
        except FedrayError as error:
            raise exchange.BlockFailed from error
        for name, value in {**uploads.own, **sent.own}.items():
            self.private.write(name, plan, value)
        return stats

    def to_device(self, x: Tensor) -> Tensor:
        """Returns a tensor on the worker's device. A floating-point tensor gets the data type of the networks."""
        return x.to(self.device, self.study.dtype if x.is_floating_point() else x.dtype)

    def own_models(self, state: State, world: int, client: int) -> Tensor:
        """Returns the models with which a client of this process predicts.

        If several additions of the method (`Phase.pieces`) give clients their own models, the last of them is used.
        """
        phase = self.study.method.phase
        k = phase.models
        plan = Plan(np.full(k, client), np.arange(k), np.full(k, world))
        tier, received = self.study.clients.tier_of(np.array([client])), state.models[world * k : (world + 1) * k]
        return [piece for piece in phase.pieces if piece.answers][-1].own_models(self, plan, received, int(tier[0]))

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Computes the raw outputs of some models, or of a stack.

        Args:
            rows: The models, `[M, d]`.
            counters: The integer buffers of the models, `[M, c]`.
            world: The world whose normalization is applied to the inputs.
            x: Raw inputs, `[n, ...]`.

        Returns:
            Raw outputs, `[M, n, C]`. For a stack (M = 1), the shape is `[1 + P, n, C]`: first the outputs of the stack,
            then the outputs of its P sub models.
        """
        if self.parts is not None:
            return self.parts.forward(rows, counters, world, x)
        whole = self.device.type != "cpu" or not self.engine.calls_module
        if not whole and x.dim() == 4 and len(x) > IMAGES_AT_ONCE:
            parts = [self.forward(rows, counters, world, part) for part in torch.split(x, IMAGES_AT_ONCE)]
            return torch.cat(parts, dim=1)
        models, rows, counters = len(rows), rows.to(self.device), counters.to(self.device)
        if self.engine.evaluates == "torch" and models < min(lanes.MIN_LANES, self.engine.width):
            rows, counters = rows.expand(2, -1), counters.expand(2, -1)
        raw = x.to(self.device)[None]  # moved before normalization, because raw bytes are smaller than floats
        inputs = self.to_device(self.study.shards.scaling.normalize(raw, torch.tensor([world])))
        inputs = inputs.expand(len(rows), *inputs.shape[1:])

        def answer(some: slice) -> Tensor:
            return exchange.compute_answers(self.engine, self.study.net, rows[some], counters[some], inputs[some])

        if not self.study.evaluation.dropout_at_test:
            return answer(slice(None))[:models]
        keys = key_rows(rng.keys(int(self.study.seeds[world]), "dropout at test"), x)
        return answer_with_dropout(self.study.net.module, keys, models, lambda m: answer(slice(m, m + 1)))
