"""The start-up check that a lane's bits do not depend on its neighbours, on this machine, with this network."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.types import Local, Net
from fedray.training.block import Block, count_steps, deal_batches
from fedray.training.choice import Engine

_LANES, _ROWS, _RATE = 5, 11, 0.001  # a rate at which wide networks with large weights stay finite


def check_invariance(net: Net, engine: Engine, local: Local, example: Tensor, device: str, dtype: torch.dtype) -> bool:
    """Trains five small lanes together, and two or three of them at a time: the same bits?

    One lane after another is invariant by construction and is not run. example: one network input.
    """
    if engine.width == 1:
        return True
    whole = engine.train(net, _block(net, local, example, device, dtype, list(range(_LANES)))).final
    groups = ([0, 1], [2, 3, 4], [1, 4])
    parts = [engine.train(net, _block(net, local, example, device, dtype, group)).final for group in groups]
    return all(torch.equal(_bits(part), _bits(whole[group])) for part, group in zip(parts, groups, strict=True))


def _bits(rows: Tensor) -> Tensor:
    """Numbers as integers: NaN is equal to itself."""
    return rows.view(torch.int64 if rows.dtype == torch.float64 else torch.int32)


def _block(
    net: Net, local: Local, example: Tensor, device: str, dtype: torch.dtype, lanes: list[int]
) -> Block:  # fmt: skip
    who, batch = np.array(lanes), min(local.batch_size or _ROWS, _ROWS)
    size = np.full(len(who), _ROWS)
    brief = Local(**{**local.__dict__, "epochs": 1, "steps": None, "batch_size": batch})
    steps = count_steps(size, brief)
    key = rng.keys(0, "selftest", who)
    index, weight = deal_batches(who[:, None] * _ROWS + np.arange(_ROWS), size, steps, batch, key)
    n, shape = _LANES * _ROWS, example.shape
    numbers = torch.from_numpy(rng.normal(rng.keys(1, "selftest"), n * int(np.prod(shape)))).view(n, *shape).to(dtype)
    classes = torch.arange(n) % net.outputs
    targets = numbers.flatten(1)[:, :1].expand(n, net.outputs // (2 if net.objective == "gaussian_nll" else 1))
    inputs = numbers if example.is_floating_point() else example.expand(n, *shape)
    x, y = inputs.to(device), (classes if net.objective == "cross_entropy" else targets).to(device)

    def read(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        return x[index[lo:hi].to(device)], y[index[lo:hi].to(device)]

    start = torch.stack([net.init(int(k)) for k in key]).to(device, dtype)
    counters = torch.zeros(len(who), 0, dtype=torch.int64)
    return Block(start, counters, read, weight.to(device, dtype), steps, brief, _RATE, key, int(np.prod(shape)))
