"""Clients as the data comes: writers and roles, each tested on rows of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from real_files import skipping_without_files
from small import scenario, train_rounds

from fedray.assembly.study import build_study
from fedray.evaluation.answers import score_own_models
from fedray.scenario.loader import read_scenario


@pytest.mark.parametrize(
    ("data", "model", "clients"),
    [
        (
            {"name": "femnist", "partition": {"name": "natural"}},
            {"name": "cnn", "channels": [4, 8], "hidden": [16]},
            105,
        ),
        ({"name": "shakespeare", "stride": 80, "partition": {"name": "natural"}}, {"name": "lstm", "hidden": 8}, 156),
        ({"name": "shakespeare", "stride": 80, "partition": {"name": "iid"}}, {"name": "lstm", "hidden": 8}, 10),
    ],
    ids=["femnist by writer", "shakespeare by role", "shakespeare iid"],
)
def test_natural_clients_are_tested_on_their_own_rows(
    data: dict[str, Any], model: dict[str, Any], clients: int
) -> None:
    """Train and test lie inside each client; where they do not (IID) the test set follows its label shares."""
    natural = data["partition"]["name"] == "natural"
    tree = scenario({"method": {"name": "ditto"}, "data": data, "model": model, "clients": {"number": clients},
                     "local": {"epochs": None, "steps": 1}, "participation": {"per_round": 4}})  # fmt: skip
    with skipping_without_files():
        study = build_study(read_scenario(tree))
    assert study.clients.number == clients
    shards = study.shards
    group, test_group = shards.data.train.group, shards.data.test.group
    assert group is not None
    for client in range(0, clients, 9):
        own = shards.client_test(0, client)
        assert (own is not None) == natural
        if own is not None and test_group is not None and len(own):
            fetched = shards.fetch(np.zeros(1, int), np.array([client]))
            rows = fetched.rows[0].numpy()
            assert len(set(test_group[own])) == 1
            assert set(group[rows]) == set(test_group[own])
    state, runtime = train_rounds(study, 1)
    scores = list(score_own_models(runtime.worker, state, 0, np.arange(0, clients, 13)))
    assert all(0.0 <= float(value[0, 0]) <= 1.0 or value[0, 0].isnan() for value in scores)
