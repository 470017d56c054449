"""The data types of fedray: networks, clients, plans, uploads and states.

The letters are the same everywhere: K models, N clients, J jobs of a round, R worlds, M = R * K rows of parameters, W
lanes of a block, S steps, B samples per batch, d numbers per model, C classes. The d numbers of a model are its
parameters and its float buffers. These words are the same everywhere, too:

- A *world* is one replicate (seed) of one fold of the data.
- A *job* is "client i trains model k of world w in this round" (Fed-ensemble's delta_ik = 1).
- A *row* of a state holds the d numbers of one model of one world. A row of a schedule is a client, a slot or a
  stratum; each row has its own permutation of the models. A row of a data set is a sample.
- An *age* is K consecutive rounds. In an age every row of a permutation schedule trains every model once.
- A *block* is a set of jobs that are trained together as one computation, and a *lane* is one job of a block.
- A *known client* is a client of the run. A *new client* is a client that the run has never seen.
- An *address* is the key from which random numbers are computed: the tuple (seed, purpose, round, client, model).
- *FE* is the paper of Fed-ensemble, and *FE-arXiv* its preprint. *HPC* and *LPC* are SHEFL's strong and weak clients.

A `Plan` is the list of the jobs of a round. A method says which jobs a round has, how a client trains a job, and how
the server merges what the jobs send back.

Example:
    >>> plan = Plan(client=np.array([4, 7]), model=np.array([0, 1]), world=np.array([0, 0]))
    >>> plan.take([1]).client.tolist()
    [7]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
BoolArray = NDArray[np.bool_]
Members = Callable[[IntArray], BoolArray]  # client ids `[J]` -> whether each client belongs to a group, `[J]`
Objective = Literal["cross_entropy", "half_mse", "mse", "gaussian_nll"]
Weighting = Literal["uniform", "examples"]  # weights of uploads in a mean: equal, or by training samples
LastBatch = Literal["keep", "drop", "merge"]
RateKind = Literal["constant", "cosine", "linear", "step"]
OptimizerKind = Literal["sgd", "adam", "adamw", "rmsprop"]
ServerOptimizerKind = Literal["none", "momentum", "adam", "yogi"]
Mode = Literal["semi", "buffered", "async"]  # when the server makes a step, if clients do not wait for each other
Staleness = Literal["constant", "polynomial", "hinge"]
AverageKind = Literal["probabilities", "logits", "outputs"]  # what an ensemble averages
ScoreKind = Literal["lac", "aps", "raps", "regression"]  # the score that conformal sets are built from
QuantileKind = Literal["exact", "qq"]
# What trains clients: compiled kernels where they can (`auto`), compiled kernels only, or torch only.
Lanes = Literal["auto", "compiled", "torch"]

# The smallest predicted variance, in standardized units of the target (Lakshminarayanan et al. 2017, section 2.2.1).
VARIANCE_FLOOR = 1e-6

# The samples of one forward pass outside training. The number is fixed, so that metrics do not depend on the batches
# in which samples are evaluated.
EVALUATED_ROWS = 500
EVALUATED_CLIENTS = 10_000  # clients with lower ids are evaluated one by one; all others count as new clients


@dataclass(frozen=True)
class Layout:
    """The order of the d numbers of one model in a row: trainable parameters come first, then float buffers.

    A set of models is one matrix `[..., d]`, so sums, norms, top-k and hashes are single operations. Networks get their
    tensors from this matrix through `views`. Float buffers are, for example, BatchNorm's running means. Integer buffers
    (BatchNorm's step counters) lie in a second matrix `[..., c]`.

    Attributes:
        names: Name of each tensor of the model, in the order of the row.
        shapes: Shape of each tensor of the model, in the same order.
        trainable: How many of the d numbers are trainable parameters. They come first in a row.
        counters: Names of the c integer buffers.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    trainable: int
    counters: tuple[str, ...] = ()

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Returns the number of elements of each tensor."""
        return tuple(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    @cached_property
    def d(self) -> int:
        """Returns the length of a row: the number of elements in all parameters and float buffers."""
        return sum(self.sizes)

    @cached_property
    def trainable_tensors(self) -> int:
        """Returns the number of trained tensors. They come first in a row."""
        return sum(end <= self.trainable for end in accumulate(self.sizes))

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Returns the tensors of models `[..., d]` by name, as views of shape `[..., *shape]` without a copy."""
        parts = rows.split_with_sizes(self.sizes, dim=-1)
        lead = rows.shape[:-1]
        return {n: p.reshape(*lead, *s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def mask(self, layers: tuple[str, ...]) -> NDArray[np.bool_]:
        """Returns for each of a model's d numbers whether the number belongs to one of these layers, `[d]`."""
        inside = [name.rpartition(".")[0] in layers for name in self.names]
        return np.repeat(np.array(inside, dtype=np.bool_), self.sizes)


@dataclass(frozen=True)
class Net:
    """A network without weights.

    Attributes:
        name: Name of the network in messages.
        module: A template that maps `[B, *input]` to `[B, outputs]`. The values of the template's parameters are never
            used.
        layout: The order of the d numbers of a model.
        objective: The loss that the network is trained with, see `fedray.models.net.per_sample`.
        outputs: Length of the output for one sample; twice the number of targets for `gaussian_nll`.
        init: A function that draws the initial parameters and buffers of a model, `[d]` float32, from a random key.
    """

    name: str
    module: nn.Module
    layout: Layout
    objective: Objective
    outputs: int
    init: Callable[[int], Tensor]


@dataclass(frozen=True)
class Tier:
    """A class of devices: the number of clients, how much these clients train, and what training costs.

    Attributes:
        name: Name of the tier in the scenario.
        number: Number of clients in the tier.
        models_per_round: Number of models that a participating client trains in a round; None means all K.
        num_cpus: CPUs that Ray reserves for an actor of this tier; None means a share of the machine.
        num_gpus: GPUs that Ray reserves for an actor of this tier.
        resources: Further resources that Ray reserves for an actor of this tier, by name.
        seconds_per_step: Virtual seconds of an optimizer step.
        seconds_per_sample: Virtual seconds that each sample of the batch adds to an optimizer step.
        spread: Standard deviation of the logarithm of a device's speed; 0 makes all devices of the tier equal.
        uplink: Bytes per virtual second to the server.
        downlink: Bytes per virtual second from the server.
        latency: Virtual seconds that are added to the time of each transfer.
        side_by_side: Whether a client trains its models at the same time instead of one after the other.
        width: Fraction of the network's channels or blocks that a client trains, if the method slices networks.
        epochs: Number of epochs of a local training; None means the number that the method's `Local` has.
        steps: Number of optimizer steps of a local training; None means the number that the method's `Local` has.
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
    epochs: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Clients:
    """All clients of a run, as a list of tiers. The ids of a tier's clients are consecutive.

    A million clients therefore need no memory.

    Attributes:
        tiers: The tiers, in the order of the client ids.
    """

    tiers: tuple[Tier, ...]

    @property
    def number(self) -> int:
        """Returns the number of clients of all tiers, N."""
        return sum(tier.number for tier in self.tiers)

    def tier_of(self, client: IntArray) -> IntArray:
        """Returns the index of the tier that each client belongs to, `[J]`."""
        if len(self.tiers) == 1:
            return np.zeros(len(client), dtype=np.int64)
        ends = np.cumsum([tier.number for tier in self.tiers])
        return np.searchsorted(ends, client, side="right").astype(np.int64)


class Plan(NamedTuple):
    """The jobs of one round: client `client[j]` trains model `model[j]` of world `world[j]`.

    Attributes:
        client: Id of each job's client, `[J]`.
        model: Index of each job's model, 0 to K - 1, `[J]`.
        world: Index of each job's world, 0 to R - 1, `[J]`.
    """

    client: IntArray
    model: IntArray
    world: IntArray

    def take(self, index: Any) -> Plan:
        """Returns the jobs at these positions of the plan."""
        return Plan(*(column[index] for column in self))


class Flight(NamedTuple):
    """Start and destination of each job in asynchronous training; each field has shape `[J]`.

    Attributes:
        row: Index of the broadcast model (a row of the state) that the job starts from.
        group: The group in which the job's upload is summed. There is one group per world, model and server step.
        weight: Multiplier of the job's delta, which depends on the staleness of the upload.
        turn: How often the client trained before. This count replaces the round in the key of the job's random numbers.
        version: Number of server steps that the model had taken when the job started. This number replaces the round
            in the schedule of the learning rate.
        sender: The sender of the upload, as the number `client + N * (earlier uploads of the client in this server
            step)`.
    """

    row: IntArray
    group: IntArray
    weight: FloatArray
    turn: IntArray
    version: IntArray
    sender: IntArray

    def take(self, index: Any) -> Flight:
        """Returns the entries of the jobs at these positions."""
        return Flight(*(column[index] for column in self))


class SizedPlan(NamedTuple):
    """The jobs of a plan with their sizes, as the round loop hands them to a runtime.

    Attributes:
        plan: The jobs, `[J]`.
        size: Number of training samples of each job, `[J]`.
        steps: Optimizer steps of each job's local training, `[J]`; 0 for a client without data.
        flight: Start and destination of each job in asynchronous training; None if training has rounds.
        losses: Losses of all K models on the samples of each job's client, `[J, K]`. The client reported these losses
            before training. None means that clients report no losses.
    """

    plan: Plan
    size: IntArray
    steps: IntArray
    flight: Flight | None = None
    losses: FloatArray | None = None

    def take(self, index: Any) -> SizedPlan:
        """Returns the jobs at these positions of the plan."""
        flight = None if self.flight is None else self.flight.take(index)
        losses = None if self.losses is None else self.losses[index]
        return SizedPlan(self.plan.take(index), self.size[index], self.steps[index], flight, losses)


class Uploads(NamedTuple):
    """What a block of jobs sends to the server, and what the server needs to know about each job.

    Attributes:
        delta: Trained minus received parameters, `[J, d]` float32.
        client: Id of each job's client, `[J]`; a NumPy array, like `model`, `world`, `tier`, `size` and `steps`.
        model: Index of each job's model, `[J]`.
        world: Index of each job's world, `[J]`.
        tier: Tier of each job's client, `[J]`.
        size: Number of training samples of each job's client, `[J]`.
        counters: Integer buffers after training, `[J, c]`; None without such buffers.
        own: The clients' private vectors by name, `[J, d]` each. Compression uses them; they are never sent.
        beside: What each job sends in addition to the delta. This is the change of a vector (SCAFFOLD), `[J, d]`, or
            m measured values, `[J, m]`.
        key: Key that each job's random numbers are computed from, `[J]` (`rng.Keys`).
        steps: Optimizer steps of each job's local training, `[J]`; None only if a test leaves them out.
        columns: Positions of the trained parameters in a model, `[s]`, in ascending order. The delta is 0 at all other
            positions. None means that all parameters are trained.
        losses: Mean losses of all K received models on each client's samples, `[J, K]`, which `Phase.choose` needs.
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
    """Everything that a server stores.

    Attributes:
        models: Parameters of all models, `[M, d]` float32; model k of world w is row `w * K + k`.
        counters: Integer buffers, `[M, c]` int64.
        extra: Further tensors that the method stores, by name. Most of them have the shape `[M, ...]`.
    """

    models: Tensor
    counters: Tensor
    extra: dict[str, Tensor]


Stats = dict[str, Any]  # name -> ExactSum, Counts, Largest or Kept of `sums.py`, merged with `+` in any order


# ---------------------------------------------------------------------------------------------------------------------
# Rounding of shares to whole numbers. It needs no torch, because commands that only read a scenario use it.


def count_test_clients(wanted: int | float | Sequence[str], clients: int) -> int:
    """Returns how many of N clients never train.

    `wanted` is this number, a fraction of the clients (the result is at least 1), or a list of the clients' names.

    Example:
        >>> [count_test_clients(wanted, 24) for wanted in (3, 0.2, ["Rome", "Oslo"])]
        [3, 5, 2]
    """
    if isinstance(wanted, float):
        return max(1, round(wanted * clients))
    return wanted if isinstance(wanted, int) else len(wanted)


def round_to_sum(share: FloatArray, total: int) -> IntArray:
    """Rounds shares `[n]` to whole numbers that add up to `total`.

    Shares with the largest remainders are rounded up. Of equal remainders, the first one is rounded up.

    Args:
        share: Shares of at least 0, `[n]`. Their sum is `total`, up to rounding errors.
        total: The sum of the whole numbers.
    """
    whole: IntArray = np.floor(share).astype(np.int64)
    whole[np.argsort(whole - share, kind="stable")[: total - int(whole.sum())]] += 1
    return whole
