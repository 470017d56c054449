"""Local training with code in it, one lane after another: every network, every function and every optimizer runs here.

Example:
    Adam of torch, on a lane of one step.

    >>> import numpy as np
    >>> from fedray.core.method import Local
    >>> from fedray.models.catalogue import build_net
    >>> net = build_net("mlp", (3,), 2, "cross_entropy", hidden=[4])
    >>> x, y = torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, dtype=torch.int64)
    >>> block = Block(
    ...     net.init(0)[None], torch.zeros(1, 0), lambda lo, hi: (x[lo:hi], y[lo:hi]), torch.full((1, 1, 2), 0.5),
    ...     steps=np.ones(1, int), local=Local(step=torch.optim.Adam), lr=0.1, keys=np.arange(1), sample=3,
    ... )
    >>> change = train_client_loop(net, block).final - block.start
    >>> round(float(change.abs().max()), 3)
    0.1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_map

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import Net
from fedray.training import client_code as code
from fedray.training import client_steps
from fedray.training.block import Block, Trained
from fedray.training.client_code import Gradients, LaneBatch, LaneCode, Watched, write_code

Buffers = dict[str, Tensor]


class _TrainedLane(NamedTuple):
    """What a lane becomes: its model `[d]`, its counters `[c]` and the sum of its losses."""

    final: Tensor
    counters: Tensor
    loss: Tensor


def train_client_loop(net: Net, block: Block) -> Trained:
    """Trains every lane of a block, one after another.

    Args:
        net: Any network.
        block: The lanes, `[W, d]`.
    """
    block = block._replace(read=lru_cache(maxsize=1)(block.read))  # all lanes of a piece are read at once
    loss_reads = () if block.local.loss is None else block.local.loss.reads
    watching = code.watching_features(net, "features" in loss_reads)
    with torch.no_grad(), watching as watched, rng.generators_scope() as start:
        net.module.train()
        done = []
        for lane, key in enumerate(block.keys.tolist()):
            start(key)
            with rng.torch_scope(key, block.start.device):
                done.append(_train_lane(net, block, lane, watched))
    return Trained(*(torch.stack(column) for column in zip(*done, strict=True)))


def _train_lane(net: Net, block: Block, lane: int, watched: Watched) -> _TrainedLane:
    """Trains one lane."""
    layout, p = net.layout, net.layout.trainable
    views = {name: view.clone() for name, view in layout.views(block.start[lane]).items()}
    buffers = {name: views[name] for name in list(views)[len(code.name_parameters(layout, block.start[lane, :p])) :]}
    buffers |= {name: count.clone() for name, count in zip(layout.counters, block.counters[lane], strict=True)}
    anchor = block.anchor if block.anchor is not None else block.start
    one = slice(lane, lane + 1)
    offset = None if block.offset is None else block.offset[one, :p]
    written = write_code(net, block, watched)
    advance = client_steps.make_advance(written, _differentiate(written, buffers), _call_one, anchor[one, :p], offset)
    rows, steps, loss = block.start[one, :p].clone(), int(block.steps[lane]), block.start.new_zeros(())
    read = [part[one] for part in code.read_lanes(block)]
    reals = (block.weight[:steps, lane] > 0).sum(1).tolist()  # padding comes last; no row may see it
    for a, b in block.pieces(0, int(block.steps[0])):
        if a >= steps:
            break
        x, y = block.read(a, b)
        for s in range(a, min(b, steps)):
            batch = LaneBatch(
                x[s - a, one, : reals[s]],
                y[s - a, one, : reals[s]],
                block.weight[s, one, : reals[s]],
                torch.tensor([steps], device=rows.device),
                client_steps.draw_noise(block.local, block.keys[one], s, rows),
                *read,
            )
            loss += advance(rows, batch, s)[0]
    kept = [buffers[name].reshape(-1) for name in layout.names if name in buffers]
    counters = [buffers[name] for name in layout.counters]
    counted = torch.stack(counters) if counters else block.counters[lane]
    return _TrainedLane(torch.cat([rows[0], *kept]), counted, loss)


def _answer(written: LaneCode, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs of the network with these parameters and buffers."""
    try:
        out: Tensor = functional_call(written.net.module, dict(tensors), (x,))
    except RuntimeError as error:
        if "mutate a captured Tensor" not in str(error) or written.block.local.loss is None:
            raise
        raise BadInput(
            f"local.loss = {written.block.local.loss.name}: torch.func cannot go through a network that keeps "
            "statistics of its batches (batch normalization): take the gradient by torch.autograd.grad"
        ) from error
    return out


def _call_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one lane as a function of a block of one lane."""

    def call(*arguments: Any) -> Any:
        found = function(*tree_map(lambda part: part[0] if isinstance(part, Tensor) else part, arguments))
        return tree_map(lambda part: part[None] if isinstance(part, Tensor) else part, found)

    return call


def _differentiate(written: LaneCode, buffers: Buffers) -> Gradients:
    """Gradients of one lane, by autograd; a step changes the buffers in place."""
    net = written.net

    def differentiate(p: Tensor, batch: LaneBatch, held: Buffers) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = p.detach().clone().requires_grad_()
            tensors = {**code.name_parameters(net.layout, leaf), **held}
            loss = code.lose(written, lambda x: _answer(written, tensors, x), batch)
            if not loss.requires_grad:
                code.refuse_detached(written)
            (g,) = torch.autograd.grad(loss, leaf, materialize_grads=True)
        return g, loss.detach()

    def copy() -> Buffers:
        return {name: value.clone() for name, value in buffers.items()}

    def samples(p: Tensor, batch: LaneBatch) -> Tensor:
        rows = range(len(batch.x))
        each = [batch._replace(x=batch.x[i : i + 1], y=batch.y[i : i + 1], weight=p.new_ones(1)) for i in rows]
        return torch.stack([differentiate(p, row, copy())[0] for row in each])

    return Gradients(
        step=lambda p, batch: differentiate(p, batch, buffers),
        again=lambda p, batch: differentiate(p, batch, copy()),
        samples=samples,
    )
