"""A loss that compares features: those of the broadcast model are near, those of the client's model before are far.

Example:
    >>> contrast_models(1.0, 0.5).reads
    ('features', 'broadcast', 'previous')
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedray.core.local import LocalLoss, LossContext


def contrast_models(mu: float, temperature: float) -> LocalLoss:
    """The network's loss plus `mu` times `-log(e^(s(z, z_glob)/tau) / (e^(s(z, z_glob)/tau) + e^(s(z, z_prev)/tau)))`.

    Here s is the cosine of the angle between two features.

    Source: Li, He, Song, *Model-Contrastive Federated Learning*, CVPR 2021, equations 3 and 4.

    Args:
        mu: weight of the comparison, at least 0.
        temperature: tau, above 0.
    """

    def loss(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        z, others = context.features, (context.broadcast.features, context.previous.features)
        near = torch.stack([functional.cosine_similarity(z, other, dim=-1) for other in others], dim=-1)  # [B, 2]
        return context.objective(outputs, targets) - mu * functional.log_softmax(near / temperature, dim=-1)[..., 0]

    return LocalLoss(loss, ("features", "broadcast", "previous"), name="moon")
