"""The loss on the plane through three models (FE Fig. 3): is there a valley between the members of an ensemble?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import FloatArray, State
from fedray.models.loss import per_sample
from fedray.simulation.study import Study
from fedray.training.choice import choose_engine

PLANE_RESOLUTION = {"mlp": (25, 500), "conv": (15, 100)}  # by engine: points a side, training samples
PLANE_CLIENTS = 100  # clients that the samples come from
MOST_CONV_PARAMETERS = 100_000  # of a convolutional network whose plane takes a few seconds
PLANE_MARGIN = 0.25  # around the triangle of the members, as a share of its width
MODELS_AT_ONCE = 64


class LossPlane(NamedTuple):
    """The loss on a plane of weights.

    Attributes:
        loss: log mean training loss on a grid of g points a side, `[g, g]`, rows upwards.
        points: where the three members lie, `[3, 2]`.
        extent: left, right, bottom and top end of the grid, `[4]`, in distance between weights.
    """

    loss: FloatArray
    points: FloatArray
    extent: FloatArray


def find_plane_basis(models: Tensor) -> tuple[Tensor, FloatArray]:
    """An orthonormal basis of the plane through three models, by Gram-Schmidt on w1 - w0 and w2 - w0.

    Args:
        models: one row a model, `[3, d]`.

    Returns:
        The basis `[2, d]`, and where the three models lie on it, `[3, 2]`.

    Example:
        >>> _, points = find_plane_basis(torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]]))
        >>> points.tolist()
        [[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]]
    """
    w = models.double()
    a, b = w[1] - w[0], w[2] - w[0]
    e1 = a / a.norm().clamp(min=1e-300)
    rest = b - (b @ e1) * e1
    e2 = rest / rest.norm().clamp(min=1e-300)
    axes = torch.stack([e1, e2])
    return axes, ((w - w[0]) @ axes.T).numpy()


def measure_loss_plane(study: Study, state: State) -> LossPlane | None:
    """The plane through members 0, 1 and 2 of the first world; None where there are fewer, or the network is large."""
    engine = choose_engine(study.net, example=study.example)
    if study.method.phase.models < 3 or engine.name not in PLANE_RESOLUTION:
        return None
    if engine.name == "conv" and study.net.layout.d > MOST_CONV_PARAMETERS:
        return None
    grid, samples = PLANE_RESOLUTION[engine.name]
    x, y = study.pool_rows(0, PLANE_CLIENTS)
    chosen = torch.linspace(0, len(x) - 1, min(samples, len(x))).long()
    x, y = x[chosen], y[chosen]

    def measure(rows: Tensor) -> Tensor:
        n = len(rows)
        outputs = engine.outputs(study.net, rows, state.counters[:1].expand(n, -1), x.expand(n, *x.shape))
        return per_sample(study.net.objective, outputs, y.expand(n, *y.shape)).double().mean(1)

    axes, points = find_plane_basis(state.models[:3])
    low, high = points.min(axis=0), points.max(axis=0)
    edge = PLANE_MARGIN * max(float((high - low).max()), 1e-12)
    across, up = (np.linspace(a - edge, b + edge, grid) for a, b in zip(low, high, strict=True))
    at = torch.from_numpy(np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2))
    rows = (state.models[0].double() + at @ axes).to(state.models.dtype)
    losses = torch.cat([measure(part) for part in torch.split(rows, MODELS_AT_ONCE)])
    log = losses.clamp(min=1e-12).log().reshape(grid, grid)
    return LossPlane(log.numpy(), points, np.array([across[0], across[-1], up[0], up[-1]]))
