"""Small data sets: pictures of three classes, and numbers that training reads as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedray.core.types import IntArray
from fedray.data.types import Dataset, Split, classification


def draw_pictures(n: int) -> tuple[Any, IntArray]:
    """Bytes `[n, 1, 6, 6]` whose brighter columns tell the class, and the classes."""
    y = np.arange(n) % 3
    bright = 60 * (y[:, None, None, None] == np.arange(6) // 2)
    return (np.random.default_rng(0).integers(0, 120, (n, 1, 6, 6)) + bright).astype(np.uint8), y


def pictures(n: int = 240) -> Dataset:
    """Two thirds of them are training rows."""
    (x, y), half = draw_pictures(n), 2 * n // 3
    return classification("pictures", Split(x[:half], y[:half]), Split(x[half:], y[half:]), ("a", "b", "c"))


def numbers(x: np.ndarray, y: np.ndarray, owner: IntArray, test: Split | None = None) -> Dataset:
    """A regression of natural clients, which is not standardized; the first four rows are test rows, too."""
    train = Split(x.astype(np.float32), y.astype(np.float32), owner)
    zero, one = np.zeros((1, x.shape[1]), np.float32), np.ones((1, x.shape[1]), np.float32)
    test = Split(train.x[:4], train.y[:4]) if test is None else test
    return Dataset("numbers", train, test, 0, (), zero, one, zero[:, :1], one[:, :1])


LINEAR: dict[str, Any] = {  # a scenario of such data
    "runtime": "inline", "report": False, "evaluate": {"every": 100},
    "data": {"name": "interval", "partition": {"name": "natural"}},
    "model": {"name": "linear", "objective": "half_mse"},
}  # fmt: skip
