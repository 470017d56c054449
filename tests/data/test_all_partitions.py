"""Every partition, old and new: it conserves the rows, is drawn at its address, and keeps what its name promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data import partition
from fedray.data.cut import Cut
from fedray.data.deal import build_shards
from fedray.data.partition import PARTITIONS
from fedray.data.shards import StoredShards
from fedray.data.types import Dataset, Split, classification
from fedray.scenario.data import PARTITION_SPECS

CLIENTS = 7
OPTIONS: dict[str, dict[str, Any]] = {  # what a partition must be told
    "sizes": {"sizes": [30, 20, 15, 15, 10, 6, 4]},
    "column": {"column": "place"},
    "domain": {"column": "place"},
    "time": {"column": "when"},
}
DRAWN = sorted(PARTITIONS.keys() - {"natural", "column", "time"})  # the others draw nothing


def make_data(labels: IntArray) -> Dataset:
    """Rows whose number is their first feature, with natural clients, a place and a time."""
    n = len(labels)
    x = np.stack([np.arange(n), labels], axis=1).astype(np.float32)
    rows = Split(x, labels, group=np.arange(n) % CLIENTS)
    data = classification("made", rows, rows, tuple("abcdefgh"))
    return data._replace(columns={"place": np.arange(n) % CLIENTS // 2 + np.arange(n) % 2, "when": -np.arange(n)})


def deal(name: str, labels: IntArray, seed: int = 0, clients: int | None = CLIENTS, **options: Any) -> Cut:
    shards = build_shards(make_data(labels), name, {**OPTIONS.get(name, {}), **options}, clients, [seed])
    assert isinstance(shards, StoredShards)
    return shards.dealt.kept[0]


def sizes_of(cut: Cut) -> list[int]:
    return [int(size) for size in np.diff(cut.offsets)]


hundred = st.lists(st.integers(0, 7), min_size=100, max_size=100).map(lambda v: np.array(v, np.int64))


def test_no_partition_is_forgotten() -> None:
    assert set(PARTITION_SPECS) - {"file", "flower"} == set(PARTITIONS)  # these two have tests of their own


@pytest.mark.parametrize("name", PARTITIONS)
@settings(max_examples=6, deadline=None)
@given(hundred, st.integers(0, 2**32))
def test_every_partition_conserves_the_rows(name: str, labels: IntArray, seed: int) -> None:
    try:
        cut = deal(name, labels, seed, None if name == "column" else CLIENTS)
    except BadInput:
        assert name == "classes"  # too many or too few classes for the clients
        return
    assert np.array_equal(np.sort(cut.rows), np.arange(100))
    assert min(sizes_of(cut)) > 0


@pytest.mark.parametrize("name", DRAWN)
def test_every_partition_is_drawn_at_its_address(name: str) -> None:
    labels = np.arange(100) % 8
    one, two, other = (deal(name, labels, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.rows, two.rows) and np.array_equal(one.offsets, two.offsets)
    assert not np.array_equal(one.rows, other.rows)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_clients", "lognormal", "power_law", "exponential"])
@settings(max_examples=8, deadline=None)
@given(hundred, st.integers(0, 14), st.integers(0, 2**32))
def test_nobody_has_fewer_than_the_least_rows(name: str, labels: IntArray, least: int, seed: int) -> None:
    skew: dict[str, Any] = {"alpha": 0.01} if name.startswith("dirichlet") else {}
    cut = deal(name, labels, seed, min_rows=least, **skew)
    assert min(sizes_of(cut)) >= least
    assert np.array_equal(np.sort(cut.rows), np.arange(100))


@settings(max_examples=15, deadline=None)
@given(hundred, st.floats(1e-4, 1e3), st.integers(0, 2**32))
def test_sizes_and_labels_are_skewed_together_and_the_sizes_are_exact(
    labels: IntArray, alpha: float, seed: int
) -> None:
    sizes = OPTIONS["sizes"]["sizes"]
    cut = deal("dirichlet_clients", labels, seed, alpha=alpha, sizes=sizes)
    assert sizes_of(cut) == sizes == sizes_of(deal("sizes", labels, seed))
    assert np.array_equal(np.sort(cut.rows), np.arange(100))


def test_inner_dirichlet_tends_to_equal_shares_and_to_one_class_a_client() -> None:
    labels = np.repeat(np.arange(5), 200)

    def shares(alpha: float) -> np.ndarray:
        cut = deal("dirichlet_clients", labels, clients=100, alpha=alpha, sizes="lognormal")
        counts = np.zeros((100, 5))
        np.add.at(counts, (cut.owner, labels[cut.rows]), 1)
        return np.asarray(counts.max(axis=1) / counts.sum(axis=1))

    large = np.array(sizes_of(deal("dirichlet_clients", labels, clients=100, alpha=1e6, sizes="lognormal"))) >= 10
    assert shares(1e6)[large].max() < 0.4
    assert np.median(shares(1e-3)) > 0.95


@settings(max_examples=25, deadline=None)
@given(hundred, st.floats(1e-3, 10.0), st.integers(0, 2**32))
def test_a_client_that_has_its_share_of_all_rows_gets_none_of_further_classes(
    labels: IntArray, alpha: float, seed: int
) -> None:
    """As in the code of Li et al. 2022, with these draws, but that places are rounded and nothing is drawn again."""
    cut = deal("dirichlet", labels, seed, alpha=alpha, cap=True, min_rows=0)
    owner = np.empty(100, np.int64)
    owner[cut.rows] = cut.owner
    generator, classes = rng.stream(seed, "partition"), np.unique(labels)
    generator.permutation(100)
    batch: list[list[int]] = [[] for _ in range(CLIENTS)]
    for label, p in zip(classes, generator.dirichlet(np.full(CLIENTS, alpha), size=len(classes)), strict=True):
        assert not [i for i in set(owner[labels == label]) if len(batch[i]) >= 100 / CLIENTS]
        free = np.array([q * (len(mine) < 100 / CLIENTS) for q, mine in zip(p, batch, strict=True)])
        if free.sum() > 0:
            places = np.rint(np.cumsum(free / free.sum())[:-1] * (labels == label).sum())
            want = np.diff(places, prepend=0, append=(labels == label).sum())
            assert np.bincount(owner[labels == label], minlength=CLIENTS).tolist() == want.tolist()
        for i in range(CLIENTS):
            batch[i] += [label] * int((owner[labels == label] == i).sum())
    plain = sizes_of(deal("dirichlet", labels, seed, alpha=alpha, min_rows=0))
    assert plain == sizes_of(deal("dirichlet", labels, seed, alpha=alpha, cap=False, min_rows=0))


def test_laws_of_sizes_without_skew_are_equal_sizes_and_with_it_their_own() -> None:
    labels = np.zeros(10_000, np.int64)
    for name, key in (("lognormal", "sigma"), ("power_law", "exponent"), ("exponential", "rate")):
        assert set(sizes_of(deal(name, labels, clients=100, **{key: 0}))) == {100}
    law = np.sort(sizes_of(deal("power_law", labels, clients=100, exponent=1.0, min_rows=0)))[::-1]
    assert np.allclose(law * np.arange(1, 101), law[0], rtol=0.05)
    fall = np.sort(sizes_of(deal("exponential", labels, clients=100, rate=2.0, min_rows=0)))[::-1]
    assert np.isclose(fall[0] / fall[-1], np.exp(2.0), rtol=0.05)
    logs = np.log(sizes_of(deal("lognormal", np.zeros(10**6, np.int64), clients=1000, sigma=0.5, min_rows=0)))
    assert np.isclose(logs.std(), 0.5, rtol=0.1)


def test_a_client_has_rows_of_one_domain_and_every_domain_its_share() -> None:
    data = make_data(np.zeros(100, np.int64))
    cut = deal("domain", np.zeros(100, np.int64))
    place = data.columns["place"][cut.rows]
    assert [len(np.unique(place[cut.owner == i])) for i in range(CLIENTS)] == [1] * CLIENTS
    assert set(place) == set(data.columns["place"])
    with pytest.raises(BadInput, match=r"the column has 5 domains: raise it to 5"):
        deal("domain", np.zeros(100, np.int64), clients=4)


def test_earlier_rows_belong_to_earlier_clients() -> None:
    cut = deal("time", np.zeros(100, np.int64))
    assert cut.rows.tolist() == list(range(99, -1, -1))
    assert np.ptp(sizes_of(cut)) <= 1


def test_hour_10_is_not_before_hour_9() -> None:
    """The columns of a table come as text, by which 10 was before 9 and -1 before -2."""
    hours = np.array([9, 100, -2, 10, -1, 2])
    for texts in (hours.astype(str), (hours / 4).astype(str)):
        assert hours[partition.time(texts, 3).rows].tolist() == [-2, -1, 2, 9, 10, 100]
    close = np.array([1_700_000_000_000_000_001, 1_700_000_000_000_000_000]).astype(str)  # equal as float64
    assert partition.time(close, 2).rows.tolist() == [1, 0]
    assert partition.time(np.array(["<NA>", "10.0", "9.5"]), 3).rows.tolist() == [2, 1, 0]
    assert partition.time(np.array(["2024-01-10", "2024-01-09"]), 2).rows.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lognormal", {"min_rows": 15}, "data.partition.min_rows = 15, but 100 rows are too few for 7 clients: lower"),
        ("dirichlet", {"min_rows": 15}, "data.partition.min_rows = 15"),
        ("dirichlet", {"min_rows": 2, "allow_empty": True}, "data.partition.allow_empty is true: leave one out"),
        ("sizes", {"sizes": [50, 50]}, "data.partition.sizes has 2 sizes, but clients.number is 7"),
        ("sizes", {"sizes": [94, 1, 1, 1, 1, 1, 2]}, "adds up to 101, but there are 100 rows to deal"),
        ("time", {"column": "then"}, "data.partition.column = then: no such column in made; its columns: place, when"),
        ("iid", {"rotation": 4}, "data.partition.rotation = 4, but made has no images"),
    ],
)
def test_what_cannot_be_dealt_is_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as error:
        deal(name, np.arange(100) % 8, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_data_without_columns_ask_for_another_partition() -> None:
    data = make_data(np.arange(30) % 8)._replace(columns={})
    with pytest.raises(BadInput, match="no such column in made, which has none: choose another partition"):
        build_shards(data, "column", {"column": "place"}, None, [0])
