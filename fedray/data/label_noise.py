"""Clients whose training labels are wrong, to see what robust servers are for.

A share `flipped` of the clients has every label c as `(c + 1) mod C`, a share `noisy` has labels drawn uniformly; who
and what is decided by address, from the world's seed. Test and held-out rows, and the label counts that describe a
client's distribution, stay true.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import IntArray

FLIPPED, NOISY = 1, 2


class Wrong(NamedTuple):
    """Shares of the clients whose labels are flipped, and random."""

    flipped: float = 0.0
    noisy: float = 0.0

    def kinds(self, seeds: list[int], clients: int) -> IntArray:
        """0, `FLIPPED` or `NOISY` for each world and client, `[worlds, N]`; the numbers are rounded shares of N."""
        a = round(self.flipped * clients)
        b = min(clients, a + round(self.noisy * clients))
        out = np.zeros((len(seeds), clients), dtype=np.int64)
        for world, seed in enumerate(seeds):
            order = rng.stream(seed, "mislabelled").permutation(clients)
            out[world, order[:a]], out[world, order[a:b]] = FLIPPED, NOISY
        return out


def split_options(options: dict[str, Any], classes: int) -> tuple[dict[str, Any], Wrong | None]:
    """A partition's own options, and what it says about wrong labels."""
    rest = {key: value for key, value in options.items() if key not in Wrong._fields}
    wrong = Wrong(*(float(options.get(key, 0.0)) for key in Wrong._fields))
    if wrong == Wrong():
        return rest, None
    if not classes:
        raise BadInput("data.partition.flipped and noisy change labels, but the data has no classes: leave them out")
    if min(wrong) < 0 or sum(wrong) > 1 + 1e-9:
        raise BadInput(
            f"data.partition.noisy = {wrong.noisy:g}, but data.partition.flipped is {wrong.flipped:g}: two shares of "
            "the clients are at most 1 in sum"
        )
    return rest, wrong


def mislabel(y: IntArray, kind: IntArray, key: rng.Keys, classes: int) -> IntArray:
    """Labels `[n]` as clients of these kinds `[n]` hold them; key: the address of each row `[n]`.

    Example:
        >>> mislabel(np.array([0, 2]), np.array([0, FLIPPED]), rng.keys(0, "noisy", [0, 1]), 3).tolist()
        [0, 0]
    """
    drawn = (rng.uniform(key, 1)[..., 0] * classes).astype(np.int64)
    return np.where(kind == FLIPPED, (y + 1) % classes, np.where(kind == NOISY, drawn, y))
