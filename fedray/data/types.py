"""The nouns of data: `Split`, `Dataset`, `Population`, and the statistics a network's input is standardised with."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.core import rng
from fedray.core.types import IntArray

Array = NDArray[Any]
Float32 = NDArray[np.float32]


class Split(NamedTuple):
    """n rows.

    x: images `[n, C, H, W]` uint8, or features `[n, f]` float32, or tokens `[n, L]` of any integer type.
    y: labels `[n]` int64, or targets `[n, q]` float32 in their original units.
    group: `[n]` int64, the natural client of each row (writer, role, printer), or None.
    """

    x: Array
    y: Array
    group: IntArray | None = None

    def take(self, rows: IntArray) -> Split:
        return Split(self.x[rows], self.y[rows], None if self.group is None else self.group[rows])


class Population(NamedTuple):
    """Clients that are generated when they are needed: a Gaussian mixture, one component a class.

    samples: rows a client (the median, if `spread`, the sd of the log of a client's size, is above 0).
    per_client: distinct classes a client holds (0: all). separation: sd of the classes' means; the noise has sd 1.
    """

    samples: int = 20
    features: int = 64
    classes: int = 10
    separation: float = 0.5
    spread: float = 0.0
    per_client: int = 0
    seed: int = 0


class Dataset(NamedTuple):
    """A data set: rows, what they mean, and the statistics of its training rows.

    The network's input is `(x - shift[f]) / scale[f]` for fold f of F; tokens are not changed.

    shift, scale: float32 `[F, *s]`, s as many axes as a sample and broadcastable to one.
    y_shift, y_scale: float32 `[F, q]`; 0 and 1 where targets are not standardised.
    classes: 0 means regression. columns: `[n]` each, further columns of the training rows, to partition by.
    folds: (training rows, test rows) of each fold, both rows of `train`; then `test` is empty. () = use `test`.
    population: not None where clients are generated; then `train` is empty.
    noise: of toys whose test targets are E[y|x]: the mean variance of y around it, in original units.
    """

    name: str
    train: Split
    test: Split
    classes: int
    class_names: tuple[str, ...]
    shift: Float32
    scale: Float32
    y_shift: Float32
    y_scale: Float32
    folds: tuple[tuple[IntArray, IntArray], ...] = ()
    columns: dict[str, Array] = {}  # noqa: RUF012  (a default that nobody changes)
    population: Population | None = None
    noise: float | None = None

    @property
    def kind(self) -> Literal["images", "features", "tokens"]:
        return kind_of(self.test.x if self.population else self.train.x)

    @property
    def sample(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.test.x if self.population else self.train.x).shape[1:]

    @property
    def outputs(self) -> int:
        """Numbers a network must put out: classes, or targets q."""
        return self.classes or int(self.train.y.shape[1])


def kind_of(x: Array) -> Literal["images", "features", "tokens"]:
    """What `[n, ...]` holds, by its type and axes."""
    if x.ndim == 4:
        return "images"
    return "tokens" if np.issubdtype(x.dtype, np.integer) else "features"


def column_moments(values: Array) -> tuple[Float32, Float32]:
    """Mean and population sd of each column of `[n, f]`; a constant column has sd 1."""
    mean = values.mean(axis=0, dtype=np.float64)
    sd = values.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(sd > 1e-12, sd, 1.0).astype(np.float32)


def pixel_moments(x: Array) -> tuple[Float32, Float32]:
    """Mean and sd of each channel of `[n, C, H, W]`, each `[C, 1, 1]`; bytes are counted, so that no copy is made."""
    if x.dtype != np.uint8:
        mean, sd = column_moments(x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1]))
        return mean[:, None, None], sd[:, None, None]
    counts = np.stack([np.bincount(x[:, c].ravel(), minlength=256) for c in range(x.shape[1])])  # [C, 256]
    level, total = np.arange(256), counts.sum(axis=1)
    mean = counts @ level / total
    sd = np.sqrt(np.maximum(counts @ level**2 / total - mean**2, 0.0))
    sd = np.where(sd > 1e-12, sd, 1.0)
    return mean.astype(np.float32)[:, None, None], sd.astype(np.float32)[:, None, None]


def classification(name: str, train: Split, test: Split, names: tuple[str, ...]) -> Dataset:
    """A data set with one fold whose labels are 0 .. len(names) - 1."""
    if kind_of(train.x) == "images":
        shift, scale = pixel_moments(train.x)
    elif kind_of(train.x) == "tokens":
        shift, scale = np.zeros(1, np.float32), np.ones(1, np.float32)
    else:
        shift, scale = column_moments(train.x)
    none, one = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    return Dataset(name, train, test, len(names), names, shift[None], scale[None], none, one)


def regression(name: str, train: Split, test: Split, standardise: bool = True) -> Dataset:
    """A data set with one fold and real targets."""
    if standardise:
        (shift, scale), (y_shift, y_scale) = column_moments(train.x), column_moments(train.y)
    else:
        shift, scale = np.zeros(train.x.shape[1], np.float32), np.ones(train.x.shape[1], np.float32)
        y_shift, y_scale = np.zeros(train.y.shape[1], np.float32), np.ones(train.y.shape[1], np.float32)
    return Dataset(name, train, test, 0, (), shift[None], scale[None], y_shift[None], y_scale[None])


def split_stratified(labels: IntArray, fraction: float, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Rows of the training and of the test part, `fraction` of every class in the test part (rounded)."""
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    _, first, count = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(first, count)  # position inside the class
    is_test = place < np.repeat(np.rint(count * fraction), count)
    return np.sort(order[~is_test]), np.sort(order[is_test])


def limit_rows(data: Dataset, rows: int) -> Dataset:
    """The same data set with at most `rows` training and `rows` test samples, picked by address."""

    def some(split: Split, purpose: str) -> Split:
        keep = np.sort(rng.stream(0, purpose).permutation(len(split.y))[:rows])
        return Split(split.x[keep], split.y[keep], None if split.group is None else split.group[keep])

    columns = {
        name: values[np.sort(rng.stream(0, "limit_train").permutation(len(values))[:rows])]
        for name, values in data.columns.items()
    }
    return data._replace(train=some(data.train, "limit_train"), test=some(data.test, "limit_test"), columns=columns)
