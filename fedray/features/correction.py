"""A private vector of each client that corrects its gradient (SCAFFOLD, FedDyn)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedray.core.method import Piece
from fedray.training.update import Update

# ---------------------------------------------------------------------------------------------------------------------
# Vectors that travel beside the models, with every job.


@dataclass(frozen=True)
class Vectors(Piece):
    """Vectors of a model's length that each job sends and receives beside its model.

    Attributes:
        up: Number of vectors that a client sends.
        down: Number of vectors that a client receives.
        model: Whether a client receives a model at all.

    Example:
        >>> Vectors(down=1).down_vectors, Vectors(model=False).down_vectors  # beside the model; not even the model
        (1, -1)
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


# ---------------------------------------------------------------------------------------------------------------------
# A private vector of each client that corrects its gradient (SCAFFOLD, FedDyn).


@dataclass(frozen=True)
class Correction(Piece):
    """A private vector for each client and model that corrects the local gradient.

    Where the server broadcasts a vector, too, the change of the private vector is sent beside the delta, and counted.

    Attributes:
        name: Name of the private vector.
        offset: Function that makes the term b of the local gradient (`Local`), `[W, d]`, from the private vectors and
            the server's vectors (or None).
        update: Function that makes the private vectors after local training. It takes the private vectors, the server's
            vectors (or None), the deltas, and steps x learning rate `[W, 1]`.
        shared: Name of the server's vector that is broadcast with the models; None if there is none.

    Example:
        >>> dynamic = Correction("dynamic", lambda h, _shared: -h, lambda h, _shared, delta, _length: h - 0.1 * delta)
        >>> dynamic.keeps, dynamic.up_vectors, dynamic.down_vectors
        (('dynamic',), 0, 0)
    """

    takes: ClassVar[Mapping[str, str]] = {"offset": "own, shared", "update": "own, shared, delta, length"}

    name: str
    offset: Callable[[Tensor, Tensor | None], Tensor]
    update: Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]
    shared: str | None = None

    @property
    def keeps(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def up_vectors(self) -> int:
        return int(self.shared is not None)

    @property
    def down_vectors(self) -> int:
        return int(self.shared is not None)

    def begin(self, update: Update) -> Update:
        return update._replace(offset=self.offset(update.read(self.name), self._shared(update)))

    def end(self, update: Update) -> Update:
        assert update.block is not None and update.delta is not None
        before, delta = update.read(self.name), update.delta
        length = torch.from_numpy(update.jobs.steps * update.block.lr).to(delta)[:, None]
        after = self.update(before, self._shared(update), delta, length)
        sent = None if self.shared is None else after - before
        return update.keep(**{self.name: after})._replace(beside=sent)

    def _shared(self, update: Update) -> Tensor | None:
        """Returns the server's vector for each lane, `[W, d]`."""
        if self.shared is None:
            return None
        device = update.broadcast.device
        return update.state.extra[self.shared].to(device).index_select(0, torch.from_numpy(update.jobs.row).to(device))
