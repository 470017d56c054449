"""The nouns of fedray.

One letter set everywhere: K models, N clients, J jobs of a round, R replicates (a *world* is one replicate of one
fold), M = R * K rows of parameters, W lanes of a block, S steps, B samples a batch, d numbers a model, C classes.

The one idea: Fed-ensemble's delta_ik, "client i trains model k in this round", is the universal object. A `Plan` is
the list of those ones; every method is a way to write plans, to train one job, and to merge what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Objective = Literal["cross_entropy", "half_mse", "mse", "gaussian_nll"]

# The samples of one forward pass outside training. Fixed, so that no packing of the work can show in the metrics.
EVALUATED_ROWS = 500
# Known clients that are evaluated one by one: those with the lowest ids. Others count as new clients.
EVALUATED_CLIENTS = 10_000


@dataclass(frozen=True)
class Layout:
    """How the d numbers of one model lie in a row: trainable parameters first, then float buffers (BatchNorm).

    A set of models is one matrix `[..., d]`, so that sums, norms, top-k and hashes are single operations; networks
    read it through `views`. Integer buffers (BatchNorm's step counters) live beside it, `[..., c]`."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    trainable: int
    counters: tuple[str, ...] = ()

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each tensor."""
        return tuple(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    @cached_property
    def d(self) -> int:
        """Length of a row: parameters and float buffers."""
        return sum(self.sizes)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """`[..., d]` -> {name: `[..., *shape]`}, without copying."""
        parts = rows.split(self.sizes, dim=-1)
        lead = rows.shape[:-1]
        return {n: p.reshape(*lead, *s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def mask(self, layers: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which numbers of a row belong to these layers, `[d]`."""
        inside = [name.rpartition(".")[0] in layers for name in self.names]
        return np.repeat(np.array(inside, dtype=np.bool_), self.sizes)


@dataclass(frozen=True)
class Net:
    """A network without weights: the module is a template, its values are never read.

    `module` maps `[B, *input]` to `[B, outputs]`. `init(seed)` draws one row `[d]` (float32) by address."""

    name: str
    module: nn.Module
    layout: Layout
    objective: Objective
    outputs: int
    init: Callable[[int], Tensor]


@dataclass(frozen=True)
class Tier:
    """A class of devices: how many clients, how much they train, what they cost, and what their actors hold.

    seconds_per_step, seconds_per_sample: virtual seconds of a step and of each sample in it (lognormal with `spread`).
    uplink, downlink: bytes/s; latency: s a transfer. num_cpus, num_gpus, resources: what Ray reserves."""

    name: str
    number: int
    models_per_round: int | None = 1
    num_cpus: float | None = None  # None: a share of the machine
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    seconds_per_step: float = 0.01
    seconds_per_sample: float = 0.0
    spread: float = 0.0
    uplink: float = 1e6
    downlink: float = 1e7
    latency: float = 0.0
    side_by_side: bool = False


@dataclass(frozen=True)
class Clients:
    """The population as schedules see it: tiers own consecutive ids, so a million clients cost nothing."""

    tiers: tuple[Tier, ...]

    @property
    def number(self) -> int:
        return sum(tier.number for tier in self.tiers)

    def tier_of(self, client: IntArray) -> IntArray:
        """Tier index of each client, `[J]`."""
        if len(self.tiers) == 1:
            return np.zeros(len(client), dtype=np.int64)
        ends = np.cumsum([tier.number for tier in self.tiers])
        return np.searchsorted(ends, client, side="right").astype(np.int64)


class Plan(NamedTuple):
    """The jobs of one round, `[J]` each: client `client[j]` trains model `model[j]` of world `world[j]`."""

    client: IntArray
    model: IntArray
    world: IntArray

    def take(self, index: Any) -> Plan:
        return Plan(*(column[index] for column in self))


class SizedPlan(NamedTuple):
    """The jobs of a plan with the work of each: what the round loop hands to a runtime.

    Attributes:
        plan: The jobs, `[J]`.
        size: Training samples of each job, `[J]`.
        steps: Optimizer steps of each job's local training, `[J]`; 0 for a client without data.
    """

    plan: Plan
    size: IntArray
    steps: IntArray

    def take(self, index: Any) -> SizedPlan:
        """Some of the jobs, by their places in the plan."""
        return SizedPlan(self.plan.take(index), self.size[index], self.steps[index])


class Uploads(NamedTuple):
    """What a block of jobs sends up. delta `[J, d]` float32; the rest `[J]` unless said otherwise.

    own: private vectors by name, `[J, d]` (never sent). change: `[J, d]`, of one of them (SCAFFOLD). key: addresses."""

    delta: Tensor
    client: IntArray
    model: IntArray
    world: IntArray
    tier: IntArray
    size: IntArray
    counters: Tensor | None = None  # [J, c]
    own: Mapping[str, Tensor] = {}
    change: Tensor | None = None
    key: Any = None  # [J] rng.Keys


class State(NamedTuple):
    """All that a server knows. models `[M, d]` float32, counters `[M, c]` int64, extra: per method, `[M, ...]`."""

    models: Tensor
    counters: Tensor
    extra: dict[str, Tensor]


Stats = dict[str, Any]  # name -> something with `+` (tree.ExactSum, tree.Counts, tree.Kept): merged in any order


class Server(NamedTuple):
    """How uploads become the next state.

    init: extra state from the first models. reduce: runs where the client runs; results add up with `+` in any order.
    step: (state, stats, t) -> state, with division and server optimisers. keeps: statistics hold the uploads, n x d."""

    init: Callable[[Tensor], dict[str, Tensor]]
    reduce: Callable[[Uploads], Stats]
    step: Callable[[State, Stats, int], State]
    keeps: bool = False


class Compressed(NamedTuple):
    """delta `[J, d]` as the server will read it, and the clients' private vectors after sending."""

    delta: Tensor
    own: Mapping[str, Tensor] = {}


class Compress(NamedTuple):
    """What survives the uplink.

    bytes: (client `[J]`, tier `[J]`) -> bytes each job sends `[J]`, known before anything is trained. apply: the
    compression itself. own: names of the private vectors it keeps. lossless: whether everything survives."""

    bytes: Callable[[IntArray, IntArray], IntArray]
    apply: Callable[[Uploads], Compressed]
    own: tuple[str, ...] = ()
    lossless: bool = False


class Walk(NamedTuple):
    """No server. at: step -> holders `[R, K]`; down: step -> which of them are out of order; edges: `[E, 2]`."""

    at: Callable[[int], IntArray]
    down: Callable[[int], NDArray[np.bool_]]
    edges: IntArray


class Correction(NamedTuple):
    """A private vector per (client, model) that bends the local gradient, and how a local update changes it.

    name: of the vector. shared: name of the server's vector that is broadcast with the models, or None.
    offset: (own `[W, d]`, shared `[W, d]` or None) -> `b` of the local gradient `grad + pull (w - w_start) + b`.
    update: (own, shared, delta `[W, d]`, steps * lr `[W, 1]`) -> own afterwards."""

    name: str
    offset: Callable[[Tensor, Tensor | None], Tensor]
    update: Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]
    shared: str | None = None


@dataclass(frozen=True)
class Local:
    """How a client trains. Data, not code, so that batched engines can fuse it.

    The local gradient is `grad + pull (w - w_start) + offset`, after weight decay: one affine term that covers
    FedProx, FedDyn, Ditto and SCAFFOLD. Optimiser state is fresh in each local update (FE section II)."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    lr_decay: float = 1.0
    lr_decay_every: int = 10
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int | None = 16
    epochs: int | None = 1
    steps: int | None = None
    pull: float = 0.0
    correction: Correction | None = None

    def lr_at(self, t: int) -> float:
        """Learning rate of round t: `lr * lr_decay ** (t // lr_decay_every)`."""
        return self.lr * self.lr_decay ** (t // self.lr_decay_every)
