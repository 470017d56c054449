"""Totals to which statistics are added as they come, row by row, so that nobody holds more than one answer at a time.

Exact sums do not depend on order, and a row of zeros adds nothing: statistics travel as the rows that jobs were for.

Example:
    >>> parts = [ExactSum({0: torch.tensor([[1.0], [0.0]])}), ExactSum({0: torch.tensor([[2.0], [5.0]])})]
    >>> totals = Totals()
    >>> for part in parts:
    ...     totals.add(thin({"sum": part}))
    >>> totals.stats["sum"].value().tolist()
    [[3.0], [5.0]]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from fedray.core.exact_sum import ExactSum, map_arrays
from fedray.core.types import IntArray, Stats


class SomeRows(NamedTuple):
    """The rows of a matrix `[G, d]` that are not 0.

    Attributes:
        groups: G.
        places: Which rows they are, `[m]`.
        rows: Their numbers, `[m, d]`.
    """

    groups: int
    places: IntArray
    rows: Any


def pick_rows(matrix: Any) -> SomeRows:
    """The rows of an array `[G, d]` that are not 0; without a copy where they lie side by side.

    Example:
        >>> pick_rows(np.array([[0.0, 0.0], [0.0, 7.0]]))
        SomeRows(groups=2, places=array([1]), rows=array([[0., 7.]]))
    """
    index = np.flatnonzero([row.any() for row in matrix])
    first, beyond = (int(index[0]), int(index[-1]) + 1) if len(index) else (0, 0)
    side_by_side = beyond - first == len(index)
    return SomeRows(len(matrix), index, matrix[first:beyond] if side_by_side else matrix[index])


def thin(stats: Stats) -> Stats:
    """Statistics for a message: NumPy arrays, of exact sums only the rows that are not 0."""
    arrays = map_arrays(stats, lambda tensor: tensor.numpy())
    sums = {name: value for name, value in arrays.items() if isinstance(value, ExactSum)}
    return arrays | {name: map_arrays({name: value}, pick_rows)[name] for name, value in sums.items()}


class Totals:
    """Statistics to which others are added in place.

    Attributes:
        stats: The totals; empty before anything was added.
    """

    def __init__(self) -> None:
        self.stats: Stats = {}

    def add(self, thinned: Stats) -> None:
        """Adds what `thin` has made; nothing of it is kept."""
        for name, value in thinned.items():
            if isinstance(value, ExactSum):
                limbs = self.stats.setdefault(name, ExactSum({})).limbs
                for limb, some in value.limbs.items():
                    limbs[limb] = _add_rows(limbs.get(limb), some)
            else:
                own = map_arrays({name: value}, lambda array: torch.from_numpy(np.array(array)))[name]
                self.stats[name] = self.stats[name] + own if name in self.stats else own


def _add_rows(total: torch.Tensor | None, some: Any) -> torch.Tensor:
    """Adds rows in place; those of which none came stay zeros that take no memory."""
    out = np.zeros((some.groups, some.rows.shape[1])) if total is None else total.numpy()
    for g, row in zip(some.places, some.rows, strict=True):
        out[g] += row
    return torch.from_numpy(out)


def sum_bytes(thinned: Stats) -> int:
    """Bytes of the arrays that `thin` has made, as they travel.

    Example:
        >>> sum_bytes(thin({"sum": ExactSum({0: torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)})}))
        16
    """
    found: list[int] = []

    def count(part: Any) -> Any:
        found.append(part.rows.nbytes if isinstance(part, SomeRows) else part.nbytes)
        return part

    map_arrays(thinned, count)
    return sum(found)
