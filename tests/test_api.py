"""`fedray.run` with a user's own objects, and with names in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.data.types import Split, classification


@pytest.mark.usefixtures("no_report")
def test_names_and_mappings_in_place_of_objects_are_overrides() -> None:
    changed = fedray.run(scenario({"rounds": 1}), method="fedavg", model={"hidden": [4]})
    same = fedray.run(scenario({"rounds": 1, "method": {"name": "fedavg"}, "model": {"hidden": [4]}}))
    assert changed.summary["model_hash"] == same.summary["model_hash"]
    assert changed.summary["method"] == "fedavg"


@pytest.mark.parametrize("objects", [{"data": [1, 2]}, {"model": 3}, {"method": 0.5}])
def test_objects_of_another_kind_are_one_line(objects: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        fedray.run(scenario(), **objects)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.usefixtures("no_report")
def test_a_data_set_of_ones_own_is_named_in_the_summary() -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    mine = classification("mine", Split(x[:40], y[:40]), Split(x[40:], y[40:]), ("a", "b", "c"))
    keys = {"rounds": 1, "runtime": "inline", "clients": {"number": 2}, "local": {"batch_size": 8}}
    assert fedray.run(keys, data=mine).summary["data"] == "mine"
