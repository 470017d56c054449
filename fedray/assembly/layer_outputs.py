"""Counts the numbers that the layers of a network put out for one example: they decide the memory of a forward pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.models.nets import RBF


class LayerOutputs(NamedTuple):
    """How many numbers the layers of a network put out for one sample.

    Attributes:
        all: all layers together.
        widest: the layer that puts out most.
    """

    all: float
    widest: float


def measure_layers(module: nn.Module, example: Tensor) -> LayerOutputs:
    """Counts what the layers of a module put out for an example; zero where the module cannot take it.

    Args:
        module: the network.
        example: one input, without a batch dimension.

    Example:
        >>> measure_layers(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), torch.zeros(3))
        LayerOutputs(all=12.0, widest=5.0)
    """
    sizes, training = [0.0], module.training
    recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    if recurrent:  # every step keeps four gates, cell and output
        each = [8.0 * example.numel() * part.hidden_size * part.num_layers for part in recurrent]
        return LayerOutputs(sum(each), max(each))

    def count(part: nn.Module, _inputs: Any, output: Any) -> None:
        first = output if isinstance(output, Tensor) else output[0]
        sizes.append(float(first.numel() * (part.centers.shape[1] if isinstance(part, RBF) else 1)))

    leaves = [part for part in module.modules() if next(part.children(), None) is None]
    hooks = [part.register_forward_hook(count) for part in leaves]
    try:
        with torch.no_grad(), rng.torch_scope(0):
            module.eval()(example[None])
    except Exception:  # the run itself will say what is wrong with it
        return LayerOutputs(0.0, 0.0)
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return LayerOutputs(sum(sizes), max(sizes))
