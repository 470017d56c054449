"""Gives access to the samples that clients hold in every world, and converts raw samples to inputs of networks.

A *world* is a combination of a replicate (seed) and a fold of the data. A *job* trains one model of one world at one
client, and a *lane* is one of W jobs that are trained together.
"""

import hashlib
import warnings
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.types import EVALUATED_CLIENTS, IntArray
from fedray.data.files import read_pieces
from fedray.data.partition import ClientRows, PartitionedData, gather_cut
from fedray.data.shifts import LabelNoise, Shifts, draw_clusters, draw_meanings, mislabel, permute_labels, shift_inputs
from fedray.data.types import Array, Dataset, Split

# ---------------------------------------------------------------------------------------------------------------------
# The result of `Shards.fetch`, and the standardization of raw samples by the statistics of each world's fold.


class Fetched(NamedTuple):
    """The training samples of J jobs. A job trains one model at one client.

    Attributes:
        x: Raw inputs of the whole data set, or inputs generated for this call, `[n, ...]`.
        y: Raw labels `[n]`, or q targets for each sample, `[n, q]`. If each world (a combination of a seed and a fold)
            has labels of its own, y holds the labels of all worlds, one world after the other.
        rows: For each job, the indices in x of its client's samples, `[J, n_max]` int64, filled with 0 at the end.
        size: Number of samples of each job's client, `[J]`.
        first: Index in y minus index in x, for the samples of each job, `[J]` int64. None means 0 for all jobs.

    Example:
        >>> import numpy as np
        >>> rows = Fetched(torch.zeros(3, 2), torch.tensor([5, 6, 7]), torch.tensor([[2, 0]]), np.array([2]))
        >>> rows.labels(rows.rows, 0).tolist()
        [[7, 5]]
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    size: IntArray
    first: Tensor | None = None

    def labels(self, rows: Tensor, job: Tensor | int) -> Tensor:
        """Returns the labels or targets of samples.

        `rows` are indices of samples in `self.x`, `[...]`. `job` is the index of the job for which each sample is
        read, or one index for all samples.
        """
        index = rows if self.first is None else rows + self.first[job]
        return self.y.index_select(0, index.flatten().to(self.y.device)).view(*index.shape, *self.y.shape[1:])


class Standardization(NamedTuple):
    """The statistics with which compiled kernels standardize samples.

    Kernels train W jobs at once, each in a lane. If inputs or targets are not standardized, their two statistics are
    None.

    Attributes:
        world: For each lane, the row of its statistics in the arrays below, `[W]` int64. Each array has R rows.
        shift: Mean to subtract from the inputs, `[R, *s]` float32.
        scale: Standard deviation by which inputs are divided afterwards, `[R, *s]` float32.
        y_shift: Mean to subtract from each of q targets, `[R, q]` float32.
        y_scale: Standard deviation by which targets are divided afterwards, `[R, q]` float32.
    """

    world: IntArray
    shift: Tensor | None
    scale: Tensor | None
    y_shift: Tensor | None
    y_scale: Tensor | None


class Scaling(NamedTuple):
    """The statistics that standardize the samples of R worlds. A world is a combination of a seed and a fold.

    Attributes:
        kind: Kind of the inputs: `images`, `features` or `tokens`.
        classes: Number of classes. It is 0 for a regression.
        shift: Mean of the inputs, `[R, *s]` float32.
        scale: Standard deviation of the inputs, `[R, *s]` float32.
        y_shift: Mean of each of q targets, `[R, q]` float32.
        y_scale: Standard deviation of the targets, `[R, q]` float32.
        same: Whether all worlds have the same fold.
        plain: For the inputs and for the targets, whether they are used without standardization.
        folds: Number of worlds that are made from each of the R worlds (`WrappedShards`).
    """

    kind: str
    classes: int
    shift: Tensor
    scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    same: bool
    plain: tuple[bool, bool]
    folds: int = 1

    @staticmethod
    def of(data: Dataset, folds: list[int]) -> "Scaling":
        """Returns the statistics of a data set. `folds[w]` is the fold of world w."""
        statistics = (*data.scaling, data.y_shift, data.y_scale)
        a, b, c, d = (torch.from_numpy(part[folds]) for part in statistics)
        plain = [not bool(shift.any()) and bool((scale == 1).all()) for shift, scale in ((a, b), (c, d))]
        return Scaling(data.kind, data.classes, a, b, c, d, len(set(folds)) == 1, (plain[0], plain[1]))

    def normalize(self, x: Tensor, world: Tensor) -> Tensor:
        """Converts raw inputs `[W, ..., *sample]` to network inputs: float32 numbers, or int64 tokens.

        float32 inputs are standardized if the data set requires this. `world` is the world of each of the W entries.
        """
        if self.kind == "tokens":
            return x.long()
        return x.float() if self.plain[0] else self._standardize(x, self.shift, self.scale, world)

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        """Returns labels `[W, ...]` unchanged. Standardizes targets `[W, ..., q]` if the data set requires this."""
        return y if self.classes or self.plain[1] else self._standardize(y, self.y_shift, self.y_scale, world)

    def standardization(self, world: IntArray) -> Standardization:
        """Returns the statistics that `normalize` and `targets` use. `world` is the world of each of W jobs, `[W]`."""
        plain, raw = self.plain[0] or self.kind == "tokens", bool(self.classes) or self.plain[1]
        return Standardization(
            np.zeros_like(world) if self.same else world // self.folds,
            *(None if plain else part for part in (self.shift, self.scale)),
            *(None if raw else part for part in (self.y_shift, self.y_scale)),
        )

    def _standardize(self, x: Tensor, shift: Tensor, scale: Tensor, world: Tensor) -> Tensor:
        shift, scale = shift.to(x.device), scale.to(x.device)
        if self.same:
            return (x - shift[0]).div_(scale[0])
        world = world // self.folds
        lead = (len(world), *(1,) * (x.ndim - shift.ndim), *shift.shape[1:])  # [W, 1, ..., *s]
        return (x - shift[world].view(lead)).div_(scale[world].view(lead))


# ---------------------------------------------------------------------------------------------------------------------
# Shards: an object through which the rest of fedray reads the samples that clients hold in every world.
#
# World `w = r * F + f` is replicate r with fold f, where F is the number of folds. Each world has its own partition,
# which `fedray.data.deal` makes. The worlds of a replicate share a seed. `StoredShards` holds the samples of a stored
# data set. `GeneratedShards` makes samples when they are needed. The shards in `fedray.features.stacking` give access
# to a part of the samples of other shards, or to features computed from these samples.


class Shards(Protocol):
    """The samples of N clients in all worlds. A world is a combination of a seed and a fold of the data.

    Attributes:
        data: The data set.
        number: Number of clients, N.
        worlds: Number of worlds, R.
        data_folds: For each world, the fold of `data` from which its samples and statistics come.
        scaling: The statistics, and the functions that standardize samples with them.

    Example:
        >>> from fedray.data.store import load_data
        >>> from fedray.data.deal import PartitionSettings, build_shards
        >>> shards: Shards = build_shards(load_data("digits"), PartitionSettings("iid", clients=100), [0])
        >>> shards.number, shards.worlds, shards.test(0)[0].shape
        (100, 1, torch.Size([359, 1, 8, 8]))
    """

    data: Dataset
    number: int
    worlds: int
    data_folds: list[int]
    scaling: Scaling

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Returns the number of training samples of client `client[j]` in world `world[j]` for each job j, `[J]`."""
        ...

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Returns the training samples of client `client[j]` in world `world[j]` for each job j."""
        ...

    def test(self, world: int) -> tuple[Tensor, Tensor]:
        """Returns the test samples of a world, as raw inputs `[n, *sample]` and labels or raw targets."""
        ...

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        """Returns the samples that are withheld from training: the raw inputs, and the labels or raw targets.

        The samples are ordered by client. If clients are generated, only the first 10,000 clients are included.
        """
        ...

    def server(self, world: int) -> tuple[Tensor, Tensor]:
        """Returns the samples that the server holds instead of clients, as raw inputs and labels or raw targets."""
        ...

    def client_test(self, world: int, client: int) -> IntArray | None:
        """Returns the indices of the client's own samples in `test(world)`, `[n]`.

        If the partition is not `natural`, clients have no test samples of their own, and the result is None.
        """
        ...

    def clusters(self, world: int) -> IntArray | None:
        """Returns the true cluster of each client, `[N]`. None means that the clusters are not known."""
        ...

    def cluster_test(self, world: int, client: int) -> IntArray | None:
        """Returns the indices in `test(world)` of the test samples of the client's cluster, `[n]`.

        None means that every client is tested on all test samples.
        """
        ...

    def client_holdout(self, world: int, client: int) -> IntArray:
        """Returns the indices in `holdout(world)` of the client's withheld samples, `[n]`."""
        ...

    def label_counts(self, world: int) -> IntArray:
        """Counts the true labels of each client's training samples, `[clients, C]`.

        Only the first 10,000 clients are included.
        """
        ...


def read_clients(shards: Shards, world: int, clients: Sequence[int] | IntArray) -> tuple[Tensor, Tensor]:
    """Returns raw inputs and raw targets of the training samples of some clients, `[n, ...]`, client after client.

    Args:
        shards: Training samples of all clients.
        world: Index of the world (a seed and a fold).
        clients: Ids of the clients.
    """
    client = np.asarray(clients)
    fetched = shards.fetch(np.full_like(client, world), client)
    rows = fetched.rows[torch.arange(fetched.rows.shape[1]) < torch.from_numpy(fetched.size)[:, None]]
    return fetched.x[rows], fetched.labels(rows, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Shards of a stored data set.


class CutTable:
    """A table of the partitions (`ClientRows`) of all worlds, which finds the samples of many jobs at once."""

    def __init__(self, cuts: list[ClientRows]) -> None:
        self.number = cuts[0].clients
        size = np.stack([np.diff(cut.offsets) for cut in cuts])  # [worlds, N]
        base = np.cumsum([0, *(len(cut.rows) for cut in cuts[:-1])])
        start = np.stack([cut.offsets[:-1] + b for cut, b in zip(cuts, base, strict=True)])
        self.size, self.start = size.ravel(), start.ravel()
        tail = np.zeros(int(size.max(initial=0)), np.int64)  # padding, because `runs` reads beyond the end
        self.rows = np.concatenate([*(cut.rows for cut in cuts), tail])

    def runs(self, world: IntArray, client: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the sample indices of client `client[j]` in world `world[j]` for each job j, and their number.

        The indices are `[J, n_max]`, padded with 0 at the end. The numbers of samples are `[J]`.
        """
        entry = world * self.number + client
        size = self.size[entry]
        place = np.arange(size.max(initial=0))
        rows = self.rows[self.start[entry][:, None] + place]
        if len(size) and size.min() < len(place):
            rows *= place < size[:, None]
        return rows, size


class StoredShards:
    """The clients' samples of a stored data set. `Shards` describes the methods.

    Attributes:
        dealt: The samples that clients and the server hold in every world.
        original: The data set without copies. If each group of clients has its own copy of all samples
            (`fedray.data.deal`), `data` holds all copies.
    """

    def __init__(
        self, data: Dataset, folds: list[int], dealt: PartitionedData, *, groups: Array | None, original: Dataset
    ) -> None:
        """Makes the shards of all worlds.

        `groups` has the natural group of each client, `[N]`. None means that the partition is not natural. `original`
        is the data set without copies.
        """
        self.data, self.number, self.worlds, self.dealt = data, dealt.kept[0].clients, len(dealt.kept), dealt
        self.original, self.data_folds, self._server = original, folds, dealt.server
        self._train = CutTable(dealt.kept)
        self._x, self._y = _share_rows(data.train)
        self.scaling = Scaling.of(data, folds)
        self._own_test: ClientRows | None = None  # the test samples of each client's natural group, if there are groups
        if data.test.group is not None and groups is not None:
            client = np.minimum(np.searchsorted(groups, data.test.group), len(groups) - 1)
            known = np.flatnonzero(groups[client] == data.test.group)
            self._own_test = gather_cut(known, client[known], len(groups))
        self._labels: Tensor | None = None  # training labels of all worlds, `[R * n]`, if some are wrong
        self._strides = [0, 0]  # distance in x and in y between the same samples of two worlds; 0 if worlds share them
        self._clusters: list[IntArray] = []  # true clusters of clients in each world, if known
        self._copies: Shifts | None = None  # the differences between groups, if each group has a copy of all samples
        self._meanings: list[IntArray] = []  # in each world, the label of each class in each group

    def shift(self, shifts: Shifts, seeds: list[int], cuts: list[ClientRows]) -> None:
        """Changes the inputs or labels of clients as `shifts` describes.

        `seeds` and `cuts` have the seed and the partition of each world. If samples of several clients are pooled,
        `cuts` are the partitions before pooling.
        """
        n, data = len(self.data.train.y), self.data
        if shifts.clusters > 1 and cuts[0].clients == self.dealt.owned[0].clients:
            self._clusters = self._of_clients([draw_clusters(seed, cuts[0].clients, shifts) for seed in seeds])
        if shifts.copies:
            self._copies, shifts = shifts, shifts._replace(rotation=0)  # the copies are turned already
            if shifts.permute_labels:
                self._meanings = [draw_meanings(seed, shifts, data.classes) for seed in seeds]
        if shifts.rotation or shifts.feature_noise:
            scales = [data.scale[fold if len(data.scale) > 1 else 0] for fold in self.data_folds]
            self._x = torch.from_numpy(shift_inputs(data.train.x, scales, cuts, seeds, shifts))
            self._strides[0] = n
        if shifts.permute_labels:
            self._y = torch.from_numpy(permute_labels(self.data.train.y, cuts, seeds, shifts, self.data.classes))
            self._strides[1] = n

    def cluster_by(self, values: Array) -> None:
        """Sets the true cluster of each client. Clients whose samples have the same value are a cluster.

        `values` has the value of each sample, `[n]`. All samples of a client have the same value.
        """
        known = np.unique(values, return_inverse=True)[1]
        each = [np.minimum(cut.offsets[:-1], len(cut.rows) - 1) for cut in self.dealt.owned]
        self._clusters = self._of_clients(
            [known[cut.rows[first]] for cut, first in zip(self.dealt.owned, each, strict=True)]
        )

    def _of_clients(self, values: list[IntArray]) -> list[IntArray]:
        """Selects the entries of the clients that train, from arrays with an entry for each client."""
        return [of[ids] for of, ids in zip(values, self.dealt.ids, strict=True)] if self.dealt.ids else values

    def mislabel(self, noise: LabelNoise, seeds: list[int], cuts: list[ClientRows], ids: list[IntArray]) -> None:
        """Gives some of the clients that train wrong labels.

        `seeds` and `cuts` have the seed and the partition of each world. If samples of several clients are pooled,
        `cuts` are the partitions before pooling. `ids` has, for each world, the clients that train. It is empty if all
        clients train.
        """
        labels = np.tile(self.data.train.y, (self.worlds, 1)) if not self._strides[1] else self._y.numpy().copy()
        labels = labels.reshape(self.worlds, -1)
        for world, (seed, cut) in enumerate(zip(seeds, cuts, strict=True)):
            key, kinds = rng.keys(seed, "noisy labels", cut.rows), np.zeros(cut.clients, dtype=np.int64)
            train = ids[world] if ids else np.arange(cut.clients)
            kinds[train] = noise.kinds([seed], len(train))[0]
            labels[world, cut.rows] = mislabel(labels[world, cut.rows], kinds[cut.owner], key, self.data.classes)
        self._labels = torch.from_numpy(labels.ravel())

    def dealt_arrays(self) -> list[Array]:
        """Returns the arrays from which digests of the partitions of all worlds are computed.

        The arrays hold indices of the samples of the clients and of the server, numbers of samples, and wrong labels.
        """
        tables = [self._train, *(CutTable(cuts) for cuts in [self.dealt.held] if cuts)]
        changed = [] if self._labels is None else [self._labels.numpy()]  # wrong labels of some clients
        return [*(part for table in tables for part in (table.rows, table.size)), *self._server, *changed]

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Returns the number of training samples of client `client[j]` in world `world[j]` for each job j, `[J]`."""
        return np.asarray(self._train.size[world * self.number + client])

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Returns all samples, and the indices of the samples of `client[j]` for each job j. No sample is copied."""
        rows, size = self._train.runs(world, client)
        in_x, in_y = self._strides
        labels, in_y = (self._y, in_y) if self._labels is None else (self._labels, len(self.data.train.y))
        if in_x:
            rows += (world * in_x)[:, None]
        first = torch.from_numpy(world * (in_y - in_x)) if in_y != in_x else None
        return Fetched(self._x, labels, torch.from_numpy(rows), size, first)

    def test(self, world: int) -> tuple[Tensor, Tensor]:
        """Returns the test samples of a world.

        If some clients never train, the test samples are the samples of these clients. Otherwise they are the test
        samples of the world's fold, or of the data set if there are no folds. If every group of clients has a copy of
        the test samples, each copy has the labels that its group uses.
        """
        if self.dealt.test:
            return self._take_rows(world, self.dealt.test[world])
        if self.data.folds:
            rows = self.data.folds[self.data_folds[world]][1]
            x, y = torch.from_numpy(self.data.train.x[rows]), torch.from_numpy(self.data.train.y[rows])
        else:
            x, y = _share_rows(self.data.test)
        if self._meanings and len(y):
            meaning = torch.from_numpy(self._meanings[world])
            y = meaning[torch.arange(len(y)) // (len(y) // len(meaning)), y]
        return x, y

    def clusters(self, world: int) -> IntArray | None:
        """Returns the true cluster of each client, `[N]`. Clients of a cluster have the same shift or domain."""
        return self._clusters[world] if self._clusters else None

    def cluster_test(self, world: int, client: int) -> IntArray | None:
        """Returns the indices of the test samples of the client's group, `[n]`.

        Returns None if groups do not have their own copies of the test samples.
        """
        if self._copies is None or not self._clusters:
            return None
        rows = self.data.folds[self.data_folds[world]][1] if self.data.folds else self.data.test.y
        each = len(rows) // self._copies.clusters
        first = each * int(self._clusters[world][client])
        return np.arange(first, first + each)

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        """Returns the withheld samples as new arrays."""
        return self._take_rows(world, self.dealt.held[world].rows if self.dealt.held else np.empty(0, np.int64))

    def server(self, world: int) -> tuple[Tensor, Tensor]:
        """Returns the server's samples as new arrays."""
        return self._take_rows(world, self._server[world] if self._server else np.empty(0, np.int64))

    def _take_rows(self, world: int, rows: IntArray) -> tuple[Tensor, Tensor]:
        """Returns the training samples with these indices in `data`, as they are in a world, as new arrays."""
        index, (in_x, in_y) = share_array(rows), self._strides
        return self._x[index + world * in_x], self._y[index + world * in_y]

    def client_test(self, _world: int, client: int) -> IntArray | None:
        """Returns the indices of the test samples of the client's natural group. All worlds have the same indices."""
        if self.dealt.test:  # all test samples belong to clients that never train
            return np.empty(0, np.int64)
        if self._own_test is None:
            return None
        return self._own_test.rows[self._own_test.offsets[client] : self._own_test.offsets[client + 1]]

    def client_holdout(self, world: int, client: int) -> IntArray:
        """Returns the indices of this client's samples in `holdout(world)`, `[n]`."""
        if not self.dealt.held:
            return np.empty(0, np.int64)
        return np.arange(*self.dealt.held[world].offsets[client : client + 2].tolist())

    def label_counts(self, world: int) -> IntArray:
        """Counts the true labels of each client, even if the client trains on wrong labels.

        If each group of clients has its own copy of all samples with permuted labels, the permuted labels count as
        the true labels.
        """
        number, classes, cut = min(self.number, EVALUATED_CLIENTS), self.data.classes, self.dealt.kept[world]
        if not classes:
            return np.zeros((number, 0), np.int64)
        rows, owner = (part[: cut.offsets[number]] for part in (cut.rows, cut.owner))
        y = self._y.numpy()[rows + world * self._strides[1]] if self._meanings else self.data.train.y[rows]
        counts = np.bincount(owner * classes + y, minlength=number * classes)
        return counts.reshape(number, classes).astype(np.int64)


def _share_rows(split: Split) -> tuple[Tensor, Tensor]:
    """Converts inputs and labels to tensors in row-major order. Copies only arrays that are not in this order."""
    return share_array(np.ascontiguousarray(split.x)), share_array(np.ascontiguousarray(split.y))


def share_array(array: Array) -> Tensor:
    """Returns a tensor that shares the memory of an array. The array may be read-only, so never write to the tensor."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


# ---------------------------------------------------------------------------------------------------------------------
# Digests of the samples and the partition that a run trains on.
#
# Samples are read in pieces, so that mapped files need little memory. If clients are generated, the settings from which
# samples are generated are hashed instead.


def hash_shards(shards: Shards, *, exact: bool) -> dict[str, str]:
    """Returns SHA-256 digests of the data of clients, server and evaluation, with a name for each digest.

    `exact` says whether the digests depend on every bit of floating-point numbers. Otherwise the digests of such
    numbers depend on four digits of sums, because the last bits of computed data differ between types of CPU.
    """
    data = shards.data
    found = {
        "training inputs": hash_array(data.train.x, exact),
        "training labels": hash_array(data.train.y, exact),
        "test inputs": hash_array(data.test.x, exact),
        "test labels": hash_array(data.test.y, exact),
        "classes": hash_text(f"{data.classes} {data.class_names}"),
        "scale": hash_text(" ".join(sum_up(a) for a in (data.shift, data.scale, data.y_shift, data.y_scale))),
    }
    if data.origin is not None:
        found["origin"] = hash_text(sum_up(data.origin))
    if data.test.group is not None:
        found["clients of the test rows"] = hash_array(data.test.group, exact)
    if data.ood is not None:
        found["out-of-distribution inputs"] = hash_array(data.ood, exact)
    if data.folds:
        rows = [hash_array(part, exact) for fold in sorted(set(shards.data_folds)) for part in data.folds[fold]]
        found["folds"] = hash_text(" ".join(rows))
    if data.population is not None:
        found["generated clients"] = hash_text(f"{data.population} {shards.number}")
    if isinstance(shards, StoredShards):
        found["the clients' rows"] = hash_text(" ".join(hash_array(a, exact) for a in shards.dealt_arrays()))
    return found


def hash_array(array: Array, exact: bool = True) -> str:
    """Returns the SHA-256 digest of the shape and the values of an array. The digest is the same on any machine.

    The array must have at least one axis, and must hold no objects.

    `exact` says whether the digest depends on every bit of floating-point numbers. Otherwise the result for a
    floating-point array is the digest of `sum_up(array)`.

    Example:
        >>> hash_array(np.arange(3)) == hash_array(np.arange(3, dtype=">i8"))
        True
        >>> hash_array(np.array([1.0, 2.0]), exact=False) == hash_array(np.array([1.0, 2.0 + 1e-12]), exact=False)
        True
    """
    if array.dtype.kind == "f" and not exact:
        return hash_text(sum_up(array))
    kind = array.dtype.newbyteorder("<")
    digest = hashlib.sha256(f"{kind.str} {array.shape}".encode())
    for piece in read_pieces(array):
        digest.update(np.ascontiguousarray(piece, dtype=kind).view(np.uint8).data)
    return digest.hexdigest()


def sum_up(array: Array) -> str:
    """Returns as text the shape of an array, the sum of its squares, and a sum that depends on the order of its values.

    The sums have four digits, which rounding errors hardly change.

    Example:
        >>> sum_up(np.array([3.0, 4.0]))
        '(2,) 25 53.5'
    """
    values = np.asarray(array, dtype=np.float64).ravel()
    weights = 1.0 + np.arange(len(values)) / max(1, len(values))
    return f"{array.shape} {np.sum(values**2):.4g} {np.sum(weights * (values + 1.0) ** 2):.4g}"


def hash_text(text: str) -> str:
    """Returns the SHA-256 digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# The number of training samples of each class, by the labels with which clients train.
#
# `Shards.label_counts` counts the true labels. If clients have wrong labels, a server does not know the true labels.


def count_held_labels(shards: Shards, world: int) -> IntArray:
    """Counts the labels with which each client trains, `[clients, C]`.

    Only the first 10,000 clients are included. The data set must have classes.

    Example:
        >>> from fedray.data.store import load_data
        >>> from fedray.data.deal import PartitionSettings, build_shards
        >>> shards = build_shards(load_data("digits"), PartitionSettings("iid", clients=4), [0])
        >>> bool((count_held_labels(shards, 0) == shards.label_counts(0)).all())
        True
    """
    classes = shards.data.classes
    client = np.arange(min(shards.number, EVALUATED_CLIENTS))
    fetched = shards.fetch(np.full_like(client, world), client)
    real = np.arange(fetched.rows.shape[1]) < fetched.size[:, None]  # the rest is padding
    owner = np.nonzero(real)[0]
    y = fetched.labels(fetched.rows[torch.from_numpy(real)], torch.from_numpy(owner)).cpu().numpy()
    counts = np.bincount(owner * classes + y, minlength=len(client) * classes)
    return counts.reshape(len(client), classes).astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Shards that wrap other shards.


class WrappedShards:
    """Shards (the clients' data) that are the same as the wrapped shards, except for the training samples.

    Each world of the wrapped shards becomes `folds` worlds. Derived classes have the methods `sizes` and `fetch`.
    """

    def __init__(self, whole: Shards, folds: int = 1) -> None:
        """Wraps the shards `whole`."""
        self.whole, self.folds, self.data = whole, folds, whole.data
        self.number, self.worlds = whole.number, whole.worlds * folds
        self.data_folds = [fold for fold in whole.data_folds for _ in range(folds)]
        # all other values are those of the world of the wrapped shards from which the world was made
        self.scaling = whole.scaling._replace(folds=whole.scaling.folds * folds)
        self.test = lambda world: whole.test(world // folds)
        self.holdout = lambda world: whole.holdout(world // folds)
        self.server = lambda world: whole.server(world // folds)
        self.client_test = lambda world, client: whole.client_test(world // folds, client)
        self.clusters = lambda world: whole.clusters(world // folds)
        self.cluster_test = lambda world, client: whole.cluster_test(world // folds, client)
        self.client_holdout = lambda world, client: whole.client_holdout(world // folds, client)
        self.label_counts = lambda world: whole.label_counts(world // folds)


class ServerShards(WrappedShards):
    """Shards in which client 0 stands for the server and trains on its samples. No other client has samples.

    Example:
        >>> from fedray.data.store import load_data
        >>> from fedray.data.deal import PartitionSettings, build_shards
        >>> whole = build_shards(load_data("digits"), PartitionSettings("iid", clients=4), [0], server=0.1)
        >>> ServerShards(whole).sizes(np.zeros(2, dtype=int), np.arange(2)).tolist(), len(whole.server(0)[1])
        ([143, 0], 143)
    """

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Returns the number of the server's samples for client 0, and 0 for every other client, `[J]`."""
        known = {w: len(self.whole.server(w)[1]) for w in np.unique(world).tolist()}
        held = np.array([known[w] for w in world.tolist()], dtype=np.int64)
        return np.where(client == 0, held, 0)

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Returns the server's samples for client 0, and no samples for every other client."""
        worlds, size = np.unique(world).tolist(), self.sizes(world, client)
        x, y = zip(*(self.whole.server(w) for w in worlds), strict=True)
        begins = dict(zip(worlds, np.cumsum([0, *map(len, y)]).tolist(), strict=False))
        start = np.array([begins[w] for w in world.tolist()], dtype=np.int64)
        place = np.arange(size.max(initial=0))
        rows = np.where(place < size[:, None], start[:, None] + place, 0)
        return Fetched(torch.cat(x), torch.cat(y), torch.from_numpy(rows), size)
