"""Flower's partitioners through the adapter give exactly their own index lists."""

from typing import Any

import numpy as np
import pytest

from fedray.core.errors import BadInput
from fedray.data.deal import PartitionSettings, build_shards
from fedray.data.shards import StoredShards
from fedray.data.store import load_data

flwr = pytest.importorskip("flwr_datasets.partitioner", reason="needs pip install 'fedray[flower]'")
datasets = pytest.importorskip("datasets")
N = 10
pytestmark = pytest.mark.filterwarnings("ignore")  # what flwr_datasets and datasets say about themselves
PARTITIONERS: dict[str, dict[str, Any]] = {
    "DirichletPartitioner": {"alpha": 0.5, "min_partition_size": 5, "seed": 3},
    "PathologicalPartitioner": {"num_classes_per_partition": 2, "seed": 3},
    "ShardPartitioner": {"num_shards_per_partition": 2, "seed": 3},
    "IidPartitioner": {},
}


def dealt(own: Any = None, options: dict[str, Any] | None = None) -> list[list[int]]:
    shards = build_shards(load_data("digits"), PartitionSettings("flower", options or {}, N, own=own), [0, 1])
    assert isinstance(shards, StoredShards)
    one, two = shards.dealt.kept  # replicates share Flower's seed
    assert np.array_equal(one.rows, two.rows)
    return [one.rows[a:b].tolist() for a, b in zip(one.offsets[:-1], one.offsets[1:], strict=True)]


@pytest.mark.parametrize("name", PARTITIONERS)
def test_the_index_lists_are_those_of_flwr_datasets(name: str) -> None:
    labels, more = load_data("digits").train.y, {} if name == "IidPartitioner" else {"partition_by": "label"}
    alone, own = (getattr(flwr, name)(num_partitions=N, **more, **PARTITIONERS[name]) for _ in range(2))
    alone.dataset = datasets.Dataset.from_dict({"label": labels, "index": np.arange(len(labels))})
    wanted = [alone.load_partition(i)["index"][:] for i in range(N)]
    assert dealt(options={"partitioner": name, **PARTITIONERS[name]}) == wanted == dealt(own=own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitioner": "DirichletPartitoner"}, "did you mean DirichletPartitioner"),
        ({"partitioner": "DirichletPartitioner", "alpha": -1.0}, "DirichletPartitioner: ValueError: Alpha values"),
        ({"partitioner": "DirichletPartitioner", "alpha": 1.0, "partition_by": "y"}, "the columns are label"),
        ({"partitioner": "IidPartitioner", "num_partitions": 3}, "IidPartitioner makes 3 partitions"),
    ],
)
def test_what_flower_refuses_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as error:
        dealt(options=options)
    assert message in str(error.value) and "\n" not in str(error.value)
