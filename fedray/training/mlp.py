"""Linear layers with ReLU or Tanh between them: batched products and a hand-written backward pass.

Example:
    A block of two lanes, one step of plain SGD on two rows each.

    >>> import numpy as np
    >>> from fedray.core.method import Local
    >>> from fedray.models.catalogue import build_net
    >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
    >>> start = torch.stack([net.init(0), net.init(1)])
    >>> x, y = torch.ones(1, 2, 2, 3), torch.zeros(1, 2, 2, dtype=torch.int64)
    >>> block = Block(
    ...     start, torch.zeros(2, 0), lambda lo, hi: (x[lo:hi], y[lo:hi]), weight=torch.full((1, 2, 2), 0.5),
    ...     steps=np.ones(2, int), local=Local(lr=0.1), lr=0.1, keys=np.arange(2), sample=3,
    ... )
    >>> trained = train_mlp(net, block)
    >>> trained.final.shape == start.shape, trained.loss.shape
    (True, torch.Size([2]))
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedray.core.types import Net
from fedray.training.block import Block, Trained, find_active_lanes
from fedray.training.descent import make_descent, output_gradient
from fedray.training.layers import LayerShape, LayerStack, read_shape, run_layers, stack_layers, write_rows
from fedray.training.optimizer import is_plain_sgd


def train_mlp(net: Net, block: Block) -> Trained:
    """Trains every lane of a block.

    Args:
        net: A network whose shape `read_shape` can read.
        block: The lanes, `[W, d]`.
    """
    shape = read_shape(net.module)
    assert shape is not None
    with torch.no_grad():
        return _train(net, shape, block)


def _train(net: Net, shape: LayerShape, block: Block) -> Trained:
    """Trains every lane of a block of networks of a known shape."""

    def to_stack(rows: Tensor) -> LayerStack:
        return stack_layers(shape, net.layout.views(rows).values())

    scaled = is_plain_sgd(block.local) and block.lr != 0  # by a rate of 0 the losses would be lost
    stack, descend = to_stack(block.start), make_descent(shape, block, to_stack, scaled=scaled)
    lr = block.lr if scaled else 1.0
    weight = block.weight * lr if scaled else block.weight  # [S, W, B]
    final = torch.empty_like(block.start)
    loss = torch.zeros(len(block.start), dtype=block.start.dtype, device=block.start.device)
    for lo, hi, real in find_active_lanes(block.steps):
        lanes = max(real, block.min_lanes)
        for a, b in block.pieces(lo, hi):
            x, y = block.read(a, b)
            for part in shape.prefix:
                x = part(x.flatten(0, 2)).unflatten(0, x.shape[:3])
            for s in range(a, b):
                activations = run_layers(shape, stack, x[s - a, :lanes], lanes)
                g, cost = output_gradient(net.objective, activations[-1], y[s - a, :lanes], weight[s, :lanes])
                loss[:real] += cost[:real]
                descend(stack, activations, g, lanes)
        write_rows(stack, final, int((block.steps > hi).sum()), real)
    return Trained(final, block.counters, loss / torch.full_like(loss, lr))  # division by a number rounds otherwise


def mlp_outputs(net: Net, rows: Tensor, _counters: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[M, n, C]` of M models, each on its own inputs.

    Args:
        net: A network whose shape `read_shape` can read.
        rows: The models, `[M, d]`.
        _counters: Their integer buffers, `[M, 0]`: such networks have none.
        x: Inputs of each model, `[M, n, ...]`.
    """
    shape = read_shape(net.module)
    assert shape is not None
    with torch.no_grad():
        stack = stack_layers(shape, net.layout.views(rows).values())
        x = x[:1] if x.stride(0) == 0 else x  # the same inputs for all models pass the prefix once
        lead = x.shape[:2]
        for part in shape.prefix:
            x = part(x.flatten(0, 1)).unflatten(0, lead)
        return run_layers(shape, stack, x.expand(len(rows), *x.shape[1:]), len(rows))[-1]
