"""Compression of uploads, and their size in bytes.

Bytes are what would really be sent: float32 values, and for sparse deltas k indices of 4 bytes or a bitmap of d bits,
whichever is smaller. Float buffers (BatchNorm) are sent whole and counted. Sizes are known before training.

Example:
    >>> find_largest(torch.tensor([1.0, -3.0, 2.0]), 2).tolist()
    [False, True, True]
    >>> sparse_bytes(np.array([10, 900]), 1000).tolist()  # values with indices; values with a bitmap
    [80, 3725]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.method import Compress, Compressed
from fedray.core.types import FloatArray, IntArray, Layout, Tier, Uploads

Keep = Callable[[IntArray, IntArray], IntArray]  # (client, tier) -> entries kept of each job's delta, [J]
RESIDUAL = "residual"
_ENTRIES = 1 << 41  # the part of an address that random entries have, and no epoch


def dense(layout: Layout) -> Compress:
    """Everything, 4 bytes a number."""
    size = 4 * layout.d + 8 * len(layout.counters)

    def every(client: IntArray, _tier: IntArray) -> IntArray:
        return np.full(len(client), size, dtype=np.int64)

    return Compress(every, lambda uploads: Compressed(uploads.delta), lossless=True, on_device=True)


def sparse_bytes(k: IntArray, d: int) -> IntArray:
    """Bytes of k of d values: values and the cheaper of indices and a bitmap; dense where that is smaller still."""
    return np.minimum(4 * k + np.minimum(4 * k, -(-d // 8)), 4 * d)


def keep_by_tier(
    layout: Layout, tiers: Sequence[Tier], models: int, ratio: float, resource_ratio: float | None = None
) -> Keep:
    """Returns the entries that each tier keeps (SHEFL section 3.2).

    A client that trains one model keeps `max(1, floor(ratio d))` of the d trainable numbers of its delta. A client that
    trains m > 1 models, or all K, may send `resource_ratio` times as many entries in total, split equally over its m
    models: `min(1, ratio * resource_ratio / m) d` for each model.

    Args:
        layout: of one model.
        tiers: the tiers of the population.
        models: K, the number of models.
        ratio: in (0, 1].
        resource_ratio: r, above 0; None: m of each tier, so that every trained model keeps `ratio d`.
    """
    d = layout.trainable

    def entries(tier: Tier) -> int:
        m = models if tier.models_per_round is None else tier.models_per_round
        times = 1.0 if resource_ratio is None or tier.models_per_round == 1 else resource_ratio / m
        return max(1, int(d * min(1.0, ratio * times) + 1e-9))

    table = np.array([entries(tier) for tier in tiers], dtype=np.int64)
    return lambda _client, tier: table[tier]


def keep_by_bandwidth(layout: Layout, keep: Keep, uplink: Callable[[IntArray], FloatArray], mean: float) -> Keep:
    """Keeps entries in proportion to the client's bandwidth, so that uploads take equally long (SHEFL's future work).

    Args:
        layout: of one model.
        keep: entries at mean bandwidth.
        uplink: bytes/s of each client.
        mean: bytes/s, over the population.
    """
    d = layout.trainable

    def entries(client: IntArray, tier: IntArray) -> IntArray:
        return np.clip((keep(client, tier) * (uplink(client) / mean) + 1e-6).astype(np.int64), 1, d)

    return entries


def _buffers(layout: Layout) -> int:
    return 4 * (layout.d - layout.trainable) + 8 * len(layout.counters)


def top_k(layout: Layout, keep: Keep) -> Compress:
    """Returns the k largest-magnitude entries of each delta, over the whole parameter vector, exactly."""

    def size(client: IntArray, tier: IntArray) -> IntArray:
        return sparse_bytes(keep(client, tier), layout.trainable) + _buffers(layout)

    def apply(uploads: Uploads) -> Compressed:
        k, delta = keep(uploads.client, uploads.tier), uploads.delta.clone()
        for j in range(len(delta)):
            row = delta[j, : layout.trainable]
            row.masked_fill_(~find_largest(row, int(k[j])), 0.0)
        return Compressed(delta)

    return Compress(size, apply, on_device=True)


def random_k(layout: Layout, keep: Keep, unbiased: bool = True) -> Compress:
    """Keeps k random entries of each delta.

    Client and server draw the same indices from a shared random key, so only the values and the 8-byte key are sent.

    Args:
        layout: of one model.
        keep: entries kept of each delta.
        unbiased: scales them by d / k, so that the mean over draws is the delta; error feedback wants them unscaled.
    """
    d = layout.trainable

    def size(client: IntArray, tier: IntArray) -> IntArray:
        return 4 * keep(client, tier) + 8 + _buffers(layout)

    def apply(uploads: Uploads) -> Compressed:
        k, delta = keep(uploads.client, uploads.tier), uploads.delta.clone()
        for j in range(len(delta)):
            order = rng.bits(rng.fresh(uploads.key[j], _ENTRIES), d)
            chosen = torch.zeros(d, dtype=torch.bool)
            chosen[torch.from_numpy(np.argpartition(order, min(int(k[j]), d) - 1)[: int(k[j])])] = True
            row = delta[j, :d]
            row.masked_fill_(~chosen, 0.0)
            if unbiased:
                row *= d / int(k[j])
        return Compressed(delta)

    return Compress(size, apply)


def int8(layout: Layout) -> Compress:
    """One byte a parameter, one float32 scale a tensor: `round(x / s) s` with `s = max |x| / 127`."""
    d = layout.trainable
    edges = list(accumulate(layout.sizes[: layout.trainable_tensors], initial=0))
    bytes_ = d + 4 * layout.trainable_tensors + _buffers(layout)

    def apply(uploads: Uploads) -> Compressed:
        delta = uploads.delta.clone()
        for a, b in pairwise(edges):
            part = delta[:, a:b]
            most = part.abs().amax(1, keepdim=True)
            scale = most / torch.full_like(most, 127.0)  # by a number CUDA does not divide: it rounds 1 / 127 before
            scale = torch.where(scale > 0, scale, torch.ones_like(scale))
            part.div_(scale).round_().mul_(scale)
        return Compressed(delta)

    return Compress(lambda client, _tier: np.full(len(client), bytes_, dtype=np.int64), apply, on_device=True)


def restrict_to_columns(compress: Compress, columns: Tensor, d: int) -> Compress:
    """Returns a compression of some columns of the row as one of the whole row; the other columns are sent as 0.

    Args:
        compress: of a row `[s]`.
        columns: which numbers of the whole row these are, `[s]`, rising.
        d: numbers of the whole row.
    """

    def whole(part: Tensor) -> Tensor:
        return part.new_zeros(len(part), d).index_copy_(1, columns, part)

    def apply(uploads: Uploads) -> Compressed:
        own = {name: value[:, columns] for name, value in uploads.own.items()}
        sent = compress.apply(uploads._replace(delta=uploads.delta[:, columns], own=own))
        return Compressed(whole(sent.delta), {name: whole(value) for name, value in sent.own.items()})

    return Compress(compress.bytes, apply, compress.own)


def error_feedback(compress: Compress) -> Compress:
    """What was dropped is kept by the client and added next time (Stich et al. 2018, Alg. 1): sent + kept = delta."""

    def apply(uploads: Uploads) -> Compressed:
        whole = uploads.delta + uploads.own[RESIDUAL]
        sent = compress.apply(uploads._replace(delta=whole))
        return Compressed(sent.delta, {**sent.own, RESIDUAL: whole - sent.delta})

    return Compress(compress.bytes, apply, (*compress.own, RESIDUAL))


def find_largest(row: Tensor, k: int) -> Tensor:
    """Mask `[d]` of the k entries of largest magnitude; ties go to the lower index; exactly k are kept.

    For large d a strided sample gives a threshold that usually keeps at least k entries; if not, all entries are
    searched. The exact choice is then made among the entries above the threshold, several times faster than among all.
    """
    d = len(row)
    if k >= d:
        return torch.ones(d, dtype=torch.bool, device=row.device)
    size = row.abs()
    candidates = size
    if d > 1 << 16:
        sample = size[:: max(1, d // 4096)]
        guess = min(len(sample), int(len(sample) * k / d * 1.2) + 16)
        threshold = torch.kthvalue(sample, max(1, len(sample) - guess + 1)).values
        survivors = size[size >= threshold]
        candidates = survivors if len(survivors) >= k else size
    cut = torch.kthvalue(candidates, len(candidates) - k + 1).values
    mask = size > cut
    ties = torch.nonzero(size == cut).flatten()
    mask[ties[: k - int(mask.sum())]] = True
    return mask
