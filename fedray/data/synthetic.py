"""Makes the small data sets that papers describe (*toys*), and clients whose samples are random. Joins data sets."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import EVALUATED_CLIENTS, FloatArray, IntArray
from fedray.data.partition import count_withheld
from fedray.data.shards import Fetched, Scaling
from fedray.data.shifts import LabelNoise, mislabel
from fedray.data.types import Dataset, Float32, Population, Split, add_back, classification, regression

# ---------------------------------------------------------------------------------------------------------------------
# Toys and populations.
#
# A toy has one input, one target and a known mean E[y|x], and it names the client of each sample. A population stores
# no training samples: the samples of a client are generated when they are needed. The first argument of every loader is
# the folder of data files, which the loaders here do not use.

SINE_SD = 0.2  # standard deviation of the amplitudes of the sines, and of the noise


def _toy(
    name: str, x: FloatArray, y: FloatArray, *, grid: FloatArray, mean: FloatArray, standardize: bool, noise: float
) -> Dataset:
    """Makes a toy from training inputs x and targets y, `[clients, samples]` each.

    The test inputs are `grid`, and the test targets `mean` are E[y|x] at these inputs. `noise` is the variance of y
    around E[y|x].
    """
    group = np.repeat(np.arange(x.shape[0], dtype=np.int64), x.shape[1])
    train = Split(x.reshape(-1, 1).astype(np.float32), y.reshape(-1, 1).astype(np.float32), group)
    test = Split(grid[:, None].astype(np.float32), mean[:, None].astype(np.float32))
    return regression(name, train, test, standardize)._replace(noise=noise)


def make_sine(_root: Path | None, seed: int = 0, clients: int = 50, samples: int = 2, *, name: str = "sine") -> Dataset:
    """Makes the sine toy: `y = a sin(2 pi x) + e` with noise e ~ N(0, 0.2^2) and x uniform on [-1, 1].

    Each client has its own amplitude a ~ N(1, 0.2^2). The test inputs are 201 evenly spaced points of [-1, 1], and the
    test targets are E[y|x] = sin(2 pi x). Nothing is standardized. Source: Fed-ensemble, section V-A.

    Args:
        seed: Seed of the random numbers.
        clients: Number of clients.
        samples: Number of samples of each client.
        name: Name of the toy, `sine` or `interval`. In `interval`, training inputs lie in [-1, -0.5] and [0.5, 1], and
            the test samples are the same as in `sine`.

    Example:
        The mean amplitude is near 1.

        >>> points = make_sine(None, clients=1000).train
        >>> wave = np.sin(2 * np.pi * points.x)
        >>> points.x.shape, round(float((wave * points.y).sum() / (wave * wave).sum()), 1)
        ((2000, 1), 1.0)
    """
    draw = rng.stream(seed, name)
    x = draw.uniform(-1.0, 1.0, (clients, samples))
    x = np.sign(x) * (0.5 + 0.5 * np.abs(x)) if name == "interval" else x
    y = draw.normal(1.0, SINE_SD, (clients, 1)) * np.sin(2 * np.pi * x) + draw.normal(0.0, SINE_SD, x.shape)
    grid = np.linspace(-1.0, 1.0, 201)
    mean = np.sin(2 * np.pi * grid)
    noise = float((SINE_SD**2 * (1.0 + mean**2)).mean())
    return _toy(name, x, y, grid=grid, mean=mean, standardize=False, noise=noise)


def make_cubic(
    _root: Path | None, seed: int = 0, clients: int = 10, samples: int = 16, standardise: bool = True
) -> Dataset:
    """Makes the cubic toy: `y = x^3 + e` with noise e ~ N(0, 9) and x uniform on [-4, 4].

    The test inputs are 241 evenly spaced points of [-6, 6], and the test targets are x^3. Source: FedAG, toy example.

    Args:
        seed: Seed of the random numbers.
        clients: Number of clients.
        samples: Number of samples of each client.
        standardise: Whether inputs and targets are standardized, as in FedAG. Plain SGD would diverge on raw targets,
            which reach 64.
    """
    draw = rng.stream(seed, "cubic")
    x = draw.uniform(-4.0, 4.0, (clients, samples))
    y = x**3 + draw.normal(0.0, 3.0, x.shape)
    grid = np.linspace(-6.0, 6.0, 241)
    return _toy("cubic", x, y, grid=grid, mean=grid**3, standardize=standardise, noise=9.0)


def make_population(_root: Path | None, *, test: int = 2000, **given: Any) -> Dataset:
    """Makes a data set with generated clients. Test samples are stored, but training samples are generated when needed.

    `test` is the number of test samples. `given` has fields of `Population`, by name.
    """
    population = Population(**given)
    features, classes = population.features, population.classes
    if population.per_client > classes:
        raise BadInput(f"data.per_client = {population.per_client}, but data.classes is {classes}: lower it")
    draw = rng.stream(population.seed, "synthetic test")
    y = draw.integers(0, classes, test)
    x = draw_class_means(population)[y] + draw.standard_normal((test, features), dtype=np.float32)
    empty = Split(np.empty((0, features), np.float32), np.empty(0, np.int64))
    zero, one = np.zeros((1, features), np.float32), np.ones((1, features), np.float32)
    names = tuple(str(c) for c in range(classes))
    return Dataset(
        "synthetic", empty, Split(x, y), classes, names, zero, one, zero[:, :1], one[:, :1], population=population
    )


def draw_class_means(population: Population) -> Float32:
    """Draws the mean input of each class, `[classes, features]`."""
    draw = rng.stream(population.seed, "synthetic means")
    means = draw.standard_normal((population.classes, population.features), dtype=np.float32)
    return means * np.float32(population.separation)


# ---------------------------------------------------------------------------------------------------------------------
# Clients whose samples are generated when they are needed. A million clients need no storage.
#
# The samples of a client are computed from the seed and the id of the client. A sample is the mean of its class plus
# noise. The noise is the sum of two random rows of a table. The entries of the table are drawn from N(0, 1/2), so the
# noise is standard normal. A table of 2^16 rows gives about 2^31 different sums.

POOL_NUMBERS = 1 << 22  # number of float32 entries in the table of noise (16 MB)


class GeneratedShards:
    """The samples of generated clients. `fedray.data.shards.Shards` describes the methods.

    Example:
        >>> from fedray.data.synthetic import make_population
        >>> data = make_population(None, features=4, classes=2, test=10)
        >>> shards = GeneratedShards(data, data.population, 10**6, [0], hold_out=0.0)
        >>> shards.fetch(np.array([0]), np.array([999_999])).x.shape
        torch.Size([20, 4])
    """

    def __init__(
        self,
        data: Dataset,
        population: Population,
        clients: int,
        seeds: list[int],
        *,
        hold_out: float,
        server: float = 0.0,
        label_noise: LabelNoise | None = None,
        owners: int | None = None,
    ) -> None:
        """Makes the shards, and draws a table of noise that all samples share.

        Args:
            data: The data set, which holds the test samples.
            population: The settings of the generated clients.
            clients: Number of clients, N.
            seeds: Seed of each world. A world is a combination of a replicate and a fold.
            hold_out: Share of each client's samples that is withheld from training.
            server: Size of the server's data. The server gets the samples of `server * min(N, 10000)` further generated
                clients. This number of clients is rounded up.
            label_noise: The shares of clients with wrong labels. None means that all labels are true.
            owners: Number of clients before pooling. Each of these clients has either true or wrong labels. After
                pooling, each of the N clients stands for `owners / N` of these clients. None means no pooling.
        """
        self.data, self.number, self.worlds = data, clients, len(seeds)
        self.data_folds = [0] * len(seeds)
        self._population, self._hold_out, self._server = population, hold_out, server
        self._seeds = np.asarray(seeds, dtype=np.int64)
        self.scaling = Scaling.of(data, self.data_folds)
        self._rows = 1 << max(10, min(16, (POOL_NUMBERS // population.features).bit_length() - 1))
        draw = rng.stream(population.seed, "synthetic noise")
        noise = draw.standard_normal((self._rows, population.features), dtype=np.float32)
        table = np.concatenate([draw_class_means(population), noise * np.float32(np.sqrt(0.5))])
        self._table = torch.from_numpy(table)  # [classes + pool, features]
        self._owners = owners or clients
        self._kinds = None if label_noise is None else label_noise.kinds(seeds, self._owners)
        self._held: dict[int, IntArray] = {}  # world -> index of each client's first withheld sample

    def _total(self, world: IntArray, client: IntArray) -> IntArray:
        """Returns the number of samples of client `client[j]` for each job j, `[J]`. Includes withheld samples."""
        p = self._population
        if not p.spread:
            return np.full(len(client), p.samples, dtype=np.int64)
        z = rng.normal(rng.keys(self._seeds[world], "synthetic size", client), 1)[:, 0]
        return np.asarray(np.maximum(np.rint(p.samples * np.exp(p.spread * z)), 1).astype(np.int64))

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Returns the number of training samples of client `client[j]` in world `world[j]` for each job j, `[J]`."""
        total = self._total(world, client)
        return total - count_withheld(total, self._hold_out)

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Generates the training samples of client `client[j]` in world `world[j]` for each job j."""
        drawn = self._draw(world, client, np.zeros(len(client), np.int64), self.sizes(world, client))
        if self._kinds is None:
            return drawn
        owner, place = np.nonzero(np.arange(drawn.rows.shape[1]) < drawn.size[:, None])  # in the order of `drawn.y`
        key = rng.fresh(rng.keys(self._seeds[world], "noisy labels", client)[owner], place)
        pooled = self._owners // self.number  # number of clients before pooling that one client stands for
        first = client[owner] * pooled
        kind = self._kinds[world[owner], first + place * pooled // drawn.size[owner]]
        y = mislabel(drawn.y.numpy(), kind, key, self._population.classes)
        return drawn._replace(y=torch.from_numpy(y))

    def _draw(self, world: IntArray, client: IntArray, first: IntArray, size: IntArray) -> Fetched:
        """Generates the samples `first[j]` to `first[j] + size[j] - 1` of client `client[j]` for each job j."""
        n = int(size.max(initial=0))
        mask = np.arange(n) < size[:, None]  # [J, n]
        label, pick = self._draw_labels_and_noise(world, client, first, n)
        y, noise = label[mask], pick[mask]
        pool = self._population.classes + np.stack([noise & (self._rows - 1), (noise >> 32) & (self._rows - 1)])
        parts = torch.from_numpy(np.stack([y, *pool], axis=1))  # [n, 3]: the rows of the table that add up to a sample
        x = torch.nn.functional.embedding_bag(parts, self._table, mode="sum")
        rows = np.zeros(mask.shape, dtype=np.int64)
        rows[mask] = np.arange(len(y))
        return Fetched(x, torch.from_numpy(y), torch.from_numpy(rows), size)

    def _draw_labels_and_noise(
        self, world: IntArray, client: IntArray, first: IntArray, n: int
    ) -> tuple[IntArray, IntArray]:
        """Draws the labels of n samples for each job, and random bits that choose the noise, `[J, n]` each.

        The samples of job j begin at index `first[j]` of client `client[j]`.
        """
        key = rng.keys(self._seeds[world], "synthetic", client)
        row = rng.fresh(key[:, None], first[:, None] + np.arange(n))  # [J, n]
        words = (rng.bits(row, 2) >> np.uint64(1)).astype(np.int64)  # 63 bits
        choices = self._population.per_client or self._population.classes
        label = ((words[..., 0] >> 31) * choices) >> 32
        if self._population.per_client:
            held = rng.permutations(rng.keys(self._seeds[world], "synthetic classes", client), self._population.classes)
            label = np.take_along_axis(held, label, axis=1)
        return label, words[..., 1]

    def test(self, _world: int) -> tuple[Tensor, Tensor]:
        """Returns the test samples of the data set. They are the same in all worlds."""
        return torch.from_numpy(self.data.test.x), torch.from_numpy(self.data.test.y)

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        """Returns the withheld samples, which are the last samples of each client, for the first 10,000 clients."""
        client = np.arange(min(self.number, EVALUATED_CLIENTS))
        worlds = np.full_like(client, world)
        kept = self.sizes(worlds, client)
        held = self._draw(worlds, client, kept, self._total(worlds, client) - kept)
        return held.x, held.y

    def server(self, world: int) -> tuple[Tensor, Tensor]:
        """Returns the server's samples: the samples of further generated clients."""
        number = math.ceil(min(self.number, EVALUATED_CLIENTS) * self._server - 1e-9)  # 30 * 0.1 is above 3
        client = self.number + np.arange(number)
        worlds = np.full_like(client, world)
        drawn = self._draw(worlds, client, np.zeros_like(client), self._total(worlds, client))
        return drawn.x, drawn.y

    def client_test(self, _world: int, _client: int) -> IntArray | None:
        """Returns None, because no test sample belongs to a client."""
        return None

    def clusters(self, _world: int) -> IntArray | None:
        """Returns None, because there are no clusters of clients."""
        return None

    def cluster_test(self, _world: int, _client: int) -> IntArray | None:
        """Returns None, because all clients share all test samples."""
        return None

    def client_holdout(self, world: int, client: int) -> IntArray:
        """Returns the indices of this client's samples in `holdout(world)`, `[n]`."""
        if world not in self._held:
            known = np.arange(min(self.number, EVALUATED_CLIENTS))
            size = count_withheld(self._total(np.full_like(known, world), known), self._hold_out)
            self._held[world] = np.concatenate([[0], np.cumsum(size)])
        return np.arange(*self._held[world][client : client + 2].tolist())

    def label_counts(self, world: int) -> IntArray:
        """Counts the true labels of each client's training samples, `[clients, C]`.

        Only the first 10,000 clients are included.
        """
        client = np.arange(min(self.number, EVALUATED_CLIENTS))
        worlds = np.full_like(client, world)
        size = self.sizes(worlds, client)
        n = int(size.max(initial=0))
        label, _ = self._draw_labels_and_noise(worlds, client, np.zeros_like(client), n)
        cell = (client[:, None] * self._population.classes + label)[np.arange(n) < size[:, None]]
        counts = np.bincount(cell, minlength=len(client) * self._population.classes)
        return counts.reshape(len(client), -1).astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Joining several data sets to one, in which the column `domain` names the original data set of each sample.


def join_datasets(parts: Sequence[Dataset], apart: bool = False) -> Dataset:
    """Joins several data sets to one. The inputs of all data sets are standardized together.

    Args:
        parts: The data sets. Each must have classes and stored samples. All inputs must have the same shape and type.
        apart: Whether each data set has classes of its own. Otherwise class c is the same class in every data set.

    Raises:
        BadInput: The data sets cannot be joined.

    Example:
        >>> from fedray.data.types import Split, classification
        >>> x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
        >>> parts = [classification(name, Split(x, y), Split(x, y), ("no", "yes")) for name in ("north", "south")]
        >>> both = join_datasets(parts, apart=True)
        >>> both.class_names, both.train.y.tolist()
        (('north no', 'north yes', 'south no', 'south yes'), [0, 1, 0, 1, 2, 3, 2, 3])
        >>> both.columns["domain"].tolist()[::4]
        ['north', 'south']
    """
    names = [part.name for part in parts]
    if len(parts) < 2 or len(set(names)) < len(names):
        raise BadInput(f"data.sets = {', '.join(names)}: give two data sets at least, each once")
    first = parts[0]
    for part in parts:
        if not part.classes or part.population or part.folds:
            raise BadInput(f"data.sets: {part.name} has no classes, or no stored training and test rows: leave it out")
        if (part.input_shape, part.train.x.dtype) != (first.input_shape, first.train.x.dtype):
            raise BadInput(f"data.sets: the inputs of {first.name} and {part.name} differ: join sets of equal inputs")
        if not apart and part.classes != first.classes:
            raise BadInput(f"data.sets: {first.name} and {part.name} have other classes: write data.classes: apart")
    shift = np.cumsum([0, *(part.classes for part in parts[:-1])]) * apart
    splits = [
        Split(
            np.concatenate([add_back(getattr(part, side).x, part.origin) for part in parts]),
            np.concatenate([getattr(part, side).y + more for part, more in zip(parts, shift, strict=True)]),
        )
        for side in ("train", "test")
    ]
    own_names = tuple(f"{part.name} {name}" for part in parts for name in part.class_names)
    classes = own_names if apart else first.class_names
    joined = classification(" + ".join(names), train=splits[0], test=splits[1], names=classes)
    return joined._replace(columns={"domain": np.repeat(names, [len(part.train.y) for part in parts])})
