"""Groups of clients that have all rows each: nothing is lost, nobody has another group's rows, tests are turned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.data.catalogue import load_data
from fedray.data.deal import build_shards
from fedray.data.shards import StoredShards
from fedray.data.shifts import Shifts, draw_clusters, draw_meanings
from fedray.data.types import limit_rows

N, SEEDS = 10, [0, 5]
DATA = limit_rows(load_data("digits"), 90)


def shard(name: str = "iid", **options: Any) -> StoredShards:
    shards = build_shards(DATA, name, {"copies": True, **options}, N, SEEDS)
    assert isinstance(shards, StoredShards)
    return shards


@pytest.mark.parametrize("world", [0, 1])
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_the_clients_of_a_group_share_every_row_turned_as_the_group_turns_it(partition: str, world: int) -> None:
    shards, groups = shard(partition, rotation=4), draw_clusters(SEEDS[world], N, Shifts(rotation=4))
    known = shards.clusters(world)
    assert known is not None and np.array_equal(known, groups)
    for group in range(4):
        clients = np.flatnonzero(groups == group)
        found = shards.fetch(np.full_like(clients, world), clients)
        real = found.rows[torch.arange(found.rows.shape[1]) < torch.from_numpy(found.size)[:, None]]
        assert sorted((real - group * 90).tolist()) == list(range(90))
        assert torch.equal(found.x[real], torch.from_numpy(np.rot90(DATA.train.x, group, (-2, -1)).copy())[real % 90])


def test_a_client_is_tested_on_the_test_rows_of_its_group() -> None:
    shards = shard(rotation=2)
    (x, y), n = shards.test(0), len(DATA.test.y)
    clusters = shards.clusters(0)
    assert clusters is not None and len(y) == 2 * n
    for client in range(N):
        rows = shards.cluster_test(0, client)
        assert rows is not None and np.array_equal(y[rows].numpy(), DATA.test.y)
        turned = np.rot90(DATA.test.x, 2 * int(clusters[client]), (-2, -1)).copy()
        assert torch.equal(x[rows], torch.from_numpy(turned))


def test_whose_test_rows_a_client_has_is_found_without_reading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation asks it of 10,000 clients."""
    shards = shard(permute_labels=2)
    whole = len(shards.test(0)[1])
    asked: list[int] = []
    monkeypatch.setattr(StoredShards, "test", lambda _self, world: asked.append(world))
    found = [shards.cluster_test(0, client) for client in range(N)]
    assert all(rows is not None and len(rows) == whole // 2 for rows in found) and not asked


def test_a_group_means_the_same_by_its_labels_in_training_and_in_the_test() -> None:
    shards, shifts = shard(permute_labels=3), Shifts(permute_labels=3, copies=True)
    for world, seed in enumerate(SEEDS):
        meaning, clusters = draw_meanings(seed, shifts, 10), shards.clusters(world)
        assert clusters is not None
        for client in range(N):
            own, rows = meaning[clusters[client]], shards.cluster_test(world, client)
            assert np.array_equal(shards.test(world)[1][rows].numpy(), own[DATA.test.y])
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
    with pytest.raises(BadInput, match="has rows of a copy that is not its group's"):
        fedray.run(tree, data__partition=file, seed=3)


def test_domains_are_clusters_and_other_partitions_have_none() -> None:
    half = DATA._replace(columns={"domain": np.repeat(["a", "b"], 45)})
    known = build_shards(half, "domain", {}, 4, [0]).clusters(0)
    assert known is not None and known.tolist() == [0, 0, 1, 1]
    assert build_shards(DATA, "iid", {}, 4, [0]).clusters(0) is None
    mixed = build_shards(DATA, "iid", {"rotation": 2, "permute_labels": 2}, 40, [0]).clusters(0)
    assert mixed is not None and set(mixed.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("partition", "clients", "says"),
    [
        ({"name": "iid"}, 4, "which make the groups"),
        ({"name": "iid", "rotation": 2, "permute_labels": 2}, 4, "give one of rotation and permute_labels"),
        ({"name": "iid", "rotation": 4}, 3, "gives rows to 4 groups: raise it"),
        ({"name": "column", "column": "place", "rotation": 4}, None, "are those of the data"),
    ],
)
def test_copies_that_no_group_can_have_are_one_line(partition: dict[str, Any], clients: int | None, says: str) -> None:
    options = {"copies": True, **partition}
    with pytest.raises(BadInput, match=says) as wrong:
        build_shards(DATA, options.pop("name"), options, clients, [0])
    assert "\n" not in str(wrong.value)
