"""Partitions: every row is in exactly one client, and what each partition promises holds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data import partition
from fedray.data.cut import Cut, count_withheld, share_with_server, withhold
from fedray.scenario import read_scenario


def check(cut: Cut, rows: int, clients: int, empty: bool = False) -> None:
    assert cut.clients == clients
    assert cut.offsets[0] == 0
    assert cut.offsets[-1] == rows
    assert np.array_equal(np.sort(cut.rows), np.arange(rows))
    assert empty or np.diff(cut.offsets).min() > 0


def held(cut: Cut, labels: np.ndarray) -> list[int]:
    return [len(np.unique(labels[cut.rows[a:b]])) for a, b in zip(cut.offsets[:-1], cut.offsets[1:], strict=True)]


labels_of = st.lists(st.integers(0, 7), min_size=1, max_size=200).map(lambda v: np.array(v, np.int64))
seeds = st.integers(0, 2**32)


@settings(max_examples=60, deadline=None)
@given(labels_of, st.integers(1, 40), seeds)
def test_iid_deals_evenly_with_the_remainder_on_the_first_clients(labels: IntArray, clients: int, seed: int) -> None:
    clients = min(clients, len(labels))
    cut = partition.iid(labels, clients, rng.stream(seed, "partition"))
    check(cut, len(labels), clients)
    size = np.diff(cut.offsets)
    assert size.max() - size.min() <= 1
    assert np.array_equal(size, np.sort(size)[::-1])


@settings(max_examples=60, deadline=None)
@given(labels_of, st.integers(1, 40), st.integers(1, 5), seeds)
def test_shards_are_even_and_span_few_labels(labels: IntArray, clients: int, shards: int, seed: int) -> None:
    clients = min(clients, len(labels) // shards)
    if not clients:
        return
    cut = partition.shards(labels, clients, rng.stream(seed, "partition"), shards=shards)
    check(cut, len(labels), clients)
    assert np.ptp(np.diff(cut.offsets)) <= shards


@settings(max_examples=100, deadline=None)
@given(labels_of, st.integers(1, 40), st.integers(1, 8), seeds)
def test_classes_gives_every_client_exactly_that_many_or_refuses(
    labels: IntArray, clients: int, classes: int, seed: int
) -> None:
    try:
        cut = partition.classes(labels, clients, rng.stream(seed, "partition"), classes=classes)
    except BadInput:
        count = np.unique(labels, return_counts=True)[1]
        impossible = (
            len(labels) < clients
            or classes > len(count)
            or clients * classes < len(count)
            or np.minimum(count, clients).sum() < clients * classes
        )
        assert impossible
        return
    check(cut, len(labels), clients)
    assert set(held(cut, labels)) == {classes}


@settings(max_examples=100, deadline=None)
@given(labels_of, st.integers(1, 60), st.floats(1e-4, 1e4), seeds, st.booleans())
def test_dirichlet_never_loses_a_row_nor_leaves_a_client_empty(
    labels: IntArray, clients: int, alpha: float, seed: int, allow_empty: bool
) -> None:
    clients = min(clients, len(labels))
    cut = partition.dirichlet(labels, clients, rng.stream(seed, "partition"), alpha=alpha, allow_empty=allow_empty)
    check(cut, len(labels), clients, allow_empty)


def test_dirichlet_tends_to_iid_and_to_one_client_a_class() -> None:
    labels = np.repeat(np.arange(10), 500)
    even = partition.dirichlet(labels, 10, rng.stream(0, "partition"), alpha=1e6)
    assert np.diff(even.offsets).min() > 480
    assert held(even, labels) == [10] * 10
    skewed = partition.dirichlet(labels, 10, rng.stream(0, "partition"), alpha=1e-4, allow_empty=True)
    assert sum(held(skewed, labels)) == 10


@settings(max_examples=40, deadline=None)
@given(labels_of, st.floats(0, 0.99), seeds)
def test_withholding_takes_the_fraction_of_every_client_and_loses_nothing(
    labels: IntArray, fraction: float, seed: int
) -> None:
    cut = partition.natural(labels, None)
    kept, rest = withhold(cut, fraction, rng.stream(seed, "hold_out"))
    assert np.array_equal(np.sort(np.concatenate([kept.rows, rest.rows])), np.arange(len(labels)))
    size = np.diff(cut.offsets)
    assert np.array_equal(np.diff(rest.offsets), count_withheld(size, fraction))
    assert np.diff(kept.offsets).min() > 0
    assert np.array_equal(labels[kept.rows], np.unique(labels)[kept.owner])


def share_of_draws(kind: Callable[[Cut, float, np.random.Generator], tuple[Cut, Any]], cut: Cut) -> IntArray:
    """How often each row is taken from its client in 600 draws of half of the rows."""
    often = np.zeros(len(cut.rows), np.int64)
    for seed in range(600):
        taken = kind(cut, 0.5, rng.stream(seed, "x"))[1]
        often[taken.rows if isinstance(taken, Cut) else taken] += 1
    return often


def test_every_row_of_a_client_has_equal_odds_to_be_withheld() -> None:
    """The last rows of each client, say, would be a validation set of their own kind."""
    often = share_of_draws(withhold, partition.natural(np.repeat([0, 1], [4, 10]), None))
    assert np.abs(often - 300).max() < 5 * np.sqrt(150)


def test_every_row_but_the_one_that_a_client_keeps_has_equal_odds_to_be_the_servers() -> None:
    cut = partition.natural(np.repeat([0, 1, 2], [1, 5, 10]), None)
    often = share_of_draws(share_with_server, cut)
    kept = cut.offsets[:-1]
    assert often[kept].tolist() == [0, 0, 0]
    share = 600 * 8 / 13
    assert np.abs(np.delete(often, kept) - share).max() < 5 * np.sqrt(share * 5 / 13)


def test_shards_are_dealt_at_random() -> None:
    """Each shard goes to each of 3 clients alike, and any two shards of 6 meet with the odds 1 / 5."""
    labels, owner = np.arange(6), np.empty((600, 6), np.int64)
    for seed in range(600):
        cut = partition.shards(labels, 3, rng.stream(seed, "partition"), shards=2)
        owner[seed, cut.rows] = cut.owner
    often = (owner[:, :, None] == np.arange(3)).sum(axis=0)
    assert np.abs(often - 200).max() < 5 * np.sqrt(600 * 2 / 9)
    meet = (owner[:, :, None] == owner[:, None, :]).sum(axis=0)[~np.eye(6, dtype=bool)]
    assert np.abs(meet - 120).max() < 5 * np.sqrt(600 * 4 / 25)


def test_a_tenth_of_a_hundred_is_ten() -> None:
    cut = partition.natural(np.arange(100) // 20, None)
    assert [len(share_with_server(cut, f, rng.stream(0, "x"))[1]) for f in (0.1, 0.29, 0.3, 0.57)] == [10, 29, 30, 57]
    assert [int(count_withheld(np.array([100]), f)[0]) for f in (0.1, 0.29, 0.3, 0.57)] == [10, 29, 30, 57]


def test_disjoint_classes_where_clients_times_classes_is_all() -> None:
    labels = np.repeat(np.arange(10), 30)
    cut = partition.classes(labels, 5, rng.stream(3, "partition"), classes=2)
    assert held(cut, labels) == [2] * 5
    assert np.diff(cut.offsets).tolist() == [60] * 5


def test_a_class_has_equally_many_holders() -> None:
    labels = np.repeat(np.arange(10), 100)
    cut = partition.classes(labels, 33, rng.stream(0, "partition"), classes=2)
    pairs = np.unique(np.stack([cut.owner, labels[cut.rows]]), axis=1)
    assert np.ptp(np.bincount(pairs[1])) <= 1


def test_natural_and_column_keep_groups_together() -> None:
    names = np.array(["b", "a", "b", "c"])
    for cut in (partition.natural(names, None), partition.column(names, 3)):
        assert cut.rows.tolist() == [1, 0, 2, 3]
        assert cut.offsets.tolist() == [0, 1, 3, 4]


def test_the_same_stream_gives_the_same_cut_and_another_seed_another() -> None:
    labels = np.repeat(np.arange(10), 50)
    for name in ("iid", "shards", "classes", "dirichlet"):
        one, two, other = (partition.PARTITIONS[name](labels, 10, rng.stream(s, "partition")) for s in (1, 1, 2))
        assert np.array_equal(one.rows, two.rows)
        assert np.array_equal(one.offsets, two.offsets)
        assert not np.array_equal(one.rows, other.rows)


def test_sixty_thousand_rows_to_a_thousand_clients_is_quick() -> None:
    """No line of Python is run for a row: a client and class may cost some, and a row costs none."""
    labels = np.repeat(np.arange(10), 6000)
    for name in ("iid", "shards", "classes", "dirichlet"):
        lines = 0

        def count(_frame: Any, event: str, _argument: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            cut = partition.PARTITIONS[name](labels, 1000, rng.stream(0, "partition"))
        finally:
            sys.settrace(before)
        check(cut, 60_000, 1000)
        assert lines < 60_000, name


TEN = np.repeat(np.arange(10), 10)


@pytest.mark.parametrize(
    ("name", "clients", "options", "message"),
    [
        ("classes", 10, {"classes": 20}, "data.partition.classes = 20, but the data has 10 classes: lower it"),
        ("classes", 3, {"classes": 2}, "data.partition.classes = 2 with 3 clients reaches 6 of 10 classes"),
        ("iid", 101, {}, "clients.number = 101, but 100 rows are too few for one row each: lower it to 100"),
        ("shards", 30, {"shards": 4}, "clients.number = 30, but 100 rows are too few for 4 shards each"),
        ("natural", 3, {}, "clients.number = 3, but the natural partition has 10 clients"),
    ],
)
def test_bad_numbers_name_the_key_and_the_remedy(
    name: str, clients: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput) as error:
        partition.PARTITIONS[name](TEN, clients, rng.stream(0, "partition"), **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["classes", "dirichlet"])
def test_real_targets_have_no_classes(name: str) -> None:
    with pytest.raises(BadInput, match="no classes"):
        partition.PARTITIONS[name](np.zeros((10, 1), np.float32), 2, rng.stream(0, "partition"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "dirichelt"}, "did you mean dirichlet"),
        ({"name": "dirichlet", "alhpa": 1}, "data.partition.alhpa .*did you mean .*alpha"),
        ({"name": "iid", "alpha": 1}, "data.partition.alpha"),
        (
            {"name": "dirichlet", "alpha": 0},
            r"alpha = 0 is out of range: give a number in \[0.0001, 1e9\)",
        ),
        ({"name": "dirichlet_clients", "alpha": 1e9}, "data.partition.alpha = 1000000000.0 is out of range"),
        (
            {"name": "dirichlet_clients", "sizes": "normal"},
            "sizes = 'normal' is not one of equal, lognormal",
        ),
        ({"name": "power_law", "exponent": -1}, "data.partition.exponent = -1 is out of range"),
        ({"name": "classes", "classes": 0}, "data.partition.classes = 0 is out of range"),
        ({"name": "shards", "shards": 0}, "data.partition.shards = 0 is out of range"),
        ({"name": "sizes", "sizes": [0, 4]}, "data.partition.sizes"),
    ],
)
def test_wrong_names_options_and_numbers_are_refused_by_the_scenario(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_scenario({"data": {"partition": keys}})
    with pytest.raises(BadInput, match="clients.number = 0"):
        read_scenario({"clients": {"number": 0}})
