"""The parameters of linear layers, stacked over lanes for batched products.

A weight is stored so that its longer side is contiguous in memory: as `[W, out, in]`, as in the layout, or as
`[W, in, out]` where a layer has more outputs than inputs. With the shorter side contiguous, a matrix product runs at a
third of the speed or less.

Example:
    Two models of one layer, 3 inputs and 2 outputs, on one row each.

    >>> shape = read_shape(nn.Sequential(nn.Linear(3, 2)))
    >>> stack = stack_layers(shape, [torch.ones(2, 2, 3), torch.zeros(2, 2)])
    >>> run_layers(shape, stack, torch.ones(2, 1, 3), lanes=2)[-1].tolist()
    [[[3.0, 3.0]], [[3.0, 3.0]]]
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedray.core.types import Net
from fedray.models.mlp import RBF
from fedray.training.trace import find_changed_call

_ACTIVATIONS = (nn.ReLU, nn.Tanh)
_PREFIX = (nn.Flatten, nn.Identity, RBF)  # modules that are known to work on each sample alone


class LayerShape(NamedTuple):
    """The form of a stack of linear layers.

    Attributes:
        prefix: Modules without parameters before the first layer.
        layers: Of each layer the activation behind it (None: none) and whether it has a bias.
    """

    prefix: tuple[nn.Module, ...]
    layers: tuple[tuple[type[nn.Module] | None, bool], ...]


class LayerStack(NamedTuple):
    """The parameters of the layers of W lanes.

    Attributes:
        weights: Weight of each layer, seen as `[W, in, out]`; its longer side is contiguous.
        biases: Bias of each layer, `[W, 1, out]`, or None.
    """

    weights: list[Tensor]
    biases: list[Tensor | None]

    @property
    def tensors(self) -> list[Tensor]:
        """Weight and bias, layer after layer."""
        return [t for pair in zip(self.weights, self.biases, strict=True) for t in pair if t is not None]


@lru_cache(maxsize=16)  # it is called for every block
def read_shape(module: nn.Module) -> LayerShape | None:
    """The form of a sequence of linear layers with ReLU or Tanh between them; None for any other module."""
    if type(module) is not nn.Sequential:
        return None
    prefix: list[nn.Module] = []
    layers: list[tuple[type[nn.Module] | None, bool]] = []
    for part in module:
        if type(part) is nn.Linear:  # a subclass may compute anything
            layers.append((None, part.bias is not None))
        elif not layers and type(part) in _PREFIX:
            prefix.append(part)
        elif type(part) in _ACTIVATIONS and layers and layers[-1][0] is None:
            layers[-1] = (type(part), layers[-1][1])
        else:
            return None
    if not layers or layers[-1][0] is not None or any(a is None for a, _ in layers[:-1]):
        return None
    return LayerShape(tuple(prefix), tuple(layers))


def stack_layers(shape: LayerShape, views: Iterable[Tensor]) -> LayerStack:
    """Copies parameters into a stack.

    Args:
        shape: The form of the layers.
        views: Weights `[W, out, in]` and biases `[W, out]` in the layout's order.
    """
    rest = iter(views)
    stack = LayerStack([], [])
    for _, bias in shape.layers:
        w = next(rest)
        widens = w.shape[1] > w.shape[2]
        wide = (w.transpose(1, 2) if widens else w).clone(memory_format=torch.contiguous_format)  # always a copy
        stack.weights.append(wide if widens else wide.transpose(1, 2))
        stack.biases.append(next(rest)[:, None, :].clone() if bias else None)
    return stack


def write_rows(stack: LayerStack, out: Tensor, a: int, b: int) -> None:
    """Writes lanes a to b (exclusive) of a stack into the same rows of a matrix, in the layout's order.

    Args:
        stack: The parameters.
        out: Where they are written, `[W, d]`.
        a: The first lane.
        b: One past the last lane.
    """
    at = 0
    for w, bias in zip(*stack, strict=True):
        i, o = w.shape[1:]
        out[a:b, at : at + i * o].view(b - a, o, i).copy_(w[a:b].transpose(1, 2))
        at += i * o
        if bias is not None:
            out[a:b, at : at + o] = bias[a:b, 0]
            at += o


def run_layers(shape: LayerShape, stack: LayerStack, x: Tensor, lanes: int) -> list[Tensor]:
    """The forward pass: the inputs of every layer and the outputs of the last one, `[lanes, B, .]` each.

    Args:
        shape: The form of the layers.
        stack: Their parameters.
        x: Inputs, `[lanes, B, in]`.
        lanes: How many of the first lanes are computed.
    """
    activations = [x]
    for (activation, _), w, b in zip(shape.layers, *stack, strict=True):
        z = _apply_layer(activations[-1], w[:lanes], None if b is None else b[:lanes])
        activations.append(z.relu_() if activation is nn.ReLU else z.tanh_() if activation is nn.Tanh else z)
    return activations


def _apply_layer(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """`x w + b`, `[W, B, out]`."""
    return torch.bmm(x, w) if b is None else torch.baddbmm(b, x, w)


def has_plain_layers(net: Net) -> bool:
    """Whether a row holds exactly the layers' weights and biases, in order and once each.

    Nothing is frozen, shared or reparametrized, there are no buffers, and no hook or replaced `forward` changes what a
    layer computes.
    """
    named = [(name, part) for name, part in net.module._modules.items() if part is not None]
    wanted = [
        f"{name}.{kind}"
        for name, part in named
        if isinstance(part, nn.Linear | nn.Conv2d)
        for kind in ("weight", "bias")
        if getattr(part, kind, None) is not None
    ]
    plain = list(net.layout.names) == wanted and not net.layout.counters
    return plain and find_changed_call(net.module) is None
