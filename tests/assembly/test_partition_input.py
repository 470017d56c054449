"""A column that says whose a row is and that the models read is said before a run begins."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedray
from fedray.core.errors import ScenarioWarning

KEYS: dict[str, Any] = {"rounds": 1, "runtime": "inline", "report": False, "method": "fedavg"}
LINE = "^data.partition.column = ward says whose a row is and is an input too: name the inputs in data.features without"


def write_table(folder: Path) -> dict[str, Any]:
    """A table of three wards, as the section `data` of a scenario."""
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({"age": draw.normal(size=60), "ward": [1, 2, 3] * 20, "ill": draw.integers(0, 2, 60)})
    rows.to_csv(folder / "wards.csv", index=False)
    partition = {"name": "column", "column": "ward"}
    return {"name": "table", "path": str(folder / "wards.csv"), "target": "ill", "partition": partition}


def test_a_column_that_deals_the_rows_and_is_read_is_said(tmp_path: Path) -> None:
    with pytest.warns(ScenarioWarning, match=LINE):
        run = fedray.run({**KEYS, "data": write_table(tmp_path)})
    assert run.study.shards.data.features == ("age", "ward")


@pytest.mark.parametrize("features", [["age"], ["age", "ward"]])
def test_who_names_the_inputs_has_chosen(tmp_path: Path, features: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScenarioWarning)
        run = fedray.run({**KEYS, "data": {**write_table(tmp_path), "features": features}})
    assert run.study.shards.data.features == tuple(features)
