"""Changes the local gradient: corrections, sharpness-aware steps, layers that train in turns, a contrastive loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedray.core.method import LocalLoss, LossContext, Piece, StepContext, Transform, find_placing, start_empty
from fedray.training.block import weigh_gradients
from fedray.training.update import Update

# ---------------------------------------------------------------------------------------------------------------------
# Vectors that are sent with the models in every job.


@dataclass(frozen=True)
class Vectors(Piece):
    """Counts vectors of a model's length that a job sends or receives in addition to the model.

    Attributes:
        up: Number of vectors that a client sends.
        down: Number of vectors that a client receives.
        model: Whether a client receives a model at all.

    Example:
        >>> Vectors(down=1).down_vectors, Vectors(model=False).down_vectors  # one vector more; no model, so one fewer
        (1, -1)
    """

    up: int = 0
    down: int = 0
    model: bool = True

    @property
    def up_vectors(self) -> int:
        return self.up

    @property
    def down_vectors(self) -> int:
        return self.down - (not self.model)


# ---------------------------------------------------------------------------------------------------------------------
# A private vector of each client that corrects its gradient (SCAFFOLD, FedDyn).


@dataclass(frozen=True)
class Correction(Piece):
    """Corrects the local gradient by a private vector that each client keeps for each model.

    If the server sends a vector, too, a client sends the delta and the change of its private vector.

    Attributes:
        name: Name of the private vector.
        offset: A function that takes the private vectors and the server's vectors (or None), `[W, d]` each for W jobs.
            It returns the vectors that are added to the gradients, `[W, d]`.
        update: A function that takes the private vectors, the server's vectors (or None), the deltas, and the length of
            each training, `[W, 1]`. It returns the private vectors after local training, `[W, d]`. The length is the
            learning rate times the sum that `block.weigh_gradients` returns. Without momentum, this sum is the number
            of steps. So `-delta / length` is a mean gradient.
        shared: Name of the vector that the server sends with each model. None means that the server sends no vector.

    Example:
        >>> dynamic = Correction("dynamic", lambda h, _shared: -h, lambda h, _shared, delta, _length: h - 0.1 * delta)
        >>> dynamic.keeps, dynamic.up_vectors, dynamic.down_vectors
        (('dynamic',), 0, 0)
    """

    takes: ClassVar[tuple[str, ...]] = ("offset", "update")

    name: str
    offset: Callable[[Tensor, Tensor | None], Tensor]
    update: Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]
    shared: str | None = None

    @property
    def keeps(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def up_vectors(self) -> int:
        return int(self.shared is not None)

    @property
    def down_vectors(self) -> int:
        return int(self.shared is not None)

    def begin(self, update: Update) -> Update:
        return update._replace(offset=self.offset(update.read(self.name), self._shared(update)))

    def end(self, update: Update) -> Update:
        assert update.block is not None and update.delta is not None
        before, delta = update.read(self.name), update.delta
        length = torch.from_numpy(weigh_gradients(update.jobs.steps, update.local) * update.block.lr).to(delta)[:, None]
        after = self.update(before, self._shared(update), delta, length)
        sent = None if self.shared is None else after - before
        return update.keep(**{self.name: after})._replace(beside=sent)

    def _shared(self, update: Update) -> Tensor | None:
        """Returns the vectors that the server sends to W clients, `[W, d]`, or None if it sends no vectors."""
        if self.shared is None:
            return None
        device = update.broadcast.device
        return update.state.extra[self.shared].to(device).index_select(0, torch.from_numpy(update.jobs.row).to(device))


# ---------------------------------------------------------------------------------------------------------------------
# Changes of the local gradient: sharpness-aware minimization, layers that train in turns, a contrastive loss.

_TINY = 1e-12  # the smallest divisor; it replaces the norm of a gradient that is 0


def sharpness_aware(rho: float) -> Transform:
    """Returns a transformation that replaces the gradient g at w by the gradient at `w + rho g / |g|`, rho >= 0.

    Source: Foret, Kleiner, Mobahi, Neyshabur, *Sharpness-Aware Minimization*, ICLR 2021, equations 2 and 3.
    """

    def update(
        gradient: Tensor, state: tuple[()], parameters: Tensor, context: StepContext
    ) -> tuple[Tensor, tuple[()]]:
        away = gradient * (rho / gradient.norm().clamp(min=_TINY))
        return context.gradient_at(parameters + away), state

    return Transform(start_empty, update, name="sharpness_aware", gradients=1)


def chain(*rules: Transform | None) -> Transform | None:
    """Joins transformations of the gradient into one, which applies them in order. Returns None if all are None.

    The first transformation gets the gradient of the loss. Each later transformation gets
    the result of the transformation before it.

    Raises:
        BadInput: Two transformations choose the parameters at which a step computes its gradient.
    """
    known = [rule for rule in rules if rule is not None]
    if len(known) < 2:
        return known[0] if known else None

    def init(parameters: Tensor) -> tuple[Any, ...]:
        return tuple(rule.init(parameters) for rule in known)

    def update(gradient: Tensor, state: Any, parameters: Tensor, context: StepContext) -> tuple[Tensor, Any]:
        states = []
        for rule, own in zip(known, state, strict=True):
            gradient, own = rule.update(gradient, own, parameters, context)
            states.append(own)
        return gradient, tuple(states)

    asked = [rule.numbers for rule in known if rule.noise]
    several = None if None in asked else max((number for number in asked if number is not None), default=None)
    name, placing = ", then ".join(rule.name for rule in known), find_placing(known)
    at, gradients = None if placing is None else placing.at, sum(rule.gradients for rule in known)
    return Transform(init, update, bool(asked), name, several, at, gradients)


def train_in_turns(head: Tensor, body: int, epochs: int, momentum: float) -> Transform:
    """Returns SGD that trains some parameters (the head) first, and the rest (the body) in the last epochs.

    Args:
        head: Whether each of the p parameters belongs to the head, `[p]`.
        body: Number of last epochs that train the body, at most `epochs`. The body is trained for at least one step.
        epochs: Number of epochs of a local training.
        momentum: Momentum of SGD, 0 to 1. Parameters that are not trained have the velocity 0.

    Example:
        >>> import torch
        >>> rule = train_in_turns(torch.tensor([True, False]), body=1, epochs=2, momentum=0.0)
        >>> context = StepContext(0, torch.tensor(0), 3, torch.tensor(4), 0.1, torch.tensor(8), torch.neg, torch.neg)
        >>> rule.update(torch.ones(2), torch.zeros(2), torch.zeros(2), context)[0]  # step 3 of 4: the body
        tensor([0., 1.])
    """

    def update(gradient: Tensor, state: Tensor, _parameters: Tensor, context: StepContext) -> tuple[Tensor, Tensor]:
        is_body = context.step >= context.steps - (context.steps * body // epochs).clamp(min=1)
        active = (head.to(gradient.device) != is_body).to(gradient)
        velocity = active * (momentum * state + gradient)
        return velocity, velocity

    return Transform(torch.zeros_like, update, name="train_in_turns")


# ---------------------------------------------------------------------------------------------------------------------
# A contrastive loss: features should be near those of the broadcast model, and far from those of the previous model.


def contrast_models(mu: float, temperature: float) -> LocalLoss:
    """Returns the network's loss plus `mu` times a contrastive loss of features (MOON).

    The contrastive loss is `-log(e^(s(z, z_glob)/tau) / (e^(s(z, z_glob)/tau) + e^(s(z, z_prev)/tau)))`. Here s is the
    cosine of the angle between two feature vectors, and tau > 0 is the temperature. A sample has the features z in the
    model in training, z_glob in the received model, and z_prev in the client's previous model.

    Source: Li, He, Song, *Model-Contrastive Federated Learning*, CVPR 2021, equations 3 and 4.

    Example:
        >>> contrast_models(1.0, 0.5).reads
        ('features', 'broadcast', 'previous')
    """

    def loss(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        z, others = context.features, (context.broadcast.features, context.previous.features)
        near = torch.stack([functional.cosine_similarity(z, other, dim=-1) for other in others], dim=-1)  # [B, 2]
        return context.objective(outputs, targets) - mu * functional.log_softmax(near / temperature, dim=-1)[..., 0]

    return LocalLoss(loss, ("features", "broadcast", "previous"), name="moon")
