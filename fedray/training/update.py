"""Defines the local updates of a round: jobs, private vectors of clients, and the inputs and results of training.

A job is the training of one model by one client. Jobs that are trained together are the lanes of a block. Additions of
a method (`Piece` in `core/method.py`) change local updates before and after training.

Example:
    >>> key, row = np.array([7], dtype=np.uint64), np.array([0])
    >>> jobs = Jobs(Plan(*np.array([[3], [0], [0]])), np.array([20]), np.array([5]), key, row)
    >>> jobs.doubled().plan.client.tolist()
    [3, 3]
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core import rng
from fedray.core.method import PREVIOUS, Local, Phase, Reading, reads_ensemble
from fedray.core.types import Clients, Flight, FloatArray, IntArray, Net, Plan, State
from fedray.data.shards import Shards
from fedray.training.block import BatchSource, Block, Couple, rows_of
from fedray.training.choice import Engine

# ---------------------------------------------------------------------------------------------------------------------
# The private vectors of clients, which never leave the worker on which a client lives. Examples are SCAFFOLD's control
# variates and the models of personal methods.
#
# There is one row for each (name of the vector, world, client, model). Saved rows do not depend on how clients were
# assigned to workers, so a run can resume on a different cluster.

RowKey = tuple[int, int, int]  # (world, client, model)


class Private:
    """The private vectors of the clients of one worker (process). The vectors never leave the worker.

    A row is the vector of one client for one model of one world (seed and fold). A row that was never written is 0.
    """

    def __init__(self, d: int, dtype: torch.dtype) -> None:
        self._zero = torch.zeros(d, dtype=dtype)
        self._rows: dict[str, dict[RowKey, Tensor]] = {}

    def read(self, name: str, plan: Plan) -> Tensor:
        """Returns the private vector `name` for each of a plan's J jobs, `[J, d]`."""
        rows = self._rows.get(name, {})
        return torch.stack([rows.get(key, self._zero) for key in _row_keys(plan)])

    def write(self, name: str, plan: Plan, values: Tensor) -> None:
        """Replaces the private vector `name` for each of a plan's J jobs by `values`, `[J, d]`."""
        rows = self._rows.setdefault(name, {})
        for key, value in zip(_row_keys(plan), values, strict=True):
            rows[key] = value.clone()

    def rows_or(self, name: str, plan: Plan, default: Tensor) -> Tensor:
        """Returns the private vector `name` for each of a plan's J jobs, `[J, d]`.

        A vector that was never written is replaced by the job's row of `default`, `[J, d]`.
        """
        has = torch.tensor(self.has(name, plan), device=default.device)[:, None]
        return torch.where(has, self.read(name, plan).to(default), default)

    def has(self, name: str, plan: Plan) -> list[bool]:
        """Returns for each of a plan's J jobs whether the private vector `name` was ever written."""
        rows = self._rows.get(name, {})
        return [key in rows for key in _row_keys(plan)]

    def state(self) -> dict[str, Tensor]:
        """Returns all private vectors in the form in which they are saved.

        Each name has two entries: `NAME/keys` `[n, 3]` int64 (world, client and model, sorted) and `NAME/rows` `[n,
        d]`.
        """
        out = {}
        for name, rows in self._rows.items():
            if rows:
                out[f"{name}/keys"] = torch.tensor(sorted(rows), dtype=torch.int64)
                out[f"{name}/rows"] = torch.stack([rows[key] for key in sorted(rows)])
        return out

    def restore(self, state: dict[str, Tensor]) -> None:
        """Replaces all private vectors by those of a saved state."""
        self._rows = {}
        for name in _vector_names(state):
            keys = [(world, client, model) for world, client, model in state[f"{name}/keys"].tolist()]
            self._rows[name] = dict(zip(keys, state[f"{name}/rows"].clone(), strict=True))


def _row_keys(plan: Plan) -> list[RowKey]:
    return list(zip(plan.world.tolist(), plan.client.tolist(), plan.model.tolist(), strict=True))


def _vector_names(*states: dict[str, Tensor]) -> list[str]:
    """Returns the names of the private vectors in saved states, sorted."""
    return sorted({key.rsplit("/", 1)[0] for state in states for key in state})


def keep_vectors(state: dict[str, Tensor], names: Sequence[str] | None) -> dict[str, Tensor]:
    """Returns the part of a saved state for the private vectors that `names` lists. None means all vectors."""
    return state if names is None else {key: rows for key, rows in state.items() if key.rsplit("/", 1)[0] in names}


def merge_private(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Joins the saved private vectors of several workers.

    The result does not depend on the distribution of clients over workers.
    """
    out = {}
    for name in _vector_names(*parts):
        with_name = [part for part in parts if f"{name}/keys" in part]
        keys = torch.cat([part[f"{name}/keys"] for part in with_name]).numpy()
        order = torch.from_numpy(np.lexsort(keys.T[::-1]))
        out[f"{name}/keys"] = torch.from_numpy(keys)[order]
        out[f"{name}/rows"] = torch.cat([part[f"{name}/rows"] for part in with_name])[order]
    return out


def deal_private(
    state: dict[str, Tensor], worker_of: Callable[[IntArray], IntArray], workers: int
) -> list[dict[str, NDArray[Any]]]:
    """Splits a saved state into one state for each worker, as NumPy arrays. This is the inverse of `merge_private`.

    `worker_of` is a function that takes clients `[n]` and returns the index of each client's worker, `[n]`.
    """
    out: list[dict[str, NDArray[Any]]] = [{} for _ in range(workers)]
    for name in _vector_names(state):
        worker = torch.from_numpy(worker_of(state[f"{name}/keys"][:, 1].numpy()))
        for w, part in enumerate(out):
            for key in (f"{name}/keys", f"{name}/rows"):
                part[key] = state[key][worker == w].numpy()
    return out


# (jobs of the lanes, indices `[S, W, B]` of the client's samples) -> multipliers of the samples' weights `[S, W, B]`
Weigh = Callable[[Plan, Tensor], Tensor]


class Jobs(NamedTuple):
    """J jobs of a round. A job is the training of one model by one client.

    Attributes:
        plan: Client, model and world of each job, `[J]`.
        size: Number of training samples of each job's client, `[J]`.
        steps: Number of optimizer steps of each job, `[J]`.
        key: Random key of each job, `[J]`.
        row: Index of the broadcast model from which each job starts, `[J]`.
        flight: In asynchronous training, the start and the end of each job. None means that training has rounds.
        losses: Losses of all K models on the samples of each job's client, `[J, K]`, computed before training. None
            means that clients report no losses.
    """

    plan: Plan
    size: IntArray
    steps: IntArray
    key: rng.Keys
    row: IntArray
    flight: Flight | None = None
    losses: FloatArray | None = None

    def doubled(self) -> "Jobs":
        """Returns two jobs, both equal to the first job."""
        first = np.array([0, 0])
        flight = None if self.flight is None else self.flight.take(first)
        size, steps, key, row = self.size[first], self.steps[first], self.key[first], self.row[first]
        return Jobs(self.plan.take(first), size, steps, key, row, flight)

    def turn(self, t: int) -> int | IntArray:
        """Returns the number that stands for the round in random keys.

        In training with rounds it is the round t. In asynchronous training it is the number of earlier trainings of
        each job's client (`Flight.turn`), `[J]`.
        """
        return t if self.flight is None else self.flight.turn


class BlockBatches(NamedTuple):
    """The batches of a block (clients that are trained together).

    Attributes:
        read: A function that takes two indices of steps, lo and hi. It returns the inputs and targets of the steps from
            lo to hi (exclusive).
        weight: Weight of each sample in the loss of its batch, for S steps, `[S, W, B]`.
        source: The data from which a compiled kernel reads the batches. None means that the batches come from `read`.
    """

    read: Callable[[int, int], tuple[Tensor, Tensor]]
    weight: Tensor
    source: BatchSource | None


class Site(Protocol):
    """The parts of a worker (process) that additions of a method (`Piece`) may use.

    Attributes:
        net: The network, with its tensors on the worker's device.
        shards: The clients' samples.
        seeds: The seed of each of R worlds. A world is one combination of a seed and a fold.
        init_seeds: The seed of the initial models in each of R worlds.
        clients: All clients, with their tiers (classes of devices).
        private: The private vectors of this worker's clients.
        engine: The engine that trains the whole network.
    """

    net: Net
    shards: Shards
    seeds: IntArray
    init_seeds: IntArray
    clients: Clients
    private: Private
    engine: Engine

    def local(self, local: Local, world: int) -> Local:
        """Returns the settings of local training in a world. Worlds may have different learning rates."""

    def to_device(self, x: Tensor) -> Tensor:
        """Moves a tensor to the worker's device. Floating-point tensors get the type of the networks."""

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Returns the network outputs `[M, n, C]` of models `rows`, `[M, d]`, for raw inputs `x` of a world."""

    def deal(self, update: "Update") -> BlockBatches:
        """Draws the batches of a block."""

    def make_block(self, update: "Update", dealt: BlockBatches) -> Block:
        """Makes the block that an engine trains."""


class Update(NamedTuple):
    """The local updates of a block: W jobs (lanes) that are trained together.

    A job is one client that trains one model.

    Attributes:
        site: The worker.
        phase: The phase that the jobs belong to.
        t: The round, from 0.
        jobs: The jobs, `[W]`. A single job appears twice if the engine needs two lanes.
        real: The jobs, each of them once.
        state: The state of the server.
        local: The settings of local training of `phase`.
        engine: The engine that trains the jobs. An addition of a method (`Piece`) may replace it.
        broadcast: The model that each lane received, `[W, d]`.
        start: The model that each lane starts from, `[W, d]`.
        counters: The c integer buffers of each lane's model, `[W, c]`. Before training they belong to the start model,
            and afterwards to the trained model.
        memo: A cache that all blocks of a round share.
        own: Private vectors that clients will store after training, by name, `[W, d]` each.
        offset: The vector that is added to each lane's gradients, `[W, d]`. None means that nothing is added.
        couple: A function that takes the gradients and the p parameters of each lane, `[W, p]` each. It returns new
            gradients, `[W, p]`. None means that the lanes are independent.
        weigh: A function that takes the lanes' plan and the index of each sample of S steps in the client's data, `[S,
            W, B]`. It returns a multiplier for each sample's weight, `[S, W, B]`. None means the multiplier 1.
        gives_change: Whether the engine can return trained models minus start models, instead of the trained models.
        block: The block that was trained. It is None before training.
        final: The trained models, `[W, d]`. It is None before training, or if no addition (`Piece`) needs the models.
        delta: Trained models minus start models, `[W, d]`, with 0 in layers that stay with the clients. It is None
            before training.
        beside: Tensor that clients send in addition to `delta`, `[W, ...]`. None means that they send only `delta`.
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
        """Returns the private vector `name` of each of W clients, `[W, d]`. A vector that was never written is 0."""
        return self.site.private.read(name, self.jobs.plan).to(self.broadcast.device)

    def keep(self, **own: Tensor) -> "Update":
        """Returns a new update with more entries in `own`, the private vectors `[W, d]` that clients will store."""
        return self._replace(own={**self.own, **own})

    def models(self) -> Tensor:
        """Returns the trained models, `[W, d]`."""
        if self.phase.stays:
            assert self.final is not None
            return self.final
        assert self.delta is not None
        return self.start + self.delta


def find_reading(update: Update) -> Reading:
    """Returns the values that a user's or method's code in local training may use, for all clients of a block.

    If a client has not trained a model before, `previous` is the start model.
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
