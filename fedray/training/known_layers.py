"""The calls that are read as plain layers, in every form in which people write them: modules, functions and methods.

Example:
    A pooling to one pixel is an average over the whole image.

    >>> import torch.nn.functional as F
    >>> FUNCTIONS[F.adaptive_avg_pool2d](Link(0, (8, 6, 6)), 1)
    [AvgPool2d(kernel_size=(6, 6), stride=(6, 6), padding=0)]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Unread(Exception):
    """A module cannot be read as a chain of plain layers; the message completes the sentence "its forward ..."."""


class Link(NamedTuple):
    """What the chain has computed so far, at one place of a module's `forward`.

    Attributes:
        number: Counts the calls before it.
        sample: Shape of one sample.
    """

    number: int
    sample: tuple[int, ...]


class Named(NamedTuple):
    """A parameter that `forward` reads.

    Attributes:
        name: In the module.
        value: The parameter.
    """

    name: str
    value: Tensor


class Weighted(NamedTuple):
    """A layer with parameters.

    Attributes:
        layer: The layer, without values.
        parameters: Its weight and its bias.
    """

    layer: nn.Module
    parameters: tuple[Named | None, ...]


LayerStep = Weighted | list[nn.Module]
LOG_SOFTMAX: list[nn.Module] = []  # the step that ends a chain with a log-softmax


def _linear(_x: Link, weight: Named, bias: Named | None = None) -> Weighted:
    out, inside = weight.value.shape
    return Weighted(nn.Linear(inside, out, bias is not None, device="meta"), (weight, bias))


def _conv(  # noqa: PLR0917 - as torch has it
    _x: Link, weight: Named, bias: Named | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1, padding_mode: Any = "zeros",
) -> Weighted:  # fmt: skip
    out, inside, *kernel = weight.value.shape
    size: Any = tuple(kernel)  # of as many sides as torch's convolution takes
    layer = nn.Conv2d(
        inside * groups, out, size, stride, padding, dilation, groups, bias is not None, padding_mode, device="meta"
    )
    return Weighted(layer, (weight, bias))


def _relu(_x: Link, **_inplace: bool) -> LayerStep:
    return [nn.ReLU()]


def _tanh(_x: Link) -> LayerStep:
    return [nn.Tanh()]


def _max_pool(  # noqa: PLR0917 - as torch has it
    _x: Link, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> LayerStep:  # fmt: skip
    if return_indices:
        raise Unread("asks max_pool2d for places")
    return [nn.MaxPool2d(kernel_size, stride or None, padding, dilation, ceil_mode=ceil_mode)]


def _avg_pool(  # noqa: PLR0917 - as torch has it
    _x: Link, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> LayerStep:  # fmt: skip
    return [nn.AvgPool2d(kernel_size, stride or None, padding, ceil_mode, count_include_pad, divisor_override)]


def _adaptive_pool(x: Link, output_size: Any) -> LayerStep:
    """Pooling to a given size, where the windows are equal and do not overlap."""
    sizes = output_size if isinstance(output_size, tuple | list) else (output_size, output_size)
    asked = [side if one is None else one for one, side in zip(sizes, x.sample[1:], strict=True)]
    if len(x.sample) != 3 or any(side % one for one, side in zip(asked, x.sample[1:], strict=True)):
        raise Unread("pools to a size that does not divide its inputs")
    return [nn.AvgPool2d((x.sample[1] // asked[0], x.sample[2] // asked[1]))]


def _mean(x: Link, dim: Any = None, keepdim: bool = False) -> LayerStep:
    """The mean over height and width."""
    if len(x.sample) != 3 or not isinstance(dim, tuple | list) or sorted(one % 4 for one in dim) != [2, 3]:
        raise Unread("calls mean over other axes than height and width")
    return [nn.AvgPool2d((x.sample[1], x.sample[2])), *([] if keepdim else [nn.Flatten()])]


def _flatten(x: Link, start_dim: int = 0, end_dim: int = -1) -> LayerStep:
    if start_dim != 1 or end_dim not in (-1, len(x.sample)):
        raise Unread("flattens other axes than those of a sample")
    return [nn.Flatten()]


def _same(_x: Link) -> LayerStep:
    return []


def _dropout(_x: Link, p: float = 0.5, training: bool = True, **_inplace: bool) -> LayerStep:
    if p and training:
        raise Unread("calls dropout as a function, and not as a module")
    return []


def _log_softmax(x: Link, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> LayerStep:
    if dim not in (1, -1) or len(x.sample) != 1 or dtype is not None:
        raise Unread("calls log_softmax over another axis than the classes")
    return LOG_SOFTMAX


def _conv_module(x: Link, part: Any, **held: Named) -> LayerStep:
    return _conv(
        x, held["weight"], held.get("bias"), part.stride, part.padding, part.dilation, part.groups, part.padding_mode
    )


def _max_pool_module(x: Link, part: Any) -> LayerStep:
    return _max_pool(x, part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode, part.return_indices)


def _avg_pool_module(x: Link, part: Any) -> LayerStep:
    return _avg_pool(
        x, part.kernel_size, part.stride, part.padding, part.ceil_mode, part.count_include_pad, part.divisor_override
    )


def _dropout_module(x: Link, part: Any) -> LayerStep:
    if part.p == 1 or (type(part) is nn.Dropout2d and len(x.sample) != 3):
        raise Unread(f"uses {part} in another form")
    return [type(part)(part.p)] if part.p else []


MODULES: dict[type[nn.Module], Callable[..., LayerStep]] = {
    nn.Linear: lambda x, _part, **held: _linear(x, held["weight"], held.get("bias")),
    nn.Conv2d: _conv_module,
    nn.ReLU: lambda x, _part: _relu(x),
    nn.Tanh: lambda x, _part: _tanh(x),
    nn.MaxPool2d: _max_pool_module,
    nn.AvgPool2d: _avg_pool_module,
    nn.AdaptiveAvgPool2d: lambda x, part: _adaptive_pool(x, part.output_size),
    nn.Flatten: lambda x, part: _flatten(x, part.start_dim, part.end_dim),
    nn.Identity: lambda x, _part: _same(x),
    nn.Dropout: _dropout_module,
    nn.Dropout2d: _dropout_module,
    nn.LogSoftmax: lambda x, part: _log_softmax(x, part.dim),
}
METHODS: dict[str, Callable[..., LayerStep]] = {
    "relu": _relu, "relu_": _relu, "tanh": _tanh, "tanh_": _tanh, "flatten": _flatten, "mean": _mean,
    "log_softmax": _log_softmax, "contiguous": _same,
}  # fmt: skip
FUNCTIONS: dict[Any, Callable[..., LayerStep]] = {
    F.linear: _linear, F.conv2d: _conv, torch.conv2d: _conv,
    F.relu: _relu, F.relu_: _relu, torch.relu: _relu, torch.relu_: _relu,
    F.tanh: _tanh, torch.tanh: _tanh, torch.tanh_: _tanh,
    F.max_pool2d: _max_pool, torch.max_pool2d: _max_pool, F.avg_pool2d: _avg_pool,
    F.adaptive_avg_pool2d: _adaptive_pool, torch.flatten: _flatten, torch.mean: _mean,
    F.dropout: _dropout, F.dropout2d: _dropout, torch.dropout: _dropout,
    F.log_softmax: _log_softmax, torch.log_softmax: _log_softmax,
}  # fmt: skip
