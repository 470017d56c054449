"""What one worker process does: trains the jobs it is given, reduces their uploads, evaluates models.

Both runtimes run this code: `inline` has one host, each client actor of the Ray runtime has one. A host is pure in
(state, data, address): which jobs it gets changes nothing in their numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import Diverged, Overflow
from fedray.core.exact_sum import check_finite, merge_stats
from fedray.core.method import PERSONAL_PREFIX, JobRows, Phase
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, IntArray, Local, Plan, SizedPlan, State, Stats, Uploads
from fedray.metrics import ensemble
from fedray.models.loss import per_sample
from fedray.runtime import failures, personal
from fedray.runtime.client_state import Private
from fedray.simulation.study import Study
from fedray.training import block as lanes
from fedray.training.choice import Engine, choose_engine, shareable

CLIENTS_A_PIECE = 32
Score = Callable[[Tensor, Tensor], Tensor]  # (outputs `[K, n, C]`, targets `[n]`) -> `[., n]`


class Jobs(NamedTuple):
    """Some jobs of a round: plan, training samples, steps and address of each, `[J]`."""

    plan: Plan
    size: IntArray
    steps: IntArray
    key: rng.Keys

    def twice(self) -> Jobs:
        """The first job and its copy."""
        return Jobs(*(column.take([0, 0]) for column in self))  # type: ignore[arg-type]


class StackWorker(Protocol):
    """The hosts of a model that is made of parts (`runtime.stacked`)."""

    hosts: list[Worker]

    @property
    def engine(self) -> Engine: ...

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]: ...

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor: ...

    def state(self) -> dict[str, Tensor]: ...

    def restore(self, state: dict[str, Tensor]) -> None: ...


class Worker:
    """Holds the data view, the network and the engine of one process; a stack's has `parts` instead."""

    def __init__(self, study: Study, device: str = "cpu", threads: int = 1, parts: StackWorker | None = None) -> None:
        self.device = torch.device(device)
        if parts is None and self.device.type != "cpu":  # the study's own stays where pictures and closed forms ask it
            study = replace(study, net=replace(study.net, module=copy.deepcopy(study.net.module).to(self.device)))
        self.study, self.parts = study, parts
        self.engine: Engine = parts.engine if parts else choose_engine(study.net, self.device.type, study.example)
        alone = self.device.type != "cpu" or study.client_timeout is not None or not shareable(self.engine)
        self.threads = 1 if alone else threads
        self.private = Private(study.net.layout.d, study.dtype)
        self.store: Private | StackWorker = parts or self.private  # of all private vectors

    def train(self, t: int, jobs: SizedPlan, state: State, phase: Phase) -> tuple[Stats, JobRows]:
        """Trains jobs; statistics are reduced, rows are in the plan's order, failures isolated."""
        failures.check_limit(self.study.client_timeout)
        if self.parts is not None:
            return self.parts.train(t, jobs, state)
        plan, size, steps = jobs
        width = lanes.padded_batch(size, phase.local.batch_size)
        alike = width + (width.max(initial=0) + 1) * self.study.alike(plan.world)  # a block has one learning rate
        blocks = lanes.split_into_blocks(steps, alike, self.engine.width)
        models = state.models.to(self.device)
        counters = state.counters.to(self.device)

        key = rng.keys(self.study.seeds[plan.world], "batches", t, plan.client, plan.model)

        def work(index: IntArray) -> tuple[Stats, Tensor]:
            some = Jobs(*jobs.take(index), key[index])
            with failures.limit_seconds(self.study.client_timeout):
                uploads, cost = self._block(t, some, state._replace(models=models, counters=counters), phase)
            return self._send(t, uploads, some.plan, phase), cost

        def name(job: int) -> str:
            return f"round {t + 1}: client {plan.client[job]} (model {plan.model[job]})"

        attempt = partial(failures.try_jobs, work, name, self.study.skip)
        loss = np.full(len(size), np.nan)
        stats: Stats = {}
        errors: failures.Errors = {}
        with ThreadPoolExecutor(self.threads) if self.threads > 1 else nullcontext() as pool:
            for done, failed in pool.map(attempt, blocks) if pool is not None else map(attempt, blocks):
                for index, one, cost in done:
                    stats = merge_stats([stats, one])  # as they come: all blocks' sums at once would fill the memory
                    loss[index] = cost.double().cpu().numpy() / steps[index]
                errors |= failed
        return stats, JobRows(loss, failures.shorten_traceback(errors))

    def _block(self, t: int, real: Jobs, state: State, phase: Phase) -> tuple[Uploads, Tensor]:
        """One block of lanes, from data to uploads; it writes nothing."""
        study, n = self.study, len(real.size)
        local = study.local(phase.local, int(real.plan.world[0]))
        lone = n < min(lanes.MIN_LANES, self.engine.width)  # a lone lane is joined by its own copy
        jobs = real.twice() if lone else real
        row = torch.from_numpy(jobs.plan.world * phase.models + jobs.plan.model).to(self.device)
        broadcast = personal.rows_of(state.models, row)
        start = personal.start_rows(self.private, study.net.layout, phase, jobs.plan, broadcast)
        own = {name: self.private.read(name, jobs.plan).to(self.device) for name in phase.own}
        shared = self._shared(state, phase, row)
        offset = None
        if local.correction is not None:
            offset = local.correction.offset(own[local.correction.name], shared)
        read, weight = self._reader(jobs, local)
        block = lanes.Block(
            start, state.counters.index_select(0, row), read, weight, jobs.steps, local, local.lr_at(t), jobs.key,
            int(np.prod(study.input_shape)), None, offset,
        )  # fmt: skip
        trained = self.engine.train(study.net, block)
        delta, kept = personal.withhold_private(study.net.layout, phase, start, trained.final)
        own |= kept | self._passes(t, jobs, broadcast, phase)
        change = None
        if local.correction is not None:
            name, rate = local.correction.name, torch.from_numpy(jobs.steps * local.lr_at(t)).to(delta)[:, None]
            after = local.correction.update(own[name], shared, delta, rate)
            change = (after - own[name])[:n].cpu()
            own[name] = after
        plan = real.plan
        uploads = Uploads(
            delta[:n].cpu(), plan.client, plan.model, plan.world, study.clients.tier_of(plan.client), real.size,
            personal.sent_counters(study.net.layout, phase, trained.counters[:n].cpu()),
            {name: value[:n].cpu() for name, value in own.items()}, change, real.key,
        )  # fmt: skip
        return uploads, trained.loss[:n]

    def _passes(self, t: int, jobs: Jobs, broadcast: Tensor, phase: Phase) -> dict[str, Tensor]:
        """The clients' personal models after a round, by name, `[J, d]`; each pass pulls to the broadcast model."""
        if not phase.personal:
            return {}
        plan, study = jobs.plan, self.study
        key = rng.keys(study.seeds[plan.world], "personal", t, plan.client, plan.model)
        read, weight = self._reader(jobs._replace(key=key), phase.local)
        counters = torch.zeros(len(key), len(study.net.layout.counters), dtype=torch.int64, device=self.device)
        out = {}
        for p, each in enumerate(phase.personal):
            local = study.local(each, int(plan.world[0]))
            start = personal.own_rows(self.private, f"{PERSONAL_PREFIX}{p}", plan, broadcast)
            block = lanes.Block(
                start, counters, read, weight, jobs.steps, local, local.lr_at(t), key, int(np.prod(study.input_shape)),
                broadcast,
            )  # fmt: skip
            out[f"{PERSONAL_PREFIX}{p}"] = self.engine.train(study.net, block).final
        return out

    def _shared(self, state: State, phase: Phase, row: Tensor) -> Tensor | None:
        """The server's broadcast vector for each lane, where the correction reads one."""
        name = phase.local.correction.shared if phase.local.correction else None
        return None if name is None else state.extra[name].to(self.device).index_select(0, row)

    def _send(self, t: int, uploads: Uploads, plan: Plan, phase: Phase) -> Stats:
        """Compresses and reduces the uploads of a block, and keeps the clients' private vectors."""
        try:
            sent = phase.compress.apply(uploads)
            if sent.delta is not uploads.delta or phase.server.keeps:  # compressing may drop the entries that tell
                check_finite(uploads.delta)
            stats = phase.server.reduce(uploads._replace(delta=sent.delta))
        except Overflow as bad:
            names = ", ".join(f"client {plan.client[j]} (model {plan.model[j]})" for j in bad.rows)
            raise Diverged(
                f"round {t + 1}: training diverged (NaN, infinite or huge weights) at {names}: lower local.lr"
            ) from None
        for name, value in {**uploads.own, **sent.own}.items():
            self.private.write(name, plan, value)
        return stats

    def _reader(self, jobs: Jobs, local: Local) -> tuple[Callable[[int, int], tuple[Tensor, Tensor]], Tensor]:
        """The batches of a block: a function of (first step, last step), and the weights `[S, W, B]`."""
        shards, plan = self.study.shards, jobs.plan
        fetched = shards.fetch(plan.world, plan.client)
        width = int(lanes.padded_batch(jobs.size, local.batch_size)[0])
        index, weight = lanes.deal_batches(fetched.rows.numpy(), jobs.size, jobs.steps, width, jobs.key)
        world = torch.from_numpy(plan.world)

        def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
            at = index[lo:hi]
            flat = at.flatten()
            x = fetched.x.index_select(0, flat).view(*at.shape, *fetched.x.shape[1:])
            y = fetched.labels(at, torch.arange(at.shape[1])[:, None])
            x = shards.normalise(x.transpose(0, 1), world).transpose(0, 1)
            y = shards.targets(y.transpose(0, 1), world).transpose(0, 1)
            return self._typed(x.to(self.device)), self._typed(y.to(self.device))

        return read, weight.to(self.device, self.study.dtype)

    def _typed(self, x: Tensor) -> Tensor:
        return x.to(self.study.dtype) if x.is_floating_point() else x

    def pieces(self, state: State, split: str, worlds: int | None = None) -> list[tuple[int, int]]:
        """The evaluation work of a split, of the first worlds or all: (world, first row of the world's rows) each."""
        return [
            (world, a)
            for world in range(self.study.worlds if worlds is None else worlds)
            for a in range(0, len(self.study.split(split, world)[1]), EVALUATED_ROWS)
        ]

    def evaluate(self, state: State, split: str, world: int, first: int, models: int) -> Tensor:
        """Raw outputs `[K, n, C]` of a world's models on one piece of a split."""
        x, _ = self.study.split(split, world)
        return self.outputs(state, world, models, x[first : first + EVALUATED_ROWS]).cpu()

    def client_pieces(self, worlds: int | None = None) -> list[tuple[int, int]]:
        """The work of evaluating known clients of the first worlds or all: (world, first client) each, a fixed cut."""
        number = min(self.study.clients.number, EVALUATED_CLIENTS)
        count = self.study.worlds if worlds is None else worlds
        return [(w, a) for w in range(count) for a in range(0, number, CLIENTS_A_PIECE)]

    def losses(self, state: State, world: int, first: int, models: int) -> Tensor:
        """Mean training loss of a world's models on some clients, `[K, c]`: the l_i(w_k) of FE eq. 4."""

        return self.losses_of(state, world, self._piece(first), models)

    def losses_of(self, state: State, world: int, client: IntArray, models: int) -> Tensor:
        """Mean training loss of a world's models on the given clients, `[K, c]`."""

        def loss(z: Tensor, y: Tensor) -> Tensor:
            return per_sample(self.study.net.objective, z, y.expand(len(z), *y.shape)).double()

        return self._on_clients(partial(self._means, state, world, models, models, loss), client, models)

    def _piece(self, first: int) -> IntArray:
        return np.arange(first, min(first + CLIENTS_A_PIECE, self.study.clients.number, EVALUATED_CLIENTS))

    def uncertainty(self, state: State, world: int, first: int, models: int) -> Tensor:
        """Mean knowledge uncertainty of a world's ensemble on some clients' data, `[1, c]`."""

        def unsure(z: Tensor, y: Tensor) -> Tensor:
            return torch.from_numpy(ensemble.uncertainty(ensemble.probabilities(z.cpu().numpy())).knowledge)[None]

        client = self._piece(first)
        means = self._on_clients(partial(self._means, state, world, models, 1, unsure), client, 1)
        size = self.study.shards.sizes(np.full(len(client), world), client)
        return means.masked_fill_(torch.from_numpy(size == 0), torch.nan)

    def _on_clients(self, means: Callable[[IntArray], Tensor], client: IntArray, rows: int) -> Tensor:
        """`means(client)` `[rows, c]`; NaN for a client on which the models fail, where failures are skipped."""
        return failures.score_clients(means, client, rows, self.study.skip, self.study.client_timeout)

    def _means(self, state: State, world: int, models: int, number: int, score: Score, client: IntArray) -> Tensor:
        """Mean over each client's training samples of a score with that many rows, `[number, c]`."""
        study, where = self.study, torch.tensor([world])
        fetched = study.shards.fetch(np.full(len(client), world), client)
        size = torch.from_numpy(fetched.size)
        rows = fetched.rows[torch.arange(fetched.rows.shape[1]) < size[:, None]]  # client after client
        if not len(rows):
            return torch.zeros(number, len(client), dtype=torch.float64)
        scores = []
        for part in rows.split(EVALUATED_ROWS):
            y = self._typed(study.shards.targets(fetched.labels(part, 0)[None], where)).to(self.device)[0]
            scores.append(score(self.outputs(state, world, models, fetched.x[part]), y).cpu())
        each = torch.cat(scores, dim=1)
        owner = torch.repeat_interleave(torch.arange(len(client)), size)
        return torch.zeros(len(each), len(client), dtype=each.dtype).index_add_(1, owner, each) / size.clamp(min=1)

    def outputs(self, state: State, world: int, models: int, x: Tensor) -> Tensor:
        """Raw outputs `[K, n, C]` of a world's models on raw inputs `[n, ...]`."""
        mine = slice(world * models, (world + 1) * models)
        return self.forward(state.models[mine], state.counters[mine], world, x)

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Raw outputs `[M, n, C]` of the models `rows` `[M, d]` on raw inputs `[n, ...]` of a world."""
        if self.parts is not None:
            return self.parts.forward(rows, counters, world, x)
        models = len(rows)
        rows, counters = rows.to(self.device), counters.to(self.device)
        if models < min(lanes.MIN_LANES, self.engine.width):
            rows, counters = rows.expand(2, -1), counters.expand(2, -1)
        inputs = self._typed(self.study.shards.normalise(x[None], torch.tensor([world]))).to(self.device)
        inputs = inputs.expand(len(rows), *inputs.shape[1:])
        return self.engine.outputs(self.study.net, rows, counters, inputs)[:models]

    def known(self, state: State, keys: list[tuple[int, int]]) -> dict[tuple[int, int], Tensor]:
        """Accuracy of (world, client) pairs with models of their own; see `personal.personal_answers`."""
        return personal.personal_answers(self.study, self.private, self.forward, state, keys)
