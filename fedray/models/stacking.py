"""What a stack is made of: base networks, how they are left out, and the meta model on top. Nouns only."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedray.core.errors import FedrayError
from fedray.core.types import Layout, Net
from fedray.models.net import layout_of


class Voter(NamedTuple):
    """A scikit-learn classifier that every client fits on its own rows; options: its own, by scikit-learn's names."""

    name: str
    options: Mapping[str, Any]


class Base(NamedTuple):
    """One architecture: its network, and how many models of it an ensemble has (`x`).

    voter: instead of a network that is trained; `net` then has no numbers (`models.stacked.voting_net`).
    """

    net: Net
    models: int = 1
    voter: Voter | None = None


class Stack(NamedTuple):
    """n bases, each trained `folds` times without one part of the data; `meta` reads their `n * C` probabilities.

    folds: F; part f is client f's data, or with `within` fold f of every client's. meta: None averages the bases.
    rounds, meta_rounds: of the two trainings. meta_lr, meta_optimizer: of the second.
    """

    bases: tuple[Base, ...]
    meta: Net | None
    folds: int
    within: bool
    rounds: int
    meta_rounds: int
    meta_lr: float
    meta_optimizer: str

    def of(self, base: int) -> int:
        """Models of a base: `folds * x`."""
        return self.folds * self.bases[base].models


class StackModule(nn.Module):
    """`[B, *input]` -> `[B, C]` logits: each base's probabilities averaged, put side by side, read by `meta`.

    Until the meta model has been trained (`trained` counts its rounds), and without one, the bases are averaged.
    """

    trained: Tensor

    def __init__(self, bases: list[list[nn.Module]], meta: nn.Module | None) -> None:
        nn.Module.__init__(self)
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))
        self.bases = nn.ModuleList(nn.ModuleList(models) for models in bases)
        self.meta = meta

    def forward(self, x: Tensor) -> Tensor:
        each = [torch.stack([model(x).softmax(-1) for model in models]).mean(0) for models in self.bases]  # type: ignore[attr-defined]
        if self.meta is None or not bool(self.trained):
            return torch.stack(each).mean(0).log()
        answer: Tensor = self.meta(torch.cat(each, dim=-1))
        return answer


class VotingModule(nn.Module):
    """Stands for classifiers that clients fit: it has no weights and cannot answer by itself."""

    def forward(self, x: Tensor) -> Tensor:
        raise FedrayError("a vote of classifiers is asked through Run.predict: a stack's module has only networks")


def voting_net(name: str, classes: int) -> Net:
    """A network without numbers, in the place of a base that votes."""
    return Net(name, VotingModule(), Layout((), (), 0), "cross_entropy", classes, lambda key: torch.zeros(0))


def stacked_net(stack: Stack) -> Net:
    """The network of a stack; its first models are drawn part by part (`fedray.simulation.stacking`), so `init` gives zeros."""
    with torch.no_grad():
        bases = [[copy.deepcopy(base.net.module) for _ in range(stack.of(i))] for i, base in enumerate(stack.bases)]
        meta = None if stack.meta is None else copy.deepcopy(stack.meta.module)
    module = StackModule(bases, meta)
    layout = layout_of(module, "stacking")
    first = stack.bases[0].net
    return Net("stacking", module, layout, first.objective, first.outputs, lambda key: torch.zeros(layout.d))
