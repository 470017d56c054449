"""Compresses uploads, and computes their size in bytes.

The sizes are the bytes that a real client would send. A sparse delta has k float32 values. It also has either k indices
of 4 bytes or a bitmap of d bits, whichever is smaller. Float buffers (BatchNorm) are sent whole, and the sizes include
them. Sizes are known before training.

Example:
    >>> find_largest(torch.tensor([1.0, -3.0, 2.0]), 2).tolist()
    [False, True, True]
    >>> sparse_bytes(np.array([10, 900]), 1000).tolist()  # values with indices; values with a bitmap
    [80, 3725]
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.method import Compress, Compressed, same_bytes
from fedray.core.types import FloatArray, IntArray, Layout, Tier, Uploads

Keep = Callable[[IntArray, IntArray], IntArray]  # takes client and tier of jobs, [J]
RESIDUAL = "residual"
_ENTRIES = 1 << 41  # makes the random keys of random entries differ from those of epochs


def dense(layout: Layout) -> Compress:
    """Returns the compression that sends whole deltas: 4 bytes per float and 8 bytes per integer buffer."""
    return Compress(same_bytes(4 * layout.d + 8 * len(layout.counters)), lossless=True, on_device=True)


def sparse_bytes(k: IntArray, d: int) -> IntArray:
    """Returns the number of bytes that are sent for k of d values.

    The smallest of three forms is sent: values with indices, values with a bitmap, or all d values.
    """
    return np.minimum(4 * k + np.minimum(4 * k, -(-d // 8)), 4 * d)


def keep_by_tier(
    layout: Layout, tiers: Sequence[Tier], models: int, ratio: float, resource_ratio: float | None = None
) -> Keep:
    """Returns a function that computes how many entries of a job's delta are sent (SHEFL section 3.2).

    The number depends on the tier (class of devices) of the job's client. A client whose tier has `models_per_round: 1`
    sends `max(1, floor(ratio d))` of the d trainable entries of the delta. Another client, which trains m models, sends
    `min(1, ratio * resource_ratio / m) d` entries of each model. If `resource_ratio` is None, it sends `ratio d`
    entries of each model.
    """
    d = layout.trainable

    def entries(tier: Tier) -> int:
        m = models if tier.models_per_round is None else tier.models_per_round
        times = 1.0 if resource_ratio is None or tier.models_per_round == 1 else resource_ratio / m
        return max(1, int(d * min(1.0, ratio * times) + 1e-9))

    table = np.array([entries(tier) for tier in tiers], dtype=np.int64)
    return lambda _client, tier: table[tier]


def keep_by_bandwidth(layout: Layout, keep: Keep, uplink: Callable[[IntArray], FloatArray], mean: float) -> Keep:
    """Returns a function that computes how many entries of a delta a client sends, in proportion to its bandwidth.

    All uploads then take about equally long. The SHEFL paper mentions this as future work.

    Args:
        layout: Layout of one model.
        keep: The function that computes the number of entries for a client of mean bandwidth.
        uplink: A function that takes clients and returns the bandwidth of each, in bytes/s.
        mean: Mean bandwidth of all clients, in bytes/s.
    """
    d = layout.trainable
    return lambda client, tier: np.clip((keep(client, tier) * (uplink(client) / mean) + 1e-6).astype(np.int64), 1, d)


def _buffers(layout: Layout) -> int:
    return 4 * (layout.d - layout.trainable) + 8 * len(layout.counters)


def top_k(layout: Layout, keep: Keep) -> Compress:
    """Returns the compression that keeps the k entries of largest magnitude among all trainable entries of a delta.

    `keep` takes the client and the tier (class of devices) of each of J jobs, `[J]` each, and returns each job's k.
    """

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
    """Returns the compression that keeps k random entries of each delta. `keep` computes k, as in `top_k`.

    Client and server draw the same indices from a shared random key of 8 bytes. Only this key and the values are sent.
    If `unbiased` is true, the k kept entries are multiplied by d / k, where d is the number of trainable entries. The
    mean over all draws then equals the delta. Error feedback needs `unbiased=False`.
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
    """Returns the compression to 1 byte per parameter. Each tensor has one float32 scale s.

    A value x becomes `round(x / s) s` with `s = max |x| / 127`.
    """
    d = layout.trainable
    edges = list(accumulate(layout.sizes[: layout.trainable_tensors], initial=0))
    bytes_ = d + 4 * layout.trainable_tensors + _buffers(layout)

    def apply(uploads: Uploads) -> Compressed:
        delta = uploads.delta.clone()
        for a, b in pairwise(edges):
            part = delta[:, a:b]
            most = part.abs().amax(1, keepdim=True)
            scale = most / torch.full_like(most, 127.0)  # CUDA would multiply by a rounded 1 / 127 for a plain number
            scale = torch.where(scale > 0, scale, torch.ones_like(scale))
            part.div_(scale).round_().mul_(scale)
        return Compressed(delta)

    return Compress(same_bytes(bytes_), apply, on_device=True)


def compress_columns(compress: Compress, uploads: Uploads, columns: Tensor) -> Compressed:
    """Compresses s of the d values of each delta. All other values arrive at the server as 0.

    `columns` are the positions of the s values in the model, in ascending order. The other values of the clients'
    private vectors stay as they are.
    """
    own = {name: uploads.own[name][:, columns] for name in compress.own}
    sent = compress.apply(uploads._replace(delta=uploads.delta[:, columns], own=own))
    kept = {name: uploads.own[name].index_copy(1, columns, value) for name, value in sent.own.items()}
    return Compressed(torch.zeros_like(uploads.delta).index_copy_(1, columns, sent.delta), kept)


def error_feedback(compress: Compress) -> Compress:
    """Returns the compression with error feedback (Stich et al. 2018, Alg. 1).

    The part of a delta that a client does not send is added to the client's next delta.
    """

    def apply(uploads: Uploads) -> Compressed:
        whole = uploads.delta + uploads.own[RESIDUAL]
        sent = compress.apply(uploads._replace(delta=whole))
        return Compressed(sent.delta, {**sent.own, RESIDUAL: whole - sent.delta})

    return Compress(compress.bytes, apply, (*compress.own, RESIDUAL))


def find_largest(row: Tensor, k: int) -> Tensor:
    """Returns a mask `[d]` that is true for the k entries of `row` with the largest magnitudes.

    If magnitudes are equal, earlier entries are chosen.
    """
    d = len(row)
    if k >= d:
        return torch.ones(d, dtype=torch.bool, device=row.device)
    size = row.abs()
    candidates = size
    if d > 1 << 16:  # several times faster: only entries above a threshold, guessed from every n-th entry, are searched
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
