"""What a fetch returns, and how raw rows become network inputs: by the statistics of each world's fold."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedray.core.types import IntArray
from fedray.data.types import Dataset


class Fetched(NamedTuple):
    """The rows of J jobs' clients.

    x `[n, ...]`, y `[n]` or `[n, q]`: the whole store (mapped, shared), or rows made for this call.
    rows: int64 `[J, n_max]`, rows of x of each job's client, 0 behind its size. size: `[J]`.
    first: int64 `[J]`, where y begins for each job, or None for 0 (worlds whose labels differ lie one after another).
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    size: IntArray
    first: Tensor | None = None

    def labels(self, rows: Tensor, job: Tensor | int) -> Tensor:
        """y of rows of x, `[...]`, which belong to these jobs (broadcast)."""
        at = rows if self.first is None else rows + self.first[job]
        return self.y.index_select(0, at.flatten()).view(*at.shape, *self.y.shape[1:])


class Scaling(NamedTuple):
    """Statistics of each world. shift, scale: `[worlds, *s]` float32; y_shift, y_scale: `[worlds, q]`.

    same: all worlds share one fold. plain: inputs, targets need no change but that of type.
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
        """`folds[w]` is the fold of world w."""
        statistics = (data.shift, data.scale, data.y_shift, data.y_scale)
        a, b, c, d = (torch.from_numpy(part[folds]) for part in statistics)
        plain = [not bool(shift.any()) and bool((scale == 1).all()) for shift, scale in ((a, b), (c, d))]
        return Scaling(data.kind, data.classes, a, b, c, d, len(set(folds)) == 1, (plain[0], plain[1]))

    def normalise(self, x: Tensor, world: Tensor) -> Tensor:
        """Raw `[W, ..., *sample]` of worlds `[W]` -> float32 `(x - shift) / scale`; tokens -> int64."""
        if self.kind == "tokens":
            return x.long()
        return x.float() if self.plain[0] else self._scaled(x, self.shift, self.scale, world)

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        """Labels `[W, ...]` as they are; targets `[W, ..., q]` standardised, float32."""
        return y if self.classes or self.plain[1] else self._scaled(y, self.y_shift, self.y_scale, world)

    def _scaled(self, x: Tensor, shift: Tensor, scale: Tensor, world: Tensor) -> Tensor:
        shift, scale = shift.to(x.device), scale.to(x.device)
        if self.same:
            return (x - shift[0]).div_(scale[0])
        lead = (len(world), *(1,) * (x.ndim - shift.ndim), *shift.shape[1:])  # [W, 1, ..., *s]
        return (x - shift[world].view(lead)).div_(scale[world].view(lead))
