"""What a stack is made of: base networks, how they are left out, and the meta model on top. Nouns only."""

from __future__ import annotations

from typing import NamedTuple

from fedray.core import Net


class Base(NamedTuple):
    """One architecture: its network, and how many models of it an ensemble has (`x`)."""

    net: Net
    models: int = 1


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
