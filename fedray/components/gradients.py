"""Changes of the local gradient: sharpness-aware minimization, layers that train in turns, a contrastive loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedray.core.method import LocalLoss, LossContext, StepContext, Transform, find_placing, start_empty

_TINY = 1e-12  # smallest divisor, for the norm of a gradient that is 0


def sharpness_aware(rho: float) -> Transform:
    """Returns a transformation that takes the gradient at `w + rho g / |g|` instead of the gradient g at w.

    Source: Foret, Kleiner, Mobahi, Neyshabur, *Sharpness-Aware Minimization*, ICLR 2021, equations 2 and 3.

    Args:
        rho: Radius of the neighborhood, at least 0.
    """

    def update(
        gradient: Tensor, state: tuple[()], parameters: Tensor, context: StepContext
    ) -> tuple[Tensor, tuple[()]]:
        away = gradient * (rho / gradient.norm().clamp(min=_TINY))
        return context.gradient_at(parameters + away), state

    return Transform(start_empty, update, name="sharpness_aware")


def chain(*rules: Transform | None) -> Transform | None:
    """Joins transformations one after another, the first one on the gradient of the data; None if all are None.

    Raises:
        BadInput: Two of them choose where a step takes its gradient.
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
    return Transform(init, update, bool(asked), name, several, None if placing is None else placing.at)


def train_in_turns(head: Tensor, body: int, epochs: int, momentum: float) -> Transform:
    """Returns SGD that trains the head first, and in the last epochs everything but the head.

    Args:
        head: Mask of the parameters that belong to the head, `[p]`.
        body: Number of last epochs in which the body trains, at most `epochs`; it has at least one step.
        epochs: Number of epochs of a local training.
        momentum: Momentum of SGD, 0 to 1; parameters that do not train have none.

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
# A loss that compares features: near those of the broadcast model, and far from those of the client's previous model.


def contrast_models(mu: float, temperature: float) -> LocalLoss:
    """Returns the network's loss plus `mu` times a contrastive loss of features (MOON).

    The contrastive loss is `-log(e^(s(z, z_glob)/tau) / (e^(s(z, z_glob)/tau) + e^(s(z, z_prev)/tau)))`. Here s is the
    cosine of the angle between two features. They are z of the trained model, z_glob of the broadcast model, and z_prev
    of the client's previous model.

    Source: Li, He, Song, *Model-Contrastive Federated Learning*, CVPR 2021, equations 3 and 4.

    Args:
        mu: Weight of the contrastive loss, at least 0.
        temperature: tau, above 0.

    Example:
        >>> contrast_models(1.0, 0.5).reads
        ('features', 'broadcast', 'previous')
    """

    def loss(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        z, others = context.features, (context.broadcast.features, context.previous.features)
        near = torch.stack([functional.cosine_similarity(z, other, dim=-1) for other in others], dim=-1)  # [B, 2]
        return context.objective(outputs, targets) - mu * functional.log_softmax(near / temperature, dim=-1)[..., 0]

    return LocalLoss(loss, ("features", "broadcast", "previous"), name="moon")
