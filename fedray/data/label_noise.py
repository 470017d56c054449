"""Clients whose training labels are wrong, to compare robust servers with others.

A share `flipped` of the clients, rounded, has label `(c + 1) mod C` instead of c, and a share `noisy` has labels drawn
uniformly. The clients and the labels are drawn by address, from the world's seed. Test and withheld rows, and the label
counts that describe a client's distribution, stay true.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import IntArray

FLIPPED, NOISY = 1, 2  # kinds of clients; the others are 0


class LabelNoise(NamedTuple):
    """How many clients have wrong labels.

    Attributes:
        flipped: Share of the clients whose labels are flipped.
        noisy: Share of the clients whose labels are random.
    """

    flipped: float = 0.0
    noisy: float = 0.0

    def kinds(self, seeds: list[int], clients: int) -> IntArray:
        """The kind of each client in each world, `[R, N]`: 0, `FLIPPED` or `NOISY`.

        Args:
            seeds: One for each world.
            clients: Number of clients, N.

        Raises:
            BadInput: A share of them rounds to none.
        """
        for key, share in zip(self._fields, self, strict=True):
            if share and not round(share * clients):
                raise BadInput(
                    f"data.partition.{key} = {share:g} of {clients} clients is none of them: raise it, or leave it out"
                )
        first_noisy = round(self.flipped * clients)
        end = min(clients, first_noisy + round(self.noisy * clients))
        out = np.zeros((len(seeds), clients), dtype=np.int64)
        for world, seed in enumerate(seeds):
            order = rng.stream(seed, "mislabelled").permutation(clients)
            out[world, order[:first_noisy]], out[world, order[first_noisy:end]] = FLIPPED, NOISY
        return out


def split_options(options: dict[str, Any], classes: int) -> tuple[dict[str, Any], LabelNoise | None]:
    """The options of a partition without those of wrong labels, and the wrong labels (None without any)."""
    rest = {key: value for key, value in options.items() if key not in LabelNoise._fields}
    noise = LabelNoise(*(float(options.get(key, 0.0)) for key in LabelNoise._fields))
    if noise == LabelNoise():
        return rest, None
    if not classes:
        raise BadInput("data.partition.flipped and noisy change labels, but the data has no classes: leave them out")
    if min(noise) < 0 or sum(noise) > 1 + 1e-9:
        raise BadInput(
            f"data.partition.noisy = {noise.noisy:g}, but data.partition.flipped is {noise.flipped:g}: two shares of "
            "the clients are at most 1 in sum"
        )
    return rest, noise


def mislabel(y: IntArray, kind: IntArray, key: rng.Keys, classes: int) -> IntArray:
    """The labels that clients hold, `[n]`.

    Args:
        y: True labels, `[n]`.
        kind: Kind of the client of each row, `[n]`.
        key: Address of each row, `[n]`.
        classes: Number of classes.

    Example:
        >>> mislabel(np.array([0, 2]), np.array([0, FLIPPED]), rng.keys(0, "noisy", [0, 1]), 3).tolist()
        [0, 0]
    """
    drawn = (rng.uniform(key, 1)[..., 0] * classes).astype(np.int64)
    return np.where(kind == FLIPPED, (y + 1) % classes, np.where(kind == NOISY, drawn, y))
