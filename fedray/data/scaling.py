"""What `Shards.fetch` returns, and how raw rows become network inputs: by the statistics of each world's fold.

Example:
    >>> import numpy as np
    >>> rows = Fetched(torch.zeros(3, 2), torch.tensor([5, 6, 7]), torch.tensor([[2, 0]]), np.array([2]))
    >>> rows.labels(rows.rows, 0).tolist()
    [[7, 5]]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.types import IntArray
from fedray.data.types import Dataset


class Fetched(NamedTuple):
    """The rows of J jobs' clients.

    Attributes:
        x: Raw inputs `[n, ...]`, of the whole store or made for this call.
        y: Raw labels `[n]` or targets `[n, q]`. Where the labels of worlds differ, those of one world follow another.
        rows: Which rows of x the client of each job holds, `[J, n_max]` int64; 0 behind its size.
        size: How many rows it holds, `[J]`.
        first: Where the labels of each job's world begin in y, `[J]` int64; None means at 0.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    size: IntArray
    first: Tensor | None = None

    def labels(self, rows: Tensor, job: Tensor | int) -> Tensor:
        """The labels or targets of rows of x, `[...]`; `job` says whose rows they are and broadcasts to their shape."""
        index = rows if self.first is None else rows + self.first[job]
        return self.y.index_select(0, index.flatten().to(self.y.device)).view(*index.shape, *self.y.shape[1:])


class Standardization(NamedTuple):
    """The statistics that `normalize` and `targets` use for some lanes, for kernels that standardize by themselves.

    Attributes:
        world: Which row of the statistics counts for each lane, `[W]` int64.
        shift: Subtracted from the inputs, `[R, *s]` float32; None: they are used as they are.
        scale: What the inputs are divided by then, in the same form.
        y_shift: Subtracted from the targets, `[R, q]` float32; None: they are used as they are.
        y_scale: What the targets are divided by then, in the same form.
    """

    world: IntArray
    shift: Tensor | None
    scale: Tensor | None
    y_shift: Tensor | None
    y_scale: Tensor | None


class Scaling(NamedTuple):
    """The statistics that standardize the rows of each world; R is the number of worlds.

    Attributes:
        kind: images, features or tokens.
        classes: Number of classes; 0 for a regression.
        shift: Mean of the inputs, `[R, *s]` float32.
        scale: Standard deviation of the inputs, `[R, *s]` float32.
        y_shift: Mean of the targets, `[R, q]` float32.
        y_scale: Standard deviation of the targets, `[R, q]` float32.
        same: Whether all worlds have the same fold.
        plain: Whether the inputs, and the targets, are used as they are.
    """

    kind: str
    classes: int
    shift: Tensor
    scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    same: bool
    plain: tuple[bool, bool]

    @staticmethod
    def of(data: Dataset, folds: list[int]) -> Scaling:
        """The statistics of a data set; `folds[w]` is the fold of world w."""
        inputs = (data.shift, data.scale) if data.standardized else (0 * data.shift, 0 * data.scale + 1)
        statistics = (*inputs, data.y_shift, data.y_scale)
        a, b, c, d = (torch.from_numpy(part[folds]) for part in statistics)
        plain = [not bool(shift.any()) and bool((scale == 1).all()) for shift, scale in ((a, b), (c, d))]
        return Scaling(data.kind, data.classes, a, b, c, d, len(set(folds)) == 1, (plain[0], plain[1]))

    def normalize(self, x: Tensor, world: Tensor) -> Tensor:
        """Network inputs of raw rows `[W, ..., *sample]` of worlds `[W]`: float32, or int64 for tokens."""
        if self.kind == "tokens":
            return x.long()
        return x.float() if self.plain[0] else self._standardize(x, self.shift, self.scale, world)

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        """Labels `[W, ...]` as they are, or standardized targets `[W, ..., q]` float32."""
        return y if self.classes or self.plain[1] else self._standardize(y, self.y_shift, self.y_scale, world)

    def standardization(self, world: IntArray) -> Standardization:
        """What `normalize` and `targets` do for lanes of these worlds, `[W]`."""
        plain, raw = self.plain[0] or self.kind == "tokens", bool(self.classes) or self.plain[1]
        return Standardization(
            np.zeros_like(world) if self.same else world,
            *(None if plain else part for part in (self.shift, self.scale)),
            *(None if raw else part for part in (self.y_shift, self.y_scale)),
        )

    def _standardize(self, x: Tensor, shift: Tensor, scale: Tensor, world: Tensor) -> Tensor:
        shift, scale = shift.to(x.device), scale.to(x.device)
        if self.same:
            return (x - shift[0]).div_(scale[0])
        lead = (len(world), *(1,) * (x.ndim - shift.ndim), *shift.shape[1:])  # [W, 1, ..., *s]
        return (x - shift[world].view(lead)).div_(scale[world].view(lead))
