"""A method as data: its phase of training, what the phase is composed of, and the models that answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedray.core.local import Augmentation, LocalLoss, RateSchedule, Transform
from fedray.core.piece import KeepModel, Piece, Work
from fedray.core.types import FloatArray, IntArray, Net, Plan, State, Stats, Uploads

# ---------------------------------------------------------------------------------------------------------------------
# What the parts of a stack exchange: they train side by side, and their servers may then learn from all uploads.


class PartStep(NamedTuple):
    """What one part of a stack has gone through in a round.

    Attributes:
        before: Its state before the round.
        after: Its state behind its own server's step.
        stats: What its clients have sent; empty where none has trained.
    """

    before: State
    after: State
    stats: Stats


Join = Callable[[int, Sequence[PartStep]], Sequence[Tensor]]  # (round, each part's step) -> its models `[M, d]`


# ---------------------------------------------------------------------------------------------------------------------
# A random walk as data: who holds which model, where no server does.


class Walk(NamedTuple):
    """A random walk: there is no server, and each model moves from client to client.

    Attributes:
        at: The clients that hold the models at a step, `[R, K]`.
        down: Which of these clients are out of order at that step, `[R, K]`.
        edges: Pairs of clients that may send to each other, `[E, 2]`.

    Example:
        >>> walk = Walk(lambda t: np.array([[t % 2]]), lambda _t: np.array([[False]]), edges=np.array([[0, 1]]))
        >>> walk.at(3).tolist()  # of one world and one model: the client that holds it
        [[1]]
    """

    at: Callable[[int], IntArray]
    down: Callable[[int], NDArray[np.bool_]]
    edges: IntArray


# ---------------------------------------------------------------------------------------------------------------------
# A method as data: its phase of training, what the phase is composed of, and the models that answer.

PREVIOUS = KeepModel.NAME  # of the private vector that holds the model that a client has trained last
P = TypeVar("P", bound=Piece)
Schedule = Callable[[int, State | None], Plan]  # (round, state) -> the jobs of the round
Pooled = Callable[[int], "tuple[Tensor, Tensor]"]  # world -> network inputs and targets of all its training rows
Sizes = Callable[[Plan], IntArray]  # plan -> training samples of each job `[J]`
Steps = Callable[[Plan, IntArray], tuple[IntArray, IntArray]]  # (plan, sizes) -> steps `[J]`, samples in them `[J]`
Traffic = Callable[[int, Plan], tuple[IntArray, IntArray]]  # (round, plan) -> bytes up `[J]`, bytes down `[J]`
Choose = Callable[[Plan, FloatArray], Plan]  # (plan, losses of all models at each job's client `[J, K]`) -> plan
Combine = Callable[[int, FloatArray], FloatArray]  # (world, probabilities `[A, n, C]` of its models) -> `[n, C]`
Remember = Callable[[int, State, Plan, FloatArray], State]  # (round, state after it, its jobs, losses `[J]`) -> state


class Server(NamedTuple):
    """How uploads become the next state.

    Attributes:
        init: The extra state that belongs to the first models `[M, d]`.
        reduce: Statistics of a block of uploads, made where the clients run, and merged with `+` in any order.
        step: The state after round t, from the state before it and all statistics of the round.
        keeps: Whether the statistics hold the uploads themselves, and not only sums of them.
        on_device: Whether `reduce` takes deltas that lie on a GPU, where they were trained.
    """

    init: Callable[[Tensor], dict[str, Tensor]]
    reduce: Callable[[Uploads], Stats]
    step: Callable[[State, Stats, int], State]
    keeps: bool = False
    on_device: bool = False


class Compressed(NamedTuple):
    """Uploads after compression.

    Attributes:
        delta: What the server will read, `[J, d]`.
        own: The clients' private vectors after sending, by name, `[J, d]` each.
    """

    delta: Tensor
    own: Mapping[str, Tensor] = {}


class Compress(NamedTuple):
    """How uploads are compressed, and how many bytes they take.

    Attributes:
        bytes: Bytes that each job sends, `[J]`, from clients and tiers `[J]`; known before anything is trained.
        apply: The compression itself.
        own: Names of the private vectors that it keeps at the clients (error feedback).
        lossless: Whether the server reads exactly what the clients computed.
        on_device: Whether `apply` takes deltas that lie on a GPU, where they were trained.
    """

    bytes: Callable[[IntArray, IntArray], IntArray]
    apply: Callable[[Uploads], Compressed]
    own: tuple[str, ...] = ()
    lossless: bool = False
    on_device: bool = False


@dataclass(frozen=True)
class Local:
    """How a client trains. Where it is data alone, the fastest engines train many clients at once.

    The local gradient, weight decay included, is `grad + pull (w - w_start) + offset`: one affine term that covers
    FedProx, FedDyn, Ditto and SCAFFOLD. The optimizer starts without memory in each local update (FE section II).
    Code may take three places (`fedray.core.local`): those of the loss, of the data's gradient and of the optimizer.

    Attributes:
        optimizer: `sgd` or `adam`.
        lr: Learning rate of the first rounds.
        lr_decay: Factor on the learning rate.
        lr_decay_every: Rounds after which the factor applies once more.
        momentum: Of SGD, 0 to 1.
        weight_decay: Added to the gradient as `weight_decay * w`.
        batch_size: Samples of a step; None means all samples of the client.
        epochs: Passes over the client's samples; None where `steps` counts.
        steps: Optimizer steps, whatever the client's size; None where `epochs` counts.
        pull: Strength of the pull towards the received model (FedProx's mu).
        schedule: A course of the learning rate, as a factor; None without one.
        loss: What takes the place of the network's loss; None: nothing.
        gradient: A transformation of the data's gradient, before the affine term; None: it stays.
        step: In the optimizer's place, a transformation (its result times the rate is subtracted), or a function
            (parameters, lr=...) -> `torch.optim.Optimizer`; None: nothing.
        augment: Random changes of the rows of each batch, one after another.

    Example:
        >>> Local(lr=0.1, lr_decay=0.5, lr_decay_every=2).lr_at(2)
        0.05
    """

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
    schedule: RateSchedule | None = None
    loss: LocalLoss | None = None
    gradient: Transform | None = None
    step: Transform | Callable[..., Any] | None = None
    augment: tuple[Augmentation, ...] = ()

    def lr_at(self, t: int) -> float:
        """Returns the learning rate: `lr * lr_decay ** (t // lr_decay_every)`, times the factor of the schedule."""
        factor = 1.0 if self.schedule is None else self.schedule.factor(t)
        return self.lr * self.lr_decay ** (t // self.lr_decay_every) * factor

    @property
    def optimizer_name(self) -> str:
        """What messages call the optimizer."""
        name = self.step.name if isinstance(self.step, Transform) else getattr(self.step, "__name__", "your own")
        return self.optimizer if self.step is None else str(name)

    @property
    def has_code(self) -> bool:
        """Whether it is more than data, so that engines must call functions in every step."""
        return any(part is not None for part in (self.loss, self.gradient, self.step))

    @property
    def keeps_model(self) -> bool:
        """Whether clients keep the model that they have trained, because the loss reads it."""
        return self.loss is not None and PREVIOUS in self.loss.reads


@dataclass(frozen=True)
class Phase:
    """One federated training: K models of one architecture, a schedule, local training, compression, a server.

    Attributes:
        models: Number of models, K.
        schedule: Writes the plan of each round.
        local: How a client trains.
        server: How uploads become the next state.
        compress: How uploads are compressed.
        pieces: What clients do beside it, before and behind their training, in this order.
        walk: Which client holds which model, where there is no server; None with a server.
        sizes: plan -> training samples of each job `[J]`; None means those of its client.
        steps: (plan, sizes) -> steps of each job and samples in them, `[J]` each, for the clock; None: as `local`.
        traffic: (round, plan) -> bytes up and down of each job, `[J]` each; None: from the server and back.
        remember: (round, state after it, plan of the jobs that counted, losses `[J]`) -> state; None keeps nothing.
        choose: (plan, mean losses of all models at each job's client `[J, K]`) -> plan (IFCA); None: it stays as it is.
        groups: Of asynchronous training: how many sums of uploads one call of a runtime may make; 0 in rounds.
        work: What clients do in place of training the network by descent; None: nothing.
        ask: What clients are asked before the server steps: another state from (state, sums), or None.
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

    def add(self, *pieces: Piece) -> Phase:
        """Returns the phase with further pieces behind its own."""
        return replace(self, pieces=(*self.pieces, *pieces))

    def with_locals(self, change: Callable[[Local], Local]) -> Phase:
        """Returns the phase with other ways to train in each of its trainings."""
        pieces = tuple(piece.with_locals(change) for piece in self.pieces)
        return replace(self, local=change(self.local), pieces=pieces)

    def find(self, kind: type[P]) -> P | None:
        """Returns the piece of a kind; None without one."""
        return next((piece for piece in self.pieces if isinstance(piece, kind)), None)

    @cached_property
    def chain(self) -> tuple[Piece, ...]:
        """All pieces, with the one that a loss needs which reads the model that a client has trained last."""
        return (*self.pieces, KeepModel()) if self.local.keeps_model else self.pieces

    @cached_property
    def own(self) -> tuple[str, ...]:
        """Names of the private vectors that clients keep between rounds."""
        return (*self.compress.own, *(name for piece in self.chain for name in piece.keeps))

    @cached_property
    def stays(self) -> tuple[str, ...]:
        """Layers of the network that never leave the client."""
        return tuple(name for piece in self.pieces for name in piece.stays)

    @cached_property
    def up_vectors(self) -> int:
        """Vectors of a model's length that a client sends beside its delta."""
        return sum(piece.up_vectors for piece in self.pieces)

    @cached_property
    def down_vectors(self) -> int:
        """Vectors of a model's length that a client receives for a job: the model, and those beside it."""
        return 1 + sum(piece.down_vectors for piece in self.pieces)

    @cached_property
    def passes(self) -> int:
        """Trainings of a job, each of which deals its batches anew."""
        return 1 + sum(piece.passes for piece in self.pieces)

    @cached_property
    def locals(self) -> tuple[Local, ...]:
        """How clients train in each of them."""
        return (self.local, *(local for piece in self.pieces for local in piece.locals))

    @cached_property
    def couples(self) -> bool:
        """Whether the models of a client read each other in every step."""
        return any(piece.couples for piece in self.pieces)

    @property
    def together(self) -> int:
        """Jobs of a client that must share a block."""
        return self.models if self.couples else 1

    @cached_property
    def nets(self) -> Sequence[Net]:
        """The network that each tier trains; empty: all train the whole one."""
        return next((piece.nets for piece in self.pieces if piece.nets), ())

    def columns(self, t: int, tier: int) -> Tensor:
        """Returns where the numbers of a tier's network lie in the row of the whole one, `[s]`, rising."""
        return next(piece for piece in self.pieces if piece.nets).columns(t, tier)

    @property
    def hands_on(self) -> bool:
        """Whether clients hand models on to each other, without a server."""
        return self.walk is not None

    @property
    def weighs(self) -> bool:
        """Whether known clients weigh the answers of all models by weights of their own."""
        return any(piece.weighs for piece in self.pieces)

    @property
    def is_personal(self) -> bool:
        """Whether known clients have models of their own that answer for them."""
        return any(piece.answers for piece in self.pieces)


class Answer(NamedTuple):
    """The models that answer for a state, A in each world.

    Attributes:
        state: Holds the models that answer, `[R * A, d]`.
        models: Number of models of a world, A.
        weights: Weights of the models, `[R, A]`; None means equal ones.
        spread: Variances `[R, d]` or covariances `[R, d, d]` of a linear model's parameters; None without any.
        noise: Observation noise variance that the method knows, `[R]`, in standardized units; None if it knows none.
        owner: The client whose upload each model is, `[R, A]`, -1 for models that are nobody's; None if all are.
        tiers: Weights of the models for the known clients of each of T tiers, `[R, T, A]`: none but those of `weights`,
            among which a finite `predict.gamma` weighs; None: as for everybody.
        combine: (world, probabilities `[A, n, C]` of its models) -> those of the ensemble `[n, C]`, for all clients;
            None: their weighted mean.
    """

    state: State
    models: int
    weights: FloatArray | None = None
    spread: Tensor | None = None
    noise: FloatArray | None = None
    owner: IntArray | None = None
    tiers: FloatArray | None = None
    combine: Combine | None = None


@dataclass(frozen=True)
class Method:
    """A method of a paper: one federated training, and the models that answer.

    Attributes:
        name: As in the scenario.
        phase: The federated training.
        answer: The models that answer for a state; None means the trained models themselves.
        prepare: (state behind `Server.init`, `pooled(world)`: all training rows) -> the first state; None: as drawn.
        one_model_per_client: Whether known client i answers with model i; as a new client, where model i has no weight.
        parts: Of a stack: the training of each base, then that of the meta model.
        join: Of a stack: what its parts learn from each other behind their own servers' steps; None: nothing.
        explain_end: Why training is over, from the state, in words; empty while it goes on. None: it never is.
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
    """What the trained jobs of a plan leave for the run's tables.

    Attributes:
        loss: Mean training loss of each job, `[J]`, in the order of the plan.
        errors: Traceback of each job that failed, by its place in the plan.
    """

    loss: FloatArray
    errors: Mapping[int, str] = {}


# ---------------------------------------------------------------------------------------------------------------------
# A student at the server: what it learns from, and what computes it.

MOMENTUM = 0.9  # Chen and Chao 2021, appendix


class Teaching(NamedTuple):
    """What a student learns, and by which rule.

    Attributes:
        x: Network inputs, `[n, ...]`.
        target: What it aims at on each: probabilities, or outputs in a regression, `[n, C]`.
        batch_size: The most inputs of a batch.
        optimizer: SGD with a momentum of 0.9, or Adam with torch's defaults.
    """

    x: Tensor
    target: Tensor
    batch_size: int
    optimizer: Literal["momentum", "adam"]


Ask = Callable[[Net, Tensor, Tensor], Tensor]  # (network, model `[d]`, inputs `[n, ...]`) -> outputs `[n, C]`
Train = Callable[[Sequence[Tensor], Sequence[float]], Tensor]  # (inputs of each batch, rate of each) -> student `[d]`


class StudentEngine(NamedTuple):
    """What computes teachers and students.

    Attributes:
        ask: Answers with a model's raw outputs, in float64.
        begin: (network, start `[d]`, teaching) -> a function that takes the next steps and returns the student behind
            them. A step follows the mean gradient of its batch; buffers stay the start's, and dropout is off.
    """

    ask: Ask
    begin: Callable[[Net, Tensor, Teaching], Train]


EngineOf = Callable[[Net], StudentEngine]
