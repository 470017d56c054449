"""Deals the samples of a data set to clients, server and validation in every world, and reads partition files.

To *deal* samples is to distribute them. A *world* is a combination of a replicate (seed) and a fold of the data.
`ClientRows` say which client holds which samples.
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput, FedrayError, suggest_nearest
from fedray.core.types import IntArray, count_test_clients
from fedray.data import partition
from fedray.data.forms.rows import GIVEN_ROW
from fedray.data.partition import ClientRows, Generator, PartitionedData, find_names, name_owners
from fedray.data.shards import Shards, StoredShards, hash_array
from fedray.data.shifts import LabelNoise, Shifts, draw_clusters, split_options, split_shifts
from fedray.data.synthetic import GeneratedShards
from fedray.data.types import Array, Dataset, Moments, Split, column_moments, pixel_moments
from fedray.files.plain import expand_user_path
from fedray.files.run_files import read_parquet_file

# ---------------------------------------------------------------------------------------------------------------------
# The partition file is a Parquet file with the client that holds each training sample. Runs write such a file, and a
# scenario can name such a file as its partition.
#
# The columns are `replicate`, `fold`, `row` (index of the training sample, from 0), `client` and `split`. The values of
# `split` are `train`, `hold_out`, `server` for samples that the server holds instead of the client, and `test` for
# samples of a client that never trains. If the true clusters of clients are known, the column `cluster` has the cluster
# of the client. fedray writes this column but never reads it. The samples of a client are in the order in which the
# client holds them. The metadata describe the data set. A file from a different tool needs only the columns `row` and
# `client`.

FILE_NAME = "partition.parquet"  # name of the file in a run directory
MOST_ROWS = 50_000_000  # partitions with more samples, in all worlds together, are not written
SPLITS = ("train", "hold_out", "server", "test")
REMEDY = "give a Parquet file, such as the partition.parquet that every run writes"


def pack_partition(
    data: Dataset, dealt: PartitionedData, folds: list[int], clusters: Sequence[IntArray | None] = (None,)
) -> bytes:
    """Returns the content of a partition file as bytes.

    The column `row` has the index of each training sample. The column `given_row` has the sample's index in the data
    that the user gave, if this index is known. The worlds (pairs of a replicate and a fold) are ordered by replicate.
    `folds` has the fold of each world. For each world, `clusters` has the true cluster of each client, `[N]`, or None
    if the clusters are not known.

    Example:
        >>> import tempfile
        >>> from fedray.data.store import load_data
        >>> data = load_data("digits")
        >>> cut = partition.gather_cut(np.arange(len(data.train.y)), np.arange(len(data.train.y)) % 3, 3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / FILE_NAME
        ...     _ = path.write_bytes(pack_partition(data, PartitionedData([cut], [cut], [], []), folds=[0]))
        ...     np.array_equal(read_partition(path, data, [(0, 0)]).kept[0].rows, cut.rows)
        True
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    each = len(set(folds))
    worlds = [_list_rows(dealt, world) for world in range(len(folds))]
    sizes = [len(rows) for rows, _, _ in worlds]
    row, client, split = (np.concatenate(column) for column in zip(*worlds, strict=True))
    known = [of for of in clusters if of is not None]
    more = {}
    if known and not dealt.test:
        each_row = [of[who] for of, (_, who, _) in zip(known, worlds, strict=True)]
        more["cluster"] = np.concatenate(each_row).astype(np.int32)
    given = data.columns.get("row", np.empty(0))
    if given.dtype.kind == "i" and len(given) == len(data.train.y):
        more["given_row"] = given[row]
    table = pa.table(
        {
            "replicate": np.repeat(np.arange(len(folds)) // each, sizes).astype(np.int32),
            "fold": np.repeat(folds, sizes).astype(np.int32),
            "row": row,
            "client": client.astype(np.int32),
            "split": pa.DictionaryArray.from_arrays(pa.array(split, pa.int8()), pa.array(SPLITS)),
            **more,
        }
    )
    facts = {**_describe_data(data), "clients": str(dealt.owned[0].clients)}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(facts), sink, write_page_checksum=True)
    return bytes(sink.getvalue().to_pybytes())


def _list_rows(dealt: PartitionedData, world: int) -> tuple[IntArray, IntArray, IntArray]:
    """Returns three arrays `[n]` for the n samples of a world: index, client, and number of the split.

    The splits are 0 (`train`), 1 (`hold_out`), 2 (`server`) and 3 (`test`). The training samples come first.
    """
    cuts = [dealt.kept[world], *([dealt.held[world]] if dealt.held else [])]
    rows, owners = [cut.rows for cut in cuts], [cut.owner for cut in cuts]
    if dealt.ids:
        owners = [dealt.ids[world][owner] for owner in owners]
    splits = [np.full(len(cut.rows), number) for number, cut in enumerate(cuts)]
    for name, taken in (("server", dealt.server), ("test", dealt.test)):
        if taken:
            owned = dealt.owned[world]
            order = np.argsort(owned.rows, kind="stable")
            rows.append(taken[world])
            owners.append(owned.owner[order[np.searchsorted(owned.rows[order], taken[world])]])
            splits.append(np.full(len(taken[world]), SPLITS.index(name)))
    return np.concatenate(rows), np.concatenate(owners), np.concatenate(splits).astype(np.int8)


def read_partition(path: Path, data: Dataset, worlds: list[tuple[int, int]]) -> PartitionedData:
    """Reads the samples of the clients and of the server from a partition file.

    `worlds` has the pair (index of the replicate, fold) of each world. If the file has a single replicate, all
    replicates get its partition.

    Raises:
        BadInput: The file cannot be read, belongs to a different data set, or does not fit this data set.
    """
    key = f"data.partition.file = {path}"
    try:
        table = read_parquet_file(path, ("replicate", "fold", "row", "client", "split"), REMEDY)
    except FedrayError as error:
        raise BadInput(f"data.partition.file: {error}") from None
    missing = [name for name in ("row", "client") if name not in table.column_names]
    if missing:
        raise BadInput(f"{key}: it has no column {missing[0]}: write the columns row, client and split")
    known = {name.decode(): value.decode(errors="replace") for name, value in (table.schema.metadata or {}).items()}
    for name, value in _describe_data(data).items():
        if name != "data" and known.get(name, value) != value:  # the name of the data set may differ
            raise BadInput(f"{key}: it deals other {name} than those of {data.name}: give the file of this data set")
    columns = {name: _read_ids(key, table, name) for name in ("replicate", "fold", "row", "client")}
    texts = np.asarray(table["split"].to_pylist() if "split" in table.column_names else ["train"] * len(table))
    split = np.select([texts == name for name in SPLITS], range(len(SPLITS)), -1)  # -1 is an unknown split
    if (split < 0).any():
        raise BadInput(
            f"{key}: its column split has {str(texts[np.argmin(split)])!r}: the splits are {', '.join(SPLITS)}"
        )
    clients = max(int(columns["client"].max(initial=-1)) + 1, int(known.get("clients", 0)))
    several = len(np.unique(columns["replicate"])) > 1
    parts = []
    for replicate, fold in worlds:
        inside = (columns["replicate"] == (replicate if several else columns["replicate"][:1])) & (
            (columns["fold"] == fold) | ("fold" not in table.column_names)
        )
        if not inside.any():
            raise BadInput(f"{key}: it has no rows of replicate {replicate} and fold {fold}: give the file of these")
        rows, owner, kind = columns["row"][inside], columns["client"][inside], split[inside]
        n = len(data.train.y)
        if rows.max() >= n or (count := np.bincount(rows, minlength=n)).max() > 1 or not (kind == 0).any():
            raise BadInput(
                f"{key}: it deals rows twice, none to train, or more than the {n} of {data.name}: correct it"
            )
        if data.folds and count[data.folds[fold][1]].any():
            raise BadInput(f"{key}: it deals test rows of fold {fold}: give the file of this fold")
        whose = (kind >= 0, (kind == 0) | (kind == 3), kind == 1)  # clients of `test` are kept out later
        cuts = [partition.gather_cut(rows[of], owner[of], clients) for of in whose]
        parts.append((*cuts, rows[kind == 2], rows[kind == 3]))
    owned, kept, held, server, test = (list(column) for column in zip(*parts, strict=True))
    found = [part if (split == number).any() else [] for number, part in ((1, held), (2, server), (3, test))]
    return PartitionedData(owned, kept, found[0], found[1], test=found[2])


def _describe_data(data: Dataset) -> dict[str, str]:
    """Returns name and number of training samples of a data set, and digests of its labels and first 1,000 inputs."""
    return {
        "data": data.name,
        "rows": str(len(data.train.y)),
        "labels": hash_array(data.train.y, exact=False),
        "inputs": hash_array(data.train.x[:1000], exact=False),
    }


def _read_ids(key: str, table: Any, name: str) -> IntArray:
    """Returns a column of a partition file. The values must be integers from 0 to 999,999,999.

    If the column is absent, returns zeros.
    """
    import pyarrow as pa

    if name not in table.column_names:
        return np.zeros(len(table), np.int64)
    column = table[name]
    whole = pa.types.is_integer(column.type) and not column.null_count
    values: IntArray = column.to_numpy().astype(np.int64) if whole else np.array([-1])
    if values.min(initial=0) < 0 or values.max(initial=0) >= 10**9:
        raise BadInput(f"{key}: its column {name} has other values than whole numbers of 0 to 999999999: correct it")
    return values


# ---------------------------------------------------------------------------------------------------------------------
# Copies: every group of clients has its own shifted copy of all samples, and is tested on samples that are shifted in
# the same way.
#
# The data set gets each of its n samples G times, once for each of G groups. The samples of group g begin at index
# `g n`. Each copy is dealt to the clients of its group.


def copy_rows(data: Dataset, shifts: Shifts) -> Dataset:
    """Returns a data set with a copy of all n samples for each of G groups of clients, `[G n]`.

    G is `shifts.clusters`. If `shifts.rotation` is above 0, the images of a copy are rotated by the angle of its group.
    Labels are not permuted here, because each seed has its own permutation.

    Source: Ghosh, Chung, Yin, Ramchandran, *An Efficient Framework for Clustered Federated Learning*, NeurIPS 2020,
    section 6: rotated MNIST.

    Example:
        >>> from fedray.data.store import load_data
        >>> data = load_data("digits")
        >>> four = copy_rows(data, Shifts(rotation=4, copies=True))
        >>> len(four.train.y) // len(data.train.y)
        4
        >>> np.array_equal(four.test.x[359], np.rot90(data.test.x[0], axes=(-2, -1)))
        True
    """
    groups, turns = shifts.clusters, 4 // shifts.rotation if shifts.rotation else 0

    def copy(split: Split) -> Split:
        x = np.concatenate([np.rot90(split.x, g * turns, axes=(-2, -1)) if turns else split.x for g in range(groups)])
        group = None if split.group is None else np.tile(split.group, groups)
        return Split(x, np.concatenate([split.y] * groups), group)

    first = len(data.train.y) * np.arange(groups)[:, None]  # index of the first sample of each copy
    folds = tuple(((first + train).ravel(), (first + test).ravel()) for train, test in data.folds)
    columns = {name: np.tile(values, groups) for name, values in data.columns.items()}
    return data._replace(train=copy(data.train), test=copy(data.test), folds=folds, columns=columns)


# ---------------------------------------------------------------------------------------------------------------------
# Dealing of samples to clients, server and validation in every world.

OPEN = ("flower", "file")  # partitions without a function in `fedray.data.partition`


class UnseenClientRule(NamedTuple):
    """The rule that chooses clients that do not train. The models are tested on the samples of these clients.

    Attributes:
        wanted: Number of the clients that do not train, their share of all clients, or their names.
        column: Name of the column that names the client of each sample. None means a column with a usual name, such as
            `client`.
    """

    wanted: int | float | tuple[str, ...]
    column: str | None = None

    def count_folds(self, clients: int) -> int:
        """Returns how many folds are needed to leave each of N clients out of training exactly once."""
        each = count_test_clients(self.wanted, clients)
        if not isinstance(self.wanted, tuple) and clients % each == 0 and each < clients:
            return clients // each
        known = ", ".join(str(n) for n in range(1, clients) if clients % n == 0)
        raise BadInput(
            f"data.test_clients = {_show(self.wanted)}, but with data.fold = all each of {clients} clients is kept out "
            f"once, in groups of one size: give one of {known}"
        )

    def choose(self, data: Dataset, cut: ClientRows, seed: int, fold: int) -> IntArray:
        """Returns the indices of the clients that do not train in one fold of one replicate, in ascending order.

        If the rule does not name these clients, the clients are drawn at random with `seed`. No client is drawn in two
        folds.
        """
        each, key = count_test_clients(self.wanted, cut.clients), f"data.test_clients = {_show(self.wanted)}"
        if each >= cut.clients:
            raise BadInput(f"{key}, but there are {cut.clients} clients: leave some that train")
        if isinstance(self.wanted, tuple):
            names = name_owners(cut, find_names(data, self.column))
            known = {**{str(i): i for i in range(cut.clients)}, **{name: i for i, name in enumerate(names)}}
            for name in self.wanted:
                if name not in known:
                    numbers = f"give 0 to {cut.clients - 1}"
                    called = suggest_nearest(name, names, f"{numbers}, or {', '.join(names)[:300]}")
                    raise BadInput(f"{key}: no client is {name!r}: {called if names else numbers}")
            if fold:
                raise BadInput(f"data.fold = {fold}, but {key} is one group of clients: leave it out")
            return np.unique([known[name] for name in self.wanted])
        if (fold + 1) * each > cut.clients:
            folds = cut.clients // each
            raise BadInput(f"data.fold = {fold}, but {key} of {cut.clients} clients makes {folds} folds: lower it")
        order = rng.stream(seed, "test clients").permutation(cut.clients)
        return np.sort(order[fold * each : (fold + 1) * each])


def _show(wanted: int | float | tuple[str, ...]) -> str:
    return f"[{', '.join(wanted)}]" if isinstance(wanted, tuple) else f"{wanted:g}"


def _remove_unseen_clients(
    data: Dataset, dealt: PartitionedData, worlds: list[tuple[int, int]], rule: UnseenClientRule
) -> PartitionedData:
    """Takes some clients out of training, in every fold of every replicate. Their samples become the test samples.

    If a partition file names test samples, the clients that own them are taken out.
    """
    if dealt.test:
        pairs = zip(dealt.owned, dealt.test, strict=True)
        each = [np.unique(cut.owner[np.isin(cut.rows, rows)]) for cut, rows in pairs]
        wanted, number = rule.wanted, dealt.owned[0].clients
        most = len(wanted) if isinstance(wanted, tuple) else count_test_clients(wanted, number)
        if max(map(len, each)) > most or not all(map(len, each)):
            told = (
                f"data.test_clients = {_show(wanted)}, but the partition file has test rows of {len(each[0])} clients"
            )
            raise BadInput(f"{told}: set it as in the run of the file, or write train")
    else:
        each = [rule.choose(data, cut, *world) for cut, world in zip(dealt.owned, worlds, strict=True)]
    ids = [np.setdiff1d(np.arange(cut.clients), out) for cut, out in zip(dealt.owned, each, strict=True)]
    kept, held = (list(map(partition.select_clients, cuts, ids)) for cuts in (dealt.kept, dealt.held))
    test = [np.sort(partition.select_clients(cut, out).rows) for cut, out in zip(dealt.owned, each, strict=True)]
    if not all(map(len, test)):
        raise BadInput(f"data.test_clients = {_show(rule.wanted)}: these clients have no rows: keep others out")
    server = [rows[~np.isin(rows, out)] for rows, out in zip(dealt.server, test, strict=False)]
    return PartitionedData(dealt.owned, kept, held, server, ids, test)


def _pool(dealt: PartitionedData) -> PartitionedData:
    """Makes a single client of all clients that train. It holds all their samples.

    Samples that a partition file withholds stay withheld, and the server keeps its samples.
    """

    def join(cuts: list[ClientRows]) -> list[ClientRows]:
        return [ClientRows(np.sort(cut.rows), np.array([0, len(cut.rows)])) for cut in cuts]

    owned, kept, held = (join(cuts) for cuts in (dealt.owned, dealt.kept, dealt.held))
    return PartitionedData(owned, kept, held, dealt.server, [np.zeros(1, np.int64)] * len(dealt.ids), dealt.test)


def _make_unseen_folds(data: Dataset, worlds: list[tuple[int, int]], test: list[IntArray]) -> tuple[Dataset, list[int]]:
    """Gives the data set a new fold for each pair (seed, fold) in `worlds`.

    `test` has for each pair the indices of the samples of the clients that do not train. All other samples are training
    samples of the new fold, and determine the fold's means and standard deviations. Columns that `data` does not
    standardize keep mean 0 and standard deviation 1.

    Returns:
        The data set, and the index of the new fold of each pair.
    """
    first = {world: i for i, world in reversed(list(enumerate(worlds)))}
    places = sorted(first.values())
    whole = np.arange(len(data.train.y))
    folds = tuple((np.setdiff1d(whole, test[i]), test[i]) for i in places)
    find_inputs = pixel_moments if data.kind == "images" else column_moments
    inputs = [_restandardize(data.train.x[rows], data.shift[0], data.scale[0], find_inputs) for rows, _ in folds]
    y, mean, sd = data.train.y, data.y_shift[0], data.y_scale[0]
    targets = [_restandardize(y[rows], mean, sd, column_moments) for rows, _ in folds]
    (a, b), (c, d) = (map(np.stack, zip(*each, strict=True)) for each in (inputs, targets))
    data = data._replace(folds=folds, shift=a, scale=b, y_shift=c, y_scale=d)
    return data, [places.index(first[world]) for world in worlds]


def _restandardize(values: Array, shift: Array, scale: Array, find: Callable[[Array], Moments]) -> Moments:
    """Returns mean and standard deviation of each column of samples: 0 and 1 for columns that are not standardized."""
    plain = (shift == 0) & (scale == 1)
    mean, sd = (shift, scale) if plain.all() else find(values)
    return np.where(plain, shift, mean), np.where(plain, scale, sd)


class PartitionSettings(NamedTuple):
    """The settings by which samples are dealt to clients.

    Attributes:
        name: Name of the partition.
        options: Options of the partition, and options that give clients wrong labels or shifted samples.
        clients: Number of clients, N. None means that the partition determines the number.
        own: A user's function, or a partitioner of `flwr_datasets`, in place of `name`. None means that `name` is used.
        declares: Whether the user declared the function's options (`options=`). If so, the function may leave options
            unused.
        copies: The shifts of the groups, if each group of clients has its own copy of all samples. None means no
            copies.
    """

    name: str
    options: dict[str, Any] = {}  # noqa: RUF012  (nothing changes this default)
    clients: int | None = None
    own: Any = None
    declares: bool = False
    copies: Shifts | None = None


def build_shards(
    data: Dataset,
    settings: PartitionSettings,
    seeds: list[int],
    *,
    folds: list[int] | None = None,
    hold_out: float = 0.0,
    server: float = 0.0,
    pooled: PartitionSettings | None = None,
    dealt: PartitionedData | None = None,
    unseen: UnseenClientRule | None = None,
) -> Shards:
    """Deals a data set to clients, separately in each world.

    Args:
        data: The data set.
        settings: The settings of the partition. `settings.copies` must be None.
        seeds: Seed of each replicate. The seed determines the partitions of the replicate's folds.
        folds: The F folds to run. None means only the first fold.
        hold_out: Share of each client's samples that is withheld for validation, at least 0 and below 1.
        server: Share of all samples that the server holds instead of the clients. The server does not know the labels
            of these samples.
        pooled: Settings of the partition before pooling, if the samples of all clients are pooled at one client. Label
            noise and shifts are drawn for the clients before pooling. None means no pooling.
        dealt: The partition, if another process has dealt the samples already. None means that the samples are not
            dealt yet.
        unseen: The rule that chooses clients that do not train. None means that all clients train.

    Example:
        >>> from fedray.data.store import load_data
        >>> shards = build_shards(load_data("digits"), PartitionSettings("iid", clients=100), [0])
        >>> shards.sizes(np.array([0, 0]), np.array([0, 99])).tolist()
        [15, 14]
    """
    name, clients, own = settings.name, settings.clients, settings.own
    options, noise, shifts = _split_kinds(settings.options, data)
    if pooled is not None:
        _, noise, shifts = _split_kinds(pooled.options, data)
    copies = shifts if shifts is not None and shifts.copies else None
    settings = settings._replace(options=options, copies=copies if pooled is None else None)
    folds = folds or [0]
    _check_data(data, name, unseen)
    found_there = name in (*partition.BY_VALUE, *OPEN) if own is None else partition.is_partitioner(own)
    if clients is None and (data.population or copies is not None or not found_there):
        raise BadInput("clients.number is missing: give the number of clients")
    if data.population:
        owners = clients if pooled is None else pooled.clients
        aside: dict[str, Any] = {"hold_out": hold_out, "server": server}
        return GeneratedShards(data, data.population, clients or 0, seeds, **aside, label_noise=noise, owners=owners)
    worlds, original = list(product(seeds, folds)), data
    data = data if copies is None else copy_rows(data, copies)
    unpooled = pooled and pooled._replace(options=_split_kinds(pooled.options, data)[0], copies=copies)
    if dealt is None:
        first = settings if unpooled is None or unseen is None else unpooled  # unseen clients are chosen before pooling
        found = _deal(data, first, worlds, unseen)
        found = found if first is settings else _pool(found)
        file = first.options.get("file")
        dealt = _set_rows_aside(worlds, found, file, hold_out=hold_out, server=server, unseen=unseen)
    groups = None
    if name == "natural" and own is None and data.train.group is not None:
        groups = data.train.group[dealt.owned[0].rows[dealt.owned[0].offsets[:-1]]]
    tested = (data, [fold for _, fold in worlds]) if unseen is None else _make_unseen_folds(data, worlds, dealt.test)
    shards = StoredShards(*tested, dealt, groups=groups, original=original)
    before, each = dealt, [seed for seed, _ in worlds]
    if unpooled is not None and (noise is not None or shifts is not None):
        before = _deal(data, unpooled, worlds, unseen)  # shifts and wrong labels follow from clients before pooling
    if shifts is not None:
        shards.shift(shifts, each, before.owned)
    if noise is not None:
        shards.mislabel(noise, each, before.owned, before.ids)
    if name == "domain" and own is None and pooled is None:
        shards.cluster_by(_partition_values(data, name, options))
    return shards


def _check_data(data: Dataset, name: str, unseen: UnseenClientRule | None) -> None:
    """Raises `BadInput` if the data set has no test samples, or does not fit the partition `name`."""
    made = data.population
    if unseen is not None and (data.folds or made):
        what = "has folds with test rows of their own" if data.folds else "makes rows client by client"
        raise BadInput(f"data.test_clients = {_show(unseen.wanted)}, but {data.name} {what}: leave it out")
    if unseen is None and not data.folds and not len(data.test.y):
        remedy = "give some, or data=(x, y), of which a fifth is kept for it"
        raise BadInput(f"data {data.name}: test has no rows, so nothing can be scored: {remedy}")
    if made and (name not in ("iid", "natural") or (name == "iid" and (made.per_client or made.spread))):
        hint = "leave it out, and use data.per_client and data.spread for the differences between clients"
        raise BadInput(f"data.partition.name = {name}, but synthetic clients make their own rows: {hint}")


def _split_kinds(options: dict[str, Any], data: Dataset) -> tuple[dict[str, Any], LabelNoise | None, Shifts | None]:
    """Splits options into the partition's own options, the shares of wrong labels, and the shifts of samples."""
    rest, noise = split_options(options, data.classes)
    rest, shifts = split_shifts(rest, data)
    return rest, noise, shifts


def _deal(
    data: Dataset, settings: PartitionSettings, worlds: list[tuple[int, int]], unseen: UnseenClientRule | None
) -> PartitionedData:
    """Deals the samples, or reads the partition file, for each pair (seed, fold) in `worlds`.

    Only a partition file sets samples aside here.
    """
    if settings.copies is not None and settings.own is None and settings.name in partition.BY_VALUE:
        raise BadInput(
            f"data.partition.copies = true, but the clients of data.partition.name = {settings.name} are those of the "
            "data: leave it out, or deal the rows otherwise"
        )
    if settings.name != "file" or settings.own is not None:
        places = worlds if unseen is None else [(seed, 0) for seed, _ in worlds]
        known = {place: _deal_fold(data, settings, *place) for place in dict.fromkeys(places)}
        cuts = [known[place] for place in places]
        dealt = PartitionedData(cuts, cuts, [], [])
        return dealt if unseen is None else _remove_unseen_clients(data, dealt, worlds, unseen)
    dealt = _read_file(data, settings, worlds)
    dealt = dealt if unseen is None else _remove_unseen_clients(data, dealt, worlds, unseen)
    if settings.copies is not None:
        each = len(data.train.y) // settings.copies.clusters
        for (seed, _), cut in zip(worlds, dealt.owned, strict=True):
            if (cut.rows // each != draw_clusters(seed, cut.clients, settings.copies)[cut.owner]).any():
                raise BadInput(
                    f"data.partition.copies = true, but {settings.options['file']} gives clients rows of a copy that "
                    "is not their group's: give a partition that was dealt with the same data.partition keys and seed"
                )
    return dealt


def count_clients(data: Dataset, settings: PartitionSettings, seed: int) -> int:
    """Returns the number N of clients to which a partition deals the samples of a data set."""
    settings = settings._replace(options=_split_kinds(settings.options, data)[0])
    if settings.clients is not None and settings.name not in OPEN:
        return settings.clients
    return _deal(data, settings, [(seed, 0)], None).owned[0].clients


def _deal_rows(data: Dataset, settings: PartitionSettings, rows: IntArray, draw: Generator) -> ClientRows:
    """Deals the samples with the indices `rows`. The `rows` of the result are positions among these indices."""
    name, options, clients, own = settings.name, settings.options, settings.clients, settings.own
    if name == "flower" or partition.is_partitioner(own):
        given = {key: value for key, value in options.items() if key != "partitioner"}
        made = own if own is not None else partition.make_partitioner(options["partitioner"], given, clients)
        y, group = data.train.y, data.train.group
        table = {"label": y} if y.ndim == 1 else {"row": np.arange(len(y))}
        table |= data.columns if group is None else {"group": group, **data.columns}
        return partition.deal_by_flower(made, {key: values[rows] for key, values in table.items()}, clients)
    if own is not None:
        columns = {key: values[rows] for key, values in data.columns.items()} if partition.wants_columns(own) else None
        labels, declares = data.train.y[rows], settings.declares
        return partition.deal_by_function(own, labels, clients or 0, draw, options, columns=columns, declares=declares)
    values, more = _partition_values(data, name, options), {key: options[key] for key in options if key != "column"}
    return partition.PARTITIONS[name](values[rows], clients, draw, **more)


def _read_file(data: Dataset, settings: PartitionSettings, worlds: list[tuple[int, int]]) -> PartitionedData:
    """Reads the partition file that the options name, for each pair (seed, fold) in `worlds`."""
    path = expand_user_path("data.partition.file", settings.options["file"])
    seeds = list(dict.fromkeys(seed for seed, _ in worlds))
    dealt = read_partition(Path(path), data, [(seeds.index(seed), fold) for seed, fold in worlds])
    if settings.clients not in (None, dealt.owned[0].clients):
        raise BadInput(
            f"clients.number = {settings.clients}, but {path} deals rows to {dealt.owned[0].clients} clients: leave it "
            f"out or set it to {dealt.owned[0].clients}"
        )
    return dealt


def _set_rows_aside(
    worlds: list[tuple[int, int]],
    dealt: PartitionedData,
    file: str | None,
    *,
    hold_out: float,
    server: float,
    unseen: UnseenClientRule | None,
) -> PartitionedData:
    """Takes the server's samples and the withheld samples from the clients in every world.

    Does nothing if the partition file `file` already names these samples.

    Raises:
        BadInput: The file sets samples aside that the scenario does not set aside.
    """
    for key, value, aside, split in (
        ("data.hold_out = 0", hold_out, dealt.held, "hold_out"),
        ("method.server_data = 0", server, dealt.server, "server"),
        ("data.test_clients = null", unseen, dealt.test, "test"),
    ):
        if aside and not value:
            raise BadInput(f"{key}, but {file} has rows of the split {split}: set it as in its run, or write train")
    kept, held, taken = [], list(dealt.held), list(dealt.server)
    for (seed, fold), cut in zip(worlds, dealt.kept, strict=True):
        if server and not dealt.server:
            cut, rows = partition.share_with_server(cut, server, rng.stream(seed, "server data", fold))
            taken.append(rows)
        if hold_out and not dealt.held:
            cut, rest = partition.withhold(cut, hold_out, rng.stream(seed, "hold_out", fold))
            held.append(rest)
        kept.append(cut)
    return dealt._replace(kept=kept, held=held, server=taken)


def _deal_fold(data: Dataset, settings: PartitionSettings, seed: int, fold: int) -> ClientRows:
    """Deals the training samples of a fold. The `rows` of the result are indices into `data.train`.

    If each group of clients has its own copy of all samples, the group gets samples of this copy.

    Raises:
        BadInput: A group has no client.
    """
    draw, copies = rng.stream(seed, "partition"), settings.copies
    rows = data.folds[fold][0] if data.folds else np.arange(len(data.train.y))
    if copies is None:
        cut = _deal_rows(data, settings, rows, draw)
        return cut._replace(rows=rows[cut.rows])
    assert settings.clients is not None  # `build_shards` checked this
    cluster, copy = draw_clusters(seed, settings.clients, copies), rows // (len(data.train.y) // copies.clusters)
    every, owner = [], []
    for group in np.unique(copy).tolist():
        members, mine = np.flatnonzero(cluster == group), rows[copy == group]
        if not len(members):
            raise BadInput(f"clients.number = {len(cluster)} is fewer than data.partition.copies has groups: raise it")
        cut = _deal_rows(data, settings._replace(clients=len(members)), mine, draw)
        every.append(mine[cut.rows])
        owner.append(members[cut.owner])
    return partition.gather_cut(np.concatenate(every), np.concatenate(owner), len(cluster))


def _partition_values(data: Dataset, name: str, options: dict[str, Any]) -> Array:
    """Returns the label, natural group or column value by which a partition deals each sample, `[n]`."""
    if name == "natural":
        if data.train.group is None:
            known = ", ".join(name for name in data.columns if name != GIVEN_ROW)
            remedy = f"name the column that says whose a row is in data.group ({known}), or " if known else ""
            raise BadInput(
                f"data.partition.name = natural, but {data.name} has no natural clients: {remedy}use another"
            )
        return data.train.group
    if name in partition.BY_COLUMN:
        wanted = options.get("column", "domain" if name == "domain" else "")
        if wanted not in data.columns:
            known = ", ".join(name for name in data.columns if name != partition.CLIENT_COLUMNS[0])
            remedy = f"; its columns: {known}" if known else ", which has none: choose another partition"
            if wanted in data.table:
                remedy += " (long texts, and in large tables inputs and columns of many values, are left out)"
            raise BadInput(f"data.partition.column = {wanted}: no such column in {data.name}{remedy}")
        return data.columns[wanted]
    return data.train.y
