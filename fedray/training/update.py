"""The local updates of a block's jobs: what the pieces of a method change before they are trained, and behind it.

Example:
    >>> key, row = np.array([7], dtype=np.uint64), np.array([0])
    >>> jobs = Jobs(Plan(*np.array([[3], [0], [0]])), np.array([20]), np.array([5]), key, row)
    >>> jobs.doubled().plan.client.tolist()
    [3, 3]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.client_state import Private
from fedray.core.method import PREVIOUS, Local, Phase, Reading, reads_ensemble
from fedray.core.types import Clients, Flight, FloatArray, IntArray, Net, Plan, State
from fedray.data.shards import Shards
from fedray.training.block import BatchSource, Block, Couple
from fedray.training.choice import Engine

Weigh = Callable[[Plan, Tensor], Tensor]  # (lanes, places `[S, W, B]` among their clients' rows) -> factors `[S, W, B]`


class Jobs(NamedTuple):
    """Some jobs of a round.

    Attributes:
        plan: Client, model and world of each job, `[J]`.
        size: Training samples of each job, `[J]`.
        steps: Optimizer steps of each job, `[J]`.
        key: Address of each job's random numbers, `[J]`.
        row: The row of the broadcast that each job starts from, `[J]`.
        flight: Where they start and where their uploads go in asynchronous training; None: in rounds.
        losses: What the clients have told before: the losses of all models on their rows, `[J, K]`; None: nothing.
    """

    plan: Plan
    size: IntArray
    steps: IntArray
    key: rng.Keys
    row: IntArray
    flight: Flight | None = None
    losses: FloatArray | None = None

    def doubled(self) -> Jobs:
        """Returns the first job and a copy of it."""
        first = np.array([0, 0])
        flight = None if self.flight is None else self.flight.take(first)
        size, steps, key, row = self.size[first], self.steps[first], self.key[first], self.row[first]
        return Jobs(self.plan.take(first), size, steps, key, row, flight)

    def turn(self, t: int) -> int | IntArray:
        """Returns what stands for the round in the addresses of the jobs that start from a model of round t."""
        return t if self.flight is None else self.flight.turn


class Dealt(NamedTuple):
    """The batches of a block; the fields are those of `Block`.

    Attributes:
        read: A function (first step, one past the last) -> inputs and targets of these steps.
        weight: Weight of each row in its batch's loss, `[S, W, B]`.
        source: Where `read` takes them from; None where they are changed on the way.
    """

    read: Callable[[int, int], tuple[Tensor, Tensor]]
    weight: Tensor
    source: BatchSource | None


class Site(Protocol):
    """What pieces use of the worker on which the clients live."""

    @property
    def net(self) -> Net:
        """The network, on the worker's device."""

    @property
    def shards(self) -> Shards:
        """The clients' rows."""

    @property
    def seeds(self) -> IntArray:
        """The seed of each world, `[R]`."""

    @property
    def init_seeds(self) -> IntArray:
        """The seed of each world's first models, `[R]`."""

    @property
    def clients(self) -> Clients:
        """Who takes part, in which tiers."""

    @property
    def private(self) -> Private:
        """The private vectors of the clients that live here."""

    @property
    def engine(self) -> Engine:
        """What trains the whole network."""

    def local(self, local: Local, world: int) -> Local:
        """Returns how the clients of a world train, with its own learning rate if it has one."""

    def to_device(self, x: Tensor) -> Tensor:
        """Moves a tensor to the worker's device; floating-point numbers get the type of the networks."""

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Returns raw outputs `[M, n, C]` of models `[M, d]` on raw inputs of a world."""

    def deal(self, update: Update) -> Dealt:
        """Deals the batches of some updates."""

    def make_block(self, update: Update, dealt: Dealt) -> Block:
        """Makes the lanes of some updates."""


class Update(NamedTuple):
    """The local updates of a block of W lanes.

    Attributes:
        site: The worker.
        phase: The training that they belong to.
        t: The round of the models that they start from, from 0.
        jobs: The jobs, `[W]`; a lone one stands there twice where an engine needs two lanes.
        real: The jobs without that copy.
        state: What the server knows.
        local: How the clients train.
        engine: What trains them; a piece may put its own training around that of the network.
        broadcast: The models that they received, `[W, d]`.
        start: The models that they start from, `[W, d]`.
        counters: Integer buffers of these; behind the training, of what was trained, `[W, c]`.
        memo: What pieces remember for the other blocks of the round.
        own: What clients keep, by the name of the private vector, `[W, d]` each.
        offset: What is added to the gradients, `[W, d]`; None: nothing.
        couple: How the steps of a client's lanes depend on each other; None: they do not.
        weigh: How samples weigh in their batches; None: all alike.
        gives_change: Whether the engine returns the change of the models, where a block wants it.
        block: The lanes as they were trained; None before.
        final: The trained models, `[W, d]`, where a piece reads them; else None.
        delta: What training has changed, `[W, d]`, 0 in layers that stay with the clients; None before.
        beside: What is sent beside it, `[W, ...]`; None: nothing.
    """

    site: Site
    phase: Phase
    t: int
    jobs: Jobs
    real: Jobs
    state: State
    local: Local
    engine: Engine
    broadcast: Tensor
    start: Tensor
    counters: Tensor
    memo: dict[Any, Any]
    own: dict[str, Tensor]
    offset: Tensor | None = None
    couple: Couple | None = None
    weigh: Weigh | None = None
    gives_change: bool = False
    block: Block | None = None
    final: Tensor | None = None
    delta: Tensor | None = None
    beside: Tensor | None = None

    def read(self, name: str) -> Tensor:
        """Reads the clients' rows of a private vector, `[W, d]`; 0 for a client without one."""
        return self.site.private.read(name, self.jobs.plan).to(self.broadcast.device)

    def keep(self, **own: Tensor) -> Update:
        """Returns the update with further vectors that its clients keep, by name, `[W, d]` each."""
        return self._replace(own={**self.own, **own})

    def models(self) -> Tensor:
        """Returns the trained models, `[W, d]`."""
        if self.phase.stays:
            assert self.final is not None
            return self.final
        assert self.delta is not None
        return self.start + self.delta


def rows_of(models: Tensor, row: Tensor) -> Tensor:
    """Returns the models `[J, d]` of some jobs, for reading only: one model is not copied for each job."""
    return models.expand(len(row), *models.shape[1:]) if len(models) == 1 else models.index_select(0, row)


def find_reading(update: Update) -> Reading | None:
    """Returns what the code of a local training may read of its clients; None without code.

    The model that they trained last is the one that they start from, where they have trained none.
    """
    local, jobs, state = update.local, update.jobs, update.state
    if not local.has_code:
        return None
    plan, start = jobs.plan, update.start
    previous = update.site.private.rows_or(PREVIOUS, plan, start) if local.keeps_model else None
    every = None
    if reads_ensemble(local.loss):  # the K models of each job's world, `[J, K, d]`
        each = state.models.view(-1, update.phase.models, state.models.shape[1])
        if (plan.world == plan.world[0]).all():  # not copied for each job
            every = each[int(plan.world[0])].expand(len(plan.world), -1, -1)
        else:
            every = each.index_select(0, torch.from_numpy(plan.world).to(each.device))
    columns = (plan.client, plan.model, jobs.size)
    client, model, size = (torch.from_numpy(column).to(start.device) for column in columns)
    shared = None
    if local.loss is not None and local.loss.shared is not None:
        row = torch.from_numpy(jobs.row).to(start.device)
        shared = rows_of(state.extra[local.loss.shared].to(start), row)
    return Reading(update.t, client, model, start, previous, every, size, shared)
