"""How much arithmetic a network needs.

Example:
    >>> from fedray.models.net import net_of
    >>> count_forward_flops(net_of(lambda: nn.Linear(4, 5), "own", "cross_entropy", 2), torch.zeros(1, 4))
    50.0
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedray.core.types import Net

_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose outputs are products with all their weights


def count_forward_flops(net: Net, row: Tensor) -> float:
    """Floating-point operations of a forward pass over one row, those of linear and convolution layers.

    They are at least two for each number of the network, and two for each number and token of a text.

    Args:
        net: The network; its mode is unchanged.
        row: A network input, `[1, ...]`.
    """
    counted = 0.0

    def count(layer: Any, _inputs: Any, output: Tensor) -> None:
        nonlocal counted
        counted += 2.0 * layer.weight.numel() * output.numel() / layer.weight.shape[0]

    layers = [module for module in net.module.modules() if isinstance(module, _PRODUCTS)]
    hooks, training = [layer.register_forward_hook(count) for layer in layers], net.module.training
    try:
        with torch.no_grad():
            net.module.eval()(row)
    finally:
        net.module.train(training)
        for hook in hooks:
            hook.remove()
    tokens = 1 if row.is_floating_point() else row.numel()
    return max(counted, 2.0 * net.layout.d * tokens)
