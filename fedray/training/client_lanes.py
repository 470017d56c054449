"""Local training with code in it, side by side: every function of one client is mapped over the lanes of a block.

Example:
    A loss that is half the network's own moves the models half as far.

    >>> import numpy as np
    >>> from fedray.core.local import LocalLoss
    >>> from fedray.core.method import Local
    >>> from fedray.models.catalogue import build_net
    >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
    >>> x, y = torch.ones(1, 2, 2, 3), torch.zeros(1, 2, 2, dtype=torch.int64)
    >>> def train(factor):
    ...     loss = LocalLoss(lambda outputs, targets, context: factor * context.objective(outputs, targets))
    ...     start = torch.stack([net.init(0), net.init(1)])
    ...     block = Block(
    ...         start, torch.zeros(2, 0), lambda lo, hi: (x[lo:hi], y[lo:hi]), weight=torch.full((1, 2, 2), 0.5),
    ...         steps=np.ones(2, int), local=Local(lr=0.1, loss=loss), lr=0.1, keys=np.arange(2), sample=3,
    ...     )
    ...     return train_client_lanes(net, block).final - start
    >>> torch.allclose(train(1.0), 2 * train(0.5), atol=1e-6)
    True
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, grad_and_value, vmap

from fedray.core.types import Net
from fedray.training import client_code as code
from fedray.training import client_steps
from fedray.training.block import Block, Trained, find_active_lanes
from fedray.training.client_code import Gradients, LaneBatch, LaneCode, write_code
from fedray.training.vmap import quiet_fallbacks


def train_client_lanes(net: Net, block: Block) -> Trained:
    """Trains every lane of a block, all of them in one call a step.

    Args:
        net: A network without buffers, whose module can be mapped over lanes.
        block: The lanes, `[W, d]`, with code that can be mapped too.
    """
    loss_reads = () if block.local.loss is None else block.local.loss.reads
    with torch.no_grad(), quiet_fallbacks(), code.watching_features(net, "features" in loss_reads) as watched:
        net.module.train()
        return _train(write_code(net, block, watched))


def _differentiate(written: LaneCode) -> Gradients:
    """Gradients of one lane, by functional transformations."""
    net = written.net

    def cost(p: Tensor, batch: LaneBatch) -> Tensor:
        tensors = code.name_parameters(net.layout, p)
        return code.lose(written, lambda x: functional_call(net.module, tensors, (x,)), batch)

    def samples(p: Tensor, batch: LaneBatch) -> Tensor:
        def one(p: Tensor, x: Tensor, y: Tensor, real: Tensor) -> Tensor:
            return cost(p, batch._replace(x=x[None], y=y[None], weight=real[None]))

        found: Tensor = vmap(grad(one), in_dims=(None, 0, 0, 0))(p, batch.x, batch.y, (batch.weight > 0).to(p.dtype))
        return found

    return Gradients(grad_and_value(cost), grad_and_value(cost), samples)


def _train(written: LaneCode) -> Trained:
    """Trains every lane of a block."""
    block = written.block
    rows, anchor = block.start.clone(), block.anchor if block.anchor is not None else block.start
    advance = client_steps.make_advance(written, _differentiate(written), vmap, anchor, block.offset)
    read = code.read_lanes(block)
    final = torch.empty_like(rows)
    steps = torch.from_numpy(block.steps).to(rows.device)
    loss = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device)
    for lo, hi, real in find_active_lanes(block.steps):
        lanes = max(real, block.min_lanes)
        for a, b in block.pieces(lo, hi):
            x, y = block.read(a, b)
            for s in range(a, b):
                batch = LaneBatch(
                    x[s - a, :lanes],
                    y[s - a, :lanes],
                    block.weight[s, :lanes],
                    steps[:lanes],
                    client_steps.draw_noise(block.local, block.keys[:lanes], s, rows),
                    *(part[:lanes] for part in read),
                )
                loss[:real] += advance(rows, batch, s)[:real]
        done = int((block.steps > hi).sum())
        final[done:real] = rows[done:real]  # a lane that is computed beside a last one goes on
    return Trained(final, block.counters, loss)
