"""Defines partitions. A partition decides which client holds which training samples.

A *cut* is the result of a partition. To *deal* samples is to distribute them to clients.
"""

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from fedray.core.errors import BadInput, suggest_nearest
from fedray.core.types import BoolArray, FloatArray, IntArray, round_to_sum
from fedray.data.types import Array, Dataset
from fedray.own_code.contract import RecordedOptions, contract, refuse_unread
from fedray.own_code.user_code import describe_exception, name_callable, name_type

# ---------------------------------------------------------------------------------------------------------------------
# The result of a partition, and the samples that are taken from clients for the server and for validation.


class ClientRows(NamedTuple):
    """The result of a partition, in which client i holds the samples `rows[offsets[i]:offsets[i + 1]]`.

    Attributes:
        rows: Indices of the samples, client after client, `[n]`.
        offsets: Position in `rows` where the samples of each client begin, `[N + 1]`. The last entry is n, the end of
            the last client's samples.
    """

    rows: IntArray
    offsets: IntArray

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.offsets) - 1

    @property
    def owner(self) -> IntArray:
        """The client that holds each sample of `rows`, `[n]`."""
        return np.repeat(np.arange(self.clients), np.diff(self.offsets))


class PartitionedData(NamedTuple):
    """The samples that clients and the server hold.

    Each list has one entry for each world (a combination of a seed and a fold of the data).

    Attributes:
        owned: All dealt samples, and the client of each.
        kept: The samples that clients train on.
        held: The samples that are withheld from training. The list is empty if no samples are withheld.
        server: Indices of the samples that the server holds instead of the clients. The list is empty if there are
            none.
        ids: For each of the N clients in `kept` and `held`, the client's index in `owned`, `[N]`. If some clients never
            train (`data.test_clients`), this index differs from the index in `kept`. If all clients train, the list is
            empty.
        test: Indices of the samples of the clients that never train. The list is empty if all clients train.
    """

    owned: list[ClientRows]
    kept: list[ClientRows]
    held: list[ClientRows]
    server: list[IntArray]
    ids: list[IntArray] = []  # noqa: RUF012  (nothing changes this default)
    test: list[IntArray] = []  # noqa: RUF012  (nothing changes this default)


def gather_cut(rows: IntArray, owner: IntArray, clients: int) -> ClientRows:
    """Returns the `ClientRows` in which client `owner[j]` holds sample `rows[j]`. A client's samples keep their order.

    Example:
        >>> cut = gather_cut(np.array([10, 11, 12]), np.array([1, 0, 1]), clients=2)
        >>> cut.rows.tolist(), cut.offsets.tolist()
        ([11, 10, 12], [0, 1, 3])
    """
    order = np.argsort(owner, kind="stable")
    offsets = np.zeros(clients + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=clients), out=offsets[1:])
    return ClientRows(rows[order].astype(np.int64), offsets)


def select_clients(cut: ClientRows, clients: IntArray) -> ClientRows:
    """Returns `ClientRows` with only some of the clients. These clients get new indices from 0, in the given order.

    Example:
        >>> cut = select_clients(gather_cut(np.arange(4), np.array([0, 1, 2, 2]), 3), np.array([0, 2]))
        >>> cut.rows.tolist(), cut.offsets.tolist()
        ([0, 2, 3], [0, 1, 3])
    """
    number = np.full(cut.clients, -1)
    number[clients] = np.arange(len(clients))
    owner = number[cut.owner]
    return gather_cut(cut.rows[owner >= 0], owner[owner >= 0], len(clients))


CLIENT_COLUMNS = ("client of the row", "client")  # usual names of the column that names the client of each sample


def find_names(data: Dataset, group: str | None) -> Array | None:
    """Returns the column that names the client of each sample, or None if there is no such column.

    `group` is the name of the column. If the data lack this column, the function returns the column `client of the row`
    or, if there is none, the column `client`.
    """
    return next((data.columns[name] for name in (group, *CLIENT_COLUMNS) if name in data.columns), None)


def name_owners(cut: ClientRows, column: Array | None) -> tuple[str, ...]:
    """Returns the names of clients. A client's name is the value that all its samples have in a column.

    Returns an empty tuple if there is no column, if the values of a client's samples differ, or if two clients have the
    same value.
    """
    values = np.empty(0) if column is None else column[cut.rows]
    first = cut.offsets[:-1]
    if not len(values) or (np.diff(cut.offsets) == 0).any() or (values != values[first][cut.owner]).any():
        return ()
    names = tuple(str(name) for name in values[first])
    return names if len(set(names)) == len(names) else ()


def count_withheld(size: IntArray, fraction: float) -> IntArray:
    """Returns how many samples of each client are withheld: `size * fraction`, rounded down.

    For 100 samples and a fraction of 0.29, the result is 29, although `100 * 0.29` is below 29 in floating point.
    """
    count: IntArray = np.floor(size * fraction + 1e-9).astype(np.int64)
    return count


def share_with_server(cut: ClientRows, fraction: float, generator: np.random.Generator) -> tuple[ClientRows, IntArray]:
    """Takes a random share of all samples from the clients. A client with samples keeps at least one sample.

    The server gets `n * fraction` of the n samples, rounded down, or fewer if clients would lose their last sample.

    Returns:
        The cut of the samples that clients keep, and the indices of the server's samples.
    """
    first = np.zeros(len(cut.rows), dtype=bool)
    first[cut.offsets[:-1][np.diff(cut.offsets) > 0]] = True
    free = generator.permutation(np.flatnonzero(~first))
    taken = np.sort(free[: int(len(cut.rows) * fraction + 1e-9)])
    keep = np.ones(len(cut.rows), dtype=bool)
    keep[taken] = False
    return gather_cut(cut.rows[keep], cut.owner[keep], cut.clients), cut.rows[taken]


def withhold(cut: ClientRows, fraction: float, generator: np.random.Generator) -> tuple[ClientRows, ClientRows]:
    """Withholds a random share of each client's samples from training.

    Returns:
        The cut of the samples that clients keep, and the cut of the withheld samples.
    """
    size, owner = np.diff(cut.offsets), cut.owner
    order = np.lexsort((generator.random(len(owner)), owner))
    place = np.arange(len(owner)) - cut.offsets[:-1][owner]
    held = place >= (size - count_withheld(size, fraction))[owner]
    rows = cut.rows[order]
    return gather_cut(rows[~held], owner[~held], cut.clients), gather_cut(rows[held], owner[held], cut.clients)


# ---------------------------------------------------------------------------------------------------------------------
# Functions that several partitions use. They choose the number of samples of each client, and move samples to clients
# that have too few.

Generator = np.random.Generator


def check_rows(rows: int, clients: int, each: int = 1) -> None:
    """Checks that `rows` samples are enough to give at least `each` samples to every client."""
    if rows < clients * each:
        raise BadInput(f"clients.number = {clients}, but {rows} rows are too few for {each} each: use {rows // each}")


def check_labels(labels: Array, name: str) -> IntArray:
    """Converts the labels of a classification to int64. Raises an error for the targets of a regression."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(f"data.partition.name = {name}, but the data has no classes: use iid or natural")
    return labels.astype(np.int64, copy=False)


def share_rows(weights: FloatArray, rows: int, least: int = 1) -> IntArray:
    """Returns the number of samples of each client, `[N]`, if samples are shared in proportion to weights.

    Client i gets `least + (rows - N * least) w_i / sum(w)` samples, rounded by largest remainders. The numbers of all
    clients add up to `rows`.

    Example:
        >>> share_rows(np.array([1.0, 3.0]), rows=10, least=1).tolist()
        [3, 7]
    """
    rest = rows - least * len(weights)
    return least + round_to_sum(weights / weights.sum() * rest, rest)


def shuffle_by(values: Array, generator: Generator) -> IntArray:
    """Returns the indices that sort all samples by value, `[n]`. Samples of equal value are in random order."""
    order = generator.permutation(len(values))
    return order[np.argsort(values[order], kind="stable")]


def deal_sizes(order: IntArray, size: IntArray) -> ClientRows:
    """Returns `ClientRows`: client 0 gets the first `size[0]` samples of `order`, client 1 the next `size[1]`, ..."""
    return ClientRows(order.astype(np.int64), np.concatenate([[0], np.cumsum(size)]).astype(np.int64))


def raise_to_least(cut: ClientRows, least: int, generator: Generator) -> ClientRows:
    """Moves samples from the clients with the most samples to each client that has fewer than `least` samples.

    The moved samples are drawn at random. There must be at least `N * least` samples.

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
    height = np.arange(len(owner)) - cut.offsets[:-1][owner]  # position in its pile of each sample of `order`
    given = order[np.argsort(-height, kind="stable")[: int(lacking.sum())]]  # never below `least`, as n >= N * least
    owner[given] = np.repeat(np.arange(cut.clients), lacking)
    return gather_cut(cut.rows, owner, cut.clients)


# ---------------------------------------------------------------------------------------------------------------------
# Partitions by known values of the samples: natural clients, the values of a column, domains, and time.


def take_owners(
    values: Array, clients: int | None, _draw: Generator | None = None, *, min_rows: int | None = None
) -> ClientRows:
    """Makes one client for each different value, such as a writer, a role or a printer. Clients are sorted by value.

    This function is the partitions `natural` and `column`.

    Args:
        values: Natural group of each sample, or its value in a column of a table, `[n]`.
        clients: Expected number of clients. None accepts any number.
        min_rows: Values with fewer than `min_rows` samples are left out, together with their samples.

    Example:
        >>> take_owners(np.array([30, 10, 30]), None).rows.tolist()
        [1, 0, 2]
        >>> time(np.array([5.0, 1.0, 3.0, 2.0]), 2).rows.tolist()
        [1, 3, 2, 0]
    """
    _, owner, size = np.unique(values, return_inverse=True, return_counts=True)
    cut = gather_cut(np.arange(len(values)), owner.astype(np.int64), len(size))
    if min_rows is not None and (size < min_rows).any():
        if size.max() < min_rows:
            raise BadInput(
                f"data.partition.min_rows = {min_rows}, but no client has more than {size.max()} rows: lower it"
            )
        cut = select_clients(cut, np.flatnonzero(size >= min_rows))
    if clients is not None and clients != cut.clients:
        raise BadInput(f"clients.number = {clients}, but the data has {cut.clients} clients: leave it out or set it so")
    return cut


def domain(values: Array, clients: int, generator: Generator) -> ClientRows:
    """Deals the samples of each domain evenly to a group of clients. Each different entry of `values` is a domain.

    There are G domains, N clients and n samples. Domain g has n_g samples, and gets `1 + (N - G) n_g / n` clients,
    rounded by largest remainders. The clients are numbered domain after domain.

    Source: Peng et al. 2020 (federated adversarial domain adaptation). In the paper, each domain is one client. Here a
    domain may have several clients.

    There must be at least as many clients as domains. A data set that joins several data sets has the column `domain`.
    """
    found, group, count = np.unique(values, return_inverse=True, return_counts=True)
    check_rows(len(values), clients)
    if clients < len(found):
        raise BadInput(f"clients.number = {clients}, but the column has {len(found)} domains: raise it to {len(found)}")
    number = np.minimum(share_rows(count.astype(np.float64), clients), count)
    spare = np.repeat(np.arange(len(count)), count - number)  # the domain of each client that could still be added
    more: IntArray = np.bincount(spare[: clients - int(number.sum())], minlength=len(count))
    number = number + more
    order = shuffle_by(group, generator)
    place = np.arange(len(order)) - (np.cumsum(count) - count)[group[order]]  # position inside the domain
    first = np.cumsum(number) - number
    owner = first[group[order]] + place % number[group[order]]
    return gather_cut(order, owner.astype(np.int64), clients)


def time(values: Array, clients: int, _generator: Generator | None = None) -> ClientRows:
    """Sorts samples by a column, cuts them into N parts with equal numbers of samples, and deals part i to client i.

    Client i gets the samples between the quantiles `i / N` and `(i + 1) / N`. Samples of the same time keep their
    order. If all values are texts of numbers, samples are sorted by these numbers, and missing numbers come last.

    This partition comes from no paper. The column `values` holds numbers, dates, or texts whose alphabetical order is
    the order in time, `[n]`.
    """
    check_rows(len(values), clients)
    order = np.argsort(_read_numbers(values), kind="stable")
    return gather_cut(order, np.arange(len(order)) * clients // len(order), clients)


def _read_numbers(values: Array) -> Array:
    """Converts texts to numbers, `[n]`. If one of the texts is no number, returns the values unchanged."""
    if values.dtype.kind != "U":
        return values
    for kind in (np.int64, np.float64):  # integers first, because float64 does not hold nanoseconds since 1970 exactly
        try:
            return np.where(values == "<NA>", "nan", values).astype(kind)
        except (ValueError, OverflowError):
            continue
    return values


# ---------------------------------------------------------------------------------------------------------------------
# Partitions with clients of unequal sizes (numbers of samples), and with unequal sizes and labels at the same time.

FITTINGS = 60  # iterations of `dirichlet_clients`; more iterations would change only the last bits
EQUAL = "equal"


def sizes(labels: Array, clients: int, generator: Generator, sizes: Sequence[int] = ()) -> ClientRows:
    """Deals shuffled samples to clients of exactly the given sizes.

    The values of the labels are not used. `sizes` has the number of samples of each client. The N numbers must add up
    to the number of all samples.
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
) -> ClientRows:
    """Draws each client's shares of the classes from Dirichlet(alpha), and each client's number of samples separately.

    Client i gets the class shares `q_i ~ Dir(alpha, ..., alpha)` and n_i samples. Iterative proportional fitting begins
    with the table `n_i q_ic`. The fitting alternates between scaling the rows to the sizes n_i and the columns to the
    sizes of the classes. So every sample is dealt, and every size is exact. In contrast, the partition `dirichlet`
    draws the shares of the clients for each class.

    Sources: Hsu et al. 2019 for the class shares. This paper draws the shares from Dir(alpha p), where p are the class
    shares in the whole data set. Acar et al. 2021 and `InnerDirichletPartitioner` of flwr_datasets for sizes in
    addition to class shares. Deming and Stephan 1940 for iterative proportional fitting.

    Args:
        labels: Label of each sample, `[n]` integers.
        clients: Number of clients, N.
        generator: Random generator that draws the partition.
        alpha: Parameter of the Dirichlet distribution, 0.0001 to 1e9. Clients differ more if alpha is smaller.
        sizes: The N exact sizes, or the name of a law of sizes. The laws are `equal`, `lognormal`, `power_law` and
            `exponential`, as in `LAWS`.
        skew: Parameter of the law: `sigma` of `lognormal`, `exponent` of `power_law`, or `rate` of `exponential`.
        min_rows: Smallest number of samples of a client, if the sizes follow a law.
    """
    y = check_labels(labels, "dirichlet_clients")
    check_rows(len(y), clients, min_rows)
    if isinstance(sizes, str):
        size = _share_by_law(LAWS[sizes](clients, generator, skew), len(y), min_rows)
    else:
        size = _check_sizes(sizes, len(y), clients)
    _, y, count = np.unique(y, return_inverse=True, return_counts=True)
    wanted = generator.dirichlet(np.full(len(count), alpha), size=clients) + 1e-12  # [N, C]
    for _ in range(FITTINGS):
        wanted *= (size / np.maximum(wanted.sum(axis=1), 1e-300))[:, None]
        wanted *= count / np.maximum(wanted.sum(axis=0), 1e-300)
    order = shuffle_by(y, generator)  # class after class
    edges = np.rint(np.cumsum(wanted.T.ravel()) * (len(y) / wanted.sum())).astype(np.int64)
    owner = np.tile(np.arange(clients), len(count)).repeat(np.diff(np.minimum(edges, len(y)), prepend=0))
    owner = np.concatenate([owner, np.full(len(y) - len(owner), clients - 1)])
    return _fit_sizes(gather_cut(order, owner, clients), size, generator)


def _fit_sizes(cut: ClientRows, size: IntArray, generator: Generator) -> ClientRows:
    """Moves random samples from clients with too many samples to clients with too few, so that sizes are exact."""
    owner, have = cut.owner, np.diff(cut.offsets)
    order = np.lexsort((generator.random(len(owner)), owner))
    place = np.arange(len(owner)) - cut.offsets[:-1][owner]
    spare = order[place >= size[owner]]
    owner[spare] = np.repeat(np.arange(cut.clients), np.maximum(size - have, 0))
    return gather_cut(cut.rows, owner, cut.clients)


def _deal_by_law(
    law: str, labels: Array, clients: int, generator: Generator, *, min_rows: int = 1, **skew: float
) -> ClientRows:
    """Deals shuffled samples to clients whose sizes follow a law.

    `skew` has the parameter of the law by its name. Without it, the parameter has its default in `LAWS`.

    Example:
        >>> from fedray.core import rng
        >>> draw = rng.stream(1, "partition")
        >>> np.diff(PARTITIONS["power_law"](np.zeros(100), 4, draw, exponent=2.0).offsets).tolist()
        [9, 18, 68, 5]
        >>> np.diff(PARTITIONS["power_law"](np.zeros(2), 4, draw, min_rows=0).offsets).tolist()
        [1, 0, 1, 0]
        >>> np.diff(sizes(np.zeros(10), 2, rng.stream(0, "partition"), sizes=[7, 3]).offsets).tolist()
        [7, 3]
    """
    check_rows(len(labels), clients, min_rows)
    size = _share_by_law(LAWS[law](clients, generator, **skew), len(labels), min_rows)
    return deal_sizes(generator.permutation(len(labels)), size)


def _share_by_law(logs: FloatArray, rows: int, least: int) -> IntArray:
    """Returns the number of samples of each client from the logarithms of the clients' weights, `[N]` each."""
    return share_rows(np.exp(logs - logs.max()), rows, least)


def _check_sizes(sizes: Sequence[int], rows: int, clients: int) -> IntArray:
    """Checks that there are N sizes with sum n, and returns them as an array, `[N]`."""
    size = np.asarray(sizes, dtype=np.int64)
    if len(size) != clients or size.sum() != rows:
        raise BadInput(f"data.partition.sizes has {len(size)} of sum {size.sum()}: give {clients} of sum {rows}")
    return size


# Laws of sizes: (N, generator, parameter) -> logarithms of the weights w_i of clients, `[N]`. The size of client i is
# proportional to w_i, rounded by largest remainders. Parameters are at least 0, and 0 gives equal sizes.
#
# - lognormal: w_i = exp(sigma z_i), z_i standard normal. Source: Acar et al. 2021 (FedDyn, section 4, unbalanced data).
# - power_law: w_i = r_i^-exponent. The ranks r_i are 1 to N in random order. Source: Li et al. 2020 (FedProx, section
#   5.1: "the number of samples per device follows a power law").
# - exponential: w_i = exp(-rate r_i / (N - 1)). The ranks r_i are 0 to N - 1 in random order. So the largest client has
#   about exp(rate) times as many samples as the smallest. Source: `ExponentialPartitioner` of flwr_datasets. There, the
#   sizes are proportional to exp(i). This corresponds to `rate = N - 1` with ranks in a fixed order.
LAWS: dict[str, Callable[..., FloatArray]] = {
    EQUAL: lambda clients, _draw, _skew: np.zeros(clients),
    "lognormal": lambda clients, draw, sigma=1.0: sigma * draw.standard_normal(clients),
    "power_law": lambda clients, draw, exponent=1.5: -exponent * np.log1p(draw.permutation(clients)),
    "exponential": lambda clients, draw, rate=3.0: -rate * draw.permutation(clients) / max(1, clients - 1),
}


# ---------------------------------------------------------------------------------------------------------------------
# Partitions by random order and by labels. Every sample goes to exactly one client. Clients with too few samples get
# samples of other clients. Nothing is drawn again.


def iid(labels: Array, clients: int, generator: Generator) -> ClientRows:
    """Shuffles the samples and deals them evenly. The sizes of clients differ by at most 1.

    The values of the labels are not used.

    Example:
        >>> np.diff(iid(np.zeros(8), 3, np.random.default_rng(0)).offsets).tolist()
        [3, 3, 2]
    """
    n = len(labels)
    check_rows(n, clients)
    return gather_cut(generator.permutation(n), np.arange(n) % clients, clients)


def shards(labels: Array, clients: int, generator: Generator, shards: int = 2) -> ClientRows:
    """Sorts the samples by label, cuts them into `clients * shards` shards, and deals the shards at random.

    Source: McMahan et al. 2017. With 4 shards for each client, this is the "path" partition of SHEFL.

    Each client gets `shards` shards.
    """
    n, total = len(labels), clients * shards
    check_rows(n, clients, shards)
    order = shuffle_by(labels.reshape(n, -1)[:, 0], generator)
    shard = np.arange(n) * total // n  # sizes differ by at most 1
    return gather_cut(order, generator.permutation(total)[shard] // shards, clients)


def classes(labels: Array, clients: int, generator: Generator, classes: int = 2) -> ClientRows:
    """Gives every client the same number of classes, and deals each class evenly to the clients that hold it.

    All classes have the same number of clients, up to a difference of 1. A class with few samples may have fewer
    clients. The clients choose their classes one after the other. Each client takes the `classes` classes that still
    need the most clients. Ties are broken at random. By a theorem of Gale and Ryser, this procedure finds a valid
    choice if there is one.
    """
    y = check_labels(labels, "classes")
    check_rows(len(y), clients)
    _, y, count = np.unique(y, return_inverse=True, return_counts=True)
    if classes > len(count):
        raise BadInput(f"data.partition.classes = {classes}, but the data has {len(count)} classes: lower it")
    open_places = _count_holders(count, clients, classes, generator)
    holder = np.empty((clients, classes), np.int64)
    for i, tie in enumerate(generator.random((clients, len(count)))):
        holder[i] = np.argsort(tie - open_places, kind="stable")[:classes]
        open_places[holder[i]] -= 1
    slot_class, slot_client = holder.ravel(), np.repeat(np.arange(clients), classes)
    by_class = generator.permutation(len(slot_class))
    by_class = by_class[np.argsort(slot_class[by_class], kind="stable")]  # slots of class 0, of class 1, ...
    slots = np.bincount(slot_class, minlength=len(count))
    order = shuffle_by(y, generator)
    label = y[order]
    place = np.arange(len(y)) - (np.cumsum(count) - count)[label]  # position inside the class
    slot = (np.cumsum(slots) - slots)[label] + place * slots[label] // count[label]
    return gather_cut(order, slot_client[by_class[slot]], clients)


def _count_holders(count: IntArray, clients: int, classes: int, generator: Generator) -> IntArray:
    """Returns how many clients hold each of G classes, `[G]`. Each client holds `classes` classes.

    The numbers are as equal as possible. No class has more clients than samples.
    """
    cap, need = np.minimum(count, clients), clients * classes
    if need < len(count) or cap.sum() < need:
        what = (
            "more, so that every row is dealt: raise it" if need < len(count) else "fewer, for lack of rows: lower it"
        )
        raise BadInput(
            f"data.partition.classes = {classes}, but {clients} clients have to hold {what}, or choose another "
            "data.partition (natural, if the data name the clients)"
        )
    filled = np.minimum(cap[:, None], np.arange(clients + 1)).sum(axis=0)  # client-class pairs for each limit per class
    level = int(np.searchsorted(filled, need, side="right")) - 1  # the highest limit with at most `need` pairs
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
) -> ClientRows:
    """Deals the samples of each class to the clients in shares drawn from a symmetric Dirichlet(alpha).

    In contrast, the partition `dirichlet_clients` draws the shares of the classes for each client.

    Source: Yurochkin et al. 2019 (PFNM, section 4). `cap` follows the code of Li et al. 2022 (NIID-Bench). That code
    draws everything again until each client has 10 samples. Here, clients with fewer than `min_rows` samples get
    samples of other clients.

    Args:
        labels: Label of each sample, `[n]` integers.
        clients: Number of clients, N.
        generator: Random generator that draws the partition.
        alpha: Parameter of the Dirichlet distribution, 0.0001 to 1e9. Clients differ more if alpha is smaller.
        allow_empty: Whether clients may have no samples.
        min_rows: Smallest number of samples of a client. Missing samples are taken from the largest clients. None means
            1, but with `allow_empty` it means 0.
        cap: Whether a client with at least n / N samples gets no samples of later classes. Classes are dealt in the
            order of their labels.
    """
    y = check_labels(labels, "dirichlet")
    if allow_empty and min_rows:
        raise BadInput(f"data.partition.min_rows = {min_rows}, but data.partition.allow_empty is true: leave one out")
    least = 1 if min_rows is None and not allow_empty else min_rows or 0
    check_rows(len(y), clients, least)
    order = shuffle_by(y, generator)
    _, count = np.unique(y, return_counts=True)
    shares, size, owners = generator.dirichlet(np.full(clients, alpha), size=len(count)), np.zeros(clients), []
    for share, n in zip(shares, count, strict=True):
        edges = np.cumsum(_drop_full_clients(share, size >= len(y) / clients) if cap else share)
        edges[-1] = 1.0
        counts = np.diff(np.rint(np.minimum(edges, 1.0) * n).astype(np.int64), prepend=0)
        owners.append(np.repeat(np.arange(clients), counts))  # client of each sample of the class, sorted by client
        size += counts
    return raise_to_least(gather_cut(order, np.concatenate(owners), clients), least, generator)


def _drop_full_clients(share: FloatArray, full: BoolArray) -> FloatArray:
    """Sets the shares of the clients in `full` to 0, and scales the other clients' shares to the sum 1, `[N]`.

    If the shares of all other clients are 0, these clients get equal shares.
    """
    left = np.where(full, 0.0, share)
    return left / left.sum() if left.sum() > 0 else ~full / np.count_nonzero(~full)


PARTITIONS: dict[str, Callable[..., ClientRows]] = {
    "iid": iid,
    "shards": shards,
    "classes": classes,
    "dirichlet": dirichlet,
    "dirichlet_clients": dirichlet_clients,
    **{law: functools.partial(_deal_by_law, law) for law in LAWS if law != EQUAL},
    "sizes": sizes,
    "natural": take_owners,
    "column": take_owners,
    "domain": domain,
    "time": time,
}
BY_VALUE = ("natural", "column")  # partitions whose values give the number of clients
BY_COLUMN = ("column", "domain", "time")  # partitions whose values are in the column `data.partition.column`


# ---------------------------------------------------------------------------------------------------------------------
# A user's own partition, which is a function that returns the samples of each client.

# (labels [n], clients N, generator, options, perhaps columns=) -> N arrays with the indices of each client's samples
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
) -> ClientRows:
    """Deals the samples with a user's function. Samples that no client gets are not used in training.

    Args:
        function: The user's function.
        labels: Labels of the samples, `[n]`, or their targets, `[n, q]`.
        clients: Number of clients, N.
        generator: Random generator for the function. It depends on the seed, but not on the process.
        options: The options that the scenario sets in addition to the partition's name.
        columns: Further columns of the samples by name, `[n]` each. None means that the function has no argument
            `columns`.
        declares: Whether the user declared the function's options (`options=`). If so, the function may leave options
            unused.

    Raises:
        BadInput: The function did not use an option, did not return N arrays of sample indices, returned an index
            twice, or returned different indices in a second call.
        FedrayError: The function raised an error.

    Example:
        >>> def halves(labels, clients, generator, options):
        ...     return np.array_split(np.argsort(labels, kind="stable"), clients)
        >>> from fedray.core import rng
        >>> deal_by_function(halves, np.array([1, 0, 1, 0]), 2, rng.stream(0, "partition"), {}).rows.tolist()
        [1, 3, 0, 2]
    """
    where = f"data.partition.name = {name_callable(function)}"
    labels, recorded = labels.copy(), RecordedOptions(options)  # a function may sort or renumber what it gets
    more = {} if columns is None else {"columns": {name: values.copy() for name, values in columns.items()}}
    given = options if declares else cast(Mapping[str, Any], recorded)
    found = contract(where, function, again=True)(labels, clients, generator, given, **more)
    if not declares:
        refuse_unread("data.partition", name_callable(function), recorded)
    parts = [np.asarray(rows) for rows in found] if isinstance(found, Sequence | np.ndarray) else []
    wanted = f"return a list of {clients} arrays, each with numbers of rows from 0 to {len(labels) - 1}"
    if len(parts) != clients:
        number = f" of {len(parts)}" if parts else ""
        raise BadInput(f"{where}: it returned {name_type(found)}{number}: {wanted}")
    for client, rows in enumerate(parts):
        if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
            raise BadInput(f"{where}: client {client} gets {rows.dtype} of shape {list(rows.shape)}: {wanted}")
        if len(outside := rows[(rows < 0) | (rows >= len(labels))]):
            raise BadInput(f"{where}: client {client} gets row {outside[0]}: {wanted}")
    return cut_of_parts(parts, len(labels), where)


def wants_columns(function: Callable[..., Any]) -> bool:
    """Returns whether a function has a keyword-only argument `columns`."""
    try:
        found = inspect.signature(function).parameters.get("columns")
    except (TypeError, ValueError):  # the function has no signature
        return False
    return found is not None and found.kind is inspect.Parameter.KEYWORD_ONLY


def cut_of_parts(parts: Sequence[Array], rows: int, where: str) -> ClientRows:
    """Returns the `ClientRows` in which client i holds the samples with the indices `parts[i]`.

    `rows` is the number of all samples, n. Error messages begin with `where`.

    Raises:
        BadInput: A sample is dealt twice.
    """
    every = np.concatenate([np.empty(0, np.int64), *(part.astype(np.int64) for part in parts)])
    count = np.bincount(every, minlength=rows)
    if count.max(initial=0) > 1:
        raise BadInput(f"{where}: row {int(np.argmax(count))} is dealt {count.max()} times: deal each row once")
    return ClientRows(every, np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64))


# ---------------------------------------------------------------------------------------------------------------------
# Partitioners of `flwr_datasets`. A Flower user gets exactly the index lists that Flower makes.
#
# The partitioner gets a table of the training samples without the inputs. The columns are `label` (or `row`, the index
# of the sample, in a regression), every further column of the data set, and `group` if the data have natural clients.
# The partitioner has its own seed (Flower's default is 42). So all replicates have the same partition.

INSTALL = "pip install 'fedray[flower]'"
ROW = "fedray_row"  # the column with the indices of the samples


def make_partitioner(name: str, options: Mapping[str, Any], clients: int | None) -> Any:
    """Makes a partitioner of `flwr_datasets` from the name of its class.

    Args:
        name: Name of the class, such as `DirichletPartitioner`.
        options: Arguments of the class. The default of `num_partitions` is `clients`, and the default of `partition_by`
            is `label`.
        clients: Number of clients, N. None means that the scenario does not set this number.

    Raises:
        BadInput: The package is missing, the package has no such partitioner, or the partitioner refuses the options.
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


def deal_by_flower(partitioner: Any, columns: Mapping[str, Array], clients: int | None) -> ClientRows:
    """Deals the samples with a partitioner of `flwr_datasets`. Samples that no client gets are not used in training.

    `clients` is the expected number of partitions. None accepts any number.

    Raises:
        BadInput: The partitioner raised an error, has a data set already, or makes a wrong number of partitions.

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
            warnings.simplefilter("ignore")  # they warn of repeated draws; if draws fail, there is an error anyway
            number = own.num_partitions
            parts = [np.asarray(own.load_partition(i)[ROW], dtype=np.int64) for i in range(number)]
    except Exception as error:
        known = ", ".join(columns)
        told = f"data.partition.partitioner = {name}: {describe_exception(error)}; the columns are {known}"
        raise BadInput(told) from None
    if clients not in (None, number):
        raise BadInput(f"clients.number = {clients}, but {name} makes {number} partitions: leave it out")
    return cut_of_parts(parts, rows, f"data.partition.partitioner = {name}")


def is_partitioner(thing: Any) -> bool:
    """Returns whether an object is a partitioner of `flwr_datasets`. Does not import that package."""
    return any(f"{one.__module__}.{one.__qualname__}".startswith("flwr_datasets.") for one in type(thing).__mro__)
