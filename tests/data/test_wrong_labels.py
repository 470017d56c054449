"""Wrong labels of clients whose rows are pooled, and generated clients: each test is named after what was false."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import scenario

from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.data.shards import Shards
from fedray.scenario.loader import read_scenario


def deal(method: str, data: dict[str, Any], **more: Any) -> Shards:
    """The rows of the clients of a small scenario."""
    tree = scenario({"method": {"name": method}, "data": data, "clients": {"number": 10}, "replicates": 2, **more})
    return build_study(read_scenario(tree)).shards


def labels_of_rows(shards: Shards, world: int) -> dict[int, int]:
    """Label by row, of all clients of a world whose rows are stored."""
    found: dict[int, int] = {}
    for client in range(shards.number):
        got = shards.fetch(np.array([world]), np.array([client]))
        labels = got.labels(got.rows, torch.zeros(1, 1, dtype=torch.int64))[0]
        found |= dict(zip(got.rows[0].tolist(), labels.tolist(), strict=True))
    return found


@pytest.mark.parametrize("partition", [{"name": "iid"}, {"name": "dirichlet", "alpha": 0.3}])
def test_pooled_references_do_not_ignore_flipped_and_noisy(partition: dict[str, Any]) -> None:
    """The pooled rows have the labels that they have at the clients."""
    data = {"partition": {**partition, "flipped": 0.5, "noisy": 0.2}}
    clients, pooled = deal("fedavg", data), deal("centralized", data)
    assert pooled.number == 1
    for world in (0, 1):
        assert labels_of_rows(clients, world) == labels_of_rows(pooled, world)
    true = clients.data.train.y[sorted(labels_of_rows(pooled, 0))]
    wrong = np.mean(true != np.array([label for _, label in sorted(labels_of_rows(pooled, 0).items())]))
    assert 0.4 < wrong < 0.9


def test_pooled_synthetic_rows_have_the_wrong_labels_of_a_share_of_the_clients() -> None:
    where = np.array([0]), np.array([0])
    every, bad = (
        deal("centralized", {"name": "synthetic", "partition": {"name": "natural", "flipped": share}}).fetch(*where)
        for share in (1, 0.3)  # of ten clients: all, and three
    )
    assert torch.equal(every.x, bad.x)
    true = (every.y - 1) % 10
    changed = (true != bad.y)[bad.rows[0]].view(10, -1)
    assert changed.all(dim=1).sum() == 3, "three of ten clients"
    assert changed.any(dim=1).sum() == 3
    assert torch.equal(bad.y[true != bad.y], every.y[true != bad.y])


@pytest.mark.parametrize("key", ["per_client", "spread"])
def test_synthetic_clients_of_few_classes_or_different_sizes_are_not_called_iid(key: str) -> None:
    data: dict[str, Any] = {"name": "synthetic", key: 2}
    with pytest.raises(BadInput, match=f"data.{key} = 2, but data.partition.name is iid: leave one of the two out"):
        deal("fedavg", {**data, "partition": {"name": "iid"}})
    assert deal("fedavg", {**data, "partition": {"name": "natural"}}).number == 10


def test_a_share_of_the_clients_that_is_no_client_is_refused() -> None:
    """It had no effect."""
    for key in ("flipped", "noisy"):
        with pytest.raises(BadInput, match=rf"data.partition.{key} = 0.02 of 10 clients is none of them: raise it"):
            deal("fedavg", {"partition": {"name": "iid", key: 0.02}})
