"""Defines a method as data: what clients and server do (`Phase`), and which models predict (`Answer`).

A `Piece` is an addition to a client's job before or after training. `fedray.core.types` defines the words *world*,
*job*, *row* and *block*.

Example:
    >>> from fedray.features.correction import Vectors
    >>> piece = Vectors(down=1)  # the server sends a vector beside each model
    >>> piece.down_vectors, piece.up_vectors, piece.keeps
    (1, 0, ())
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.core import types
from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, IntArray, Net, Plan, SizedPlan, State, Stats, Uploads

# ---------------------------------------------------------------------------------------------------------------------
# What a method or a user adds to local training: a loss, a change of the gradient, a schedule of the learning rate.
#
# The functions are written for one client. Engines map them over the lanes of a block (`torch.func.vmap`), or call them
# lane by lane where this does not work. The run's manifest says what happened (`engine.why`).

SENT = "broadcast/"  # prefix of the tensors of `State.extra` whose rows clients receive
ENSEMBLE = "ensemble"
HEADS = "heads"
FORWARD = 1 / 3  # forward pass as a fraction of a training step; the backward pass takes twice as long
READS = ("inputs", "features", "network", "broadcast", "previous", ENSEMBLE, HEADS)  # values of `LocalLoss.reads`


class Seen(NamedTuple):
    """The outputs of a fixed model for a batch.

    Attributes:
        outputs: Raw outputs of the model, `[B, C]`.
        features: The f inputs of the model's last layer, `[B, f]`. None means that the loss does not use `features`.
    """

    outputs: Tensor
    features: Any


class LossContext(NamedTuple):
    """The values that a loss may use in addition to outputs and targets.

    Each of `inputs`, `features`, `network`, `broadcast`, `previous` and `ensemble` is None if the loss does not list
    its name in `LocalLoss.reads`.

    Attributes:
        objective: The network's own loss: a function that takes outputs and targets, and returns the loss of each
            sample, `[B]`.
        round: The round, from 0.
        client: The client's id, a scalar tensor.
        model: Index of the trained model, 0 to K - 1, a scalar tensor.
        inputs: The network's inputs, `[B, ...]`.
        features: The f inputs of the network's last layer, `[B, f]`.
        network: The forward pass of the model in training. It takes inputs `[n, ...]` and returns raw outputs `[n, C]`
            with gradient, in training mode.
        broadcast: Outputs of the received model (`Seen`), in evaluation mode and without gradient.
        previous: Outputs of the model with which the client's previous training ended (`Seen`). In a client's first
            training, these are outputs of the received model.
        ensemble: Raw outputs of all K models as they were at the beginning of the round, `[K, B, C]`, without gradient.
        shared: The trained model's row of the tensor that the server sends for the loss (`LocalLoss.shared`). None
            means that the server sends no tensor.
    """

    objective: Callable[[Tensor, Tensor], Tensor]
    round: int
    client: Tensor
    model: Tensor
    inputs: Any = None
    features: Any = None
    network: Any = None
    broadcast: Any = None
    previous: Any = None
    ensemble: Any = None
    shared: Any = None


class Reading(NamedTuple):
    """The values that a user's or a method's code may use in local training. A lane is one job that is trained.

    Attributes:
        round: The round, from 0.
        client: Id of each lane's client, `[W]` int64.
        model: Index of the model that each lane trains, 0 to K - 1, `[W]` int64.
        broadcast: The model that each lane's client received, `[W, d]`.
        previous: The model with which the previous training of each lane's client ended, `[W, d]`. None means that no
            code uses it.
        ensemble: For each lane, all K models at the beginning of the round, `[W, K, d]`. None means that no code uses
            them.
        size: Number of training samples of each lane's client, `[W]` int64. It is None while fedray tries a user's
            function before the run.
        shared: Rows of the tensor that the server sends for the loss, `[W, ...]`: the row of each lane's model. None
            means that the server sends no tensor.
    """

    round: int
    client: Tensor
    model: Tensor
    broadcast: Tensor
    previous: Tensor | None = None
    ensemble: Tensor | None = None
    size: Tensor | None = None
    shared: Tensor | None = None


class LocalLoss(NamedTuple):
    """A loss that replaces the network's own loss.

    Attributes:
        function: The loss. It takes outputs `[B, C]`, targets `[B]` (or q targets for each sample, `[B, q]`) and a
            `LossContext`. It returns the loss of each sample, `[B]`.
        reads: Names of the values that the function uses: fields of `LossContext`, from `inputs` to `ensemble`. With
            the name `heads`, the network returns the outputs of H heads (output layers) in training, `[B, H, C]`.
        name: Name of the loss in messages.
        shared: Name of a tensor in the server's `State.extra`. The name begins with `broadcast/`. The tensor has a row
            for each model. A client receives the row of the model that it trains.
        example: A row of the tensor `shared`, with its values before the first round. fedray sets this field.

    Example:
        A loss with label smoothing, and a gradient that is clipped to a norm of at most 1.

        >>> def smooth(outputs, targets, context):
        ...     return 0.9 * context.objective(outputs, targets) - 0.1 * outputs.log_softmax(-1).mean(-1)
        >>> def clip(gradient, state, parameters, context):
        ...     return gradient / gradient.norm().clamp(min=1.0), state
        >>> LocalLoss(smooth).reads, Transform(start_empty, clip).noise
        ((), False)
        >>> [round(RateSchedule("cosine", rounds=4, warmup=2).factor(t), 3) for t in range(5)]
        [0.5, 0.854, 0.5, 0.146, 0.0]
    """

    function: Callable[[Tensor, Tensor, LossContext], Tensor]
    reads: tuple[str, ...] = ()
    name: str = "its own"
    shared: str | None = None
    example: Any = None


class StepContext(NamedTuple):
    """The values that a transformation of the gradient may use in addition to the gradient and the p parameters.

    Attributes:
        round: The round, from 0.
        client: The client's id, a scalar tensor.
        step: The step of the local training, from 0.
        steps: Number of steps of the local training, a scalar tensor.
        lr: Learning rate of the round.
        rows: Number of samples in the batch, a scalar tensor.
        gradient_at: A function that takes parameters `[p]` and returns the gradient of the batch's mean loss at them,
            `[p]`.
        sample_gradients: A function that takes parameters `[p]` and returns the gradient of each sample's loss at them,
            `[B, p]`. Samples that only fill up a batch have the gradient 0.
        noise: Standard normal random numbers for this client and step, `[p]`, or as many as `Transform.numbers` says.
            They are None if `Transform.noise` is False.
        size: Number of training samples of the client, a scalar tensor. It is 1 while fedray tries the function before
            the run.
    """

    round: int
    client: Tensor
    step: int
    steps: Tensor
    lr: float
    rows: Tensor
    gradient_at: Callable[[Tensor], Tensor]
    sample_gradients: Callable[[Tensor], Tensor]
    noise: Any = None
    size: Any = None


class Transform(NamedTuple):
    """A transformation of the gradient, as in optax. Its functions are written for one client.

    The p parameters of the client's model form one vector.

    Attributes:
        init: A function that takes parameters `[p]` and returns the first state of the transformation. A state is a
            tensor, or tuples, lists and dicts of tensors. `()` means no state. `init` may return the parameters
            themselves, because fedray copies them.
        update: A function that takes the gradient `[p]`, the state, the parameters `[p]` and a `StepContext`. It
            returns the transformed gradient `[p]` and the next state.
        noise: Whether `update` uses random numbers (`StepContext.noise`).
        name: Name of the transformation in messages.
        numbers: Number of random numbers in `StepContext.noise`. None means one per parameter.
        at: A function that takes parameters `[p]` and random numbers. It returns the parameters `[p]` at which the
            gradient is computed. None means the current parameters.
        gradients: Number of gradients of the batch that a step computes in addition to the usual gradient. The virtual
            clock counts these gradients.
    """

    init: Callable[[Tensor], Any]
    update: Callable[[Tensor, Any, Tensor, StepContext], tuple[Tensor, Any]]
    noise: bool = False
    name: str = "its own"
    numbers: int | None = None
    at: Callable[[Tensor, Tensor], Tensor] | None = None
    gradients: int = 0


def find_placing(rules: Sequence[Transform]) -> Transform | None:
    """Returns the transformation that has a function `at`, or None if no transformation has such a function.

    Raises:
        BadInput: Two of the transformations have `at`.
    """
    found = [rule for rule in rules if rule.at is not None]
    if len(found) > 1:
        names = " and ".join(rule.name for rule in found)
        raise BadInput(f"{names} both say where a step takes its gradient (at): leave one of them out")
    return found[0] if found else None


class RateSchedule(NamedTuple):
    """A schedule of the learning rate. It gives the multiplier of the rate in each round.

    Attributes:
        kind: How the multiplier changes. With `constant`, it is always 1. With `cosine` and `linear`, it falls from 1
            to `floor` within `rounds` rounds. With `step`, it starts at 1, and is multiplied by `gamma` at each round
            in `at`.
        rounds: Number of rounds in which `cosine` and `linear` fall, above 0 for these kinds.
        floor: The last multiplier of `cosine` and `linear`.
        warmup: Length of the warm-up in rounds. In round t of the warm-up, the multiplier is also multiplied by `(t +
            1) / warmup`.
        at: The rounds, from 0, at which the multiplier of `step` falls.
        gamma: With `step`, the factor by which the multiplier is multiplied at each round in `at`.
        restart: Whether `cosine` and `linear` start again from 1 every `rounds` rounds (warm restarts). Otherwise they
            stay at `floor`.

    Source: Loshchilov, Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*, ICLR 2017, equation 5.
    """

    kind: types.RateKind = "constant"
    rounds: int = 0
    floor: float = 0.0
    warmup: int = 0
    at: tuple[int, ...] = ()
    gamma: float = 0.1
    restart: bool = False

    def factor(self, t: int) -> float:
        """Returns the multiplier of round t. The first round is 0."""
        rise = min(1.0, (t + 1) / self.warmup) if self.warmup else 1.0
        if self.kind == "step":
            return rise * self.gamma ** sum(t >= at for at in self.at)
        if self.kind == "constant":
            return rise
        share = t % self.rounds / self.rounds if self.restart else min(1.0, t / self.rounds)
        fall = 0.5 * (1.0 + math.cos(math.pi * share)) if self.kind == "cosine" else 1.0 - share
        return rise * (self.floor + (1.0 - self.floor) * fall)


def reads_ensemble(loss: LocalLoss | None) -> bool:
    """Returns whether a loss uses the outputs of all K models. Clients must then receive all K models."""
    return loss is not None and ENSEMBLE in loss.reads


def start_empty(_parameters: Tensor) -> tuple[()]:
    """Returns `()`. This function is the `init` of transformations without a state."""
    return ()


# ---------------------------------------------------------------------------------------------------------------------
# Data augmentation. Each training step draws new random changes of its inputs. Models predict from unchanged inputs.

AugmentationForm = Literal["rows", "row", "batch"]


class Augmentation(NamedTuple):
    """A random change of training samples.

    Attributes:
        function: The function that changes samples. It receives inputs before standardization, and keeps their shape.
            Targets are classes, or values in the units of the data set.
        form: Kind of arguments of the function. With `rows`, it takes inputs `[n, ...]` of several clients and steps,
            and uniform random numbers `[n, numbers]`. With `row`, it takes one input. With `batch`, it takes inputs
            `[B, ...]` and targets `[B]` or `[B, q]` of one client and step. The function returns the changed inputs.
            With `batch`, it may instead return a tuple of inputs and targets.
        name: Name of the augmentation in messages.
        numbers: With the form `rows`, the number of uniform random numbers for each sample.
    """

    function: Callable[..., Any]
    form: AugmentationForm
    name: str
    numbers: int = 0


# ---------------------------------------------------------------------------------------------------------------------
# Pieces of a client's job: what a method does before and after the training, and what other code must know about it.
#
# The usual job has no pieces. It starts from the received model, trains it, and sends the difference. Each piece of
# `Phase.pieces` changes the local updates of a block before training (`begin`) and after training (`end`), in the order
# of the tuple. Schedules, clocks, engines and runtimes read attributes of all pieces, so they need not know any feature
# by name.


class Piece:
    """The base class of additions to a client's job, before or after training.

    A subclass overrides what differs from the usual job. The usual job starts from the received model, trains it, and
    sends the difference.

    Attributes:
        takes: Names of the user's functions that take and return vectors of jobs, `[W, d]`. In a user's method their
            results are checked.
        kept_numbers: Length of each private vector. None means the length of a model.
        couples: Whether the training steps of one model use the other models of the same client. If so, the client's K
            jobs are trained in one block.
        reads_models: Whether a job needs all K models, and not only its own.
        reads_final: Whether `end` reads the trained models (`Update.models`), and not only their deltas.
        calls_module: Whether this addition to a client's job calls the network's module (a `torch.nn.Module`). If so, a
            worker trains in one thread, because the module holds the parameters of one model.
        weighs: Whether each client of the run has its own weights for the models' predictions.
    """

    takes: ClassVar[tuple[str, ...]] = ()
    kept_numbers: ClassVar[int | None] = None
    couples: ClassVar[bool] = False
    reads_models: ClassVar[bool] = False
    reads_final: ClassVar[bool] = False
    calls_module: ClassVar[bool] = False
    weighs: ClassVar[bool] = False

    def check(self, phase: "Phase", method: str) -> None:
        """Raises `BadInput` if this addition to a client's job does not fit `phase`. The message names `method`."""

    def begin(self, update: Any) -> Any:
        """Changes jobs before training. `update` (`training.update.Update`) holds jobs that are trained together."""
        return update

    def end(self, update: Any) -> Any:
        """Changes the results of training: the trained models, the private vectors and the uploads."""
        return update

    @property
    def keeps(self) -> tuple[str, ...]:
        """Returns the names of the private vectors that clients keep between rounds."""
        return ()

    @property
    def stays(self) -> tuple[str, ...]:
        """Returns the layers of the network that never leave the client."""
        return ()

    @property
    def up_vectors(self) -> int:
        """Returns how many vectors of a model's length a client sends in addition to its delta."""
        return 0

    @property
    def down_vectors(self) -> int:
        """Returns how many vectors of a model's length a client receives in addition to the model."""
        return 0

    @property
    def up_numbers(self) -> int:
        """Returns how many values a job sends in addition to vectors of a model's length."""
        return 0

    @property
    def locals(self) -> tuple["Local", ...]:
        """Returns the settings of each training of a job that follows the main training.

        Each of them has as many steps as the main training.
        """
        return ()

    def with_locals(self, change: Callable[["Local"], "Local"]) -> "Piece":
        """Returns a copy in which `change(settings)` replaces the settings of each further training (`locals`)."""
        return self

    @property
    def begins(self) -> int:
        """Returns the round in which the method's last stage begins.

        Scores of earlier rounds are not scores of the complete method.
        """
        return 0

    def group(self, t: int) -> Hashable:
        """Returns a key for round t.

        Jobs of two rounds may be trained together only if the keys of these rounds are equal.
        """
        return None

    @property
    def nets(self) -> Sequence[Net]:
        """Returns the network of each tier (class of devices), or `()` if all tiers train the whole network."""
        return ()

    def columns(self, t: int, tier: int) -> Tensor:
        """Returns the ascending positions in a model of the s values that `tier`'s network has in round t, `[s]`."""
        raise NotImplementedError

    def work(self, tier: IntArray) -> FloatArray | None:
        """Returns how much each of J jobs computes in a step, as a fraction of a step of the whole network, `[J]`.

        `tier` is the tier of each job's client, `[J]`. If the result is None, all fractions are 1.
        """
        return None

    @property
    def further_steps(self) -> int:
        """Returns how many steps without samples a job makes outside training. The virtual clock counts them."""
        return 0

    def count_rows(self, net: Net, size: FloatArray) -> FloatArray | None:
        """Returns how many samples of each of J jobs pass through the network outside training. None means 0.

        The virtual clock counts a forward and a backward pass for each sample. `size` is the number of samples of each
        job's client.
        """
        return None

    @property
    def answers(self) -> bool:
        """Returns whether clients of the run predict with models of their own.

        New clients predict with the server's models.
        """
        return False

    def own_models(self, site: Any, plan: Plan, broadcast: Tensor, tier: int) -> Tensor:
        """Returns the models with which one client of the run predicts.

        Args:
            site: The worker process that has the client's private vectors (`training.update.Site`).
            plan: The client's K jobs.
            broadcast: The models of the server, `[K, d]`.
            tier: Index of the client's tier (class of devices).

        Returns:
            K models, `[K, d]`. If a job has P further trainings, the result is the models that these trainings made,
            one training after another, `[P * K, d]`.
        """
        raise NotImplementedError

    def describe(self) -> tuple[str, str] | None:
        """Returns the name and the text of a line in `fedray check`. None means no line."""
        return None


PREVIOUS = "previous"  # name of the private vector with the model of a client's previous training


class KeepModel(Piece):
    """Stores the model with which a client's training ends. A loss uses it in the client's next training (MOON)."""

    keeps = (PREVIOUS,)
    reads_final = True

    def end(self, update: Any) -> Any:
        return update.keep(**{PREVIOUS: update.final})


class Work:
    """The work of clients in place of gradient descent. A process does one job at a time, on a CPU.

    The argument `kept` is a cache that a process keeps for all rounds. It holds only values that can be computed again.
    """

    def begin(self, site: Any, kept: dict[Any, Any], t: int, state: State) -> None:
        """Prepares a process for the jobs of round t."""

    def do(self, site: Any, kept: dict[Any, Any], t: int, job: SizedPlan, state: State) -> tuple[Stats, Tensor]:
        """Does one job. Returns the statistics for the server's step and the job's loss, `[1]`."""
        raise NotImplementedError

    def kept_numbers(self, d: int) -> int:
        """Returns the number of values that a round's statistics hold for each upload.

        `d` is the number of values of a model.
        """
        return d

    def describe(self) -> tuple[str, str]:
        """Returns the name of the class that does the work, and what the work is.

        A run's manifest shows these texts in place of an engine and the reason for its choice.
        """
        return type(self).__name__, "its work is code"


# ---------------------------------------------------------------------------------------------------------------------
# Stacks. A stack is a method with several trainings, its *parts*, which share the rounds. After a round, `Method.join`
# may change the models of each part with the uploads of all parts.


class PartStep(NamedTuple):
    """The result of a round for one part of a stack. A stack is a method with several trainings (parts).

    Attributes:
        before: State of the part before the round.
        after: State of the part after its server's step.
        stats: Statistics of the part's uploads. They are empty if no client has trained.
    """

    before: State
    after: State
    stats: Stats


Join = Callable[[int, Sequence[PartStep]], Sequence[Tensor]]  # (round, step of each part) -> models `[M, d]` of each


# ---------------------------------------------------------------------------------------------------------------------
# Random walks.


class Walk(NamedTuple):
    """A random walk: each model moves from client to client, and there is no server.

    Attributes:
        at: A function that takes a round (a step of the walk) and returns the client of each model, `[R, K]` (R worlds,
            K models).
        down: A function that takes a round and returns whether the client of each model has failed, `[R, K]`.
        edges: The E pairs of clients that may send to each other, `[E, 2]`.

    Example:
        >>> walk = Walk(lambda t: np.array([[t % 2]]), lambda _t: np.array([[False]]), edges=np.array([[0, 1]]))
        >>> walk.at(3).tolist()  # the client that holds the model, for one world and one model
        [[1]]
    """

    at: Callable[[int], IntArray]
    down: Callable[[int], NDArray[np.bool_]]
    edges: IntArray


# ---------------------------------------------------------------------------------------------------------------------
# A method as data: a phase of training, and the models that predict.

P = TypeVar("P", bound=Piece)
Schedule = Callable[[int, State | None], Plan]  # (round, state) -> the jobs of the round
Pooled = Callable[[int], "tuple[Tensor, Tensor]"]  # world -> network inputs and targets of its training samples
Sizes = Callable[[Plan], IntArray]  # plan -> training samples of each job `[J]`
# (plan, sizes) -> steps of each job `[J]`, samples in these steps `[J]`. A stack also returns a multiplier of the
# client's time for these steps `[J]`.
Steps = Callable[[Plan, IntArray], tuple[IntArray, IntArray] | tuple[IntArray, IntArray, FloatArray]]
Traffic = Callable[[int, Plan], tuple[IntArray, IntArray]]  # (round, plan) -> bytes up `[J]`, bytes down `[J]`
Choose = Callable[[Plan, FloatArray], Plan]  # (plan, losses of all models at each job's client `[J, K]`) -> plan
Combine = Callable[[int, FloatArray], FloatArray]  # (world, probabilities of its models `[A, n, C]`) -> `[n, C]`
ServerWork = tuple[float, float]  # training steps of the server, and samples in these steps
Remember = Callable[[int, State, Plan, FloatArray], State]  # (round, state after it, jobs, losses `[J]`) -> state


class Server(NamedTuple):
    """The functions that turn uploads into the next state.

    Attributes:
        init: A function that takes the initial models `[M, d]` and returns the tensors of `State.extra`.
        reduce: A function that takes some uploads and returns statistics of them. Statistics are added with `+` in any
            order. `reduce` is called in the process that trained the clients.
        step: A function that takes the state before round t, all statistics of the round, and t. It returns the state
            after round t.
        keeps: Whether the statistics hold every upload, and not only sums.
        on_device: Whether `reduce` accepts deltas on the GPU on which they were trained.
    """

    init: Callable[[Tensor], dict[str, Tensor]]
    reduce: Callable[[Uploads], Stats]
    step: Callable[[State, Stats, int], State]
    keeps: bool = False
    on_device: bool = False


class Compressed(NamedTuple):
    """Uploads after compression.

    Attributes:
        delta: The deltas that the server receives, `[J, d]`.
        own: The clients' new private vectors by name, `[J, d]` each.
    """

    delta: Tensor
    own: Mapping[str, Tensor] = {}


def same_bytes(size: int) -> Callable[[IntArray, IntArray], IntArray]:
    """Returns the function `Compress.bytes` of a compression with which every job sends `size` bytes."""
    return lambda client, _tier: np.full(len(client), size, dtype=np.int64)


def send_whole(uploads: Uploads) -> Compressed:
    """Returns uploads unchanged. This is the function `Compress.apply` if nothing is compressed."""
    return Compressed(uploads.delta)


class Compress(NamedTuple):
    """The compression of uploads.

    Attributes:
        bytes: A function that takes the clients and tiers of J jobs, `[J]` each. It returns the number of bytes that
            each job sends, `[J]`. It is called before training.
        apply: A function that takes uploads and returns them compressed.
        own: Names of the private vectors that clients store for the compression (error feedback).
        lossless: Whether the server receives exactly what the clients computed.
        on_device: Whether `apply` accepts deltas on the GPU on which they were trained.
    """

    bytes: Callable[[IntArray, IntArray], IntArray]
    apply: Callable[[Uploads], Compressed] = send_whole
    own: tuple[str, ...] = ()
    lossless: bool = False
    on_device: bool = False


@dataclass(frozen=True)
class Local:
    """The settings of a client's training.

    The gradient of a step is `grad + pull (w - w_start) + offset`. Here `grad` includes weight decay, and `offset` is a
    vector that a `Piece` may add. FedProx, FedDyn, Ditto and SCAFFOLD have this form. The optimizer begins each local
    training without state (Fed-ensemble, section II). Functions may replace the loss, the gradient of the data, and the
    optimizer. The fastest engines (code that trains many clients together) do not accept such functions.

    Attributes:
        optimizer: `sgd`, `adam`, `adamw` or `rmsprop`, as `torch.optim` computes them.
        lr: Initial learning rate.
        lr_decay: The factor by which the learning rate is multiplied every `lr_decay_every` rounds.
        lr_decay_every: Number of rounds between two multiplications by `lr_decay`.
        momentum: Momentum of SGD, in [0, 1).
        nesterov: Whether SGD uses Nesterov's momentum.
        weight_decay: Coefficient of weight decay. `weight_decay * w` is added to the gradient. `adamw` instead
            subtracts `lr * weight_decay * w` from the parameters.
        batch_size: Number of samples in a step. None means all samples of the client.
        last_batch: Rule for a last batch that is smaller than `batch_size`. `keep` trains on it. `drop` leaves it out,
            unless it is the client's only batch. `merge` adds its samples to the previous batch.
        epochs: Number of passes over the client's samples. None means that `steps` is set.
        steps: Number of optimizer steps of every client. None means that `epochs` is set.
        pull: Strength of the pull towards the received model (FedProx's mu).
        schedule: A multiplier of the learning rate for each round. None means the multiplier 1.
        loss: The loss that replaces the network's loss. None keeps the network's loss.
        gradient: A transformation of the gradient before `pull` and `offset` are added. None leaves the gradient
            unchanged.
        step: A transformation or a function that replaces the optimizer. A transformation's result is multiplied by the
            learning rate, and subtracted from the parameters. A function takes the parameters and `lr`, and returns a
            `torch.optim.Optimizer`. None keeps the optimizer.
        augment: Random changes of the samples of each batch, applied one after another.

    Example:
        >>> Local(lr=0.1, lr_decay=0.5, lr_decay_every=2).lr_at(2)
        0.05
    """

    optimizer: types.OptimizerKind = "sgd"
    lr: float = 0.01
    lr_decay: float = 1.0
    lr_decay_every: int = 10
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    batch_size: int | None = 16
    last_batch: types.LastBatch = "keep"
    epochs: int | None = 1
    steps: int | None = None
    pull: float = 0.0
    schedule: RateSchedule | None = None
    loss: LocalLoss | None = None
    gradient: Transform | None = None
    step: Transform | Callable[..., Any] | None = None
    augment: tuple[Augmentation, ...] = ()

    def lr_at(self, t: int) -> float:
        """Returns the learning rate of round t.

        The rate is `lr * lr_decay ** (t // lr_decay_every)` times the schedule's multiplier.
        """
        factor = 1.0 if self.schedule is None else self.schedule.factor(t)
        return self.lr * self.lr_decay ** (t // self.lr_decay_every) * factor

    @property
    def optimizer_name(self) -> str:
        """Returns the name of the optimizer in messages."""
        name = self.step.name if isinstance(self.step, Transform) else getattr(self.step, "__name__", "your own")
        return self.optimizer if self.step is None else str(name)

    @property
    def has_code(self) -> bool:
        """Returns whether each training step calls a function that a method or a user has written."""
        return any(part is not None for part in (self.loss, self.gradient, self.step))

    def count_work(self, models: int) -> float:
        """Returns how much a step computes, as a multiple of one forward and one backward pass over the batch.

        `models` is the number of models, K. A loss may compute the outputs of all K models.

        Example:
            >>> moon = LocalLoss(lambda *_: 0.0, reads=("features", "broadcast", "previous"))
            >>> round(Local(loss=moon).count_work(1), 2)  # the step, and a forward pass of each of two other models
            1.67
        """
        rules = [rule for rule in (self.gradient, self.step) if isinstance(rule, Transform)]
        reads = () if self.loss is None else self.loss.reads
        passes = sum({"broadcast": 1, PREVIOUS: 1, ENSEMBLE: models}.get(name, 0) for name in reads)
        return 1.0 + sum(rule.gradients for rule in rules) + FORWARD * passes

    @property
    def keeps_model(self) -> bool:
        """Returns whether clients store the models that they have trained, for the loss of their next training."""
        return self.loss is not None and PREVIOUS in self.loss.reads


@dataclass(frozen=True)
class Phase:
    """A federated training of K models with one architecture.

    Attributes:
        models: Number of models, K.
        schedule: A function that takes a round and the state, and returns the plan (the list of the round's jobs).
        local: Settings of a client's training.
        server: The functions that turn uploads into the next state.
        compress: The compression of uploads.
        pieces: Additions to a client's job before and after training, applied one after another.
        walk: The random walk of the models. None means that there is a server.
        sizes: A function that takes a plan and returns the number of training samples of each job, `[J]`. None means
            all samples of the job's client.
        steps: A function that takes a plan and its sizes. It returns the number of steps of each job, `[J]`, and the
            number of samples in these steps, `[J]`. The virtual clock uses them. For a stack (a method with several
            trainings) it also returns multipliers of the clients' time, `[J]`. A multiplier is 0 if the server makes
            the steps. None means that steps and samples follow from `local`.
        traffic: A function that takes a round and its plan. It returns how many bytes each job sends, and how many it
            receives, `[J]` each. None means that each model is sent from the server to the client and back.
        remember: A function that stores facts about a round's jobs in the state, for later rounds. It takes the round,
            the state after the round, the plan and the losses `[J]`, and returns the new state. The plan has only jobs
            whose uploads the server used. None leaves the state unchanged.
        choose: A function that changes a plan by the clients' losses (IFCA). It takes the plan and the mean losses of
            all models at each job's client, `[J, K]`. None leaves the plan unchanged.
        groups: In asynchronous training, the largest number of groups of uploads (`Flight.group`) in one call of the
            runtime (the code that runs jobs in one or many processes). 0 means that training is synchronous.
        work: The work that clients do in place of gradient descent. None means gradient descent.
        ask: A function that takes the state and the sums of the uploads. If it returns a state, the clients work once
            more with this state before the server's step. If it returns None, the server makes its step. If `ask` is
            None, clients work once in a round.
        server_work: A function that takes a round. It returns how many training steps the server makes in each world,
            and the number of samples in these steps. None means no training steps.
    """

    models: int
    schedule: Schedule
    local: Local
    server: Server
    compress: Compress
    pieces: tuple[Piece, ...] = ()
    walk: Walk | None = None
    sizes: Sizes | None = None
    steps: Steps | None = None
    traffic: Traffic | None = None
    remember: Remember | None = None
    choose: Choose | None = None
    groups: int = 0
    work: Work | None = None
    ask: Callable[[State, Stats], State | None] | None = None
    server_work: Callable[[int], ServerWork] | None = None

    def add(self, *pieces: Piece) -> "Phase":
        """Returns a copy with further additions to a client's job (`pieces`). They come after the present additions."""
        return replace(self, pieces=(*self.pieces, *pieces))

    def with_locals(self, change: Callable[[Local], Local]) -> "Phase":
        """Returns a copy in which `change(settings)` replaces the settings of each training (`locals`)."""
        pieces = tuple(piece.with_locals(change) for piece in self.pieces)
        return replace(self, local=change(self.local), pieces=pieces)

    def find(self, kind: type[P]) -> P | None:
        """Returns the first addition to a client's job that is of the class `kind`, or None."""
        return next((piece for piece in self.pieces if isinstance(piece, kind)), None)

    @cached_property
    def chain(self) -> tuple[Piece, ...]:
        """Returns all additions to a client's job.

        If the loss uses a client's previous model, the last addition is `KeepModel`.
        """
        return (*self.pieces, KeepModel()) if self.local.keeps_model else self.pieces

    @cached_property
    def own(self) -> tuple[str, ...]:
        """Returns the names of the private vectors that clients keep between rounds."""
        return (*self.compress.own, *(name for piece in self.chain for name in piece.keeps))

    @cached_property
    def stays(self) -> tuple[str, ...]:
        """Returns the layers of the network that never leave the client."""
        return tuple(name for piece in self.pieces for name in piece.stays)

    @cached_property
    def up_vectors(self) -> int:
        """Returns how many vectors of a model's length a client sends in addition to its delta."""
        return sum(piece.up_vectors for piece in self.pieces)

    @cached_property
    def down_vectors(self) -> int:
        """Returns how many vectors of a model's length a client receives for a job. The model is one of them."""
        return 1 + sum(piece.down_vectors for piece in self.pieces)

    @cached_property
    def locals(self) -> tuple[Local, ...]:
        """Returns the settings of each training of a job. The main training comes first. Each draws its own batches."""
        return (self.local, *(local for piece in self.pieces for local in piece.locals))

    @cached_property
    def couples(self) -> bool:
        """Returns whether the training steps of one model use the other models of the same client."""
        return any(piece.couples for piece in self.pieces)

    @property
    def together(self) -> int:
        """Returns how many jobs of a client must be trained together."""
        return self.models if self.couples else 1

    @cached_property
    def nets(self) -> Sequence[Net]:
        """Returns the network of each tier (class of devices), or `()` if all tiers train the whole network."""
        return next((piece.nets for piece in self.pieces if piece.nets), ())

    def columns(self, t: int, tier: int) -> Tensor:
        """Returns the ascending positions in a model of the s values that `tier`'s network has in round t, `[s]`."""
        return next(piece for piece in self.pieces if piece.nets).columns(t, tier)

    @property
    def weighs(self) -> bool:
        """Returns whether each client of the run has its own weights for the models' predictions."""
        return any(piece.weighs for piece in self.pieces)

    @property
    def is_personal(self) -> bool:
        """Returns whether clients of the run predict with models of their own."""
        return any(piece.answers for piece in self.pieces)


class Answer(NamedTuple):
    """The models that predict. Their number in each of R worlds is A. A world is a combination of a seed and a fold.

    Attributes:
        state: A state that holds these models, `[R * A, d]`, and no others.
        models: Number of models in a world, A.
        weights: Weights of the models, `[R, A]`. None means equal weights.
        spread: Variances `[R, d]` or covariances `[R, d, d]` of a linear model's parameters. None means that the method
            has no distribution over the parameters.
        noise: Variance of the observation noise, `[R]`, in standardized units of the target. None means that the method
            does not estimate the noise.
        owner: The client that uploaded each model, `[R, A]`. -1 means that the model is not an upload. None means that
            no model is an upload.
        tiers: For each of T tiers, the weights of the models for the tier's clients, `[R, T, A]`. A model with weight 0
            in `weights` must have weight 0 in `tiers`, too. If `predict.gamma` is finite, a client leaves out models
            whose weight in `tiers` is 0. None means that `weights` hold for all tiers.
        combine: A function that takes a world and the probabilities of its models, `[A, n, C]`. It returns the
            ensemble's probabilities, `[n, C]`. None means the weighted mean.
        networks: If several models are parts (such as heads) of one network, the number of networks in a world. None
            means that each model is a network.
    """

    state: State
    models: int
    weights: FloatArray | None = None
    spread: Tensor | None = None
    noise: FloatArray | None = None
    owner: IntArray | None = None
    tiers: FloatArray | None = None
    combine: Combine | None = None
    networks: int | None = None

    def drop_absent(self, outputs: Tensor, world: int) -> Tensor:
        """Returns the rows of `outputs` that belong to models with a weight above 0.

        `outputs` has one row for each model of the world: the model's outputs or losses.

        Example:
            >>> state = State(torch.zeros(3, 2), torch.zeros(3, 0, dtype=torch.int64), {})
            >>> answer = Answer(state, 3, weights=np.array([[6.0, 0.0, 2.0]]))
            >>> answer.drop_absent(torch.arange(3), world=0).tolist(), answer.weigh_present(world=0).tolist()
            ([0, 2], [0.75, 0.25])
        """
        return outputs if self.weights is None else outputs[torch.from_numpy(self.weights[world] > 0)]

    def weigh_present(self, world: int) -> FloatArray | None:
        """Returns the weights of the models that `drop_absent` keeps, scaled to the sum 1. None means equal weights."""
        if self.weights is None:
            return None
        present = self.weights[world][self.weights[world] > 0].astype(np.float64)
        return None if (present == present[0]).all() else present / present.sum()


@dataclass(frozen=True)
class Method:
    """A method of a paper: a federated training, and the models that predict.

    Attributes:
        name: Name of the method in the scenario.
        phase: The federated training.
        answer: A function that takes the state and returns the models that predict. None means that the trained models
            predict.
        prepare: A function that takes the state after `Server.init` and a function `pooled`. It returns the state with
            which round 0 begins. `pooled(world)` returns the training samples of a world. None leaves the state
            unchanged.
        one_model_per_client: Whether client i predicts with model i. If the weight of model i is 0, client i predicts
            like a new client.
        parts: The trainings of a stack (a method with several trainings). The training of the meta model comes last.
        join: A function by which the parts of a stack learn from each other, after their servers' steps. It takes a
            round and the `PartStep` of each part, and returns each part's models. None means that the parts do not
            learn from each other.
        explain_end: A function that takes the state and returns why training ends early. The text is empty if training
            goes on. None means that training never ends early.
    """

    name: str
    phase: Phase
    answer: Callable[[State], Answer] | None = None
    prepare: Callable[[State, Pooled], State] | None = None
    one_model_per_client: bool = False
    parts: tuple[Phase, ...] = ()
    join: Join | None = None
    explain_end: Callable[[State], str] | None = None


class JobRows(NamedTuple):
    """The losses and errors of trained jobs, for the tables of the run.

    Attributes:
        loss: Mean training loss of each job, `[J]`, in the order of the plan.
        errors: Positions of failed jobs in the plan, and the traceback of each.
    """

    loss: FloatArray
    errors: Mapping[int, str] = {}


# ---------------------------------------------------------------------------------------------------------------------
# Student models at the server.

MOMENTUM = 0.9  # Chen and Chao 2021, appendix


class Teaching(NamedTuple):
    """The training data and the optimizer of a student (a network that learns from the predictions of others).

    Attributes:
        x: Network inputs, `[n, ...]`.
        target: The student's target for each input, `[n, C]`: probabilities, or outputs in a regression.
        batch_size: Largest number of inputs in a batch.
        optimizer: `momentum` is SGD with a momentum of 0.9. `adam` has torch's defaults.
    """

    x: Tensor
    target: Tensor
    batch_size: int
    optimizer: Literal["momentum", "adam"]


Ask = Callable[[Net, Tensor, Tensor], Tensor]  # (network, model `[d]`, inputs `[n, ...]`) -> outputs `[n, C]`
Train = Callable[[Sequence[Tensor], Sequence[float]], Tensor]  # (inputs of each batch, rate of each) -> student `[d]`


class StudentEngine(NamedTuple):
    """The functions of distillation: they compute teachers' outputs and train students.

    Attributes:
        ask: A function that takes a network, a model `[d]` and inputs `[n, ...]`. It returns the model's raw outputs,
            `[n, C]` float64.
        begin: A function that takes a network, the first student `[d]` and a `Teaching`. It returns the function that
            trains the student. This function takes the indices of the inputs in each step's batch, and each step's
            learning rate. Each call makes these further steps, and returns the student. A step follows the mean
            gradient of its batch. Buffers keep their initial values, and dropout is off.
    """

    ask: Ask
    begin: Callable[[Net, Tensor, Teaching], Train]


EngineOf = Callable[[Net], StudentEngine]
