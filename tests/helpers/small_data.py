"""Small data sets: pictures of three classes, and numbers that training reads as they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedray.core.types import FloatArray, IntArray
from fedray.data.types import Dataset, Split, classification


def draw_pictures(n: int) -> tuple[Any, IntArray]:
    """Bytes `[n, 1, 6, 6]` whose brighter columns tell the class, and the classes."""
    y = np.arange(n) % 3
    bright = 60 * (y[:, None, None, None] == np.arange(6) // 2)
    return (np.random.default_rng(0).integers(0, 120, (n, 1, 6, 6)) + bright).astype(np.uint8), y


def pictures(n: int = 240) -> Dataset:
    """Returns small pictures. Two thirds of them are training samples."""
    (x, y), half = draw_pictures(n), 2 * n // 3
    return classification("pictures", Split(x[:half], y[:half]), Split(x[half:], y[half:]), ("a", "b", "c"))


class Pairs(torch.utils.data.Dataset[tuple[Any, int]]):
    """Rows with labels as a map-style data set of torch."""

    def __init__(self, rows: Sequence[Any], labels: IntArray) -> None:
        self.rows, self.labels = rows, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.rows[i], int(self.labels[i])


def write_table(path: Path, invert: bool) -> None:
    """Writes a table of 120 rows with labels that follow from the first column. `invert` swaps the labels only."""
    rows = np.random.default_rng(0).normal(size=(120, 3))
    lines = [f"{a:.4f},{b:.4f},{'yes' if (a > 0) != invert else 'no'}" for a, b, _ in rows]
    path.write_text("\n".join(["a,b,label", *lines]) + "\n")


def numbers(x: np.ndarray, y: np.ndarray, owner: IntArray, test: Split | None = None) -> Dataset:
    """Returns a regression of natural clients, not standardized. The first four samples are test samples, too."""
    train = Split(x.astype(np.float32), y.astype(np.float32), owner)
    zero, one = np.zeros((1, x.shape[1]), np.float32), np.ones((1, x.shape[1]), np.float32)
    test = Split(train.x[:4], train.y[:4]) if test is None else test
    return Dataset("numbers", train, test, 0, (), zero, one, zero[:, :1], one[:, :1])


LINEAR: dict[str, Any] = {  # a scenario of such data
    "runtime": "inline", "report": False, "evaluate": {"every": 100},
    "data": {"name": "interval", "partition": {"name": "natural"}},
    "model": {"name": "linear", "objective": "half_mse"},
}  # fmt: skip


# Clients of whose linear models the loss has a diagonal Hessian: what is best is known in closed form


def lines(same: bool = False) -> Dataset:
    """Returns three clients with the corners of rectangles as inputs: their mean is 0, and they do not correlate.

    Each client has its own rectangle and number of samples; with `same`, they differ in their targets only.
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
