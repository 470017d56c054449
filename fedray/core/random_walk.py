"""A random walk as data: who holds which model, where no server does.

Example:
    >>> walk = Walk(lambda t: np.array([[t % 2]]), lambda _t: np.array([[False]]), edges=np.array([[0, 1]]))
    >>> walk.at(3).tolist()  # of one world and one model: the client that holds it
    [[1]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core.types import IntArray


class Walk(NamedTuple):
    """A random walk: there is no server, and each model moves from client to client.

    Attributes:
        at: The clients that hold the models at a step, `[R, K]`.
        down: Which of these clients are out of order at that step, `[R, K]`.
        edges: Pairs of clients that may send to each other, `[E, 2]`.
    """

    at: Callable[[int], IntArray]
    down: Callable[[int], NDArray[np.bool_]]
    edges: IntArray
