"""What training drops in a chain of plain layers: Dropout and Dropout2d become dropped inputs of linear layers.

A mask multiplies by 0 or by 1 / (1 - p) > 0, and so commutes with ReLU; the mask of a whole channel commutes with
poolings, too. Where nothing else lies between a dropout layer and the next linear one, dropping that layer's inputs is
the same. The masks have the addresses that `fedray.models.dropout` gives them, in every engine.

Example:
    >>> layers, drops = split_drops([nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3)])
    >>> [type(layer).__name__ for layer in layers], drops
    (['Linear', 'ReLU', 'Linear'], (Drop(layer=1, p=0.2, channels=False),))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from fedray.training.known_layers import Unread

DROPOUT = (nn.Dropout, nn.Dropout2d)
_PASSED = {nn.Dropout: (nn.ReLU, nn.Flatten), nn.Dropout2d: (nn.ReLU, nn.Flatten, nn.MaxPool2d, nn.AvgPool2d)}


class Drop(NamedTuple):
    """Inputs of a linear layer that training drops.

    Attributes:
        layer: Number of the linear layer, from 0.
        p: Probability of each input, or channel, to be dropped, in (0, 1).
        channels: Whether whole channels of what the convolutions give are dropped.
    """

    layer: int
    p: float
    channels: bool


def split_drops(chain: Sequence[nn.Module]) -> tuple[tuple[nn.Module, ...], tuple[Drop, ...]]:
    """The layers of a chain without those that drop, and what these drop, in their order.

    Args:
        chain: Plain layers in the order in which they are applied.

    Raises:
        Unread: A layer drops something other than inputs of a linear layer.
    """
    layers = [part for part in chain if type(part) not in DROPOUT]
    drops: list[Drop] = []
    for i, part in enumerate(chain):
        if type(part) not in DROPOUT:
            continue
        assert isinstance(part, DROPOUT)
        behind = next((j for j in range(i + 1, len(chain)) if isinstance(chain[j], nn.Linear | nn.Conv2d)), None)
        between = chain[i + 1 : behind]
        if behind is None or type(chain[behind]) is not nn.Linear:
            raise Unread("drops what no linear layer reads")
        if any(type(one) not in _PASSED[type(part)] for one in between) or _follows_tanh(chain[:i]):
            raise Unread("has other layers than ReLU around its dropout")
        linear = sum(type(one) is nn.Linear for one in chain[:behind])
        drops.append(Drop(linear, part.p, type(part) is nn.Dropout2d))
    return tuple(layers), tuple(drops)


def _follows_tanh(chain: Sequence[nn.Module]) -> bool:
    """Whether the activation before a place is Tanh, whose slope kernels find from what was not dropped."""
    found = [type(one) for one in chain if type(one) in (nn.ReLU, nn.Tanh, nn.Linear, nn.Conv2d)]
    return bool(found) and found[-1] is nn.Tanh
