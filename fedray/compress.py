"""What survives the uplink, and how many bytes it takes.

Bytes are what would really be sent: float32 values, and for sparse deltas k indices of 4 bytes or a bitmap of d bits,
whichever is smaller. Float buffers (BatchNorm) are sent whole and counted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedray.core import Compressed, IntArray, Layout, Uploads

Compress = Callable[[Uploads], Compressed]


def dense(layout: Layout) -> Compress:
    """Everything, 4 bytes a number."""
    size = 4 * layout.d + 8 * len(layout.counters)
    return lambda uploads: Compressed(uploads.delta, np.full(len(uploads.client), size, dtype=np.int64))


def sparse_bytes(k: IntArray, d: int) -> IntArray:
    """Bytes of k of d values: values and the cheaper of indices and a bitmap; dense where that is smaller still."""
    return np.minimum(4 * k + np.minimum(4 * k, -(-d // 8)), 4 * d)


def top_k(layout: Layout, keep: Callable[[Uploads], IntArray]) -> Compress:
    """The `keep(uploads)[j]` largest-magnitude entries of each delta, over the whole parameter vector, exactly."""

    def compress(uploads: Uploads) -> Compressed:
        k = keep(uploads)
        delta = uploads.delta.clone()
        for j in range(len(delta)):
            row = delta[j, : layout.trainable]
            row[~largest(row, int(k[j]))] = 0.0
        buffers = 4 * (layout.d - layout.trainable) + 8 * len(layout.counters)
        return Compressed(delta, sparse_bytes(k, layout.trainable) + buffers)

    return compress


def largest(row: Tensor, k: int) -> Tensor:
    """Mask `[d]` of the k entries of largest magnitude; ties go to the lower index; exactly k are kept.

    A strided sample gives a threshold that surely keeps at least k; the exact choice is then made among the survivors,
    several times faster than a full selection for large d.
    """
    d = len(row)
    if k >= d:
        return torch.ones(d, dtype=torch.bool, device=row.device)
    size = row.abs()
    index = None
    if d > 1 << 16:
        sample = size[:: max(1, d // 4096)]
        guess = min(len(sample), int(len(sample) * k / d * 1.2) + 16)
        threshold = torch.kthvalue(sample, max(1, len(sample) - guess + 1)).values
        index = torch.nonzero(size >= threshold).flatten()
        if len(index) < k:
            index = None
    candidates = size if index is None else size[index]
    cut = torch.kthvalue(candidates, len(candidates) - k + 1).values
    mask = size > cut
    ties = torch.nonzero(size == cut).flatten()
    mask[ties[: k - int(mask.sum())]] = True
    return mask
