"""Modules of the tests: one model as a plain module, to compare with what fedray computes, and a network as a class."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedray.core.types import Net
from fedray.models.net import state_dict
from fedray.simulation.study import Study


class TwoLayers(nn.Module):
    """Two linear layers as a class; what happens between them is the subclass's."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.b(self.between(self.a(x)))
        return outputs

    def between(self, h: Tensor) -> Tensor:
        return torch.relu(h)


class Apply(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        nn.Module.__init__(self)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def load_module(net: Net, row: Tensor, counters: Tensor | None = None) -> nn.Module:
    """Returns a new module in evaluation mode, with the parameters `[d]` and the counters `[c]` of one model."""
    module = copy.deepcopy(net.module)
    module.load_state_dict(state_dict(net, row, counters))
    return module.eval()


def ask_modules(study: Study, x: Tensor, rows: Tensor, net: Net | None = None) -> Tensor:
    """Returns outputs `[K, n, ...]` of plain modules with the parameters `rows` `[K, d]`. `x` is not yet normalized."""
    inputs = study.shards.scaling.normalize(x[None], torch.tensor([0]))[0]
    with torch.no_grad():
        return torch.stack([load_module(net or study.net, row)(inputs) for row in rows])


class Residual(nn.Module):
    """A network that only the mapped engine and the loop train, also where clients train without code."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.first, self.middle, self.last = nn.Linear(64, 6), nn.Linear(6, 6), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1)).relu()
        out: Tensor = self.last(h + self.middle(h).relu())
        return out


def normed() -> nn.Module:
    """Returns a network that is mapped over lanes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 10))


def dropping() -> nn.Module:
    """Returns a network that trains one lane after another: it has batch statistics and dropout."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(72, 10))
