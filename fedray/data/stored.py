"""Shards whose rows lie in a stored data set."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.types import EVALUATED_CLIENTS, IntArray
from fedray.data.cut import Cut, Dealt, gather_cut
from fedray.data.label_noise import LabelNoise, mislabel
from fedray.data.scaling import Fetched, Scaling, Standardization
from fedray.data.shifts import Shifts, draw_clusters, draw_meanings, permute_labels, shift_inputs
from fedray.data.types import Array, Dataset, Split


class CutTable:
    """The cuts of all worlds in one array of rows, so that the rows of many jobs are read at once."""

    def __init__(self, cuts: list[Cut]) -> None:
        self.number = cuts[0].clients
        size = np.stack([np.diff(cut.offsets) for cut in cuts])  # [worlds, N]
        base = np.cumsum([0, *(len(cut.rows) for cut in cuts[:-1])])
        start = np.stack([cut.offsets[:-1] + b for cut, b in zip(cuts, base, strict=True)])
        self.size, self.start = size.ravel(), start.ravel()
        tail = np.zeros(int(size.max(initial=0)), np.int64)  # so that a padded run never leaves the array
        self.rows = np.concatenate([*(cut.rows for cut in cuts), tail])

    def runs(self, world: IntArray, client: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of each job's client, `[J, n_max]`, 0 behind its size, and the sizes `[J]`."""
        entry = world * self.number + client
        size = self.size[entry]
        place = np.arange(size.max(initial=0))
        rows = self.rows[self.start[entry][:, None] + place]
        if len(size) and size.min() < len(place):
            rows *= place < size[:, None]
        return rows, size

    def of_world(self, world: int, clients: int | None = None) -> tuple[IntArray, IntArray]:
        """Rows of a world, client after client, and their clients, `[n]` each; `clients` limits them to the first."""
        first, number = world * self.number, self.number if clients is None else min(clients, self.number)
        size, start = self.size[first : first + number], int(self.start[first])
        return self.rows[start : start + int(size.sum())], np.repeat(np.arange(number), size)


class StoredShards:
    """The rows of a stored data set; the methods are described in `Shards`.

    Attributes:
        dealt: Who holds which rows in every world.
        original: The data set as it was read; `data` may have several copies of its rows (`fedray.data.copies`).
    """

    def __init__(
        self,
        data: Dataset,
        folds: list[int],
        dealt: Dealt,
        *,
        groups: Array | None,
        original: Dataset | None = None,
    ) -> None:
        """Takes one entry for each world.

        Args:
            data: The data set.
            folds: Fold of each world.
            dealt: Who holds which rows.
            groups: Value of `group` of each client, `[N]`, if the partition is natural; else None.
            original: The data set as it was read; None: `data`.
        """
        self.data, self.number, self.worlds, self.dealt = data, dealt.kept[0].clients, len(dealt.kept), dealt
        self.original = original or data
        self._folds, self._server = folds, dealt.server
        self._train, self._held = CutTable(dealt.kept), CutTable(dealt.held) if dealt.held else None
        self._x, self._y = _share_rows(data.train)
        self._scaling = Scaling.of(data, folds)
        self._own_test = _own_test_rows(data.test.group, groups)
        self._labels: Tensor | None = None  # what clients train on where some labels are wrong, `[R * n]`
        self._strides = [0, 0]  # from the rows of one world to those of the next, in x and in y
        self._clusters: list[IntArray] = []  # of each world, where they are known
        self._copies: Shifts | None = None  # the groups that have a copy of all rows each
        self._meanings: list[IntArray] = []  # of each world, what each of these groups calls each class

    def shift(self, shifts: Shifts, seeds: list[int], cuts: list[Cut]) -> None:
        """Shifts what the rows of clients show.

        Args:
            shifts: How clients differ.
            seeds: One for each world.
            cuts: Whose each row is, one for each world.
        """
        n, data = len(self.data.train.y), self.data
        if shifts.clusters > 1 and cuts[0].clients == self.number:
            self._clusters = [draw_clusters(seed, self.number, shifts) for seed in seeds]
        if shifts.copies:
            self._copies, shifts = shifts, shifts._replace(rotation=0)  # the copies are turned already
            if shifts.permute_labels:
                self._meanings = [draw_meanings(seed, shifts, data.classes) for seed in seeds]
        if shifts.rotation or shifts.feature_noise:
            scales = [data.scale[fold if len(data.scale) > 1 else 0] for fold in self._folds]
            self._x = torch.from_numpy(shift_inputs(data.train.x, scales, cuts, seeds, shifts))
            self._strides[0] = n
        if shifts.permute_labels:
            self._y = torch.from_numpy(permute_labels(self.data.train.y, cuts, seeds, shifts, self.data.classes))
            self._strides[1] = n

    def cluster_by(self, values: Array) -> None:
        """Takes the values that the clients' rows have, `[n]` and one value a client, as the true clusters."""
        known = np.unique(values, return_inverse=True)[1]
        for cut in self.dealt.owned:
            first = np.minimum(cut.offsets[:-1], len(cut.rows) - 1)
            self._clusters.append(known[cut.rows[first]])

    def mislabel(self, noise: LabelNoise, seeds: list[int], cuts: list[Cut]) -> None:
        """Gives some clients wrong training labels.

        Args:
            noise: How many clients have them.
            seeds: One for each world.
            cuts: Whose each row is, one for each world. They differ from the cuts of these shards where the rows of all
                clients are pooled.
        """
        kinds = noise.kinds(seeds, cuts[0].clients)
        labels = np.tile(self.data.train.y, (self.worlds, 1)) if not self._strides[1] else self._y.numpy().copy()
        labels = labels.reshape(self.worlds, -1)
        for world, (seed, cut) in enumerate(zip(seeds, cuts, strict=True)):
            key = rng.keys(seed, "noisy labels", cut.rows)
            kind = kinds[world, cut.owner]
            labels[world, cut.rows] = mislabel(labels[world, cut.rows], kind, key, self.data.classes)
        self._labels = torch.from_numpy(labels.ravel())

    def dealt_arrays(self) -> list[Array]:
        """What decides who holds which rows, in all worlds: rows and sizes of clients, the server's rows, labels."""
        tables = [self._train, *([self._held] if self._held else [])]
        changed = [] if self._labels is None else [self._labels.numpy()]  # wrong labels of some clients
        return [*(part for table in tables for part in (table.rows, table.size)), *self._server, *changed]

    def sizes(self, world: IntArray, client: IntArray) -> IntArray:
        """Number of entries in the cut, `[J]`."""
        size: IntArray = self._train.size[world * self.number + client]
        return size

    def fetch(self, world: IntArray, client: IntArray) -> Fetched:
        """Indices into the whole store, of which nothing is copied."""
        rows, size = self._train.runs(world, client)
        in_x, in_y = self._strides
        labels, in_y = (self._y, in_y) if self._labels is None else (self._labels, len(self.data.train.y))
        if in_x:
            rows += (world * in_x)[:, None]
        first = torch.from_numpy(world * (in_y - in_x)) if in_y != in_x else None
        return Fetched(self._x, labels, torch.from_numpy(rows), size, first)

    def normalize(self, x: Tensor, world: Tensor) -> Tensor:
        """Standardized by the training rows of the world's fold."""
        return self._scaling.normalize(x, world)

    def targets(self, y: Tensor, world: Tensor) -> Tensor:
        """Standardized by the training rows of the world's fold."""
        return self._scaling.targets(y, world)

    def standardization(self, world: IntArray) -> Standardization:
        """The statistics of the worlds' folds."""
        return self._scaling.standardization(world)

    def test(self, world: int) -> tuple[Tensor, Tensor]:
        """The test rows of the world's fold, or those of the data set; labels as the group of each copy has them."""
        if self.data.folds:
            rows = self.data.folds[self._folds[world]][1]
            x, y = torch.from_numpy(self.data.train.x[rows]), torch.from_numpy(self.data.train.y[rows])
        else:
            x, y = _share_rows(self.data.test)
        if self._meanings and len(y):
            meaning = torch.from_numpy(self._meanings[world])
            y = meaning[torch.arange(len(y)) // (len(y) // len(meaning)), y]
        return x, y

    def clusters(self, world: int) -> IntArray | None:
        """Those of clients that are shifted alike, or of one domain."""
        return self._clusters[world] if self._clusters else None

    def cluster_test(self, world: int, client: int) -> IntArray | None:
        """The rows of the copy of the client's group."""
        if self._copies is None or not self._clusters:
            return None
        rows = self.data.folds[self._folds[world]][1] if self.data.folds else self.data.test.y
        each = len(rows) // self._copies.clusters
        first = each * int(self._clusters[world][client])
        return np.arange(first, first + each)

    def holdout(self, world: int) -> tuple[Tensor, Tensor]:
        """Copies of the withheld rows."""
        rows = self._held.of_world(world)[0] if self._held else np.empty(0, np.int64)
        index, (in_x, in_y) = torch.from_numpy(rows), self._strides
        return self._x[index + world * in_x], self._y[index + world * in_y]

    def server(self, world: int) -> tuple[Tensor, Tensor]:
        """Copies of the server's rows."""
        rows = torch.from_numpy(self._server[world] if self._server else np.empty(0, np.int64))
        in_x, in_y = self._strides
        return self._x[rows + world * in_x], self._y[rows + world * in_y]

    def client_test(self, _world: int, client: int) -> IntArray | None:
        """Test rows of the client's group, the same in all worlds."""
        if self._own_test is None:
            return None
        return self._own_test.rows[self._own_test.offsets[client] : self._own_test.offsets[client + 1]]

    def client_holdout(self, world: int, client: int) -> IntArray:
        """A range, because withheld rows come client after client."""
        if not self._held:
            return np.empty(0, np.int64)
        place = world * self.number
        first = int(self._held.start[place + client] - self._held.start[place])
        return np.arange(first, first + int(self._held.size[place + client]))

    def label_counts(self, world: int) -> IntArray:
        """Counts of the true labels, even where clients have wrong ones; of copies those that the group gives."""
        rows, owner = self._train.of_world(world, EVALUATED_CLIENTS)
        number, classes = min(self.number, EVALUATED_CLIENTS), self.data.classes
        if not classes:
            return np.zeros((number, 0), np.int64)
        y = self._y.numpy()[rows + world * self._strides[1]] if self._meanings else self.data.train.y[rows]
        counts = np.bincount(owner * classes + y, minlength=number * classes)
        return counts.reshape(number, classes).astype(np.int64)


def _own_test_rows(test_group: IntArray | None, groups: Array | None) -> Cut | None:
    """The test rows of each client, which are those of its group; None unless the partition is natural."""
    if test_group is None or groups is None:
        return None
    client = np.minimum(np.searchsorted(groups, test_group), len(groups) - 1)
    known = np.flatnonzero(groups[client] == test_group)
    return gather_cut(known, client[known], len(groups))


def _share_rows(split: Split) -> tuple[Tensor, Tensor]:
    """Inputs and labels, the numbers of a row side by side; columns of a data frame, which lie so, are copied."""
    return share_array(np.ascontiguousarray(split.x)), share_array(np.ascontiguousarray(split.y))


def share_array(array: Array) -> Tensor:
    """A tensor on the memory of an array, which nobody writes to: a read-only array, such as a mapped file, will do."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)
