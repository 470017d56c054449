"""Shards: a client's rows are its own, whoever holds them."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from fedray.data.deal import PartitionSettings, build_shards
from fedray.data.shards import ServerShards
from fedray.data.store import load_data
from fedray.data.types import Dataset, Split, regression


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data("digits")


def folded() -> Dataset:
    x = np.arange(20, dtype=np.float32)[:, None]
    data = regression("toy", Split(x, 2 * x), Split(x[:0], x[:0]))
    rows = np.arange(20)
    folds = tuple((rows[rows % 2 == f], rows[rows % 2 != f]) for f in range(2))
    two = [np.array([[0.0], [k]], np.float32) for k in (1.0, 2.0)]
    return data._replace(folds=folds, shift=two[0], scale=two[1] + 1, y_shift=two[0], y_scale=two[1] + 1)


def test_worlds_partition_the_training_rows(digits: Dataset) -> None:
    shards = build_shards(digits, PartitionSettings("dirichlet", {"alpha": 0.3}, 30), [5, 6])
    client, rows = np.arange(30), []
    for world in range(2):
        got = shards.fetch(np.full(30, world), client)
        assert np.array_equal(got.size, shards.sizes(np.full(30, world), client))
        valid = torch.arange(got.rows.shape[1]) < torch.from_numpy(got.size)[:, None]
        assert not got.rows[~valid].any()
        rows.append(got.rows[valid])
        assert torch.equal(rows[-1].sort().values, torch.arange(len(digits.train.y)))
    assert not torch.equal(*rows)


def test_the_rows_of_a_job_do_not_depend_on_other_jobs(digits: Dataset) -> None:
    shards = build_shards(digits, PartitionSettings("dirichlet", clients=20), [0, 1])
    world, client = np.array([1, 0, 1]), np.array([3, 3, 19])
    both = shards.fetch(world, client)
    for j in range(3):
        alone = shards.fetch(world[j : j + 1], client[j : j + 1])
        assert torch.equal(alone.rows[0], both.rows[j, : both.size[j]])


def test_pictures_are_standardised_by_the_training_rows(digits: Dataset) -> None:
    shards = build_shards(digits, PartitionSettings("iid", clients=10), [0])
    x = shards.scaling.normalize(torch.from_numpy(digits.train.x)[None], torch.zeros(1, dtype=torch.long))
    assert x.dtype == torch.float32
    assert x.shape == (1, 1438, 1, 8, 8)
    assert abs(float(x.mean())) < 1e-4
    assert abs(float(x.std()) - 1) < 1e-3
    y = torch.from_numpy(digits.train.y)
    assert shards.scaling.targets(y, torch.zeros(1, dtype=torch.long)) is y


def test_each_world_has_the_rows_and_statistics_of_its_fold() -> None:
    data = folded()
    shards = build_shards(data, PartitionSettings("iid", clients=2), [0, 1], folds=[0, 1])
    assert shards.worlds == 4
    for world in range(4):
        rows = shards.fetch(np.full(2, world), np.arange(2)).rows
        assert set(rows.ravel().tolist()) == set(data.folds[world % 2][0].tolist())
        assert shards.test(world)[0].ravel().tolist() == data.folds[world % 2][1].tolist()
    x = torch.full((4, 3, 5, 1), 6.0)
    out = shards.scaling.normalize(x, torch.arange(4))
    assert out[:, 0, 0, 0].tolist() == pytest.approx([6.0, 5 / 3] * 2)
    assert out.shape == x.shape
    targets = shards.scaling.targets(torch.full((2, 4, 1), 6.0), torch.tensor([3, 0]))
    assert targets[:, 0, 0].tolist() == pytest.approx([5 / 3, 6.0])


@pytest.mark.parametrize("options", [{}, {"feature_noise": 1.0}], ids=["plain", "noisy"])
def test_a_fold_does_not_depend_on_the_other_folds(options: dict[str, Any]) -> None:
    data, inputs, scaled = folded(), [], []
    for folds in ([1], [0, 1], [1, 0]):
        shards, world = build_shards(data, PartitionSettings("iid", options, 2), [0], folds=folds), folds.index(1)
        found = shards.fetch(np.array([world]), np.array([1]))
        inputs.append(found.x[found.rows[0]].ravel().tolist())
        scaled.append(shards.scaling.normalize(torch.ones(1, 2, 1), torch.tensor([world])).tolist())
    assert inputs[0] == inputs[1] == inputs[2] and scaled[0] == scaled[1] == scaled[2]


def test_held_out_rows_and_training_rows_are_all_rows(digits: Dataset) -> None:
    shards = build_shards(digits, PartitionSettings("iid", clients=10), [0], hold_out=0.25)
    x, y = shards.holdout(0)
    size = shards.sizes(np.zeros(10, int), np.arange(10))
    assert len(x) == len(y) == 8 * 36 + 2 * 35 and size.max() == 108
    assert size.sum() + len(y) == len(digits.train.y)
    assert len(build_shards(digits, PartitionSettings("iid", clients=10), [0]).holdout(0)[0]) == 0


@pytest.mark.parametrize("kind", ["hold_out", "server"])
def test_replicates_and_folds_set_other_rows_aside_and_the_same_seed_the_same(kind: str) -> None:
    """The clients hold the same places of every world, so nothing but the draw tells them apart."""
    x = np.arange(80, dtype=np.float32)[:, None]
    folds = tuple((np.arange(f, 80, 2), np.arange(1 - f, 80, 2)) for f in range(2))
    data = regression("toy", Split(x, x, np.arange(80) // 20), Split(x[:0], x[:0]))._replace(folds=folds)
    zero, one = np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32)
    data = data._replace(shift=zero, scale=one, y_shift=zero, y_scale=one)

    def places(seeds: list[int]) -> list[tuple[int, ...]]:
        held = 0.5 if kind == "hold_out" else 0.0
        shards = build_shards(data, PartitionSettings("natural"), seeds, folds=[0, 1], hold_out=held, server=0.5 - held)
        found = [shards.holdout(w) if kind == "hold_out" else shards.server(w) for w in range(shards.worlds)]
        return [tuple(sorted((inputs.ravel().long() // 2).tolist())) for inputs, _ in found]

    four = places([6, 7])
    assert len(set(four)) == 4 and {len(rows) for rows in four} == {20}
    assert places([7]) == four[2:]


def test_natural_clients_have_their_own_test_rows(digits: Dataset) -> None:
    group = np.arange(len(digits.train.y)) % 7 * 3
    test = digits.test._replace(group=np.arange(359) % 8 * 3)
    data = digits._replace(train=digits.train._replace(group=group), test=test)
    shards = build_shards(data, PartitionSettings("natural"), [0])
    own = shards.client_test(0, 2)
    assert shards.number == 7 and own is not None and own.tolist() == list(range(2, 359, 8))
    assert build_shards(data, PartitionSettings("iid", clients=7), [0]).client_test(0, 2) is None


@pytest.mark.parametrize("options", [{}, {"spread": 1.0}, {"per_client": 2}, {"features": 3, "samples": 7}])
def test_a_generated_client_does_not_depend_on_the_other_clients(options: dict[str, Any]) -> None:
    data = load_data("synthetic", test=10, **options)
    small, large = (build_shards(data, PartitionSettings("natural", clients=n), [3, 4]) for n in (100, 1_000_000))
    world, client = np.array([0, 1, 0, 1]), np.array([5, 5, 99, 0])
    some, other = small.fetch(world, client), large.fetch(world[::-1], client[::-1])
    assert np.array_equal(some.size, small.sizes(world, client))
    for j in range(4):
        rows, back = some.rows[j, : some.size[j]], other.rows[3 - j, : some.size[j]]
        assert torch.equal(some.x[rows], other.x[back])
        assert torch.equal(some.y[rows], other.y[back])
        assert int(some.y[rows].max()) < data.classes
        assert not options.get("per_client") or len(set(some.y[rows].tolist())) <= 2
    assert not torch.equal(some.x[some.rows[0, :1]], some.x[some.rows[1, :1]])


def test_a_generated_population_is_the_mixture_it_says() -> None:
    data = load_data("synthetic", separation=0.7)
    shards = build_shards(data, PartitionSettings("iid", clients=500), [0], hold_out=0.2)
    client = np.arange(500)
    got = shards.fetch(np.zeros(500, int), client)
    assert set(got.size) == {16}
    assert len(shards.holdout(0)[0]) == 500 * 4
    assert abs(float(got.x.var()) - (1 + 0.49)) < 0.1
    means = torch.stack([got.x[got.y == c].mean(0) for c in range(10)])
    tests = torch.stack([torch.from_numpy(data.test.x[data.test.y == c]).mean(0) for c in range(10)])
    assert float((means - tests).abs().max()) < 0.4
    counts = shards.label_counts(0)
    assert counts.shape == (500, 10)
    assert np.array_equal(counts.sum(0), torch.bincount(got.y).numpy())
    held, own = shards.holdout(0)[0], [shards.client_holdout(0, i) for i in range(500)]
    assert np.array_equal(np.concatenate(own), np.arange(len(held)))
    whole = build_shards(data, PartitionSettings("iid", clients=500), [0]).fetch(0 * client, client).x.view(500, 20, -1)
    assert torch.equal(got.x, whole[:, :16].flatten(0, 1)) and torch.equal(held, whole[:, 16:].flatten(0, 1))
    more = build_shards(data, PartitionSettings("iid", clients=33), [0]).fetch(np.zeros(3, int), np.arange(30, 33))
    x, y = build_shards(data, PartitionSettings("iid", clients=30), [0], server=0.1).server(0)
    assert torch.equal(x, more.x) and torch.equal(y, more.y), "the server has the rows of further clients"


def test_a_million_generated_clients_cost_what_ten_do() -> None:
    shards = build_shards(load_data("synthetic"), PartitionSettings("iid", clients=1_000_000), [0])
    tracemalloc.start()
    try:
        for k in range(10):
            shards.fetch(np.zeros(100, int), np.arange(100) * 9999 + k)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000, "a byte for each client"
    finally:
        tracemalloc.stop()
    assert shards.label_counts(0).shape == (10_000, 10)


def test_columns_of_a_data_frame_are_fetched_as_rows() -> None:
    x = np.asfortranarray(np.arange(40, dtype=np.float32).reshape(20, 2))
    rows = Split(x, x[:, ::2])
    shards = build_shards(regression("toy", rows, rows), PartitionSettings("iid", clients=4), [0])
    got = shards.fetch(np.zeros(4, np.int64), np.arange(4))
    assert got.x.is_contiguous() and got.y.is_contiguous()
    assert np.array_equal(got.x.numpy(), x)
    assert all(part.is_contiguous() for part in shards.test(0))


# -- The server's rows as shards: client 0 has them, in every world its own, and nobody else has any


def test_client_zero_has_the_servers_rows_of_each_world_whatever_the_order() -> None:
    whole = build_shards(load_data("digits"), PartitionSettings("iid", clients=4), [0, 1], server=0.1)
    shards = ServerShards(whole)
    world, client = np.array([1, 0, 1, 0]), np.array([0, 0, 2, 3])
    fetched = shards.fetch(world, client)
    assert fetched.size.tolist() == [143, 143, 0, 0] == shards.sizes(world, client).tolist()
    for job, w in enumerate((1, 0)):
        x, y = whole.server(w)
        rows = fetched.rows[job, : fetched.size[job]]
        assert torch.equal(fetched.x[rows], x)
        assert torch.equal(fetched.labels(rows, job), y)
    assert not torch.equal(whole.server(0)[0], whole.server(1)[0])
