"""Sums that do not depend on their order, and the small arithmetic on rows of parameters.

A float64 sum is exact, and so independent of order, grouping and number of workers, as long as every term is a
multiple of one power of two and every partial sum stays below 2**53 of it. So each number is split into *limbs*:
limb i keeps the multiples of `2 ** -(36 + 28 i)` and hands the remainder to limb i + 1 (the idea of Demmel and Nguyen,
*Parallel Reproducible Summation*, IEEE TC 2015). Sums over clients are then one matrix product per limb: BLAS may add
in any order it likes. Lanes with entries above 1 use a coarse limb too, by a rule on the lane alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedray.core.errors import Overflow
from fedray.core.types import Stats

Parts = Iterator[tuple[int, Tensor]]
COARSE = -1  # multiples of 2**-8, for |x| up to LIMIT
LIMIT = 2.0**28
_CHUNK = 1 << 17  # numbers at a time: 1 MB of float64 stays in a core's cache


def _unit(limb: int) -> float:
    return 2.0 ** -(36 + 28 * limb)


@dataclass(frozen=True)
class ExactSum:
    """Sums of G groups: limb -> `[G, d]` float64; `value` is their one exact total, rounded once to float64."""

    limbs: dict[int, Tensor]

    def __add__(self, other: ExactSum) -> ExactSum:
        keys = self.limbs.keys() | other.limbs.keys()
        both = {k: [s.limbs[k] for s in (self, other) if k in s.limbs] for k in keys}
        return ExactSum({k: v[0] if len(v) == 1 else v[0] + v[1] for k, v in both.items()})

    def value(self) -> Tensor:
        """`[G, d]` float64, finest limb first."""
        total: Tensor | None = None
        for limb in sorted(self.limbs, reverse=True):
            total = self.limbs[limb] if total is None else total + self.limbs[limb]
        assert total is not None
        return total


@dataclass(frozen=True)
class Counts:
    """Integer totals `[...]` int64."""

    total: Tensor

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.total + other.total)


@dataclass(frozen=True)
class Largest:
    """Integer maxima `[...]` int64."""

    most: Tensor

    def __add__(self, other: Largest) -> Largest:
        return Largest(torch.maximum(self.most, other.most))


@dataclass(frozen=True)
class Kept:
    """Uploads themselves, keyed by (replicate, model, client), for the servers that need each of them."""

    rows: dict[tuple[int, int, int], Tensor]

    def __add__(self, other: Kept) -> Kept:
        return Kept({**self.rows, **other.rows})


def exact_sum(x: Tensor, group: Tensor, groups: int, weight: Tensor, limbs: int = 1, square: bool = False) -> ExactSum:
    """Sum of `weight[j] * x[j]` (or `x[j] ** 2`) over the rows j of each group, exactly.

    Args:
        x: `[J, d]` float32 or float64.
        group: `[J]` int64 in [0, groups).
        weight: `[J]` integers.
        limbs: fine limbs kept: 1 resolves 1.5e-11, 2 resolve 5e-20 (for squares of small deltas).

    Raises:
        FedrayError: a row holds NaN, infinity or numbers too large to add (rows are named by their index).
    """
    largest = _largest(x, weight, square)
    pick = torch.zeros(groups, len(x), dtype=torch.float64, device=x.device)
    pick[group, torch.arange(len(x), device=x.device)] = 1.0
    big = largest > 1.0
    kept = (COARSE, *range(limbs)) if bool(big.any()) else tuple(range(limbs))
    out = {k: x.new_empty(groups, x.shape[1], dtype=torch.float64) for k in kept}
    scale = weight.double()[:, None] if bool((weight != 1).any()) else None
    step, alone = max(1024, _CHUNK // max(1, len(x))), len(x) == groups == 1
    for a in range(0, x.shape[1], step):
        here = slice(a, a + step)
        into = out[limbs - 1][:, here] if alone else None  # one row is its own sum
        for k, part in _limbs(x[:, here], into, limbs, scale, square, big if COARSE in out else None):
            if part is not into:
                out[k][:, here] = part if alone else pick @ part
    return ExactSum(out)


def _limbs(x: Tensor, into: Tensor | None, limbs: int, scale: Tensor | None, square: bool, big: Tensor | None) -> Parts:
    """Each limb's part of `scale * x` (or of its square), in float64, the last one in `into` if that is given; the
    coarse one where rows are big."""
    rest = x.to(torch.float64, copy=True) if into is None else into.copy_(x)
    if square:
        rest.square_()
    if scale is not None:
        rest *= scale
    if big is not None:
        head = torch.where(big[:, None], _round(rest, COARSE), 0.0)
        yield COARSE, head
        rest -= head
    for k in range(limbs - 1):
        head = _round(rest, k)
        yield k, head
        rest -= head
    yield limbs - 1, _round_(rest, limbs - 1)


def _largest(x: Tensor, weight: Tensor, square: bool) -> Tensor:
    """The largest magnitude each row adds, `[J]`; rows that cannot be added are an error."""
    most = torch.maximum(x.amax(1), -x.amin(1)).double()  # NaN stays NaN
    most = (most.square() if square else most) * weight.abs()
    if not bool((most < LIMIT).all()):
        raise Overflow([int(j) for j in torch.nonzero(~(most < LIMIT)).flatten()[:5]])
    return most


def check_finite(rows: Tensor) -> None:
    """Raises `Overflow` for rows `[n, d]` whose entries do not add up to a number."""
    bad = torch.nonzero(~torch.isfinite(rows.sum(1))).flatten()
    if len(bad):
        raise Overflow(bad.tolist()[:5])


def _round(x: Tensor, limb: int) -> Tensor:
    """To the nearest multiple of the limb's unit: adding and subtracting 1.5 * 2**52 units rounds in hardware."""
    return _round_(x.clone(), limb)


def _round_(x: Tensor, limb: int) -> Tensor:
    """The same, in place."""
    magic = 1.5 * 2.0**52 * _unit(limb)
    return x.add_(magic).sub_(magic)


def merge_stats(stats: list[Stats]) -> Stats:
    """Adds the statistics of several blocks or actors; any order, same bits."""
    out: Stats = {}
    for one in stats:
        for name, value in one.items():
            out[name] = out[name] + value if name in out else value
    return out


def map_arrays(stats: Stats, change: Callable[[Any], Any]) -> Stats:
    """Applies a function (a move between devices, to or from NumPy) to every array of the statistics."""

    def one(value: Any) -> Any:
        if isinstance(value, ExactSum):
            return ExactSum({k: change(v) for k, v in value.limbs.items()})
        if isinstance(value, Counts):
            return Counts(change(value.total))
        if isinstance(value, Largest):
            return Largest(change(value.most))
        return Kept({k: change(v) for k, v in value.rows.items()})

    return {name: one(value) for name, value in stats.items()}
