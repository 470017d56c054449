"""Partitions: which client holds which training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray, IntArray
from fedray.data.cut import (
    Cut,
    Generator,
    check_labels,
    check_rows,
    deal_sizes,
    gather_cut,
    raise_to_least,
    share_rows,
)
from fedray.data.types import Array

# ---------------------------------------------------------------------------------------------------------------------
# Partitions by what is known of the rows: natural clients, the values of a column, domains, and time.


def natural(values: Array, clients: int | None, _generator: Generator | None = None) -> Cut:
    """Each value (writer, role, printer) is a client, in sorted order.

    Args:
        values: Of the rows, `[n]`.
        clients: Number of different values; None accepts any number.

    Example:
        >>> natural(np.array([30, 10, 30]), None).rows.tolist()
        [1, 0, 2]
        >>> time(np.array([5.0, 1.0, 3.0, 2.0]), 2).rows.tolist()
        [1, 3, 2, 0]
    """
    return _take_owners(values, clients, "the natural partition")


def _take_owners(values: Array, clients: int | None, what: str) -> Cut:
    """Each value is a client; `what` says where they come from, for the message."""
    found, owner = np.unique(values, return_inverse=True)
    if clients is not None and clients != len(found):
        raise BadInput(f"clients.number = {clients}, but {what} has {len(found)} clients: leave it out, or set it so")
    return gather_cut(np.arange(len(values)), owner.astype(np.int64), len(found))


def column(
    values: Array,
    clients: int | None,
    _generator: Generator | None = None,
    column: str = "",
) -> Cut:
    """Each value of a table's column is a client.

    Args:
        values: The column, `[n]`.
        clients: Number of different values; None accepts any number.
        column: Name of the column, for messages: the caller has chosen the values.
    """
    return _take_owners(values, clients, f"the column {column}")


def domain(
    values: Array,
    clients: int,
    generator: Generator,
    column: str = "domain",  # noqa: ARG001  (an option of the scenario, by which the caller has chosen the values)
) -> Cut:
    """Each value of a column is a domain with a group of clients, among whom its rows are dealt evenly.

    Domain g of n_g rows gets `1 + (N - G) n_g / n` of the N clients, rounded by largest remainders; ids go by domain.

    Source: Peng et al. 2020 (federated adversarial domain adaptation: a client has one domain), with several clients a
    domain.

    Args:
        values: Domain of each row, `[n]`, of G different values.
        clients: Number of clients, N >= G.
        generator: Shuffles the rows of each domain.
        column: Name of the column; a data set that is made of several has the column `domain`.
    """
    found, group, count = np.unique(values, return_inverse=True, return_counts=True)
    check_rows(len(values), clients)
    if clients < len(found):
        raise BadInput(f"clients.number = {clients}, but the column has {len(found)} domains: raise it to {len(found)}")
    number = np.minimum(share_rows(count.astype(np.float64), clients), count)
    spare = np.repeat(np.arange(len(count)), count - number)  # places that domains still have
    more: IntArray = np.bincount(spare[: clients - int(number.sum())], minlength=len(count))
    number = number + more
    order = generator.permutation(len(values))
    order = order[np.argsort(group[order], kind="stable")]
    place = np.arange(len(order)) - (np.cumsum(count) - count)[group[order]]  # position inside the domain
    first = np.cumsum(number) - number
    owner = first[group[order]] + place % number[group[order]]
    return gather_cut(order, owner.astype(np.int64), clients)


def time(
    values: Array,
    clients: int,
    _generator: Generator | None = None,
    column: str = "",  # noqa: ARG001  (an option of the scenario, by which the caller has chosen the values)
) -> Cut:
    """The rows are sorted by a column and cut into spans of equal numbers of rows, one a client, the earliest first.

    Rows of the same time keep their order. Client i has the rows from the quantile `i / N` to `(i + 1) / N`. Columns of
    a table come as text: where all of it is numbers they are sorted as numbers, missing ones last.

    There is no paper to name: it is the plain split of a stream by its time.

    Args:
        values: The column, `[n]`: numbers, dates, or texts that sort as the times do.
        clients: Number of clients, N.
        column: Name of the column.
    """
    check_rows(len(values), clients)
    order = np.argsort(_read_numbers(values), kind="stable")
    return gather_cut(order, np.arange(len(order)) * clients // len(order), clients)


def _read_numbers(values: Array) -> Array:
    """Returns the numbers that texts say, `[n]`; the values as they are where some are no numbers."""
    if values.dtype.kind != "U":
        return values
    for kind in (np.int64, np.float64):  # whole numbers first: nanoseconds since 1970 are more than float64 tells apart
        try:
            return np.where(values == "<NA>", "nan", values).astype(kind)
        except (ValueError, OverflowError):
            continue
    return values


# ---------------------------------------------------------------------------------------------------------------------
# Partitions of skewed sizes, and of skewed sizes and labels at the same time.

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

    Example:
        >>> from fedray.core import rng
        >>> np.diff(power_law(np.zeros(100), 4, rng.stream(1, "partition"), exponent=2.0).offsets).tolist()
        [9, 18, 68, 5]
        >>> np.diff(sizes(np.zeros(10), 2, rng.stream(0, "partition"), sizes=[7, 3]).offsets).tolist()
        [7, 3]
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
    check_rows(len(y), clients, max(1, min_rows))
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
    check_rows(len(labels), clients, max(1, least))
    size = _draw_sizes(law, skew, len(labels), clients, generator, least)
    return deal_sizes(generator.permutation(len(labels)), size)


def _draw_sizes(law: str, skew: float, rows: int, clients: int, generator: Generator, least: int) -> IntArray:  # noqa: PLR0917
    """Rows of each client by a law of sizes, `[N]`."""
    logs = LAWS[law](skew, clients, generator)
    return share_rows(np.exp(logs - logs.max()), rows, least)


def _check_sizes(sizes: Sequence[int], rows: int, clients: int) -> IntArray:
    """Exact sizes, `[N]`."""
    size = np.asarray(sizes, dtype=np.int64)
    if len(size) != clients or size.sum() != rows:
        raise BadInput(f"data.partition.sizes has {len(size)} of sum {size.sum()}: give {clients} of sum {rows}")
    return size


LAWS: dict[str, Callable[[float, int, Generator], FloatArray]] = {  # (skew, N, generator) -> logarithms of weights
    EQUAL: lambda _skew, clients, _draw: np.zeros(clients),
    "lognormal": lambda sigma, clients, draw: sigma * draw.standard_normal(clients),
    "power_law": lambda exponent, clients, draw: -exponent * np.log1p(draw.permutation(clients)),
    "exponential": lambda rate, clients, draw: -rate * draw.permutation(clients) / max(1, clients - 1),
}


# ---------------------------------------------------------------------------------------------------------------------
# Every row goes to exactly one client. No rejection sampling: empty clients, say, are filled directly.


def iid(labels: Array, clients: int, generator: Generator) -> Cut:
    """Rows are shuffled and dealt evenly; the first clients get the remaining rows, one each.

    Args:
        labels: Of the rows, `[n]`; only their number counts.
        clients: Number of clients, N.
        generator: Draws the partition.

    Example:
        >>> np.diff(iid(np.zeros(8), 3, np.random.default_rng(0)).offsets).tolist()
        [3, 3, 2]
    """
    n = len(labels)
    check_rows(n, clients)
    return gather_cut(generator.permutation(n), np.arange(n) % clients, clients)


def shards(labels: Array, clients: int, generator: Generator, shards: int = 2) -> Cut:
    """Rows are sorted by label and cut into `clients * shards` shards, which are dealt at random.

    Source: McMahan et al. 2017; the "path" partition of SHEFL with 4.

    Args:
        labels: Of the rows, `[n]`, or one target for each row.
        clients: Number of clients, N.
        generator: Draws the partition.
        shards: Shards of each client.
    """
    flat = labels.reshape(len(labels), -1)
    if flat.shape[1] != 1:
        raise BadInput("data.partition.name = shards, but the data has several targets: use iid or natural")
    n, total = len(labels), clients * shards
    check_rows(n, clients, shards)
    order = generator.permutation(n)
    order = order[np.argsort(flat[order, 0], kind="stable")]
    shard = np.arange(n) * total // n  # sizes differ by at most 1
    return gather_cut(order, generator.permutation(total)[shard] // shards, clients)


def classes(labels: Array, clients: int, generator: Generator, classes: int = 2) -> Cut:
    """Every client holds the same number of classes; the rows of a class are dealt evenly to its holders.

    All classes have the same number of holders (to within 1, unless a class has fewer rows than that). Each client
    takes the classes with the most open places, ties at random: this fills all places whenever that is possible
    (Gale, Ryser).

    Args:
        labels: Of the rows, `[n]` integers.
        clients: Number of clients, N.
        generator: Draws the partition.
        classes: Classes of each client.
    """
    y = check_labels(labels, "classes")
    check_rows(len(y), clients)
    _, y, count = np.unique(y, return_inverse=True, return_counts=True)
    if classes > len(count):
        raise BadInput(f"data.partition.classes = {classes}, but the data has {len(count)} classes: lower it")
    open_places = _holders(count, clients, classes, generator)
    holder = np.empty((clients, classes), np.int64)
    for i, tie in enumerate(generator.random((clients, len(count)))):
        holder[i] = np.argsort(tie - open_places, kind="stable")[:classes]
        open_places[holder[i]] -= 1
    slot_class, slot_client = holder.ravel(), np.repeat(np.arange(clients), classes)
    by_class = generator.permutation(len(slot_class))
    by_class = by_class[np.argsort(slot_class[by_class], kind="stable")]  # slots of class 0, of class 1, ...
    slots = np.bincount(slot_class, minlength=len(count))
    order = generator.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    label = y[order]
    place = np.arange(len(y)) - (np.cumsum(count) - count)[label]  # position inside the class
    slot = (np.cumsum(slots) - slots)[label] + place * slots[label] // count[label]
    return gather_cut(order, slot_client[by_class[slot]], clients)


def _holders(count: IntArray, clients: int, classes: int, generator: Generator) -> IntArray:
    """Returns how many clients hold each class, `[G]`: as equal as possible, and never more than the class has rows.

    The numbers add up to `clients * classes`.
    """
    cap, need = np.minimum(count, clients), clients * classes
    if need < len(count) or cap.sum() < need:
        what = "more, so that every row is dealt" if need < len(count) else "fewer, as there are not enough rows"
        raise BadInput(f"data.partition.classes = {classes}, but {clients} clients have to hold {what}: correct it")
    filled = np.minimum(cap[:, None], np.arange(clients + 1)).sum(axis=0)  # places below each level
    level = int(np.searchsorted(filled, need, side="right")) - 1  # the highest level that is not too much
    places = np.minimum(cap, level)
    more = np.flatnonzero(cap > level)
    places[generator.permutation(more)[: need - int(places.sum())]] += 1
    return places


def dirichlet(
    labels: Array,
    clients: int,
    generator: Generator,
    alpha: float = 0.5,
    *,
    allow_empty: bool = False,
    min_rows: int | None = None,
    cap: bool = False,
) -> Cut:
    """The rows of each class are dealt by proportions drawn from a symmetric Dirichlet(alpha) over the clients.

    `dirichlet_clients` draws one vector over the classes for each client instead.

    Source: Yurochkin et al. 2019 (PFNM, section 4). With `cap` the code of Li et al. 2022 (NIID-Bench), which draws
    everything again until each client has 10 rows; here clients with fewer than `min_rows` are filled up.

    Args:
        labels: Of the rows, `[n]` integers.
        clients: Number of clients, N.
        generator: Draws the partition.
        alpha: 0.0001 to 1e9; the smaller, the more the clients differ.
        allow_empty: Whether clients may have no rows.
        min_rows: Rows that each client gets at least, of the largest clients; None: one, unless clients may be empty.
        cap: Whether a client that has n / N rows or more gets none of further classes, in the order of their labels.
    """
    y = check_labels(labels, "dirichlet")
    if allow_empty and min_rows:
        raise BadInput(f"data.partition.min_rows = {min_rows}, but data.partition.allow_empty is true: leave one out")
    least = 1 if min_rows is None and not allow_empty else min_rows or 0
    check_rows(len(y), clients, least)
    order = generator.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    _, count = np.unique(y, return_counts=True)
    shares, size, owners = generator.dirichlet(np.full(clients, alpha), size=len(count)), np.zeros(clients), []
    for share, n in zip(shares, count, strict=True):
        edges = np.cumsum(_leave_out(share, size >= len(y) / clients) if cap else share)
        edges[-1] = 1.0
        owners.append(_owners(edges, n))
        size += np.bincount(owners[-1], minlength=clients)
    return raise_to_least(gather_cut(order, np.concatenate(owners), clients), least, generator)


def _leave_out(share: FloatArray, full: NDArray[np.bool_]) -> FloatArray:
    """Returns the shares `[N]` of clients that are not full, which sum to 1; equal ones where theirs are too small."""
    left = np.where(full, 0.0, share)
    return left / left.sum() if left.sum() > 0 else ~full / np.count_nonzero(~full)


def _owners(edges: Array, n: int) -> IntArray:
    """Client of each of n rows, `[n]` and rising, for cumulated proportions `[N]`."""
    counts = np.diff(np.rint(np.minimum(edges, 1.0) * n).astype(np.int64), prepend=0)
    return np.repeat(np.arange(len(edges)), counts)


PARTITIONS: dict[str, Callable[..., Cut]] = {
    "iid": iid,
    "shards": shards,
    "classes": classes,
    "dirichlet": dirichlet,
    "dirichlet_clients": dirichlet_clients,
    "lognormal": lognormal,
    "power_law": power_law,
    "exponential": exponential,
    "sizes": sizes,
    "natural": natural,
    "column": column,
    "domain": domain,
    "time": time,
}
BY_VALUE = ("natural", "column")  # the values give the number of clients
BY_COLUMN = ("column", "domain", "time")  # `data.partition.column` names the values
