"""The data types of fedray: networks, clients, plans, uploads and states.

Letters mean the same everywhere: K models, N clients, J jobs of a round, R worlds, M = R * K rows of a state, W lanes
of a block, S steps, B samples per batch, d values per model (its parameters and float buffers), C classes. These words
also mean the same everywhere:

- A *world* is one combination of a seed and a fold of the data.
- A *job* is "client i trains model k of world w in this round" (Fed-ensemble's delta_ik = 1).
- A *row* of a state holds the d values of one model of one world. A row of a schedule is a client, a slot (a position
  among the participants of a round) or a stratum (a set of clients). Each row of a schedule has its own permutation of
  the models. A row of a data set is a sample.
- An *age* is K consecutive rounds. In an age, a row of a schedule gets the models in the order of its permutation.
- A *block* is a set of jobs that are trained together as one computation, and a *lane* is one job of a block.
- A *known client* is a client of the run. A *new client* has never taken part in the run.
- An *address* is the tuple (seed, purpose, round, client, model), from which random numbers are computed.
- *FE* is the paper of Fed-ensemble, and *FE-arXiv* its preprint. *HPC* and *LPC* are SHEFL's strong and weak clients.

A `Plan` is the list of the jobs of a round. A method defines the jobs, how a client trains a job, and how the server
merges the uploads.

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
Weighting = Literal["uniform", "examples"]  # weights of uploads in a mean: equal, or the numbers of training samples
LastBatch = Literal["keep", "drop", "merge"]
RateKind = Literal["constant", "cosine", "linear", "step"]
OptimizerKind = Literal["sgd", "adam", "adamw", "rmsprop"]
ServerOptimizerKind = Literal["none", "momentum", "adam", "yogi"]
ADAPTIVE_OPTIMIZERS: tuple[ServerOptimizerKind, ...] = ("adam", "yogi")
CompressionKind = Literal["dense", "topk", "randomk", "int8"]
SPARSE_KINDS: tuple[CompressionKind, ...] = ("topk", "randomk")  # uploads of a part of the entries
Mode = Literal["semi", "buffered", "async"]  # when the server makes a step in asynchronous training
Staleness = Literal["constant", "polynomial", "hinge"]
AverageKind = Literal["probabilities", "logits"]  # what an ensemble averages
ScoreKind = Literal["lac", "aps", "raps", "regression"]  # the score from which conformal sets are made
QuantileKind = Literal["exact", "qq"]
# What trains clients: compiled kernels where possible, else torch (`auto`); compiled kernels only; or torch only.
Lanes = Literal["auto", "compiled", "torch"]

# The smallest predicted variance, in standardized units of the target (Lakshminarayanan et al. 2017, section 2.2.1).
VARIANCE_FLOOR = 1e-6

# The number of samples of a forward pass outside training. It is fixed, so that metrics do not depend on batches.
EVALUATED_ROWS = 500
EVALUATED_CLIENTS = 10_000  # clients with lower ids are evaluated one by one; others count as new


@dataclass(frozen=True)
class Layout:
    """The order in which a model's d values stand in a vector. Trainable parameters come first, then float buffers.

    Models are the rows of a matrix `[..., d]`, so sums, norms, top-k and hashes are single operations. Float buffers
    are, for example, BatchNorm's running means. The c integer buffers, such as BatchNorm's step counters, are in a
    second matrix, `[..., c]`.

    Attributes:
        names: Names of the model's tensors, in the order of the vector.
        shapes: Shapes of these tensors.
        trainable: Number of trainable parameters among the d values.
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
        """Returns d, the number of elements of all parameters and float buffers."""
        return sum(self.sizes)

    @cached_property
    def trainable_tensors(self) -> int:
        """Returns the number of trainable tensors."""
        return sum(end <= self.trainable for end in accumulate(self.sizes))

    @cached_property
    def trained(self) -> Layout:
        """Returns the order of the p trainable parameters alone, which are the first values of a model."""
        k = self.trainable_tensors
        return Layout(self.names[:k], self.shapes[:k], self.trainable)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Returns the tensors of models `[..., d]` by name, as views of shape `[..., *shape]`.

        Example:
            >>> import torch
            >>> layout = Layout(("weight", "scale"), ((2,), ()), 3)  # `scale` is a number without dimensions
            >>> layout.views(torch.tensor([1.0, 2.0, 3.0]))
            {'weight': tensor([1., 2.]), 'scale': tensor(3.)}
        """
        parts = rows.split_with_sizes(self.sizes, dim=-1)
        lead = rows.shape[:-1]
        return {n: p.reshape(lead + s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def mask(self, layers: tuple[str, ...]) -> NDArray[np.bool_]:
        """Returns for each of a model's d values whether it belongs to one of the given layers."""
        inside = [name.rpartition(".")[0] in layers for name in self.names]
        return np.repeat(np.array(inside, dtype=np.bool_), self.sizes)


@dataclass(frozen=True)
class Net:
    """A network without weights.

    Attributes:
        name: Name of the network in messages.
        module: A module that maps `[B, *input]` to `[B, outputs]`. The values of its parameters are never used.
        layout: The order of a model's values.
        objective: Name of the loss in training. `fedray.models.net.per_sample` computes it.
        outputs: Number of outputs for one sample. For `gaussian_nll`, it is twice the number of targets.
        init: A function that draws the initial values of a model, `[d]` float32, from a random key.
    """

    name: str
    module: nn.Module
    layout: Layout
    objective: Objective
    outputs: int
    init: Callable[[int], Tensor]


@dataclass(frozen=True)
class Tier:
    """A class of devices.

    The fields say how many clients have such devices, how much they train, and how long training and transfers take.

    Attributes:
        name: Name of the tier in the scenario.
        number: Number of clients in the tier.
        models_per_round: Number of models that a participating client trains in a round. None means all K.
        num_cpus: CPUs that Ray reserves for an actor of this tier. None means at most one.
        num_gpus: GPUs that Ray reserves for an actor of this tier.
        resources: Names and amounts of other resources that Ray reserves for an actor of this tier.
        seconds_per_step: Virtual seconds of an optimizer step.
        seconds_per_sample: Virtual seconds that each sample of the batch adds to an optimizer step.
        spread: Standard deviation of the logarithm of a device's speed. With 0, all devices of the tier are equal.
        uplink: Bytes that a client sends per virtual second.
        downlink: Bytes that a client receives per virtual second.
        latency: Virtual seconds added to the time of each transfer.
        side_by_side: Whether a client trains its models at the same time. Otherwise it trains one model after another.
        width: Fraction of the network's channels or blocks that a client trains. Only methods that cut networks use it
            (HeteroFL).
        epochs: Number of epochs of a local training. None means the method's `Local.epochs`.
        steps: Number of optimizer steps of a local training. None means the method's `Local.steps`.
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
    """All clients of a run. Only their tiers are stored, so a million clients need no more memory than one.

    The ids of a tier's clients are consecutive.

    Attributes:
        tiers: The tiers in the order of the client ids.
    """

    tiers: tuple[Tier, ...]

    @property
    def number(self) -> int:
        """Returns the number of all clients, N."""
        return sum(tier.number for tier in self.tiers)

    def tier_of(self, client: IntArray) -> IntArray:
        """Returns the index of the tier (class of devices) of each of J clients."""
        if len(self.tiers) == 1:
            return np.zeros(len(client), dtype=np.int64)
        ends = np.cumsum([tier.number for tier in self.tiers])
        return np.searchsorted(ends, client, side="right").astype(np.int64)


class Plan(NamedTuple):
    """The jobs of one round: client `client[j]` trains model `model[j]` of world `world[j]`.

    Attributes:
        client: Ids of the clients, `[J]`.
        model: Indices of the models, 0 to K - 1, `[J]`.
        world: Indices of the worlds, 0 to R - 1, `[J]`.
    """

    client: IntArray
    model: IntArray
    world: IntArray

    def take(self, index: Any) -> Plan:
        """Returns the jobs at the positions `index` of the plan."""
        return Plan(*(column[index] for column in self))


class Flight(NamedTuple):
    """The start and the end of each of J jobs in asynchronous training. Each field has the shape `[J]`.

    Attributes:
        row: Row of the broadcast models from which the job starts.
        group: Index of the upload's group. The uploads of a group are added up. There is one group per world, model and
            server step.
        weight: Multiplier of the job's delta. It depends on the staleness of the upload.
        turn: How many trainings the client has made before. It takes the place of the round in the keys of the job's
            random numbers.
        version: How many server steps had changed the model when the job started. It takes the place of the round in
            the schedule of the learning rate.
        sender: `client + N * u`. N is the number of clients, and u is how many earlier uploads of the client are in
            the group.
    """

    row: IntArray
    group: IntArray
    weight: FloatArray
    turn: IntArray
    version: IntArray
    sender: IntArray

    def take(self, index: Any) -> Flight:
        """Returns the entries of the jobs at the positions `index`."""
        return Flight(*(column[index] for column in self))


class SizedPlan(NamedTuple):
    """The J jobs of a round with their sizes.

    Attributes:
        plan: The jobs, `[J]`.
        size: Number of training samples of each job, `[J]`.
        steps: Optimizer steps of each job, `[J]`. A client without samples has 0 steps.
        flight: Start and end of each job in asynchronous training. None means that training is synchronous.
        losses: Losses of all K models on the samples of each job's client, `[J, K]`, computed before training. None
            means that clients report no losses.
    """

    plan: Plan
    size: IntArray
    steps: IntArray
    flight: Flight | None = None
    losses: FloatArray | None = None

    def take(self, index: Any) -> SizedPlan:
        """Returns the jobs at the positions `index` of the plan."""
        flight = None if self.flight is None else self.flight.take(index)
        losses = None if self.losses is None else self.losses[index]
        return SizedPlan(self.plan.take(index), self.size[index], self.steps[index], flight, losses)


class Uploads(NamedTuple):
    """The values that J jobs send to the server, and facts about each job.

    Attributes:
        delta: Trained minus received parameters, `[J, d]` float32.
        client: Id of each job's client, `[J]`. This field, `model`, `world`, `tier`, `size` and `steps` are NumPy
            arrays.
        model: Index of each job's model, `[J]`.
        world: Index of each job's world, `[J]`.
        tier: Tier of each job's client, `[J]`.
        size: Number of training samples of each job's client, `[J]`.
        counters: The c integer buffers after training, `[J, c]`. None means that the model has no integer buffers.
        own: The clients' private vectors by name, `[J, d]` each. Compression uses them. They are never sent.
        beside: Further values that each job sends: the change of a vector (SCAFFOLD), `[J, d]`, or m measured values,
            `[J, m]`. None means that only the delta is sent.
        key: Key of each job's random numbers, `[J]` (`rng.Keys`).
        steps: Optimizer steps of each job, `[J]`. Only tests may pass None.
        columns: Positions of the s trained values in a model, `[s]`, in ascending order. The delta is 0 elsewhere. None
            means that all values are trained.
        losses: Mean losses of all K received models on the samples of each job's client, `[J, K]`. `Phase.choose` uses
            them (IFCA).
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

    def take(self, index: IntArray) -> Uploads:
        """Returns a copy of the uploads of n jobs. `index` holds the positions of these jobs among all jobs, `[n]`."""
        each: dict[str, Any] = {name: value for name, value in self._asdict().items() if value is not None}
        each |= {name: value[index] for name, value in each.items() if name not in ("own", "columns")}
        return self._replace(**each | {"own": {name: value[index] for name, value in self.own.items()}})


class State(NamedTuple):
    """Everything that the server stores. There are M models: K models in each world (seed and fold).

    Attributes:
        models: All models, `[M, d]` float32. Model k of world w is row `w * K + k`.
        counters: The c integer buffers of each model, `[M, c]` int64.
        extra: Names and values of the method's other tensors. Most of them have the shape `[M, ...]`.
    """

    models: Tensor
    counters: Tensor
    extra: dict[str, Tensor]


Stats = dict[str, Any]  # name -> ExactSum, Counts, Largest or Kept of `sums.py`, merged with `+` in any order


# ---------------------------------------------------------------------------------------------------------------------
# Rounding to whole numbers. It needs no torch, because commands that only read a scenario use it.


def count_test_clients(wanted: int | float | Sequence[str], clients: int) -> int:
    """Returns how many of a run's clients never train.

    `wanted` is a number or a fraction of clients, or a list of clients' names. For a fraction, the result is at least
    1.

    Example:
        >>> [count_test_clients(wanted, 24) for wanted in (3, 0.2, ["Rome", "Oslo"])]
        [3, 5, 2]
    """
    if isinstance(wanted, float):
        return max(1, round(wanted * clients))
    return wanted if isinstance(wanted, int) else len(wanted)


def round_to_sum(share: FloatArray, total: int) -> IntArray:
    """Rounds shares `[n]`, whose sum is `total`, to whole numbers with the same sum.

    The shares with the largest fractional parts are rounded up. If fractional parts are equal, earlier shares are
    rounded up first.
    """
    whole: IntArray = np.floor(share).astype(np.int64)
    whole[np.argsort(whole - share, kind="stable")[: total - int(whole.sum())]] += 1
    return whole
