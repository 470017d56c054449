"""What a method or a user adds to local training: a loss, changes of gradient, learning rate and inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedray.core.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

# ---------------------------------------------------------------------------------------------------------------------
# What a method, or a user, adds to local training: a loss, changes of the gradient, a course of the learning rate.
#
# The functions are written for one client. Engines map them over the lanes of a block (`torch.func.vmap`) where that
# works, and else call them lane by lane; which of the two is in the manifest (`engine.why`).

SENT = "broadcast/"  # how the names of a server's extra tensors begin of which clients get rows
ENSEMBLE = "ensemble"
HEADS = "heads"
READS = ("inputs", "features", "network", "broadcast", "previous", ENSEMBLE, HEADS)  # what a loss may ask for
RateKind = Literal["constant", "cosine", "linear", "step"]


class Seen(NamedTuple):
    """What a model says about a batch.

    Attributes:
        outputs: Its raw outputs, `[B, C]`.
        features: The inputs of its last layer, `[B, f]`, where the loss reads `features`; else None.
    """

    outputs: Tensor
    features: Any


class LossContext(NamedTuple):
    """What a loss may read beside outputs and targets.

    Attributes:
        objective: The network's own loss, (outputs, targets) -> `[B]`.
        round: The round, from 0.
        client: The client's id, a tensor of one number.
        model: Which of the K models is trained, from 0, a tensor of one number.
        inputs: What the network was given, `[B, ...]`, where the loss reads `inputs`; else None.
        features: The inputs of the network's last layer, `[B, f]`, where the loss reads `features`; else None.
        network: Inputs `[n, ...]` -> raw outputs `[n, C]` of the model as it is now, in training mode and with
            gradient, where the loss reads `network`; else None.
        broadcast: What the broadcast model says (`Seen`), in evaluation mode and without gradient, where the loss reads
            it; else None.
        previous: What the model says that the client had trained last time (the broadcast one, if there is none), where
            the loss reads it; else None.
        ensemble: The raw outputs of all K models as the round began, `[K, B, C]`, in evaluation mode and without
            gradient, where the loss reads it; else None.
        shared: The model's row of the server's tensor that the loss names; None where it names none.
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
    """What the code of a local training may read of the lanes of a block.

    Attributes:
        round: The round, from 0.
        client: Ids of the clients, `[W]` int64.
        model: Which of the K models each lane trains, `[W]` int64.
        broadcast: The models that they received, `[W, d]`.
        previous: The models that they trained last, `[W, d]`; None where nothing reads them.
        ensemble: All models of each lane's world as the round began, `[W, K, d]`; None where nothing reads them.
        size: Training rows of the clients, `[W]` int64; None in a trial.
        shared: The models' rows of the server's tensor that the loss names, `[W, ...]`; None where it names none.
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
    """A loss instead of the network's own.

    Attributes:
        function: (outputs `[B, C]`, targets `[B]` or `[B, q]`, context) -> the loss of each row, `[B]`.
        reads: Which of `READS` the context has; with `heads` the outputs are `[B, H, C]`, those of H heads, which the
            network puts out in training.
        name: What messages call it.
        shared: Name of a tensor in the server's `state.extra` of which clients get their model's row: `broadcast/...`.
        example: Such a row, of the first models; fedray fills it in.

    Example:
        Label smoothing, and a gradient whose norm is at most 1.

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
    """What a transformation of the gradient may read beside the gradient and the parameters `[p]`.

    Attributes:
        round: The round, from 0.
        client: The client's id, a tensor of one number.
        step: The step of this local training, from 0.
        steps: How many steps it has, a tensor of one number.
        lr: Learning rate of the round.
        rows: Rows of the batch, a tensor of one number.
        gradient_at: Parameters `[p]` -> the gradient of the batch's mean loss there, `[p]`.
        sample_gradients: Parameters `[p]` -> the gradient of each row's loss there, `[B, p]`; 0 for padding.
        noise: Standard normal numbers of this client and step, `[p]` or as many as the transformation says, where it
            asks for them; else None.
        size: Training rows of the client, a tensor of one number; 1 in a trial.
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
    """A transformation of the gradient: a pair of functions as in optax, for one client's parameters as one vector.

    Attributes:
        init: Parameters `[p]` -> what it remembers: a tensor, or tuples, lists and dicts of tensors; `()` for nothing.
        update: (gradient `[p]`, state, parameters `[p]`, context) -> (transformed gradient `[p]`, state).
        noise: Whether the context has noise.
        name: What messages call it.
        numbers: How many numbers of noise the context has; None: one for each parameter.
        at: (parameters `[p]`, noise) -> the parameters `[p]` at which a step takes its gradient; None: where it is.
    """

    init: Callable[[Tensor], Any]
    update: Callable[[Tensor, Any, Tensor, StepContext], tuple[Tensor, Any]]
    noise: bool = False
    name: str = "its own"
    numbers: int | None = None
    at: Callable[[Tensor, Tensor], Tensor] | None = None


def find_placing(rules: Sequence[Transform]) -> Transform | None:
    """Returns the transformation that says where a step takes its gradient; None if the step takes it where it is.

    Args:
        rules: Those of one local training.

    Raises:
        BadInput: Two of them say it.
    """
    found = [rule for rule in rules if rule.at is not None]
    if len(found) > 1:
        names = " and ".join(rule.name for rule in found)
        raise BadInput(f"{names} both say where a step takes its gradient (at): leave one of them out")
    return found[0] if found else None


class RateSchedule(NamedTuple):
    """A course of the learning rate over the rounds of a run, as a factor; within a round the rate stays.

    Attributes:
        kind: constant; cosine and linear fall to `floor` in `rounds` rounds and stay there; step falls at some rounds.
        rounds: Length of the fall of cosine and linear, which need it.
        floor: The last factor of cosine and linear.
        warmup: Rounds in which the factor rises to what the kind says: `(t + 1) / warmup` of it in round t.
        at: The rounds of a step, from 0.
        gamma: The factor of each step.
        restart: Whether cosine and linear begin to fall again every `rounds` rounds (warm restarts), and do not stay.

    Source: Loshchilov, Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*, ICLR 2017, equation 5.
    """

    kind: RateKind = "constant"
    rounds: int = 0
    floor: float = 0.0
    warmup: int = 0
    at: tuple[int, ...] = ()
    gamma: float = 0.1
    restart: bool = False

    def factor(self, t: int) -> float:
        """Returns the factor of round t, from 0."""
        rise = min(1.0, (t + 1) / self.warmup) if self.warmup else 1.0
        if self.kind == "step":
            return rise * self.gamma ** sum(t >= at for at in self.at)
        if self.kind == "constant":
            return rise
        share = t % self.rounds / self.rounds if self.restart else min(1.0, t / self.rounds)
        fall = 0.5 * (1.0 + math.cos(math.pi * share)) if self.kind == "cosine" else 1.0 - share
        return rise * (self.floor + (1.0 - self.floor) * fall)


def reads_ensemble(loss: LocalLoss | None) -> bool:
    """Whether a loss reads the outputs of all K models, so that clients need them all."""
    return loss is not None and ENSEMBLE in loss.reads


def count_shared(loss: LocalLoss | None) -> int:
    """Counts the numbers that a job receives because a loss reads a tensor of the server."""
    return 0 if loss is None or loss.example is None else int(loss.example.numel())


def start_empty(_parameters: Tensor) -> tuple[()]:
    """Returns the `init` of a transformation that remembers nothing."""
    return ()


# ---------------------------------------------------------------------------------------------------------------------
# Random changes of the inputs that clients train on, drawn anew in every step; models answer on rows as they are.

AugmentationForm = Literal["rows", "row", "batch"]


class Augmentation(NamedTuple):
    """A random change of rows.

    Attributes:
        function: What changes them. Inputs are as the data set has them, before they are standardized, and keep their
            shape; targets are classes, or in their own units.
        form: What the function takes: `rows`, (inputs `[n, ...]` of several clients and steps, uniform numbers
            `[n, numbers]`) -> inputs; `row`, one input -> the input; `batch`, (inputs `[B, ...]`, targets `[B]` or
            `[B, q]`) of one client and step -> inputs, or inputs and targets.
        name: What messages call it.
        numbers: How many uniform numbers a row of the form `rows` gets.
    """

    function: Callable[..., Any]
    form: AugmentationForm
    name: str
    numbers: int = 0
