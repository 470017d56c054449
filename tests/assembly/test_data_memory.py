"""Memory of rows: what is estimated for copies and for shifted rows is what their arrays take."""

from __future__ import annotations

from typing import Any

import pytest

from fedray.assembly import memory
from fedray.assembly.memory import estimate_rows
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.data.catalogue import load_data
from fedray.data.deal import build_shards
from fedray.data.shards import StoredShards
from fedray.scenario.loader import read_scenario

SHIFTS: dict[str, dict[str, Any]] = {
    "turned copies": {"rotation": 4, "copies": True},
    "copies with other labels": {"permute_labels": 3, "copies": True},
    "turned rows": {"rotation": 4},
    "other labels": {"permute_labels": 3},
    "noisy rows": {"feature_noise": 0.5},
    "plain rows": {},
}


@pytest.mark.parametrize("options", SHIFTS.values(), ids=SHIFTS)
def test_the_estimate_is_what_the_arrays_take(options: dict[str, Any]) -> None:
    data, scenario = load_data("digits"), read_scenario({"data": {"partition": {"name": "iid", **options}}})
    shards = build_shards(data, "iid", dict(options), clients=8, seeds=[0, 1])
    assert isinstance(shards, StoredShards)
    arrays = [shards.data.train.x, shards.data.test.x, shards.data.train.y, shards.data.test.y]
    made = sum(array.nbytes for array in arrays) if options.get("copies") else 0
    known = {shards.data.train.x.__array_interface__["data"][0], shards.data.train.y.__array_interface__["data"][0]}
    made += sum(one.numel() * one.element_size() for one in (shards._x, shards._y) if one.data_ptr() not in known)
    tables, *rest = estimate_rows(scenario, data, worlds=2)
    assert sum(need.bytes for need in rest) == made
    assert tables.bytes == 48.0 * 2 * len(shards.data.train.y)
    assert estimate_rows(scenario, shards.data, worlds=2, copied=True) == [tables, *rest]


def test_copies_that_do_not_fit_are_one_line_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"data": {"partition": {"name": "iid", "permute_labels": 1000, "copies": True}}, "clients": {"number": 1000}}
    monkeypatch.setattr(memory, "read_machine_memory", lambda: 1.5e8)
    monkeypatch.setattr("fedray.data.deal.copy_rows", lambda *_: pytest.fail("rows were copied"))
    with pytest.raises(BadInput, match=r"data.partition.copies x data: 1000 copies of 1,797 rows") as refused:
        build_study(read_scenario(keys))
    assert "\n" not in str(refused.value)
