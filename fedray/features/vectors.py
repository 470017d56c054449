"""Vectors that travel beside the models, with every job.

Example:
    >>> Vectors(down=1).down_vectors, Vectors(model=False).down_vectors  # beside the model; not even the model
    (1, -1)
"""

from __future__ import annotations

from dataclasses import dataclass

from fedray.core.piece import Piece


@dataclass(frozen=True)
class Vectors(Piece):
    """Vectors of a model's length that each job sends and receives beside its model.

    Attributes:
        up: Those that a client sends.
        down: Those that it receives.
        model: Whether it receives a model at all.
    """

    up: int = 0
    down: int = 0
    model: bool = True

    @property
    def up_vectors(self) -> int:
        return self.up

    @property
    def down_vectors(self) -> int:
        return self.down - (not self.model)
