"""The data types of fedray: networks, clients, plans, uploads and states.

The letters are the same everywhere: K models, N clients, J jobs of a round, R worlds, M = R * K rows of parameters, W
lanes of a block, S steps, B samples a batch, d numbers a model, C classes. So are these words:

- A *world* is one replicate (seed) of one fold of the data.
- A *job* is "client i trains model k of world w in this round" (Fed-ensemble's delta_ik = 1).
- A *row* of a state is the d numbers of one model of one world. A row of a schedule is what gets a permutation of its
  own: a client, a slot or a stratum.
- An *age* is K rounds in a row, in which every row of a permutation schedule trains every model once.
- A *block* is a set of jobs that are trained together as one computation, and a *lane* is one of them.
- A *known client* is a client of the run; a *new client* is one that the run has never seen.
- An *address* is the tuple (seed, purpose, round, client, model) from which random numbers are computed.
- FE is the paper of Fed-ensemble (FE-arXiv: its preprint); HPC and LPC are SHEFL's strong and weak clients.

A `Plan` is the list of the jobs of a round. A method writes plans, trains one job, and merges what the jobs send back.

Example:
    >>> plan = Plan(client=np.array([4, 7]), model=np.array([0, 1]), world=np.array([0, 0]))
    >>> plan.take([1]).client.tolist()
    [7]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Members = Callable[[IntArray], NDArray[np.bool_]]  # of clients `[J]`: whether they belong to a group, `[J]`
Objective = Literal["cross_entropy", "half_mse", "mse", "gaussian_nll"]
Weighting = Literal["uniform", "examples"]  # of uploads
RateKind = Literal["constant", "cosine", "linear", "step"]
ServerOptimizerKind = Literal["none", "momentum", "adam", "yogi"]
Mode = Literal["semi", "buffered", "async"]  # when the server steps where clients do not wait for each other
Staleness = Literal["constant", "polynomial", "hinge"]
AverageKind = Literal["probabilities", "logits", "outputs"]  # what the answers of an ensemble are averaged as
ScoreKind = Literal["lac", "aps", "raps", "regression"]  # of conformal sets
QuantileKind = Literal["exact", "qq"]
Lanes = Literal["auto", "compiled", "torch"]  # what trains: compiled kernels where there are any, only them, never them

# The smallest predicted variance, in standardized units of the target (Lakshminarayanan et al. 2017, section 2.2.1).
VARIANCE_FLOOR = 1e-6

# The samples of one forward pass outside training. Fixed, so that no packing of the work can show in the metrics.
EVALUATED_ROWS = 500
EVALUATED_CLIENTS = 10_000  # known clients evaluated one by one: those with the lowest ids; others count as new ones


@dataclass(frozen=True)
class Layout:
    """How the d numbers of one model lie in a row: trainable parameters first, then float buffers (BatchNorm).

    A set of models is one matrix `[..., d]`, so that sums, norms, top-k and hashes are single operations; networks
    read it through `views`. Integer buffers (BatchNorm's step counters) lie in a second matrix `[..., c]`.

    Attributes:
        names: Of the tensors in a row, in their order.
        shapes: Of the same tensors.
        trainable: How many numbers at the start of a row are trained.
        counters: Names of the c integer buffers.
    """

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

    @cached_property
    def trainable_tensors(self) -> int:
        """How many of the tensors are trained; they come first."""
        return sum(end <= self.trainable for end in accumulate(self.sizes))

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Returns the tensors of rows `[..., d]` by name, `[..., *shape]` each, without copying."""
        parts = rows.split_with_sizes(self.sizes, dim=-1)
        lead = rows.shape[:-1]
        return {n: p.reshape(*lead, *s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def mask(self, layers: tuple[str, ...]) -> NDArray[np.bool_]:
        """Returns which numbers of a row belong to these layers, `[d]`."""
        inside = [name.rpartition(".")[0] in layers for name in self.names]
        return np.repeat(np.array(inside, dtype=np.bool_), self.sizes)


@dataclass(frozen=True)
class Net:
    """A network without weights.

    Attributes:
        name: What messages call it.
        module: A template that maps `[B, *input]` to `[B, outputs]`; the values of its parameters are never read.
        layout: How its numbers lie in a row.
        objective: The loss it is trained with, see `fedray.models.net.per_sample`.
        outputs: Length of its output; twice the number of targets for `gaussian_nll`.
        init: Draws the first row `[d]`, float32, from a key.
    """

    name: str
    module: nn.Module
    layout: Layout
    objective: Objective
    outputs: int
    init: Callable[[int], Tensor]


@dataclass(frozen=True)
class Tier:
    """A class of devices: how many clients it has, how much they train, and what that costs.

    Attributes:
        name: As in the scenario.
        number: Clients.
        models_per_round: Models that a client trains in a round it takes part in; None means all K.
        num_cpus: CPUs that Ray reserves for an actor of this tier; None means a share of the machine.
        num_gpus: GPUs that Ray reserves for an actor.
        resources: Further resources that Ray reserves for an actor, by name.
        seconds_per_step: Virtual seconds of an optimizer step.
        seconds_per_sample: Virtual seconds of each sample in a step.
        spread: Standard deviation of the logarithm of a device's speed; 0 makes all devices of the tier equal.
        uplink: Bytes per virtual second to the server.
        downlink: Bytes per virtual second from the server.
        latency: Virtual seconds that a transfer takes beside its bytes.
        side_by_side: Whether a client trains its models at the same time, and not one after the other.
        width: Share of the network that a client trains, of its channels or blocks, where the method slices networks.
    """

    name: str
    number: int
    models_per_round: int | None = 1
    num_cpus: float | None = None
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    seconds_per_step: float = 0.01
    seconds_per_sample: float = 0.0
    spread: float = 0.0
    uplink: float = 1e6
    downlink: float = 1e7
    latency: float = 0.0
    side_by_side: bool = False
    width: float = 1.0


@dataclass(frozen=True)
class Clients:
    """All clients. A tier has consecutive ids, so that a million clients need no memory.

    Attributes:
        tiers: In the order of their clients' ids.
    """

    tiers: tuple[Tier, ...]

    @property
    def number(self) -> int:
        """N, the clients of all tiers."""
        return sum(tier.number for tier in self.tiers)

    def tier_of(self, client: IntArray) -> IntArray:
        """Returns the tier index of each client, `[J]`."""
        if len(self.tiers) == 1:
            return np.zeros(len(client), dtype=np.int64)
        ends = np.cumsum([tier.number for tier in self.tiers])
        return np.searchsorted(ends, client, side="right").astype(np.int64)


class Plan(NamedTuple):
    """The jobs of one round: client `client[j]` trains model `model[j]` of world `world[j]`.

    Attributes:
        client: Ids of the clients, `[J]`.
        model: Models, `[J]`, 0 to K - 1.
        world: Worlds, `[J]`, 0 to R - 1.
    """

    client: IntArray
    model: IntArray
    world: IntArray

    def take(self, index: Any) -> Plan:
        """Some of the jobs, by their places in the plan."""
        return Plan(*(column[index] for column in self))


class Flight(NamedTuple):
    """Where the jobs of asynchronous training start, and where their uploads go, `[J]` each.

    Attributes:
        row: The row of the broadcast that the job starts from.
        group: The group in which its upload is added up: one for each world, model and server step.
        weight: Factor on its change, which depends on its staleness.
        turn: How many turns the client had before; in the address of the job it stands for the round.
        version: How many steps its model had taken when it started; the learning rate's round.
        sender: Whose upload it is, where one server step uses several of a client: `client + N * (earlier ones)`.
    """

    row: IntArray
    group: IntArray
    weight: FloatArray
    turn: IntArray
    version: IntArray
    sender: IntArray

    def take(self, index: Any) -> Flight:
        """Some of the jobs, by their places."""
        return Flight(*(column[index] for column in self))


class SizedPlan(NamedTuple):
    """The jobs of a plan with the work of each: what the round loop hands to a runtime.

    Attributes:
        plan: The jobs, `[J]`.
        size: Training samples of each job, `[J]`.
        steps: Optimizer steps of each job's local training, `[J]`; 0 for a client without data.
        flight: Where they start and where their uploads go in asynchronous training; None: in rounds.
        losses: What each job's client has told before: the losses of all models on its rows, `[J, K]`; None: nothing.
    """

    plan: Plan
    size: IntArray
    steps: IntArray
    flight: Flight | None = None
    losses: FloatArray | None = None

    def take(self, index: Any) -> SizedPlan:
        """Some of the jobs, by their places in the plan."""
        flight = None if self.flight is None else self.flight.take(index)
        losses = None if self.losses is None else self.losses[index]
        return SizedPlan(self.plan.take(index), self.size[index], self.steps[index], flight, losses)


class Uploads(NamedTuple):
    """What a block of jobs sends to the server, and what the server needs to know about each job.

    Attributes:
        delta: Trained minus received parameters, `[J, d]` float32.
        client: Ids of the clients, `[J]`, as a NumPy array, like the next four and `steps`.
        model: Models, `[J]`.
        world: Worlds, `[J]`.
        tier: Tier of each client, `[J]`.
        size: Training samples of each client, `[J]`.
        counters: Integer buffers after training, `[J, c]`; None without such buffers.
        own: The clients' private vectors by name, `[J, d]` each; they are never sent.
        beside: What is sent beside it: a vector's change (SCAFFOLD), `[J, d]`, or what clients measure, `[J, m]`.
        key: Address of each job's random numbers, `[J]` (`rng.Keys`).
        steps: Optimizer steps of each job's local training, `[J]`; None where a test leaves them out.
        columns: Which of the d numbers the jobs have trained, `[s]`, rising; the others' change is 0. None: all.
        losses: Mean losses of all K received models on each client's rows, `[J, K]`, which `Phase.choose` asks for.
    """

    delta: Tensor
    client: IntArray
    model: IntArray
    world: IntArray
    tier: IntArray
    size: IntArray
    counters: Tensor | None = None
    own: Mapping[str, Tensor] = {}
    beside: Tensor | None = None
    key: Any = None
    steps: IntArray | None = None
    columns: Tensor | None = None
    losses: FloatArray | None = None


class State(NamedTuple):
    """All that a server knows.

    Attributes:
        models: Parameters, `[M, d]` float32; model k of world w is row `w * K + k`.
        counters: Integer buffers, `[M, c]` int64.
        extra: Further tensors of the method by name, mostly `[M, ...]`.
    """

    models: Tensor
    counters: Tensor
    extra: dict[str, Tensor]


Stats = dict[str, Any]  # name -> ExactSum, Counts, Largest or Kept of `sums.py`, merged with `+` in any order
