"""Vectors that travel beside the models, with every job.

Example:
    >>> Vectors(down=-1).down_vectors  # clients get no model: they train what they have
    -1
"""

from __future__ import annotations

from dataclasses import dataclass

from fedray.core.piece import Piece


@dataclass(frozen=True)
class Vectors(Piece):
    """Vectors of a model's length that each job sends and receives beside its model.

    Attributes:
        up: Those that a client sends.
        down: Those that it receives; -1: it does not even receive the model.
    """

    up: int = 0
    down: int = 0

    @property
    def up_vectors(self) -> int:
        return self.up

    @property
    def down_vectors(self) -> int:
        return self.down
