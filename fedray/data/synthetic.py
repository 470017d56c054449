"""The papers' toys: one input, one target, a known mean; every client is a group of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import FloatArray
from fedray.data.types import Dataset, Population, Split, regression

SD = 0.2  # of the sine's amplitudes and of its noise


def _toy(name: str, x: FloatArray, y: FloatArray, grid: FloatArray, mean: FloatArray, *, standardise: bool) -> Dataset:
    """x, y: `[clients, points]`; the test rows are `grid` with the noiseless mean."""
    group = np.repeat(np.arange(x.shape[0], dtype=np.int64), x.shape[1])
    train = Split(x.reshape(-1, 1).astype(np.float32), y.reshape(-1, 1).astype(np.float32), group)
    test = Split(grid[:, None].astype(np.float32), mean[:, None].astype(np.float32))
    data = regression(name, train, test, standardise)
    return data._replace(noise=9.0 if name == "cubic" else float((SD**2 * (1.0 + mean**2)).mean()))


def _positive(**numbers: int) -> None:
    for key, value in numbers.items():
        if value < 1:
            raise BadInput(f"data.{key} = {value}: it must be at least 1")


def sine_toy(root: Path | None, seed: int = 0, clients: int = 50, samples: int = 2) -> Dataset:
    """`y = a sin(2 pi x) + e`, a ~ N(1, 0.2^2) a client, e ~ N(0, 0.2^2), x uniform on [-1, 1].

    Test rows: 201 even points of [-1, 1] with E[y|x] = sin(2 pi x). Nothing is standardised.
    Source: Fed-ensemble, section V-A.

    Example:
        >>> sine_toy(None).train.x.shape
        (100, 1)
    """
    return _sine("sine", seed, clients, samples, gap=False)


def interval_toy(root: Path | None, seed: int = 0, clients: int = 50, samples: int = 2) -> Dataset:
    """`sine_toy` with training x in [-1, -0.5] u [0.5, 1]; the test rows still cover all of [-1, 1]."""
    return _sine("interval", seed, clients, samples, gap=True)


def _sine(name: str, seed: int, clients: int, samples: int, gap: bool) -> Dataset:
    _positive(clients=clients, samples=samples)
    draw = rng.stream(seed, name)
    x = draw.uniform(-1.0, 1.0, (clients, samples))
    if gap:
        x = np.sign(x) * (0.5 + 0.5 * np.abs(x))
    y = draw.normal(1.0, SD, (clients, 1)) * np.sin(2 * np.pi * x) + draw.normal(0.0, SD, x.shape)
    grid = np.linspace(-1.0, 1.0, 201)
    return _toy(name, x, y, grid, np.sin(2 * np.pi * grid), standardise=False)


def cubic_toy(
    root: Path | None, seed: int = 0, clients: int = 10, samples: int = 16, standardise: bool = True
) -> Dataset:
    """`y = x^3 + e`, e ~ N(0, 9), x uniform on [-4, 4]; test rows: 241 even points of [-6, 6] with x^3.

    Standardised, as all of FedAG's data (its targets reach 64, and plain SGD would diverge).
    Source: FedAG, toy example.
    """
    _positive(clients=clients, samples=samples)
    draw = rng.stream(seed, "cubic")
    x = draw.uniform(-4.0, 4.0, (clients, samples))
    y = x**3 + draw.normal(0.0, 3.0, x.shape)
    grid = np.linspace(-6.0, 6.0, 241)
    return _toy("cubic", x, y, grid, grid**3, standardise=standardise)


def synthetic_population(
    root: Path | None,
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
    """A population of generated clients (see `Population`): no rows are stored, `test` rows are drawn here."""
    _positive(samples=samples, features=features, classes=classes, test=test)
    if not 0 <= per_client <= classes:
        raise BadInput(f"data.per_client = {per_client}, but data.classes is {classes}: lower it")
    if spread < 0:
        raise BadInput(f"data.spread = {spread}: it must be at least 0")
    population = Population(samples, features, classes, separation, spread, per_client, seed)
    draw = rng.stream(seed, "synthetic test")
    y = draw.integers(0, classes, test)
    x = class_means(population)[y] + draw.standard_normal((test, features), dtype=np.float32)
    empty = Split(np.empty((0, features), np.float32), np.empty(0, np.int64))
    zero, one = np.zeros((1, features), np.float32), np.ones((1, features), np.float32)
    names = tuple(str(c) for c in range(classes))
    return Dataset(
        "synthetic", empty, Split(x, y), classes, names, zero, one, zero[:, :1], one[:, :1], population=population
    )


def class_means(population: Population) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Means of the mixture's components, `[classes, features]`."""
    draw = rng.stream(population.seed, "synthetic means")
    means = draw.standard_normal((population.classes, population.features), dtype=np.float32)
    return means * np.float32(population.separation)
