"""Data of which a linear model's loss has a diagonal Hessian at every client: what is best is known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from small_data import numbers

from fedray.core.types import FloatArray
from fedray.data.types import Dataset


def lines(same: bool = False) -> Dataset:
    """Three clients with the corners of a rectangle, or several times: their mean is 0, and they do not correlate.

    Each client has a rectangle of its own and as many rows as no other one, or all have the same ones; targets differ.
    """
    generator = np.random.default_rng(0)
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], dtype=float)
    sides = [(1.2, 0.7, 1)] * 3 if same else [(1.5, 0.5, 1), (0.6, 1.4, 3), (1.0, 1.0, 2)]
    inputs = [np.tile(corners * (a, b), (n, 1)) for a, b, n in sides]
    targets = [x @ generator.normal(size=(2, 1)) + generator.normal(size=(len(x), 1)) for x in inputs]
    owner = np.repeat(np.arange(3), [len(part) for part in inputs])
    return numbers(np.concatenate(inputs), np.concatenate(targets), owner)


def fit_line(data: Dataset, rows: Any = slice(None)) -> FloatArray:
    """Slopes and intercept of least squares of some rows, `[3]`."""
    x, y = (part.astype(float)[rows] for part in (data.train.x, data.train.y))
    return np.asarray(np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y[:, 0], rcond=None)[0])
