"""Servers that survive bad clients: a robust center of the uploads instead of their mean.

They need every upload (N x d numbers at the coordinator), keyed by (world, model, client), so results do not depend on
the order of arrival. Each works per model: with K models the n uploads are those of one model in one round.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedray.components.aggregation import Rows, apply_delta, group_totals, group_uploads, keep_uploads, no_extra
from fedray.core.errors import Overflow
from fedray.core.exact_sum import LIMIT
from fedray.core.method import Server
from fedray.core.types import State, Stats, Uploads

Center = Callable[[Tensor], Tensor]  # deltas `[n, d]`, sorted by client -> `[d]` float64
_CHUNK = 1 << 16  # columns at a time


def robust_server(rows: Rows, center: Center) -> Server:
    """`w_k <- w_k + center(deltas that started from w_k)`; every upload weighs the same.

    Args:
        rows: the rows of the state.
        center: of a model's deltas.
    """

    def reduce(uploads: Uploads) -> Stats:
        bad = ~(uploads.delta.abs().amax(1) < LIMIT)  # NaN is bad, too
        if bool(bad.any()):
            raise Overflow([int(j) for j in torch.nonzero(bad).flatten()[:5]])
        group = rows.of(uploads)
        return {
            "each": keep_uploads(uploads, uploads.delta.clone()),
            **group_totals(uploads, group, torch.ones_like(group), rows.number),
        }

    def step(state: State, stats: Stats, _t: int) -> State:
        delta = torch.zeros(state.models.shape, dtype=torch.float64)
        for row, each in group_uploads(rows, stats["each"]).items():
            delta[row] = center(torch.stack([sent for _, sent in each]))
        return apply_delta(state, delta, stats)

    return Server(no_extra, reduce, step, keeps=True)


def median(x: Tensor) -> Tensor:
    """The median of each coordinate (Yin et al. 2018, Alg. 1, option I); of an even number the mean of the middle two.

    Example:
        >>> median(torch.tensor([[1.0], [9.0], [2.0], [4.0]])).tolist()
        [3.0]
    """
    n = len(x)
    return _by_column(x, lambda part: part[(n - 1) // 2 : n // 2 + 1].mean(0))


def trimmed_mean(b: int) -> Center:
    """Of each coordinate the mean without its b largest and b smallest values (Yin et al. 2018, option II).

    Fewer than 2 b + 1 uploads lose as many as leave something: then it is the median.

    Example:
        >>> trimmed_mean(1)(torch.tensor([[1.0], [9.0], [2.0], [4.0]])).tolist()
        [3.0]
    """

    def center(x: Tensor) -> Tensor:
        cut = min(b, (len(x) - 1) // 2)
        return _by_column(x, lambda part: part[cut : len(x) - cut].mean(0))

    return center


def _by_column(x: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
    """`score` of the sorted columns, `[d]` float64."""
    parts = [score(part.sort(0).values.double()) for part in torch.split(x, _CHUNK, dim=1)]
    return torch.cat(parts)


def krum(f: int, trainable: int, multi: bool = False) -> Center:
    """The upload nearest to its n - f - 2 nearest others, or (`multi`) the mean of the n - f best ones.

    Distances are taken over the trainable numbers. The guarantee needs n >= 2 f + 3 uploads of a model; with fewer, at
    least one neighbor is looked at. Source: Blanchard et al. 2017, section 4.

    Args:
        f: the bad uploads that it survives, at least 0.
        trainable: p, the numbers of a row that are compared.
        multi: whether several uploads are averaged.

    Example:
        >>> krum(1, 1)(torch.tensor([[1.0], [1.1], [1.2], [0.9], [50.0]])).round(decimals=3).tolist()
        [1.0]
    """

    def center(x: Tensor) -> Tensor:
        n = len(x)
        order = torch.argsort(_crowding(x[:, :trainable], max(1, n - f - 2)), stable=True)
        best = order[: max(1, n - f) if multi else 1].sort().values
        return x[best].double().mean(0)

    return center


def _crowding(x: Tensor, neighbors: int) -> Tensor:
    """Sum of squared distances of each row to its nearest others, `[n]` float64."""
    if len(x) == 1:
        return torch.zeros(1, dtype=torch.float64)
    square = torch.zeros(len(x), len(x), dtype=torch.float64)
    for part in torch.split(x, _CHUNK, dim=1):
        square += torch.cdist(part.double(), part.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    square.fill_diagonal_(float("inf"))
    return square.sort(1).values[:, : min(neighbors, len(x) - 1)].sum(1)
