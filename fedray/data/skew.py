"""Partitions of skewed sizes, and of skewed sizes and labels at the same time.

Example:
    >>> from fedray.core import rng
    >>> np.diff(power_law(np.zeros(100), 4, rng.stream(1, "partition"), exponent=2.0).offsets).tolist()
    [9, 18, 68, 5]
    >>> np.diff(sizes(np.zeros(10), 2, rng.stream(0, "partition"), sizes=[7, 3]).offsets).tolist()
    [7, 3]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, IntArray
from fedray.data.cut import Cut, gather_cut
from fedray.data.dealing import Generator, check_labels, check_least, deal_sizes, share_rows
from fedray.data.types import Array

FITTINGS = 60  # rounds of fitting both margins of the table client x class; the last bits never matter
EQUAL = "equal"


def lognormal(labels: Array, clients: int, generator: Generator, sigma: float = 1.0, *, min_rows: int = 1) -> Cut:
    """Shuffled rows in lognormal sizes: `n_i ~ exp(sigma z_i)` with z_i standard normal.

    Source: Acar et al. 2021 (FedDyn, section 4, unbalanced data); sizes as `share_rows` rounds them.

    Args:
        labels: Of the rows, `[n]`; only their number counts.
        clients: Number of clients, N.
        generator: Draws the partition.
        sigma: Standard deviation of the logarithm of a size; 0: equal sizes.
        min_rows: Rows that each client gets at least.
    """
    return _deal_by_law("lognormal", sigma, labels, clients, generator, min_rows)


def power_law(labels: Array, clients: int, generator: Generator, exponent: float = 1.5, *, min_rows: int = 1) -> Cut:
    """Shuffled rows in sizes by a power law of their rank: `n_i ~ r_i^-exponent`, ranks 1 to N in random order.

    Source: Li et al. 2020 (FedProx, section 5.1: "the number of samples per device follows a power law").

    Args:
        labels: Of the rows, `[n]`; only their number counts.
        clients: Number of clients, N.
        generator: Draws the partition.
        exponent: 0 and above; 0: equal sizes.
        min_rows: Rows that each client gets at least.
    """
    return _deal_by_law("power_law", exponent, labels, clients, generator, min_rows)


def exponential(labels: Array, clients: int, generator: Generator, rate: float = 3.0, *, min_rows: int = 1) -> Cut:
    """Shuffled rows in sizes that fall exponentially with their rank: `n_i ~ exp(-rate r_i / (N - 1))`, r_i from 0.

    The largest client has about `exp(rate)` times the rows of the smallest. Source: flwr_datasets'
    `ExponentialPartitioner` has `n_i ~ exp(i)`, which is `rate = N - 1` in a fixed order.

    Args:
        labels: Of the rows, `[n]`; only their number counts.
        clients: Number of clients, N.
        generator: Draws the partition.
        rate: 0 and above; 0: equal sizes.
        min_rows: Rows that each client gets at least.
    """
    return _deal_by_law("exponential", rate, labels, clients, generator, min_rows)


def sizes(labels: Array, clients: int, generator: Generator, sizes: Sequence[int] = ()) -> Cut:
    """Shuffled rows in exactly these sizes.

    Args:
        labels: Of the rows, `[n]`; only their number counts.
        clients: Number of clients, N.
        generator: Draws the partition.
        sizes: Rows of each client, N numbers that add up to n.
    """
    check_least(len(labels), clients, 0)
    return deal_sizes(generator.permutation(len(labels)), _check_sizes(sizes, len(labels), clients))


def dirichlet_clients(
    labels: Array,
    clients: int,
    generator: Generator,
    alpha: float = 0.5,
    sizes: str | Sequence[int] = EQUAL,
    *,
    skew: float = 1.0,
    min_rows: int = 1,
) -> Cut:
    """Class shares of each client drawn from Dirichlet(alpha) over the classes, with sizes of a law of their own.

    Client i has the shares `q_i ~ Dir(alpha, ..., alpha)` and n_i rows; `n_i q_ic` is fitted in turns to the sizes n_i
    and to the rows of each class (iterative proportional fitting), so that every row is dealt and every size is exact.
    `dirichlet` draws one vector over the clients for each class instead, and its sizes follow from that.

    Source: Hsu et al. 2019 (shares of a client, there with the prior of the data); Acar et al. 2021 and flwr_datasets'
    `InnerDirichletPartitioner` (sizes given beside them); Deming and Stephan 1940 (the fitting).

    Args:
        labels: Of the rows, `[n]` integers.
        clients: Number of clients, N.
        generator: Draws the partition.
        alpha: 0.0001 to 1e9; the smaller, the more the clients differ.
        sizes: `equal`, `lognormal`, `power_law` or `exponential`, as those partitions draw them; or exact sizes.
        skew: Sigma, exponent or rate of the sizes' law.
        min_rows: Rows that each client gets at least, if the sizes follow a law.
    """
    y = check_labels(labels, "dirichlet_clients")
    if not 1e-4 <= alpha < 1e9:
        raise BadInput(f"data.partition.alpha = {alpha}: it must be at least 0.0001 and below 1e9")
    check_least(len(y), clients, min_rows)
    if isinstance(sizes, str):
        size = _draw_sizes(sizes, skew, len(y), clients, generator, min_rows)
    else:
        size = _check_sizes(sizes, len(y), clients)
    _, y, count = np.unique(y, return_inverse=True, return_counts=True)
    wanted = generator.dirichlet(np.full(len(count), alpha), size=clients) + 1e-12  # [N, C]
    for _ in range(FITTINGS):
        wanted *= (size / np.maximum(wanted.sum(axis=1), 1e-300))[:, None]
        wanted *= count / np.maximum(wanted.sum(axis=0), 1e-300)
    order = generator.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]  # class after class
    edges = np.rint(np.cumsum(wanted.T.ravel()) * (len(y) / wanted.sum())).astype(np.int64)
    owner = np.tile(np.arange(clients), len(count)).repeat(np.diff(np.minimum(edges, len(y)), prepend=0))
    owner = np.concatenate([owner, np.full(len(y) - len(owner), clients - 1)])
    return _fit_sizes(gather_cut(order, owner, clients), size, generator)


def _fit_sizes(cut: Cut, size: IntArray, generator: Generator) -> Cut:
    """Moves random rows of clients that have too many to those that have too few; rounding leaves a few of each."""
    owner, have = cut.owner, np.diff(cut.offsets)
    order = np.lexsort((generator.random(len(owner)), owner))
    place = np.arange(len(owner)) - cut.offsets[:-1][owner]
    spare = order[place >= size[owner]]
    owner[spare] = np.repeat(np.arange(cut.clients), np.maximum(size - have, 0))
    return gather_cut(cut.rows, owner, cut.clients)


def _deal_by_law(law: str, skew: float, labels: Array, clients: int, generator: Generator, least: int) -> Cut:  # noqa: PLR0917
    """Shuffled rows in sizes that follow a law."""
    check_least(len(labels), clients, least)
    size = _draw_sizes(law, skew, len(labels), clients, generator, least)
    return deal_sizes(generator.permutation(len(labels)), size)


def _draw_sizes(law: str, skew: float, rows: int, clients: int, generator: Generator, least: int) -> IntArray:  # noqa: PLR0917
    """Rows of each client by a law of sizes, `[N]`."""
    if law not in LAWS:
        raise BadInput(f"data.partition.sizes = {law}: choose one of {', '.join(LAWS)}, or give a list of sizes")
    if not 0 <= skew <= 100:
        raise BadInput(f"data.partition.{SKEW_KEYS[law]} = {skew}: it must be at least 0 and at most 100")
    logs = LAWS[law](skew, clients, generator)
    return share_rows(np.exp(logs - logs.max()), rows, least)


def _check_sizes(sizes: Sequence[int], rows: int, clients: int) -> IntArray:
    """Exact sizes, `[N]`."""
    size = np.asarray(sizes, dtype=np.int64)
    if len(size) != clients:
        raise BadInput(
            f"data.partition.sizes has {len(size)} sizes, but clients.number is {clients}: give one for each"
        )
    if size.min(initial=1) < 1 or size.sum() != rows:
        what = f"adds up to {size.sum()}" if size.min(initial=1) >= 1 else f"holds {size.min()}"
        raise BadInput(
            f"data.partition.sizes {what}, but there are {rows} rows to deal: give sizes above 0 of that sum"
        )
    return size


LAWS: dict[str, Callable[[float, int, Generator], FloatArray]] = {  # (skew, N, generator) -> logarithms of weights
    EQUAL: lambda _skew, clients, _draw: np.zeros(clients),
    "lognormal": lambda sigma, clients, draw: sigma * draw.standard_normal(clients),
    "power_law": lambda exponent, clients, draw: -exponent * np.log1p(draw.permutation(clients)),
    "exponential": lambda rate, clients, draw: -rate * draw.permutation(clients) / max(1, clients - 1),
}
SKEW_KEYS = {EQUAL: "skew", "lognormal": "sigma", "power_law": "exponent", "exponential": "rate"}
