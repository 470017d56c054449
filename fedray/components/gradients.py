"""Changes of the local gradient that methods are composed of: sharpness-aware ones, and layers that take turns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedray.core.method import LocalLoss, LossContext, StepContext, Transform, find_placing, start_empty

_TINY = 1e-12  # under the norm of a gradient that may be 0


def sharpness_aware(rho: float) -> Transform:
    """Returns the gradient at `w + rho g / |g|` instead of the gradient g at w.

    Source: Foret, Kleiner, Mobahi, Neyshabur, *Sharpness-Aware Minimization*, ICLR 2021, equations 2 and 3.

    Args:
        rho: radius of the neighborhood, at least 0.
    """

    def update(
        gradient: Tensor, state: tuple[()], parameters: Tensor, context: StepContext
    ) -> tuple[Tensor, tuple[()]]:
        away = gradient * (rho / gradient.norm().clamp(min=_TINY))
        return context.gradient_at(parameters + away), state

    return Transform(start_empty, update, name="sharpness_aware")


def chain(*rules: Transform | None) -> Transform | None:
    """Transformations one after another, the first one on the data's gradient; None where there is none.

    Raises:
        BadInput: Two of them say where a step takes its gradient.
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
    """SGD that trains the head first, and in the last epochs everything but the head.

    Args:
        head: which parameters belong to the head, `[p]`.
        body: epochs of the body, at most `epochs`; it has at least one step.
        epochs: epochs of a local training.
        momentum: of SGD, 0 to 1; what rests has none.

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
# A loss that compares features: those of the broadcast model are near, those of the client's model before are far.


def contrast_models(mu: float, temperature: float) -> LocalLoss:
    """The network's loss plus `mu` times `-log(e^(s(z, z_glob)/tau) / (e^(s(z, z_glob)/tau) + e^(s(z, z_prev)/tau)))`.

    Here s is the cosine of the angle between two features.

    Source: Li, He, Song, *Model-Contrastive Federated Learning*, CVPR 2021, equations 3 and 4.

    Args:
        mu: weight of the comparison, at least 0.
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
