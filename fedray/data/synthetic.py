"""Data sets that are drawn by address: the papers' toys, and populations of generated clients.

A toy has one input, one target and a known mean E[y|x], and every client is a group of its own. A population stores no
training rows; `fedray.data.generated` makes them when they are read. All loaders take the folder of data files first,
like those of other data sets, and do not use it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import FloatArray
from fedray.data.types import Dataset, Float32, Population, Split, regression

SINE_SD = 0.2  # standard deviation of the sine's amplitudes, and of its noise


def _toy(
    name: str, x: FloatArray, y: FloatArray, *, grid: FloatArray, mean: FloatArray, standardize: bool, noise: float
) -> Dataset:
    """A toy from inputs x and targets y `[clients, points]`; the test rows are `grid` with the noiseless mean."""
    group = np.repeat(np.arange(x.shape[0], dtype=np.int64), x.shape[1])
    train = Split(x.reshape(-1, 1).astype(np.float32), y.reshape(-1, 1).astype(np.float32), group)
    test = Split(grid[:, None].astype(np.float32), mean[:, None].astype(np.float32))
    return regression(name, train, test, standardize)._replace(noise=noise)


def _check_positive(**numbers: int) -> None:
    for key, value in numbers.items():
        if value < 1:
            raise BadInput(f"data.{key} = {value}: it must be at least 1")


def make_sine(_root: Path | None, seed: int = 0, clients: int = 50, samples: int = 2) -> Dataset:
    """The sine toy: `y = a sin(2 pi x) + e` with e ~ N(0, 0.2^2) and x uniform on [-1, 1].

    Each client has an amplitude a ~ N(1, 0.2^2). The test rows are 201 even points of [-1, 1] with
    E[y|x] = sin(2 pi x). Nothing is standardized. Source: Fed-ensemble, section V-A.

    Args:
        seed: Address of the rows.
        clients: Number of clients.
        samples: Rows of each client.

    Example:
        >>> make_sine(None).train.x.shape
        (100, 1)
    """
    return _draw_sine("sine", seed, clients, samples, has_gap=False)


def make_interval(_root: Path | None, seed: int = 0, clients: int = 50, samples: int = 2) -> Dataset:
    """The sine toy with training x in [-1, -0.5] and [0.5, 1]; the test rows still cover all of [-1, 1].

    Args:
        seed: Address of the rows.
        clients: Number of clients.
        samples: Rows of each client.
    """
    return _draw_sine("interval", seed, clients, samples, has_gap=True)


def _draw_sine(name: str, seed: int, clients: int, samples: int, *, has_gap: bool) -> Dataset:
    _check_positive(clients=clients, samples=samples)
    draw = rng.stream(seed, name)
    x = draw.uniform(-1.0, 1.0, (clients, samples))
    if has_gap:
        x = np.sign(x) * (0.5 + 0.5 * np.abs(x))
    y = draw.normal(1.0, SINE_SD, (clients, 1)) * np.sin(2 * np.pi * x) + draw.normal(0.0, SINE_SD, x.shape)
    grid = np.linspace(-1.0, 1.0, 201)
    mean = np.sin(2 * np.pi * grid)
    noise = float((SINE_SD**2 * (1.0 + mean**2)).mean())
    return _toy(name, x, y, grid=grid, mean=mean, standardize=False, noise=noise)


def make_cubic(
    _root: Path | None, seed: int = 0, clients: int = 10, samples: int = 16, standardise: bool = True
) -> Dataset:
    """The cubic toy: `y = x^3 + e` with e ~ N(0, 9) and x uniform on [-4, 4].

    The test rows are 241 even points of [-6, 6] with x^3. Source: FedAG, toy example.

    Args:
        seed: Address of the rows.
        clients: Number of clients.
        samples: Rows of each client.
        standardise: Whether inputs and targets are standardized, as all of FedAG's data are; targets reach 64, and
            plain SGD would diverge on them.
    """
    _check_positive(clients=clients, samples=samples)
    draw = rng.stream(seed, "cubic")
    x = draw.uniform(-4.0, 4.0, (clients, samples))
    y = x**3 + draw.normal(0.0, 3.0, x.shape)
    grid = np.linspace(-6.0, 6.0, 241)
    return _toy("cubic", x, y, grid=grid, mean=grid**3, standardize=standardise, noise=9.0)


def make_population(
    _root: Path | None,
    *,
    samples: int = 20,
    features: int = 64,
    classes: int = 10,
    separation: float = 0.5,
    spread: float = 0.0,
    per_client: int = 0,
    test: int = 2000,
    seed: int = 0,
) -> Dataset:
    """A population of generated clients, without training rows.

    Args:
        samples: Rows of a client; the median, if `spread` is above 0.
        features: Length of an input.
        classes: Number of classes.
        separation: Standard deviation of the classes' means; that of the noise is 1.
        spread: Standard deviation of the logarithm of a client's number of rows.
        per_client: Different classes that a client holds; 0 means all.
        test: Number of test rows.
        seed: Address of the rows.
    """
    _check_positive(samples=samples, features=features, classes=classes, test=test)
    if not 0 <= per_client <= classes:
        raise BadInput(f"data.per_client = {per_client}, but data.classes is {classes}: lower it")
    if spread < 0:
        raise BadInput(f"data.spread = {spread}: it must be at least 0")
    population = Population(samples, features, classes, separation, spread, per_client, seed)
    draw = rng.stream(seed, "synthetic test")
    y = draw.integers(0, classes, test)
    x = draw_class_means(population)[y] + draw.standard_normal((test, features), dtype=np.float32)
    empty = Split(np.empty((0, features), np.float32), np.empty(0, np.int64))
    zero, one = np.zeros((1, features), np.float32), np.ones((1, features), np.float32)
    names = tuple(str(c) for c in range(classes))
    return Dataset(
        "synthetic", empty, Split(x, y), classes, names, zero, one, zero[:, :1], one[:, :1], population=population
    )


def draw_class_means(population: Population) -> Float32:
    """Draws the means of the mixture's components, `[classes, features]`."""
    draw = rng.stream(population.seed, "synthetic means")
    means = draw.standard_normal((population.classes, population.features), dtype=np.float32)
    return means * np.float32(population.separation)
