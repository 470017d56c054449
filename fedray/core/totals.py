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

from collections.abc import Sequence
from functools import partial
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


def cut_columns(thinned: Stats, parts: int) -> list[Stats]:
    """Cuts what `thin` has made into parts of nearly equal numbers of columns; what is no exact sum is in the first.

    Example:
        >>> cut = cut_columns({"sum": ExactSum({0: SomeRows(1, np.array([0]), np.array([[1.0, 2.0, 3.0]]))})}, 2)
        >>> [part["sum"].limbs[0].rows.tolist() for part in cut]
        [[[1.0]], [[2.0, 3.0]]]
    """

    def cut(part: int, some: SomeRows) -> SomeRows:
        width = some.rows.shape[1]
        return some._replace(rows=some.rows[:, part * width // parts : (part + 1) * width // parts].copy())

    sums = {name: value for name, value in thinned.items() if isinstance(value, ExactSum)}
    rest = {name: value for name, value in thinned.items() if name not in sums}
    return [map_arrays(sums, partial(cut, part)) | (rest if part == 0 else {}) for part in range(parts)]


def join_columns(parts: Sequence[Stats]) -> Stats:
    """What `cut_columns` has cut, after each part was added to the same parts of others.

    Args:
        parts: All parts, in order, with the same exact sums, each with the same limbs.
    """
    out = dict(parts[0])
    for name, value in parts[0].items():
        if isinstance(value, ExactSum):
            sums = [part[name] for part in parts]
            out[name] = ExactSum({limb: _join_rows([_limb(one, limb) for one in sums]) for limb in value.limbs})
    return out


def _limb(value: Any, limb: int) -> SomeRows:
    rows = value.limbs[limb]
    assert isinstance(rows, SomeRows)
    return rows


def _join_rows(parts: Sequence[SomeRows]) -> Any:
    """Rows whose columns lie in several matrices; a row that one of them leaves out is 0 there."""
    places = np.unique(np.concatenate([part.places for part in parts]))
    begins = np.cumsum([0, *(part.rows.shape[1] for part in parts)])
    rows = np.zeros((len(places), begins[-1]))
    for part, begin, end in zip(parts, begins, begins[1:], strict=False):
        rows[np.searchsorted(places, part.places), begin:end] = part.rows
    return SomeRows(parts[0].groups, places, rows)


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
                parts: dict[int, Any] = dict(value.limbs)
                for limb, part in parts.items():
                    limbs[limb] = _add_rows(limbs.get(limb), part)
            else:
                own = map_arrays({name: value}, lambda array: torch.from_numpy(np.array(array)))[name]
                self.stats[name] = self.stats[name] + own if name in self.stats else own


def _add_rows(total: torch.Tensor | None, part: SomeRows) -> torch.Tensor:
    """Adds rows in place; rows of which none came stay zeros that take no memory."""
    out = np.zeros((part.groups, part.rows.shape[1])) if total is None else total.numpy()
    for g, row in zip(part.places, part.rows, strict=True):
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
