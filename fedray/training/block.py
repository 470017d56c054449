"""A block: W jobs that train side by side as lanes of one computation, and the batches that each of them sees.

The batches of a lane are a function of its own address and size alone: `(seed, round, client, model)` gives every epoch
a permutation of the client's rows, which is cut into batches of B; the last one is padded with rows of weight zero. So
the numbers of a lane depend neither on the other lanes nor on the width of the block.

Example:
    Two lanes with batches of two rows. The second lane has three rows, so its second batch holds one of them.

    >>> keys = rng.keys(0, "example", np.arange(2))
    >>> batches = deal_batches(np.arange(8).reshape(2, 4), np.array([4, 3]), np.array([2, 2]), 2, keys)
    >>> batches.weight[:, 1].tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    >>> sorted(batches.index[:, 0].flatten().tolist())
    [0, 1, 2, 3]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.local import Reading
from fedray.core.method import Local
from fedray.core.types import IntArray
from fedray.training.drops import Drop

PIECE_NUMBERS = 8 << 20  # numbers that are read at a time: about 32 MB
MIN_LANES = 2  # a single lane would take other product kernels (matrix-vector) than two lanes, so it is padded


class Batches(NamedTuple):
    """Which rows every lane reads in every step.

    Attributes:
        index: Places of the rows in the data, `[S, W, B]`.
        weight: Weight of each row in its batch's loss, `[S, W, B]`: 1 / batch size, or 0 for padding.
    """

    index: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    weight: Tensor


class BatchSource(NamedTuple):
    """Where the batches of a block come from, so that a compiled kernel can read them by itself.

    What it reads are the numbers that `Block.read` returns: row `index[s, w, b]` of x, minus shift, over scale.

    Attributes:
        x: Raw inputs, `[n, *sample]` float32, float64 or uint8.
        y: Classes `[m]` int64, or raw targets `[m, q]` float32 or float64.
        index: Places of the rows in x, `[S, W, B]` int64.
        first: What is added to these places in y, `[W]` int64; None: nothing.
        world: Which row of the statistics standardizes each lane, `[W]` int64.
        shift: Mean of the inputs, `[R, *sample]` float32; None: inputs are used as they are.
        scale: Standard deviation of the inputs, in the same form.
        y_shift: Mean of the targets, `[R, q]` float32; None: they are used as they are.
        y_scale: Standard deviation of the targets, in the same form.
    """

    x: Tensor
    y: Tensor
    index: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    first: Tensor | None
    world: IntArray
    shift: Tensor | None = None
    scale: Tensor | None = None
    y_shift: Tensor | None = None
    y_scale: Tensor | None = None


class Block(NamedTuple):
    """W jobs that train side by side, sorted by falling number of steps.

    Attributes:
        start: The model that each lane starts from, `[W, d]`.
        counters: Its integer buffers, `[W, c]`.
        read: A function (first step, one past the last) -> inputs and targets of these steps, `[s, W, B, ...]` each.
        weight: Weights of the rows in each batch, `[S, W, B]`: 1 / batch size, or 0 for padding.
        steps: Optimizer steps of each lane, `[W]`, falling.
        local: How the clients train.
        lr: Learning rate of this round.
        keys: Address of each lane, `[W]`, for modules that draw random numbers (dropout).
        sample: Numbers in one input.
        anchor: The model that each lane is pulled towards, `[W, d]`; None: `start`.
        offset: What is added to each lane's gradient, `[W, d]`; None: nothing.
        wants_change: Whether a compiled engine returns `final - start` in place of `final`.
        reading: What code in local training may read; None: round 0 of clients whose models are `start`.
        drops: What training drops, by masks whose addresses begin with `keys`. Empty: nothing, or what a module draws
            from torch's generator.
        source: Where `read` takes its batches from, for compiled kernels; None: they call `read`.
    """

    start: Tensor
    counters: Tensor
    read: Callable[[int, int], tuple[Tensor, Tensor]]
    weight: Tensor
    steps: IntArray
    local: Local
    lr: float
    keys: rng.Keys
    sample: int
    anchor: Tensor | None = None
    offset: Tensor | None = None
    source: BatchSource | None = None
    wants_change: bool = False
    reading: Reading | None = None
    drops: tuple[Drop, ...] = ()

    @property
    def min_lanes(self) -> int:
        """Lanes that are computed to the end, so that no kernel gets a single lane (unless the block has only one)."""
        return min(MIN_LANES, len(self.start))

    def pieces(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Steps lo..hi in pieces whose inputs stay under about 32 MB."""
        _, lanes, batch = self.weight.shape
        size = max(1, PIECE_NUMBERS // max(1, lanes * batch * self.sample))
        return [(a, min(a + size, hi)) for a in range(lo, hi, size)]


class Trained(NamedTuple):
    """What the lanes of a block become.

    Attributes:
        final: The trained models, `[W, d]`, or their changes where the block `wants_change` of a compiled engine.
        counters: Their integer buffers, `[W, c]`.
        loss: Sum over the lane's steps of the mean loss of the batch, `[W]`.
    """

    final: Tensor
    counters: Tensor
    loss: Tensor


def choose_batch_width(size: IntArray, batch_size: int | None) -> IntArray:
    """Batch width of each lane: the batch size, or the client's whole data if that is less (rounded up to 8).

    The width depends on the lane alone, so that padding does not depend on the sizes of other lanes.

    Args:
        size: Samples of each lane, `[W]`.
        batch_size: B; None: all samples are one batch.

    Example:
        >>> choose_batch_width(np.array([5, 11, 40]), 16).tolist()
        [5, 16, 16]
    """
    whole = np.maximum(np.where(size <= 8, size, (size + 7) // 8 * 8), 1)
    return whole if batch_size is None else np.minimum(whole, batch_size)


def count_steps(size: IntArray, local: Local) -> IntArray:
    """Optimizer steps of each job, `[J]`: `epochs * ceil(n / B)`, or `local.steps`; 0 for a client without data.

    Args:
        size: n, samples of each job, `[J]`.
        local: How the clients train.
    """
    batches = np.ones_like(size) if local.batch_size is None else -(-size // local.batch_size)
    steps = np.full_like(size, local.steps) if local.steps is not None else (local.epochs or 1) * batches
    return np.where(size > 0, steps, 0)


def samples_seen(size: IntArray, steps: IntArray, batch_size: int | None) -> IntArray:
    """Samples in all the batches of each job, `[J]`; the last batch of an epoch holds what is left.

    Args:
        size: Samples of each client, `[J]`.
        steps: Optimizer steps, `[J]`.
        batch_size: B; None: all samples are one batch.

    Example:
        >>> samples_seen(np.array([20, 20]), np.array([4, 5]), 16).tolist()
        [40, 56]
    """
    width = np.maximum(size if batch_size is None else np.minimum(size, batch_size), 1)
    whole, more = np.divmod(steps, np.maximum(-(-size // width), 1))
    return np.asarray(whole * size + more * width)


def deal_batches(rows: IntArray, size: IntArray, steps: IntArray, width: int, key: rng.Keys) -> Batches:
    """Deals the rows of each lane into batches, in another order in every epoch.

    Args:
        rows: Places of each lane's rows in the data, `[W, n]`, padded behind `size`.
        size: Samples of each lane, `[W]`, above 0.
        steps: Optimizer steps of each lane, `[W]`, falling.
        width: B.
        key: Address of each lane, `[W]`.
    """
    lanes, n = rows.shape
    total = int(steps.max())
    per_epoch = -(-size // width)
    epochs = int((-(-steps // per_epoch)).max())
    noise = rng.bits(rng.fresh(key[:, None], np.arange(epochs)), n)  # [W, E, n]
    if int(size.min()) < n:
        noise[np.broadcast_to(np.arange(n) >= size[:, None, None], noise.shape)] = np.iinfo(np.uint64).max
    order = np.argsort(noise, axis=-1)
    if int(size.min()) == n and n % width == 0 and total == epochs * (n // width):  # all batches are full
        order += (np.arange(lanes) * n)[:, None, None]
        index = rows.take(order.reshape(lanes, total, width).transpose(1, 0, 2))
        weight = torch.full((1, 1, 1), 1.0 / width).expand(total, lanes, width)
        return Batches(torch.from_numpy(index), weight)
    step = np.arange(total)[:, None]  # [S, 1]
    epoch, part = step // per_epoch, step % per_epoch  # [S, W]
    place = part[..., None] * width + np.arange(width)  # [S, W, B]
    real = (place < size[:, None]) & (epoch < epochs)[..., None]
    flat = np.minimum(epoch, epochs - 1)[..., None] * n + np.minimum(place, n - 1)
    lane = np.arange(lanes)[None, :, None]
    index = rows[lane, order.reshape(lanes, -1)[lane, flat]]
    index[~real] = np.broadcast_to(rows[None, :, :1], index.shape)[~real]
    count = np.maximum(real.sum(-1, keepdims=True), 1)
    return Batches(torch.from_numpy(index), torch.from_numpy((real / count).astype(np.float32)))


def split_into_blocks(steps: IntArray, batch: IntArray, width: int) -> list[IntArray]:
    """Groups jobs into blocks: places of the jobs of each block, sorted by falling steps.

    Args:
        steps: Optimizer steps of each job, `[J]`; jobs without steps are left out.
        batch: A number for each job, `[J]`, that is equal for jobs that may share a block (their batch width).
        width: Most lanes of a block.

    Example:
        >>> [block.tolist() for block in split_into_blocks(np.array([2, 0, 3, 3, 1]), np.array([8, 8, 8, 4, 8]), 2)]
        [[3], [2, 0], [4]]
    """
    if len(steps) and steps[0] > 0 and (steps == steps[0]).all() and (batch == batch[0]).all():  # nothing to sort
        return np.array_split(np.arange(len(steps)), -(-len(steps) // width))
    order = np.lexsort((np.arange(len(steps)), -steps, batch))
    order = order[steps[order] > 0]
    blocks = []
    for same in np.unique(batch[order]):
        jobs = order[batch[order] == same]
        pieces = -(-len(jobs) // width)
        blocks += [part for part in np.array_split(jobs, pieces) if len(part)]
    return blocks


def find_active_lanes(steps: IntArray) -> list[tuple[int, int, int]]:
    """Ranges of steps with the same lanes: (first step, one past the last, number of lanes that still train).

    Args:
        steps: Optimizer steps of each lane, `[W]`, falling; lanes that finish leave from the end.

    Example:
        >>> find_active_lanes(np.array([5, 5, 3]))
        [(0, 3, 3), (3, 5, 2)]
    """
    edges = np.unique(steps)
    starts = np.concatenate([[0], edges[:-1]])
    return [(int(a), int(b), int((steps >= b).sum())) for a, b in zip(starts, edges, strict=True)]


def to_channels_last(x: Tensor) -> Tensor:
    """Lays images and convolution weights out with channels last in memory, also where there is only one channel."""
    if x.dim() != 4:
        return x
    _, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided(x.shape, (h * w * c, 1, w * c, c))
