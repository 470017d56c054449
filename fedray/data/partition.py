"""Partitions: which client holds which training rows."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedray.core.errors import BadInput, suggest_nearest
from fedray.core.rounding import round_to_sum
from fedray.core.types import FloatArray, IntArray
from fedray.data.types import Array, Dataset
from fedray.own_code.contract import RecordedOptions, contract, refuse_unread
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import describe_exception, name_type

# ---------------------------------------------------------------------------------------------------------------------
# A cut of rows into clients, and the rows that are taken from them for the server and for validation.


class Cut(NamedTuple):
    """A partition of rows: client i holds `rows[offsets[i]:offsets[i + 1]]`.

    Attributes:
        rows: Indices of the rows, client after client, `[n]`.
        offsets: Where the rows of each client begin, and the end, `[N + 1]`.
    """

    rows: IntArray
    offsets: IntArray

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.offsets) - 1

    @property
    def owner(self) -> IntArray:
        """Client of each entry of `rows`, `[n]`."""
        return np.repeat(np.arange(self.clients), np.diff(self.offsets))


class Dealt(NamedTuple):
    """Who holds which rows, one entry for each world.

    Attributes:
        owned: All rows that were dealt, with their clients.
        kept: What the clients train on.
        held: What is withheld from them; empty without any.
        server: The rows that the server holds in their place; empty without any.
    """

    owned: list[Cut]
    kept: list[Cut]
    held: list[Cut]
    server: list[IntArray]


def gather_cut(rows: IntArray, owner: IntArray, clients: int) -> Cut:
    """Returns the cut in which `owner[j]` holds `rows[j]`; the rows of a client keep their order.

    Args:
        rows: Indices of rows, `[n]`.
        owner: Client of each row, `[n]`.
        clients: Number of clients, N.

    Example:
        >>> cut = gather_cut(np.array([10, 11, 12]), np.array([1, 0, 1]), clients=2)
        >>> cut.rows.tolist(), cut.offsets.tolist()
        ([11, 10, 12], [0, 1, 3])
    """
    order = np.argsort(owner, kind="stable")
    offsets = np.zeros(clients + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=clients), out=offsets[1:])
    return Cut(rows[order].astype(np.int64), offsets)


def count_withheld(size: IntArray, fraction: float) -> IntArray:
    """How many rows are withheld from clients with these sizes: `size * fraction` rounded down, 29 for 0.29 of 100."""
    count: IntArray = np.floor(size * fraction + 1e-9).astype(np.int64)
    return count


def share_with_server(cut: Cut, fraction: float, generator: np.random.Generator) -> tuple[Cut, IntArray]:
    """Takes a share of all rows from the clients at random; each client keeps at least one row.

    Args:
        cut: What the clients hold.
        fraction: Share of all rows (rounded down).
        generator: Draws the rows.

    Returns:
        What the clients keep, and the rows that were taken.
    """
    first = np.zeros(len(cut.rows), dtype=bool)
    first[cut.offsets[:-1][np.diff(cut.offsets) > 0]] = True
    free = generator.permutation(np.flatnonzero(~first))
    taken = np.sort(free[: int(len(cut.rows) * fraction + 1e-9)])
    keep = np.ones(len(cut.rows), dtype=bool)
    keep[taken] = False
    return gather_cut(cut.rows[keep], cut.owner[keep], cut.clients), cut.rows[taken]


def withhold(cut: Cut, fraction: float, generator: np.random.Generator) -> tuple[Cut, Cut]:
    """Withholds a share of every client's rows, drawn at random.

    Args:
        cut: What the clients hold.
        fraction: Share of a client's rows, see `count_withheld`.
        generator: Draws the rows.

    Returns:
        What the clients keep, and what is withheld from them.
    """
    size, owner = np.diff(cut.offsets), cut.owner
    order = np.lexsort((generator.random(len(owner)), owner))
    place = np.arange(len(owner)) - cut.offsets[:-1][owner]
    held = place >= (size - count_withheld(size, fraction))[owner]
    rows = cut.rows[order]
    return gather_cut(rows[~held], owner[~held], cut.clients), gather_cut(rows[held], owner[held], cut.clients)


# ---------------------------------------------------------------------------------------------------------------------
# What partitions have in common: how many rows each client gets, and clients with too few rows filled up.

Generator = np.random.Generator


def check_rows(rows: int, clients: int, each: int = 1) -> None:
    """Refuses so many clients that some would not get `each` rows.

    Args:
        rows: Rows of the data, n.
        clients: Number of clients, N.
        each: Rows that each client gets at least.
    """
    if rows < clients * each:
        raise BadInput(f"clients.number = {clients}, but {rows} rows are too few for {each} each: use {rows // each}")


def check_labels(labels: Array, name: str) -> IntArray:
    """Returns the labels as int64; targets of a regression are refused."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"data.partition.name = {name}, but the data has no classes: use iid or natural")
    return labels.astype(np.int64, copy=False)


def share_rows(weights: FloatArray, rows: int, least: int = 1) -> IntArray:
    """Numbers of rows in proportion to weights, `[N]`, which add up to `rows`.

    Client i gets `least + (rows - N least) w_i / sum(w)`, rounded by largest remainders.

    Args:
        weights: Of the clients, `[N]`, positive.
        rows: Number of rows, n.
        least: Rows that each client gets in any case.

    Example:
        >>> share_rows(np.array([1.0, 3.0]), rows=10, least=1).tolist()
        [3, 7]
    """
    rest = rows - least * len(weights)
    return least + round_to_sum(weights / weights.sum() * rest, rest)


def deal_sizes(order: IntArray, size: IntArray) -> Cut:
    """Returns the cut in which client i gets the next `size[i]` rows of an order."""
    return Cut(order.astype(np.int64), np.concatenate([[0], np.cumsum(size)]).astype(np.int64))


def raise_to_least(cut: Cut, least: int, generator: Generator) -> Cut:
    """Gives rows to each client that has fewer than `least`.

    If the rows of every client are piled up in random order, the given rows are the topmost ones of all piles.

    Args:
        cut: What the clients hold; it has at least `least` rows for each of them.
        least: Rows that each client gets at least.
        generator: Draws the order of the piles.

    Example:
        >>> from fedray.core import rng
        >>> cut = gather_cut(np.arange(5), np.array([0, 0, 0, 0, 1]), 3)
        >>> np.diff(raise_to_least(cut, 1, rng.stream(0, "partition")).offsets).tolist()
        [3, 1, 1]
    """
    lacking = np.maximum(least - np.diff(cut.offsets), 0)
    if not lacking.any():
        return cut
    owner = cut.owner
    order = np.lexsort((generator.random(len(owner)), owner))
    height = np.arange(len(owner)) - cut.offsets[:-1][owner]  # of the order-th row
    given = order[np.argsort(-height, kind="stable")[: int(lacking.sum())]]  # never below `least`, as n >= N least
    owner[given] = np.repeat(np.arange(cut.clients), lacking)
    return gather_cut(cut.rows, owner, cut.clients)


# ---------------------------------------------------------------------------------------------------------------------
# Partitions: which client holds which training rows.

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


# ---------------------------------------------------------------------------------------------------------------------
# A user's own partition: a function that says which rows each client gets, called with a generator of its address.

# (labels [n], clients N, generator, options, perhaps columns=) -> rows of each client, N arrays of row numbers
OwnPartition = Callable[..., Sequence[Any]]


def deal_by_function(
    function: OwnPartition,
    labels: Array,
    clients: int,
    generator: Generator,
    options: Mapping[str, Any],
    *,
    columns: Mapping[str, Array] | None = None,
    declares: bool = False,
) -> Cut:
    """Cuts the rows by a user's function; rows that no client gets are not trained on.

    Args:
        function: The user's.
        labels: Labels `[n]` or targets `[n, q]` of the rows.
        clients: Number of clients, N.
        generator: For its draws: the same in every process, another one for each seed.
        options: What the scenario sets beside the partition's name.
        columns: Further columns of the rows by name, `[n]` each, where the function wants them; None: it does not.
        declares: Whether its options were declared, so that it may leave some unread.

    Raises:
        BadInput: It raised, what it returned is not rows of N clients, each row once, and the same ones again, or it
            did not read an option.

    Example:
        >>> def halves(labels, clients, generator, options):
        ...     return np.array_split(np.argsort(labels, kind="stable"), clients)
        >>> from fedray.core import rng
        >>> deal_by_function(halves, np.array([1, 0, 1, 0]), 2, rng.stream(0, "partition"), {}).rows.tolist()
        [1, 3, 0, 2]
    """
    where = f"data.partition.name = {name_callable(function)}"
    check_rows(len(labels), clients, 0)
    more, recorded = {} if columns is None else {"columns": columns}, RecordedOptions(options)
    given = options if declares else cast(Mapping[str, Any], recorded)
    found = contract(where, function, again=True)(labels, clients, generator, given, **more)
    if not declares:
        refuse_unread("data.partition", name_callable(function), recorded)
    if not isinstance(found, Sequence | np.ndarray) or isinstance(found, str) or len(found) != clients:
        of = f" of {len(found)}" if isinstance(found, Sequence | np.ndarray) else ""
        raise BadInput(f"{where}: it returned {name_type(found)}{of}: return a list with the rows of {clients} clients")
    parts = [np.asarray(rows) for rows in found]
    for client, rows in enumerate(parts):
        if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
            raise BadInput(f"{where}: the rows of client {client} are {name_type(found[client])}: give whole numbers")
        if len(rows) and (rows.min() < 0 or rows.max() >= len(labels)):
            raise BadInput(f"{where}: client {client} has rows {rows.min()} to {rows.max()} of 0 to {len(labels) - 1}")
    return cut_of_parts(parts, len(labels), where)


def wants_columns(function: Callable[..., Any]) -> bool:
    """Whether a function has a keyword-only argument `columns`."""
    try:
        found = inspect.signature(function).parameters.get("columns")
    except (TypeError, ValueError):  # one without a signature
        return False
    return found is not None and found.kind is inspect.Parameter.KEYWORD_ONLY


def cut_of_parts(parts: Sequence[Array], rows: int, where: str) -> Cut:
    """Returns the cut of clients with these rows.

    Args:
        parts: Rows of each client.
        rows: Rows of the data, n.
        where: What dealt them, for messages.

    Raises:
        BadInput: A row is dealt twice.
    """
    every = np.concatenate([np.empty(0, np.int64), *(part.astype(np.int64) for part in parts)])
    count = np.bincount(every, minlength=rows)
    if count.max(initial=0) > 1:
        raise BadInput(f"{where}: row {int(np.argmax(count))} is dealt {count.max()} times: deal each row once")
    return Cut(every, np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64))


_FUNCTIONS: dict[str, OwnPartition] = {}  # registered in this process, by name
_DECLARING: set[str] = set()  # those whose options were declared


def register_partition(name: str, function: OwnPartition, *, declares: bool = False) -> None:
    """Gives a partition of your own a name for scenarios, in this process; the newest function counts.

    Args:
        name: For scenarios.
        function: The user's.
        declares: Whether its options were declared.
    """
    _FUNCTIONS[name] = function
    (_DECLARING.add if declares else _DECLARING.discard)(name)


def declares_options(name: str) -> bool:
    """Whether a user's function of a name has declared its options."""
    return name in _DECLARING


def find_partition(name: str) -> OwnPartition | None:
    """Returns the user's function of a name; None where the name is not a user's."""
    return _FUNCTIONS.get(name)


# ---------------------------------------------------------------------------------------------------------------------
# Partitions of `flwr_datasets`: a Flower user's split, with exactly its index lists.
#
# The partitioner sees a table of the training rows without their inputs: the column `label`, every further column of
# the data set, and `group` where the data has natural clients. It draws by a seed of its own (Flower's default is
# 42), so all replicates have the same partition.

INSTALL = "pip install 'fedray[flower]'"
ROW = "fedray_row"  # the column of row numbers, which a partition of the table keeps


def make_partitioner(name: str, options: Mapping[str, Any], clients: int | None) -> Any:
    """Returns a partitioner of `flwr_datasets` by its name.

    Args:
        name: Of the class: `DirichletPartitioner`.
        options: Its arguments; `num_partitions` may be left to `clients`, and `partition_by` to the labels.
        clients: Number of clients, N, if the scenario says it.

    Raises:
        BadInput: The package is missing, or has no such partitioner, or refuses the options.
    """
    try:
        from flwr_datasets import partitioner as known
    except ImportError:
        raise BadInput(f"data.partition.name = flower needs the package flwr_datasets: {INSTALL}") from None
    if name not in known.__all__:
        remedy = suggest_nearest(name, known.__all__, f"choose one of {', '.join(known.__all__)}")
        raise BadInput(f"data.partition.partitioner = {name}: flwr_datasets has no such partitioner: {remedy}")
    kind = getattr(known, name)
    takes = inspect.signature(kind).parameters
    usual = {"num_partitions": clients, "partition_by": "label"}
    given = {**{key: value for key, value in usual.items() if key in takes and value is not None}, **options}
    try:
        return kind(**given)
    except Exception as error:
        raise BadInput(f"data.partition.partitioner = {name}: {describe_exception(error)}") from None


def deal_by_flower(partitioner: Any, columns: Mapping[str, Array], clients: int | None) -> Cut:
    """Cuts the rows by a partitioner of `flwr_datasets`; rows that no client gets are not trained on.

    Args:
        partitioner: It is copied; it has no data set yet.
        columns: Of the rows, `[n]` each.
        clients: Number of clients, N; None accepts any number.

    Raises:
        BadInput: It raised, has a data set already, or makes another number of partitions.

    Example:
        >>> from flwr_datasets.partitioner import IidPartitioner  # doctest: +SKIP
        >>> labels = {"label": np.zeros(4, np.int64)}
        >>> deal_by_flower(IidPartitioner(num_partitions=2), labels, None).rows  # doctest: +SKIP
        array([0, 2, 1, 3])
    """
    import datasets

    name = type(partitioner).__name__
    if partitioner.is_dataset_assigned():
        raise BadInput(f"data.partition = {name}: it has a data set already: give a fresh one, without rows")
    own, rows = copy.deepcopy(partitioner), len(next(iter(columns.values())))
    own.dataset = datasets.Dataset.from_dict({**columns, ROW: np.arange(rows)})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of repeated draws; where it gives up it raises
            number = own.num_partitions
            parts = [np.asarray(own.load_partition(i)[ROW], dtype=np.int64) for i in range(number)]
    except Exception as error:
        known = ", ".join(columns)
        told = f"data.partition.partitioner = {name}: {describe_exception(error)}; the columns are {known}"
        raise BadInput(told) from None
    if clients not in (None, number):
        raise BadInput(f"clients.number = {clients}, but {name} makes {number} partitions: leave it out")
    return cut_of_parts(parts, rows, f"data.partition.partitioner = {name}")


def list_columns(data: Dataset) -> dict[str, Array]:
    """The columns by which the training rows of a data set can be dealt, `[n]` each; regressions have no `label`."""
    known: dict[str, Array] = (
        {"label": data.train.y} if data.train.y.ndim == 1 else {"row": np.arange(len(data.train.y))}
    )
    if data.train.group is not None:
        known["group"] = data.train.group
    return {**known, **data.columns}


def is_partitioner(thing: Any) -> bool:
    """Whether an object is a partitioner of `flwr_datasets`; the package is not imported for this."""
    return any(f"{one.__module__}.{one.__qualname__}".startswith("flwr_datasets.") for one in type(thing).__mro__)
