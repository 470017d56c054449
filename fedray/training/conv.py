"""Small convolution networks: lanes folded into channels, one grouped convolution a layer, channels_last.

Activations are `[B, W * C, H, V]`; each lane is one group. The linear layers behind the convolutions are trained as in
the `mlp` engine, with its hand-written backward pass; autograd differentiates the convolutions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.core.types import Net
from fedray.training.block import Block, Trained, find_active_lanes
from fedray.training.descent import make_descent, output_gradient
from fedray.training.grouped import invariant_convolutions
from fedray.training.layers import LayerShape, LayerStack, read_shape, run_layers, stack_layers, write_rows
from fedray.training.optimizer import join_rows, make_optimizer

POINTWISE = (nn.ReLU, nn.Tanh)
POOLING = (nn.MaxPool2d, nn.AvgPool2d)
NARROW_CHANNELS = 32  # wider convolutions fill a core by themselves (measured, docs/design.md)
CONV_LANES = {"cpu": 12, "cuda": 256}
_EVALUATED_NUMBERS = {
    "cpu": 1 << 22,
    "cuda": 1 << 26,
}  # activations of one layer at a time in evaluation: near the caches

# (kernels, linear layers, (images `[B, W * C, H, V]`, labels, weights), lanes) -> loss of each lane
ConvStep = Callable[[list[Tensor], LayerStack, tuple[Tensor, Tensor, Tensor], int], Tensor]


class SplitNet(NamedTuple):
    """A network cut into convolutions and linear layers.

    Attributes:
        features: The convolutions, and the pooling and activations between them.
        dense: The linear layers behind them.
        tensors: Number of parameter tensors in `features`; they come first in a row.
    """

    features: tuple[nn.Module, ...]
    dense: LayerShape
    tensors: int


@lru_cache(maxsize=16)  # it is called for every block
def split_net(module: nn.Module) -> SplitNet | None:
    """Cuts a network of Conv2d, pooling, ReLU or Tanh, then Flatten, then linear layers; None for any other network."""
    if type(module) is not nn.Sequential or not len(module) or type(module[0]) is not nn.Conv2d:
        return None
    flat = [i for i, part in enumerate(module) if type(part) is nn.Flatten]
    features = tuple(module)[: flat[0]] if flat else ()
    dense = read_shape(nn.Sequential(*tuple(module)[flat[0] + 1 :])) if flat else None
    if dense is None or dense.prefix or not all(map(_is_supported, features)):
        return None
    return SplitNet(_move_relu(features), dense, sum(1 for part in features for _ in part.parameters()))


def find_max_channels(module: nn.Module) -> int:
    """The largest number of output channels of a convolution."""
    return max(part.out_channels for part in module.modules() if isinstance(part, nn.Conv2d))


def choose_lanes(channels: int, device: str) -> int:
    """How many networks run side by side.

    Args:
        channels: The largest number of channels of a convolution.
        device: "cpu" or "cuda".
    """
    return CONV_LANES[device] if channels <= NARROW_CHANNELS or device == "cuda" else 1


def _is_supported(part: nn.Module) -> bool:
    """Whether this engine computes exactly what a module computes."""
    if type(part) is nn.Conv2d:
        return part.groups == 1 and part.padding_mode == "zeros" and not isinstance(part.padding, str)
    return type(part) in POINTWISE + POOLING


def train_conv(net: Net, block: Block) -> Trained:
    """Trains every lane of a block.

    Args:
        net: A network that `split_net` can cut.
        block: The lanes, `[W, d]`.
    """
    with invariant_convolutions(block.start.device):
        return _train_lanes(net, block)


def _train_lanes(net: Net, block: Block) -> Trained:
    """Trains the lanes, as in `train_conv`."""
    cut = split_net(net.module)
    assert cut is not None
    kernels, stack = _read_kernels(net, cut, block.start), _read_stack(net, cut, block.start)
    step = _make_step(net, cut, block)
    final = torch.empty_like(block.start)
    loss = torch.zeros(len(block.start), dtype=block.start.dtype, device=block.start.device)
    for lo, hi, real in find_active_lanes(block.steps):
        lanes = max(real, block.min_lanes)
        kernels = [t[:lanes].detach().clone().requires_grad_() for t in kernels]
        for a, b in block.pieces(lo, hi):
            x, y = block.read(a, b)
            folded = _fold(x[:, :lanes])
            for s in range(a, b):
                cost = step(kernels, stack, (folded[s - a], y[s - a, :lanes], block.weight[s, :lanes]), lanes)
                loss[:real] += cost[:real]
        done = int((block.steps > hi).sum())
        width = sum(net.layout.sizes[: cut.tensors])
        final[done:real, :width] = join_rows([t.detach() for t in kernels], lanes)[done:real]
        write_rows(stack, final[:, width:], done, real)
    return Trained(final, block.counters, loss)


def _read_kernels(net: Net, cut: SplitNet, rows: Tensor | None) -> list[Tensor]:
    """Weights and biases of the convolutions from rows `[W, d]`, copied."""
    return [] if rows is None else [_kernel(view) for view in list(net.layout.views(rows).values())[: cut.tensors]]


def _read_stack(net: Net, cut: SplitNet, rows: Tensor) -> LayerStack:
    """The linear layers from rows `[W, d]`, copied."""
    return stack_layers(cut.dense, list(net.layout.views(rows).values())[cut.tensors :])


def _make_step(net: Net, cut: SplitNet, block: Block) -> ConvStep:
    """One optimizer step on convolutions and linear layers, in place; it returns the loss of each lane, `[lanes]`."""
    anchor = block.anchor if block.anchor is not None else block.start
    pulled = _read_kernels(net, cut, anchor if block.local.pull else None)
    move = make_optimizer(block.local, block.lr, pulled, _read_kernels(net, cut, block.offset))
    descend = make_descent(cut.dense, block, partial(_read_stack, net, cut), inputs=True)

    def step(kernels: list[Tensor], stack: LayerStack, batch: tuple[Tensor, Tensor, Tensor], lanes: int) -> Tensor:
        x, y, weight = batch
        z = conv_features(cut, kernels, x, lanes)
        with torch.no_grad():
            activations = run_layers(cut.dense, stack, _flat(z, lanes), lanes)
            g, cost = output_gradient(net.objective, activations[-1], y, weight)
            below = _unflat(descend(stack, activations, g, lanes), z)
        grads = torch.autograd.grad(z, kernels, below)
        with torch.no_grad():
            move(kernels, grads, lanes)
        return cost

    return step


def conv_outputs(net: Net, rows: Tensor, _counters: Tensor, x: Tensor) -> Tensor:
    """Raw outputs `[M, n, C]` of M models, each on its own inputs, some models and inputs at a time.

    Args:
        net: A network that `split_net` can cut.
        rows: The models, `[M, d]`.
        _counters: Their integer buffers, `[M, 0]`: such networks have none.
        x: Inputs of each model, `[M, n, channels, height, width]`.
    """
    cut = split_net(net.module)
    assert cut is not None
    channels, kind, out = find_max_channels(net.module), rows.device.type, []
    width = choose_lanes(channels, kind)
    shares = -(-len(rows) // width)  # of even size: a single model left over would take other kernels
    with torch.no_grad(), invariant_convolutions(rows.device):
        for models, inputs in zip(rows.tensor_split(shares), x.tensor_split(shares), strict=True):
            views, n = list(net.layout.views(models).values()), len(models)
            kernels = [_kernel(view) for view in views[: cut.tensors]]
            stack = stack_layers(cut.dense, views[cut.tensors :])
            answers = []
            batch = max(1, _EVALUATED_NUMBERS[kind] // (n * channels * x.shape[-2:].numel()))
            for part in torch.split(inputs, batch, dim=1):
                z = conv_features(cut, kernels, _fold(part[None])[0], n)
                answers.append(run_layers(cut.dense, stack, _flat(z, n), n)[-1])
            out.append(torch.cat(answers, dim=1))
    return torch.cat(out)


def _kernel(view: Tensor) -> Tensor:
    """A copy of `[W, out, in, h, v]`, input channels last in memory; of a bias `[W, out]` as it is."""
    if view.dim() != 5:
        return view.contiguous().clone()
    return view.permute(0, 1, 3, 4, 2).contiguous().clone().permute(0, 1, 4, 2, 3)


def _flat(z: Tensor, lanes: int) -> Tensor:
    """`[B, W * C, H, V]` -> `[W, B, C * H * V]`."""
    b, _, h, v = z.shape
    return z.view(b, lanes, -1, h, v).transpose(0, 1).reshape(lanes, b, -1)


def _unflat(below: Tensor | None, z: Tensor) -> Tensor:
    """The inverse of `_flat`, in the shape and memory order of z."""
    assert below is not None
    b, _, h, v = z.shape
    whole = below.view(len(below), b, -1, h, v).transpose(0, 1).flatten(1, 2)
    return whole.contiguous(memory_format=torch.channels_last)


def _fold(x: Tensor) -> Tensor:
    """`[s, W, B, C, H, V]` -> `[s, B, W * C, H, V]`, with the strides of channels last, also for one channel."""
    s, w, b, c, h, v = x.shape
    n = w * c
    rows = x.permute(0, 2, 4, 5, 1, 3).reshape(s, b, h, v, n).contiguous()
    return rows.as_strided((s, b, n, h, v), (b * h * v * n, h * v * n, 1, v * n, n))


def conv_features(cut: SplitNet, kernels: list[Tensor], x: Tensor, lanes: int) -> Tensor:
    """The activations that the linear layers read, `[B, W * C', H', V']`.

    Args:
        cut: The network.
        kernels: Weights and biases of its convolutions, `[W, ...]` each.
        x: Images of all lanes, `[B, W * C, H, V]`.
        lanes: W.
    """
    rest = iter(kernels)
    for part in cut.features:
        if isinstance(part, nn.Conv2d):
            w = next(rest).flatten(0, 1)
            b = next(rest).flatten() if part.bias is not None else None
            x = F.conv2d(x, w, b, part.stride, part.padding, part.dilation, groups=lanes)
        elif type(part) is nn.MaxPool2d:
            x = F.max_pool2d(x, part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode)
        else:
            x = part(x)
    return x


def _move_relu(parts: tuple[nn.Module, ...]) -> tuple[nn.Module, ...]:
    """Moves each ReLU behind the max pooling that follows it: the same numbers from a quarter of the entries."""
    out = list(parts)
    for i in range(len(out) - 1):
        if type(out[i]) is nn.ReLU and type(out[i + 1]) is nn.MaxPool2d and out[i + 1].padding in (0, (0, 0)):
            out[i], out[i + 1] = out[i + 1], out[i]
    return tuple(out)
