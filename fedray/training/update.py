"""Defines the local updates of a block's jobs, which the pieces of a method change before and after training.

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
from fedray.training.block import BatchSource, Block, Couple, rows_of
from fedray.training.choice import Engine

Weigh = Callable[[Plan, Tensor], Tensor]  # (lanes, indices `[S, W, B]` of the client's samples) -> factors `[S, W, B]`


class Jobs(NamedTuple):
    """Some jobs of a round.

    Attributes:
        plan: Client, model and world of each job, `[J]`.
        size: Number of training samples of each job, `[J]`.
        steps: Optimizer steps of each job, `[J]`.
        key: Key that each job's random numbers are computed from, `[J]`.
        row: Index of the broadcast row that each job starts from, `[J]`.
        flight: Start and destination of each job in asynchronous training; None if training has rounds.
        losses: Losses of all models on the samples of each job's client, as the client reported them before,
            `[J, K]`; None if clients report none.
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
        """Returns the part of the jobs' random keys that stands for the round; t is the round of the start models."""
        return t if self.flight is None else self.flight.turn


class Dealt(NamedTuple):
    """The batches of a block; the fields are those of `Block`.

    Attributes:
        read: A function (first step, one past the last) -> inputs and targets of these steps.
        weight: Weight of each sample in the loss of its batch, `[S, W, B]`.
        source: Where `read` takes the batches from; None if the samples are changed on the way.
    """

    read: Callable[[int, int], tuple[Tensor, Tensor]]
    weight: Tensor
    source: BatchSource | None


class Site(Protocol):
    """The interface through which pieces use the worker on which the clients live."""

    @property
    def net(self) -> Net:
        """The network, on the worker's device."""

    @property
    def shards(self) -> Shards:
        """The clients' samples."""

    @property
    def seeds(self) -> IntArray:
        """The seed of each world, `[R]`."""

    @property
    def init_seeds(self) -> IntArray:
        """The seed of each world's first models, `[R]`."""

    @property
    def clients(self) -> Clients:
        """All clients, with their tiers."""

    @property
    def private(self) -> Private:
        """The private vectors of the clients that live on this worker."""

    @property
    def engine(self) -> Engine:
        """The engine that trains the whole network."""

    def local(self, local: Local, world: int) -> Local:
        """Returns how the clients of a world train, with the world's own learning rate if there is one."""

    def to_device(self, x: Tensor) -> Tensor:
        """Moves a tensor to the worker's device; floating-point numbers get the type of the networks."""

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Returns raw outputs `[M, n, C]` of models `[M, d]` for raw inputs of a world."""

    def deal(self, update: Update) -> Dealt:
        """Deals the batches of a block's updates."""

    def make_block(self, update: Update, dealt: Dealt) -> Block:
        """Makes the block of some updates from their batches."""


class Update(NamedTuple):
    """The local updates of a block of W lanes.

    Attributes:
        site: The worker.
        phase: The phase that the jobs belong to.
        t: The round of the models at the start, from 0.
        jobs: The jobs, `[W]`. If an engine needs two lanes, a single job is there twice.
        real: The jobs without such a copy.
        state: The state of the server.
        local: How the clients train.
        engine: The engine that trains the jobs; a piece may wrap it in a training of its own.
        broadcast: The model that each lane received, `[W, d]`.
        start: The model that each lane starts from, `[W, d]`.
        counters: Integer buffers of each lane's model, `[W, c]`: at the start, and after training those of the result.
        memo: A cache that pieces share among the blocks of a round.
        own: The vectors that clients keep, by the name of the private vector, `[W, d]` each.
        offset: The vector that is added to each lane's gradients, `[W, d]`; None: nothing is added.
        couple: A function by which the steps of a client's lanes depend on each other; None: they are independent.
        weigh: A function that gives the samples weights in their batches; None: all weights are equal.
        gives_change: Whether the engine can return the models' deltas in place of the models.
        block: The block that was trained; None before training.
        final: The trained models, `[W, d]`, if a piece needs them; else None.
        delta: Trained minus start models, `[W, d]`, 0 in layers that stay with the clients; None before training.
        beside: What is sent with the delta, `[W, ...]`; None: nothing.
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
        """Returns the private vector `name` of each lane's client, `[W, d]`; 0 for a client without this vector."""
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


def find_reading(update: Update) -> Reading:
    """Returns what the code of a local training may use of its lanes.

    If a client has not trained a model yet, `previous` is the model that it starts from.
    """
    local, jobs, state = update.local, update.jobs, update.state
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
