"""What a stack is made of: base networks, how they are left out, and the meta model on top. Nouns only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedray.core import Net


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
