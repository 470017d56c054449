"""Small convolution networks: lanes folded into channels, one grouped convolution a layer, channels_last.

Activations are `[B, W * C, H, V]`; each lane is one group. Linear layers behind the convolutions are batched products.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.core import Net
from fedray.lanes.block import Block, Trained, active, channels_last
from fedray.lanes.update import joined, optimiser, parts
from fedray.models.loss import per_sample

POINTWISE = (nn.ReLU, nn.Tanh)
POOLING = (nn.MaxPool2d, nn.AvgPool2d)


def runs(module: nn.Module) -> bool:
    """Whether this engine can run a module: Sequential of Conv2d, pooling, ReLU or Tanh, Flatten, Linear."""
    if type(module) is not nn.Sequential or not isinstance(module[0], nn.Conv2d):
        return False
    flat = False
    for part in module:
        if isinstance(part, nn.Conv2d):
            if flat or part.groups != 1 or part.padding_mode != "zeros" or isinstance(part.padding, str):
                return False
        elif type(part) is nn.Flatten:
            flat = True
        elif isinstance(part, nn.Linear):
            if not flat:
                return False
        elif type(part) not in POINTWISE + POOLING or (flat and type(part) in POOLING):
            return False
    return flat


def train(net: Net, block: Block) -> Trained:
    """Trains every lane of a block; see `lanes.block.Block`."""
    layout = net.layout
    tensors = parts(layout, block.start)
    towards = block.anchor if block.anchor is not None else block.start

    def form(rows: Tensor | None) -> list[Tensor]:
        return [] if rows is None else parts(layout, rows)

    step = optimiser(block.local, block.lr, form(towards if block.local.pull else None), form(block.offset))
    final = torch.empty_like(block.start)
    loss = torch.zeros(len(block.start), dtype=block.start.dtype, device=block.start.device)
    for lo, hi, real in active(block.steps):
        lanes = max(real, block.fewest)
        tensors = [t[:lanes].detach().clone().requires_grad_() for t in tensors]
        for a, b in block.pieces(lo, hi):
            x, y = block.read(a, b)
            folded = _fold(x[:, :lanes])
            for s in range(a, b):
                z = forward(net.module, tensors, folded[s - a], lanes)
                each = per_sample(net.objective, z.flatten(0, 1), y[s - a, :lanes].flatten(0, 1))
                cost = (each.view(lanes, -1) * block.weight[s, :lanes]).sum(-1)
                grads = torch.autograd.grad(cost.sum(), tensors)
                with torch.no_grad():
                    loss[:real] += cost[:real]
                    step(tensors, grads, lanes)
        done = int((block.steps > hi).sum())
        final[done:real] = joined([t.detach() for t in tensors], lanes)[done:real]
    return Trained(final, block.counters, loss)


def _fold(x: Tensor) -> Tensor:
    """`[s, W, B, C, H, V]` -> `[s, B, W * C, H, V]`, channels last in memory."""
    s, w, b, c, h, v = x.shape
    return x.permute(0, 2, 4, 5, 1, 3).contiguous().view(s, b, h, v, w * c).permute(0, 1, 4, 2, 3)


def forward(module: nn.Module, tensors: list[Tensor], x: Tensor, lanes: int) -> Tensor:
    """`[B, W * C, H, V]` -> raw outputs `[W, B, classes]`."""
    rest = iter(tensors)
    for part in _ordered(list(module.children())):
        if isinstance(part, nn.Conv2d):
            x = _convolve(part, x, rest, lanes)
        elif isinstance(part, nn.Linear):
            w = next(rest).transpose(1, 2)
            x = torch.baddbmm(next(rest)[:, None], x, w) if part.bias is not None else torch.bmm(x, w)
        elif type(part) is nn.Flatten:
            b, _, h, v = x.shape
            x = x.view(b, lanes, -1, h, v).transpose(0, 1).reshape(lanes, b, -1)
        elif type(part) is nn.MaxPool2d:
            x = F.max_pool2d(x, part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode)
        else:
            x = part(x)
    return x


def _ordered(parts: list[nn.Module]) -> list[nn.Module]:
    """ReLU behind the max pooling that follows it: the same numbers and gradients on a quarter of the entries."""
    out = list(parts)
    for i in range(len(out) - 1):
        if type(out[i]) is nn.ReLU and type(out[i + 1]) is nn.MaxPool2d and not out[i + 1].padding:
            out[i], out[i + 1] = out[i + 1], out[i]
    return out


def _convolve(part: nn.Conv2d, x: Tensor, rest: Any, lanes: int) -> Tensor:
    w = channels_last(next(rest).flatten(0, 1))
    b = next(rest).flatten() if part.bias is not None else None
    return F.conv2d(channels_last(x), w, b, part.stride, part.padding, part.dilation, groups=lanes)
