"""A block: W jobs that train side by side as lanes of one computation, and the batches that each of them sees.

A lane's batches are a function of its own address and size alone: `(seed, round, client, model)` gives every epoch a
permutation of the client's rows, cut into batches of B; the last one is padded with rows of weight zero. So neither the
other lanes nor the width of the block can be seen in a lane's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.types import FloatArray, IntArray, Local

PIECE_NUMBERS = 8 << 20  # numbers read at a time
MIN_LANES = 2  # one lane alone would take other product kernels (matrix-vector) than two: pad it


class Batches(NamedTuple):
    """Which rows every lane reads: index `[S, W, B]` into the data, weight `[S, W, B]` (1 / batch size, or 0)."""

    index: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    weight: Tensor


class Rates(NamedTuple):
    """What lanes multiply by: learning rate of this round, weight decay and pull. `[W]` each, or one number for all."""

    lr: FloatArray | float
    decay: FloatArray | float
    pull: FloatArray | float


class Block(NamedTuple):
    """W lanes, sorted by falling number of steps.

    start: `[W, d]`, where each lane starts. counters: `[W, c]`. read(lo, hi): inputs and targets of steps lo..hi,
    `[s, W, B, ...]`. weight: `[S, W, B]`. steps: `[W]`. lr: this round's. anchor: `[W, d]`, or None: the pull is
    towards `start`. offset: `[W, d]` or None. keys: `[W]`, for code that draws random numbers (dropout). own: rates
    of each lane, where they differ and the engine mixes them (`rule.mixes`); None: those of `lr` and `local`.
    """

    start: Tensor
    counters: Tensor
    read: Callable[[int, int], tuple[Tensor, Tensor]]
    weight: Tensor
    steps: IntArray
    local: Local
    lr: float
    keys: rng.Keys
    sample: int  # numbers in one input
    anchor: Tensor | None = None
    offset: Tensor | None = None
    own: Rates | None = None

    @property
    def rates(self) -> Rates:
        """Every lane's, or all lanes'."""
        return self.own or Rates(self.lr, self.local.weight_decay, self.local.pull)

    @property
    def fewest(self) -> int:
        """Lanes that stay at work to the end, so that no kernel meets one lane alone (unless the block has one)."""
        return min(MIN_LANES, len(self.start))

    def pieces(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Steps lo..hi in pieces whose inputs stay under about 32 MB."""
        _, lanes, batch = self.weight.shape
        size = max(1, PIECE_NUMBERS // max(1, lanes * batch * self.sample))
        return [(a, min(a + size, hi)) for a in range(lo, hi, size)]


class Trained(NamedTuple):
    """final `[W, d]`, counters `[W, c]`, loss `[W]`: sum over the lane's steps of the batch's mean loss."""

    final: Tensor
    counters: Tensor
    loss: Tensor


def choose_batch_width(size: IntArray, batch_size: int | None) -> IntArray:
    """Batch width of each lane: the asked size, or the client's whole data if that is less (rounded up to 8).

    It depends on the lane alone, so that padding cannot tell the neighbours' sizes.
    """
    whole = np.maximum(np.where(size <= 8, size, (size + 7) // 8 * 8), 1)
    return whole if batch_size is None else np.minimum(whole, batch_size)


def count_steps(size: IntArray, local: Local) -> IntArray:
    """Steps of each job: `epochs * ceil(n / B)`, or the given number (0 for a client without data)."""
    batches = np.ones_like(size) if local.batch_size is None else -(-size // local.batch_size)
    steps = np.full_like(size, local.steps) if local.steps is not None else (local.epochs or 1) * batches
    return np.where(size > 0, steps, 0)


def samples_seen(size: IntArray, steps: IntArray, batch_size: int | None) -> IntArray:
    """Samples in all the batches of each job: the last batch of an epoch holds what is left.

    Example:
        >>> samples_seen(np.array([20, 20]), np.array([4, 5]), 16).tolist()
        [40, 56]
    """
    width = np.maximum(size if batch_size is None else np.minimum(size, batch_size), 1)
    whole, more = np.divmod(steps, np.maximum(-(-size // width), 1))
    return np.asarray(whole * size + more * width)


def deal_batches(rows: IntArray, size: IntArray, steps: IntArray, width: int, key: rng.Keys) -> Batches:
    """Deals each lane's rows into batches.

    Args:
        rows: `[W, n]`, padded behind `size`.
        size: `[W]` samples, above 0.
        steps: `[W]`, falling.
        width: B.
        key: `[W]`, one address a lane.
    """
    lanes, n = rows.shape
    total = int(steps.max())
    per_epoch = -(-size // width)
    epochs = int((-(-steps // per_epoch)).max())
    noise = rng.bits(rng.fresh(key[:, None], np.arange(epochs)), n)  # [W, E, n]
    if int(size.min()) < n:
        noise[np.broadcast_to(np.arange(n) >= size[:, None, None], noise.shape)] = np.iinfo(np.uint64).max
    order = np.argsort(noise, axis=-1)
    if int(size.min()) == n and n % width == 0 and total == epochs * (n // width):  # nothing is ragged
        index = np.take_along_axis(rows[:, None, :], order, axis=-1).reshape(lanes, total, width)
        weight = torch.full((1, 1, 1), 1.0 / width).expand(total, lanes, width)
        return Batches(torch.from_numpy(np.ascontiguousarray(index.transpose(1, 0, 2))), weight)
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
    """Jobs -> blocks: equal batch widths together, sorted by falling steps, at most `width` lanes (jobs without steps
    are left out)."""
    order = np.lexsort((np.arange(len(steps)), -steps, batch))
    order = order[steps[order] > 0]
    blocks = []
    for same in np.unique(batch[order]):
        mine = order[batch[order] == same]
        pieces = -(-len(mine) // width)
        blocks += [part for part in np.array_split(mine, pieces) if len(part)]
    return blocks


def find_active_lanes(steps: IntArray) -> list[tuple[int, int, int]]:
    """(first step, one past the last, lanes at work): the active prefix shrinks as short lanes finish.

    Example:
        >>> find_active_lanes(np.array([5, 5, 3]))
        [(0, 3, 3), (3, 5, 2)]
    """
    edges = np.unique(steps)
    starts = np.concatenate([[0], edges[:-1]])
    return [(int(a), int(b), int((steps >= b).sum())) for a, b in zip(starts, edges, strict=True)]


def to_channels_last(x: Tensor) -> Tensor:
    """Images and convolution weights with channels last in memory (also where one channel leaves it open)."""
    if x.dim() != 4:
        return x
    _, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided(x.shape, (h * w * c, 1, w * c, c))
