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

FINE = {"mlp": (25, 500), "conv": (15, 100)}  # by engine: points a side, training samples
CLIENTS = 100  # that the samples come from
LARGEST = 100_000  # numbers of a convolution network: a few seconds
MARGIN = 0.25  # of the triangle's width, around it
ROWS = 64  # models evaluated at a time


class Plane(NamedTuple):
    """loss: log mean training loss `[g, g]`, rows upwards; points: the three members `[3, 2]`; extent: left, right,
    bottom, top, in distance between weights."""

    loss: FloatArray
    points: FloatArray
    extent: FloatArray


def plane_basis(models: Tensor) -> tuple[Tensor, FloatArray]:
    """An orthonormal basis `[2, d]` of the plane through three rows `[3, d]` (Gram-Schmidt on w1 - w0 and w2 - w0), and
    where the three lie on it `[3, 2]`.

    Example:
        >>> _, points = plane_basis(torch.tensor([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]]))
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


def measure_loss_plane(study: Study, state: State) -> Plane | None:
    """The plane through members 0, 1 and 2 of the first world; None where there are fewer, or the network is large."""
    engine = choose_engine(study.net)
    if study.method.phase.models < 3 or engine.name not in FINE:
        return None
    if engine.name == "conv" and study.net.layout.d > LARGEST:
        return None
    grid, samples = FINE[engine.name]
    x, y = study.pooled(0, CLIENTS)
    keep = torch.linspace(0, len(x) - 1, min(samples, len(x))).long()
    x, y = x[keep], y[keep]
    axes, points = plane_basis(state.models[:3])
    low, high = points.min(axis=0), points.max(axis=0)
    edge = MARGIN * max(float((high - low).max()), 1e-12)
    across, up = (np.linspace(a - edge, b + edge, grid) for a, b in zip(low, high, strict=True))
    at = torch.from_numpy(np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2))
    rows = (state.models[0].double() + at @ axes).to(state.models.dtype)
    losses = []
    for a in range(0, len(rows), ROWS):
        part = rows[a : a + ROWS]
        counters, n = state.counters[:1].expand(len(part), -1), len(part)
        outputs = engine.outputs(study.net, part, counters, x.expand(n, *x.shape))
        losses.append(per_sample(study.net.objective, outputs, y.expand(n, *y.shape)).double().mean(1))
    log = torch.cat(losses).clamp(min=1e-12).log().reshape(grid, grid)
    return Plane(log.numpy(), points, np.array([across[0], across[-1], up[0], up[-1]]))
