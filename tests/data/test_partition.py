"""Partitions: every row is in exactly one client, and what each partition promises holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small import scenario

import fedray
from fedray.advice import find_small_clients
from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.types import IntArray
from fedray.data import partition, shifts
from fedray.data.deal import PartitionSettings, build_shards, pack_partition
from fedray.data.partition import PARTITIONS, ClientRows, count_withheld, share_with_server, withhold
from fedray.data.shards import Shards, StoredShards, count_held_labels
from fedray.data.shifts import Shifts, draw_clusters, draw_groups, draw_meanings
from fedray.data.store import load_data
from fedray.data.types import Dataset, Split, classification, limit_rows
from fedray.scenario.loader import read_scenario
from fedray.scenario.sections import PARTITION_SPECS


def check(cut: ClientRows, rows: int, clients: int) -> None:
    assert (cut.clients, cut.offsets[0], cut.offsets[-1]) == (clients, 0, rows)
    assert np.array_equal(np.sort(cut.rows), np.arange(rows)) and np.diff(cut.offsets).min() > 0


def test_small_clients_are_left_out_with_their_rows_and_it_is_said() -> None:
    """The others keep their rows and their test rows, as if the data had never had the small clients."""
    digits = load_data("digits")
    owner = np.array([0] * 40 + [1] * 3 + [2] * 50 + [3] * 7)
    train, test = (Split(part.x[:100], part.y[:100], owner) for part in (digits.train, digits.test))
    data = digits._replace(train=train, test=test, columns={"site": owner})
    for keys in ({"name": "natural"}, {"name": "column", "column": "site"}):
        given = read_scenario({"data": {"partition": {**keys, "min_rows": 8}}, "clients": {}})
        study = build_study(given, UserObjects(data=data))
        shards = study.shards
        assert isinstance(shards, StoredShards)
        assert [owner[rows].tolist() for rows in np.split(shards.dealt.kept[0].rows, [40])] == [[0] * 40, [2] * 50]
        if keys["name"] == "column":
            assert study.client_names == ("0", "2")
        else:
            assert [owner[shards.client_test(0, client)].tolist() for client in (0, 1)] == [[0] * 40, [2] * 50]
        said = dict(find_small_clients(given, study))
        assert said == {"data.partition.min_rows = 8 leaves out 2 of 4 clients, with 10 of 100 training rows": ""}


def held(cut: ClientRows, labels: np.ndarray) -> list[int]:
    return [len(np.unique(labels[cut.rows[a:b]])) for a, b in zip(cut.offsets[:-1], cut.offsets[1:], strict=True)]


labels_of = st.lists(st.integers(0, 7), min_size=1, max_size=200).map(lambda v: np.array(v, np.int64))
seeds = st.integers(0, 2**32)


@settings(max_examples=60, deadline=None)
@given(labels_of, st.integers(1, 40), st.integers(1, 5), seeds)
def test_iid_and_shards_deal_evenly(labels: IntArray, clients: int, shards: int, seed: int) -> None:
    """Of `iid` the remainder is on the first clients."""
    most = min(clients, len(labels))
    cut = partition.iid(labels, most, rng.stream(seed, "partition"))
    check(cut, len(labels), most)
    size = np.diff(cut.offsets)
    assert np.ptp(size) <= 1 and np.array_equal(size, np.sort(size)[::-1])
    if most := min(clients, len(labels) // shards):
        cut = partition.shards(labels, most, rng.stream(seed, "partition"), shards=shards)
        check(cut, len(labels), most)
        assert np.ptp(np.diff(cut.offsets)) <= shards


@settings(max_examples=100, deadline=None)
@given(labels_of, st.integers(1, 40), st.integers(1, 8), seeds)
@example(np.arange(4), 2, 2, 0)  # as many places as classes
def test_classes_gives_every_client_exactly_that_many_or_refuses(
    labels: IntArray, clients: int, classes: int, seed: int
) -> None:
    try:
        cut = partition.classes(labels, clients, rng.stream(seed, "partition"), classes=classes)
    except BadInput:
        count = np.unique(labels, return_counts=True)[1]
        few = len(labels) < clients or clients * classes < len(count)
        assert few or classes > len(count) or np.minimum(count, clients).sum() < clients * classes
        return
    check(cut, len(labels), clients)
    assert set(held(cut, labels)) == {classes}


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
    cut = partition.take_owners(labels, None)
    kept, rest = withhold(cut, fraction, rng.stream(seed, "hold_out"))
    assert np.array_equal(np.sort(np.concatenate([kept.rows, rest.rows])), np.arange(len(labels)))
    size = np.diff(cut.offsets)
    assert np.array_equal(np.diff(rest.offsets), count_withheld(size, fraction))
    assert np.diff(kept.offsets).min() > 0
    assert np.array_equal(labels[kept.rows], np.unique(labels)[kept.owner])


def share_of_draws(kind: Callable[..., tuple[ClientRows, Any]], cut: ClientRows) -> IntArray:
    """How often each row is taken from its client in 600 draws of half of the rows."""
    often = np.zeros(len(cut.rows), np.int64)
    for seed in range(600):
        taken = kind(cut, 0.5, rng.stream(seed, "x"))[1]
        often[taken.rows if isinstance(taken, ClientRows) else taken] += 1
    return often


def test_every_row_of_a_client_has_equal_odds_to_be_withheld() -> None:
    """The last rows of each client, say, would be a validation set of their own kind."""
    often = share_of_draws(withhold, partition.take_owners(np.repeat([0, 1], [4, 10]), None))
    assert np.abs(often - 300).max() < 5 * np.sqrt(150)


def test_every_row_but_the_one_that_a_client_keeps_has_equal_odds_to_be_the_servers() -> None:
    cut = partition.take_owners(np.repeat([0, 1, 2], [1, 5, 10]), None)
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
    cut = partition.take_owners(np.arange(100) // 20, None)
    assert [len(share_with_server(cut, f, rng.stream(0, "x"))[1]) for f in (0.1, 0.29, 0.3, 0.57)] == [10, 29, 30, 57]
    assert [int(count_withheld(np.array([100]), f)[0]) for f in (0.1, 0.29, 0.3, 0.57)] == [10, 29, 30, 57]


def test_a_class_has_equally_many_holders() -> None:
    labels = np.repeat(np.arange(10), 100)
    cut = partition.classes(labels, 33, rng.stream(0, "partition"), classes=2)
    pairs = np.unique(np.stack([cut.owner, labels[cut.rows]]), axis=1)
    assert np.ptp(np.bincount(pairs[1])) <= 1


# -- Every partition, old and new: it conserves the rows, is drawn at its address, and keeps what its name promises

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


def deal(name: str, labels: IntArray, seed: int = 0, clients: int | None = CLIENTS, **options: Any) -> ClientRows:
    wanted = PartitionSettings(name, {**OPTIONS.get(name, {}), **options}, clients)
    shards = build_shards(make_data(labels), wanted, [seed])
    assert isinstance(shards, StoredShards)
    return shards.dealt.kept[0]


def sizes_of(cut: ClientRows) -> list[int]:
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
@given(hundred, st.integers(0, 14), st.floats(1e-4, 1e4), st.integers(0, 2**32))
def test_nobody_has_fewer_than_the_least_rows(name: str, labels: IntArray, least: int, alpha: float, seed: int) -> None:
    skew: dict[str, Any] = {"alpha": alpha} if name.startswith("dirichlet") else {}
    cut = deal(name, labels, seed, min_rows=least, **skew)
    assert min(sizes_of(cut)) >= least
    assert np.array_equal(np.sort(cut.rows), np.arange(100))
    sizes = OPTIONS["sizes"]["sizes"]  # where they are given, they are exact, also beside a skew of labels
    exact = deal("dirichlet_clients", labels, seed, alpha=alpha, sizes=sizes)
    assert sizes_of(exact) == sizes == sizes_of(deal("sizes", labels, seed))
    assert np.array_equal(np.sort(exact.rows), np.arange(100))


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


def test_a_limit_draws_rows_with_their_columns() -> None:
    few = limit_rows(make_data(np.arange(100) % 8), 30)
    assert len(few.train.y) == 30 and (few.columns["when"] == -few.train.x[:, 0]).all()


def test_earlier_rows_belong_to_earlier_clients_and_hour_10_is_not_before_hour_9() -> None:
    cut = deal("time", np.zeros(100, np.int64))
    assert cut.rows.tolist() == list(range(99, -1, -1)) and np.ptp(sizes_of(cut)) <= 1
    hours = np.array([9, 100, -2, 10, -1, 2])
    for texts in (hours.astype(str), (hours / 4).astype(str)):
        assert hours[partition.time(texts, 3).rows].tolist() == [-2, -1, 2, 9, 10, 100]
    close = np.array([1_700_000_000_000_000_001, 1_700_000_000_000_000_000]).astype(str)  # equal as float64
    assert partition.time(close, 2).rows.tolist() == [1, 0]
    assert partition.time(np.array(["<NA>", "10.0", "9.5"]), 3).rows.tolist() == [2, 1, 0]
    assert partition.time(np.array(["2024-01-10", "2024-01-09"]), 2).rows.tolist() == [1, 0]


# -- Shifted clients: what their rows show changes as promised, and nothing else does

N = 8


def shard(seeds: tuple[int, ...] = (0,), **options: Any) -> Shards:
    return build_shards(load_data("digits"), PartitionSettings("iid", options, N), list(seeds), hold_out=0.1)


def rows_of(shards: Shards, world: int, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = shards.fetch(np.array([world]), np.array([client]))
    return found.x[found.rows[0]], found.labels(found.rows, 0)[0]


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("turns", [2, 4])
def test_a_client_turns_all_its_images_by_its_own_turn(world: int, turns: int) -> None:
    plain, turned = shard((0, 5)), shard((0, 5), rotation=turns)
    group = draw_groups((0, 5)[world], "rotation", N, turns)
    assert sorted(group.tolist()) == sorted([*range(turns)] * (N // turns))
    for client in range(N):
        (x, y), (z, same) = rows_of(plain, world, client), rows_of(turned, world, client)
        assert torch.equal(z, torch.rot90(x, int(group[client]) * (4 // turns), (-2, -1))) and torch.equal(y, same)
    held = [torch.rot90(plain.holdout(world)[0][rows], int(group[i]) * (4 // turns), (-2, -1))
            for i in range(N) for rows in [torch.from_numpy(plain.client_holdout(world, i))]]  # fmt: skip
    assert torch.equal(turned.holdout(world)[0], torch.cat(held))
    assert torch.equal(turned.test(world)[0], plain.test(world)[0])


def test_noise_grows_with_the_rank_of_the_client_and_bytes_stay_bytes() -> None:
    plain, noisy = shard(), shard(feature_noise=2.0)
    change = [(rows_of(noisy, 0, i)[0].double() - rows_of(plain, 0, i)[0].double()).std().item() for i in range(N)]
    assert rows_of(noisy, 0, 0)[0].dtype == torch.uint8
    assert min(change) < max(change) / 3 and len(set(change)) == N


def test_the_noise_of_a_sample_is_its_own_however_many_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_noise() -> Any:
        x = np.zeros((3, 1, 2, 2))
        shifts._add_noise(x, np.arange(3), np.ones(3), np.ones(()), 0)
        return x

    together = add_noise()
    monkeypatch.setattr(shifts, "PIECE_NUMBERS", 4)
    assert np.array_equal(add_noise(), together)
    assert len(np.unique(together)) == together.size


def test_a_group_of_clients_has_a_permutation_of_the_classes_and_wrong_labels_come_on_top() -> None:
    plain, permuted = shard(), shard(permute_labels=2)
    group, maps = draw_groups(0, "label groups", N, 2), set()
    for client in range(N):
        (x, y), (same, z) = rows_of(plain, 0, client), rows_of(permuted, 0, client)
        assert torch.equal(x, same)
        meaning = dict(zip(y.tolist(), z.tolist(), strict=True))
        assert all(meaning[a] == b for a, b in zip(y.tolist(), z.tolist(), strict=True))
        assert (group[client] == 0) == all(a == b for a, b in meaning.items())
        maps.add((int(group[client]), tuple(sorted(meaning.items()))))
    assert len(maps) == 2
    flipped = shard(permute_labels=2, flipped=1.0)
    assert torch.equal(rows_of(flipped, 0, 0)[1], (rows_of(permuted, 0, 0)[1] + 1) % 10)


# -- Groups of clients that have all rows each: nothing is lost, nobody has another group's rows, tests are turned

COPIED, SEEDS = 10, [0, 5]
DATA = limit_rows(load_data("digits"), 90)


def deal_copies(name: str = "iid", **options: Any) -> StoredShards:
    shards = build_shards(DATA, PartitionSettings(name, {"copies": True, **options}, COPIED), SEEDS)
    assert isinstance(shards, StoredShards)
    return shards


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_the_clients_of_a_group_share_every_row_turned_as_the_group_turns_it(partition: str, world: int) -> None:
    shards, groups = deal_copies(partition, rotation=4), draw_clusters(SEEDS[world], COPIED, Shifts(rotation=4))
    known = shards.clusters(world)
    assert known is not None and np.array_equal(known, groups)
    for group in range(4):
        clients = np.flatnonzero(groups == group)
        found = shards.fetch(np.full_like(clients, world), clients)
        real = found.rows[torch.arange(found.rows.shape[1]) < torch.from_numpy(found.size)[:, None]]
        assert sorted((real - group * 90).tolist()) == list(range(90))
        assert torch.equal(found.x[real], torch.from_numpy(np.rot90(DATA.train.x, group, (-2, -1)).copy())[real % 90])


@pytest.mark.parametrize("shifts", [Shifts(rotation=2, copies=True), Shifts(permute_labels=3, copies=True)], ids=str)
def test_a_client_is_tested_on_the_test_rows_of_its_group_whose_labels_mean_the_same(shifts: Shifts) -> None:
    shards = deal_copies(rotation=shifts.rotation, permute_labels=shifts.permute_labels)
    for world, seed in enumerate(SEEDS):
        clusters, (x, y) = shards.clusters(world), shards.test(world)
        assert clusters is not None
        for client in range(COPIED):
            group, rows = int(clusters[client]), shards.cluster_test(world, client)
            own = draw_meanings(seed, shifts, 10)[group] if shifts.permute_labels > 1 else np.arange(10)
            turned = np.rot90(DATA.test.x, 2 * group if shifts.rotation > 1 else 0, (-2, -1)).copy()
            assert np.array_equal(y[rows].numpy(), own[DATA.test.y]) and torch.equal(x[rows], torch.from_numpy(turned))
            found = shards.fetch(np.array([world]), np.array([client]))
            labels = found.labels(found.rows, 0)[0].numpy()
            assert np.array_equal(labels, own[DATA.train.y[found.rows[0].numpy() % 90]])
            assert np.array_equal(shards.label_counts(world)[client], np.bincount(labels, minlength=10))


def test_one_client_that_pools_the_copies_has_the_labels_of_all_groups() -> None:
    tree = {"rounds": 1, "data": {"limit": 60, "partition": {"name": "iid", "permute_labels": 2, "copies": True}}}
    run = fedray.run(scenario(tree, {"method": {"name": "centralized"}}), report=False)
    assert run.clients["samples"].to_pylist() == [120]
    found = run.study.shards.fetch(np.array([0]), np.array([0]))
    labels, rows = found.labels(found.rows, 0)[0].numpy(), found.rows[0].numpy()
    true = run.study.shards.data.train.y[rows]
    assert (labels == true)[rows < 60].all() and not (labels == true)[rows >= 60].all()


def test_the_file_of_a_run_says_the_clusters_and_deals_the_same_rows_again(tmp_path: Path) -> None:
    tree = scenario({"rounds": 1, "report": False, "data": {"limit": 60, "partition": None}})
    kinds = {"rotation": 2, "copies": True}
    first = fedray.run(tree, data__partition={"name": "dirichlet", **kinds}, out=tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "partition.parquet")
    clusters = first.study.shards.clusters(0)
    assert clusters is not None and len(table) == 120
    assert (clusters[table["client"].to_numpy()] == table["cluster"].to_numpy()).all()
    file = {"name": "file", "file": str(tmp_path / "run" / "partition.parquet"), **kinds}
    again = fedray.run(tree, data__partition=file)
    assert again.summary["model_hash"] == first.summary["model_hash"]
    with pytest.raises(BadInput, match="rows of a copy that is not their group's"):
        fedray.run(tree, data__partition=file, seed=3)


def test_a_function_sorts_a_copy_of_the_labels() -> None:
    labels = np.array([1, 0])
    partition.deal_by_function(lambda y, *_: y.sort() or [y, []], labels, 2, rng.stream(0, "partition"), {})
    assert labels.tolist() == [1, 0]


def test_domains_are_clusters_and_other_partitions_have_none() -> None:
    half = DATA._replace(columns={"domain": np.repeat(["a", "b"], 45)})
    known = build_shards(half, PartitionSettings("domain", clients=4), [0]).clusters(0)
    assert known is not None and known.tolist() == [0, 0, 1, 1]
    assert build_shards(DATA, PartitionSettings("iid", clients=4), [0]).clusters(0) is None
    mixed = build_shards(DATA, PartitionSettings("iid", {"rotation": 2, "permute_labels": 2}, 40), [0]).clusters(0)
    assert mixed is not None and set(mixed.tolist()) == {0, 1, 2, 3}


# -- Wrong labels of clients whose rows are pooled, and generated clients: each test is named after what was false


def deal_scenario(method: str, data: dict[str, Any], **more: Any) -> Shards:
    """The rows of the clients of a small scenario."""
    tree = scenario({"method": {"name": method}, "data": data, "clients": {"number": 10}, "replicates": 2, **more})
    return build_study(read_scenario(tree)).shards


def samples_of(shards: Shards, world: int) -> dict[int, tuple[int, list[Any]]]:
    """Label and picture by row, of all clients of a world whose rows are stored."""
    found: dict[int, tuple[int, list[Any]]] = {}
    for client in range(shards.number):
        x, labels = rows_of(shards, world, client)
        rows = shards.fetch(np.array([world]), np.array([client])).rows[0].tolist()
        found |= dict(zip(rows, zip(labels.tolist(), x.tolist(), strict=True), strict=True))
    return found


@pytest.mark.parametrize("partition", [{"name": "iid"}, {"name": "dirichlet", "alpha": 0.3}])
@pytest.mark.parametrize("unseen", [None, 4])
def test_pooled_references_do_not_ignore_flipped_and_noisy(partition: dict[str, Any], unseen: int | None) -> None:
    data = {"partition": {**partition, "flipped": 0.5, "noisy": 0.2, "rotation": 4}, "test_clients": unseen}
    clients, pooled = deal_scenario("fedavg", data), deal_scenario("centralized", data)
    assert pooled.number == 1
    for world in (0, 1):
        assert samples_of(clients, world) == samples_of(pooled, world)
    wrong = [clients.data.train.y[row] != label for row, (label, _) in samples_of(pooled, 0).items()]
    assert 0.4 < np.mean(wrong) < 0.9


def test_a_file_with_withheld_rows_was_refused_where_clients_are_pooled(tmp_path: Path) -> None:
    data: dict[str, Any] = {"hold_out": 0.3, "test_clients": 4, "limit": 90}
    clients = deal_scenario("fedavg", {**data, "partition": {"name": "iid", "flipped": 0.5}})
    assert isinstance(clients, StoredShards)
    (tmp_path / "split.parquet").write_bytes(pack_partition(clients.data, clients.dealt, [0, 0]))
    file = {"name": "file", "file": str(tmp_path / "split.parquet"), "flipped": 0.5}
    pooled = deal_scenario("centralized", {**data, "partition": file})
    for world in (0, 1):
        held = [sorted(x.flatten(1).tolist()) for x in (clients.holdout(world)[0], pooled.holdout(world)[0])]
        assert held[0] == held[1] and samples_of(pooled, world).keys() == samples_of(clients, world).keys()


def test_pooled_synthetic_rows_have_the_wrong_labels_of_a_share_of_the_clients() -> None:
    partitions = [{"name": "natural", "flipped": share} for share in (1, 0.3)]  # of ten clients: all, and three
    dealt = [deal_scenario("centralized", {"name": "synthetic", "partition": one}) for one in partitions]
    every, bad = (shards.fetch(np.array([0]), np.array([0])) for shards in dealt)
    assert torch.equal(every.x, bad.x)
    true = (every.y - 1) % 10
    changed = (true != bad.y)[bad.rows[0]].view(10, -1)
    assert changed.all(dim=1).sum() == 3, "three of ten clients"
    assert changed.any(dim=1).sum() == 3
    assert torch.equal(bad.y[true != bad.y], every.y[true != bad.y])


# -- Labels are counted as the clients hold them


@pytest.mark.parametrize("unseen", [0, 2])
def test_a_client_with_flipped_labels_holds_the_next_classes_and_one_with_noisy_labels_others(unseen: int) -> None:
    partition = {"name": "dirichlet", "alpha": 0.3, "flipped": 0.5, "noisy": 0.25}
    data = {"name": "digits", "limit": 200, "hold_out": 0.2, "partition": partition, "test_clients": unseen or None}
    shards = build_study(read_scenario({"clients": 4 + unseen, "data": data, "replicates": 2})).shards
    kinds = []
    for world in range(2):
        true, held = shards.label_counts(world), count_held_labels(shards, world)
        rolled, same = ((held == other).all(1) for other in (np.roll(true, 1, axis=1), true))
        kinds.append((rolled - 1 * same).tolist())
        assert np.array_equal(held.sum(1), true.sum(1)) and sorted(kinds[world]) == [-1, 0, 1, 1]
    assert kinds[0] != kinds[1], "others in another replicate"
