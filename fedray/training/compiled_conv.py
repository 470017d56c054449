"""Small networks of convolutions and linear layers, trained by the compiled kernel: `fedray/core/kernels/conv.c`.

A lane is the whole local training of one client. All activations of a sample stay in the cache; a convolution is a
product whose left factor is read from overlapping places, so that nothing is copied. It computes what `conv.py`
computes, with sums in a written-down order, to the same bits on every processor that has fused multiply-add.

Example:
    Padding is covered, strides are not.

    >>> from fedray.models.catalogue import build_net
    >>> find_stages(build_net("cnn", (1, 8, 8), 2, "cross_entropy", channels=[3], hidden=[4]).module)[0].pool
    (2, 2)
    >>> find_stages(nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 2)))
    'a convolution with stride (2, 2)'
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from torch import nn

from fedray.core.types import Net
from fedray.training.block import Block, Trained
from fedray.training.compiled import ACTIVATION_CODES, Kernel, describe_layers, train_compiled
from fedray.training.conv import split_net
from fedray.training.lane_task import MOST_LAYERS, MOST_STAGES, LaneTask

_POOLS: dict[type[nn.Module], int] = {nn.MaxPool2d: 1, nn.AvgPool2d: 2}


class ConvStage(NamedTuple):
    """A convolution with what follows it before the next one.

    Attributes:
        conv: The convolution.
        activation: The activation, or None.
        pool_kind: MaxPool2d, AvgPool2d or None.
        pool: Height and width of the pooling's windows.
        activation_first: Whether the activation comes before the pooling.
    """

    conv: nn.Conv2d
    activation: type[nn.Module] | None
    pool_kind: type[nn.Module] | None
    pool: tuple[int, int]
    activation_first: bool


@lru_cache(maxsize=16)  # it is called for every block
def find_stages(module: nn.Module) -> tuple[ConvStage, ...] | str:
    """The convolutions of a network that `split_net` can cut, or what the kernel does not have of it."""
    cut = split_net(module)
    if cut is None:
        return "layers in another order than convolutions, Flatten and linear layers"
    stages: list[ConvStage] = []
    for part in cut.features:
        if isinstance(part, nn.Conv2d):
            if (problem := _find_unusual(part)) is not None:
                return problem
            stages.append(ConvStage(part, None, None, (1, 1), activation_first=False))
            continue
        last = stages[-1]
        if type(part) in _POOLS:
            assert isinstance(part, nn.MaxPool2d | nn.AvgPool2d)
            size, odd = _pair(part.kernel_size), _find_unusual_pool(part)
            if odd is not None or last.pool_kind is not None or size[0] * size[1] > 127:
                return odd or "two poolings in a row, or a large one"
            first = last.activation is not None
            stages[-1] = last._replace(pool_kind=type(part), pool=size, activation_first=first)
        elif last.activation is not None:
            return "two activations in a row"
        else:
            stages[-1] = last._replace(activation=type(part))
    if len(stages) > MOST_STAGES or len(cut.dense.layers) > MOST_LAYERS:
        return f"more than {MOST_STAGES} convolutions or {MOST_LAYERS} linear layers"
    return tuple(stages)


def _find_unusual(conv: nn.Conv2d) -> str | None:
    """What of a convolution the kernel does not have."""
    for name in ("stride", "dilation"):
        if getattr(conv, name) != (1, 1):
            return f"a convolution with {name} {getattr(conv, name)}"
    return None


def _find_unusual_pool(part: nn.MaxPool2d | nn.AvgPool2d) -> str | None:
    """What of a pooling the kernel does not have."""
    plain = _pair(part.stride) == _pair(part.kernel_size) and _pair(part.padding) == (0, 0) and not part.ceil_mode
    more = _pair(part.dilation) == (1, 1) if isinstance(part, nn.MaxPool2d) else part.divisor_override is None
    return None if plain and more else f"a pooling whose windows overlap or leave the image ({part})"


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Height and width."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def train_compiled_conv(net: Net, block: Block) -> Trained:
    """Trains every lane of a block.

    Args:
        net: A network that `find_stages` can read.
        block: The lanes, `[W, d]`, in main memory.
    """
    return train_compiled(CONV_KERNEL, net, block)


def _describe_network(task: LaneTask, net: Net, sample: tuple[int, ...]) -> float:
    """Convolutions and linear layers, for images of a shape; every size that the kernel relies on is checked here."""
    stages, cut = find_stages(net.module), split_net(net.module)
    assert cut is not None and not isinstance(stages, str)
    channels, height, width = sample
    task.stages, task.inputs, task.d, operations = len(stages), channels * height * width, 0, 0.0
    for stage, (conv, activation, kind, pool, first) in zip(task.stage, stages, strict=False):
        assert conv.in_channels == channels and min(height, width) > 0
        stage.channels, stage.height, stage.width, stage.out = channels, height, width, conv.out_channels
        stage.kernel_h, stage.kernel_w = conv.kernel_size
        padding = _pair(conv.padding)  # type: ignore[arg-type]  # no text: see `split_net`
        stage.padding_h, stage.padding_w = padding
        stage.bias, stage.activation = conv.bias is not None, ACTIVATION_CODES[activation]
        stage.pool, stage.activation_first = 0 if kind is None else _POOLS[kind], first
        stage.pool_h, stage.pool_w = pool
        height, width = (
            side + 2 * pad - kernel + 1
            for side, pad, kernel in zip((height, width), padding, conv.kernel_size, strict=True)
        )
        assert min(height, width) > 0
        depth = channels * stage.kernel_h * stage.kernel_w
        operations += 6.0 * depth * stage.out * height * width
        task.d += (depth + stage.bias) * stage.out
        channels, height, width = stage.out, height // pool[0], width // pool[1]
    dense = describe_layers(task, net, cut.dense)
    task.d += dense
    assert task.d == net.layout.d and task.width[0] == channels * height * width > 0
    return operations + 6.0 * dense


CONV_KERNEL = Kernel("conv", (), True, _describe_network)
