"""Inputs far from 0 keep what tells them apart, in every form; where float32 holds them, nothing changes."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from small import scenario
from torch.utils.data import TensorDataset

import fedray
from fedray.data import Split, adapt, classification, store
from fedray.data.adaptation import read_inputs
from fedray.data.types import Array, find_origin

TIMES = 1_700_000_000_000 + 100 * np.arange(400)
LATE = np.arange(400) // 200
REAL = TIMES[:, None].astype(np.float64)
pytestmark = pytest.mark.filterwarnings("ignore:data. another whole number in every row")  # times are like ids
FRAME = pd.DataFrame({"time": TIMES, "late": LATE})
SCENARIO: dict[str, Any] = {
    "rounds": 10, "method": {"name": "fedavg"}, "clients": {}, "report": False, "local": {"lr": 0.1},
    "data": {"partition": {"name": "iid"}},
}  # fmt: skip


def list_forms(home: Path) -> dict[str, tuple[Any, Any]]:
    """The times in every form, and what a prediction of all rows is given."""
    FRAME.to_csv(home / "times.csv", index=False)
    table, column = FRAME[["time"]], TIMES[:, None]
    return {
        "whole numbers": ((TIMES, LATE), column),
        "real numbers": ((REAL, LATE), REAL),
        "series": ((np.tile(REAL[:, None], (1, 3, 2)), LATE), np.tile(REAL[:, None], (1, 3, 2))),
        "images": ((np.tile(TIMES[:, None, None, None], (1, 1, 2, 2)), LATE), np.tile(REAL[..., None, None], (2, 2))),
        "a pair a client": ({"Rome": (TIMES[::2], LATE[::2]), "Oslo": (REAL[1::2], LATE[1::2])}, column),
        "torch": (TensorDataset(torch.from_numpy(REAL), torch.from_numpy(LATE)), REAL),
        "by hand": (classification("mine", Split(REAL, LATE), Split(REAL, LATE), ("no", "yes")), REAL),
        "pandas": (FRAME, table),
        "csv": (home / "times.csv", table),
        "Hugging Face": (datasets.Dataset.from_pandas(FRAME), table),
    }


TABLES = {"pandas", "csv", "Hugging Face"}


def test_times_of_one_second_were_one_input(tmp_path: Path) -> None:
    for name, (thing, rows) in list_forms(tmp_path).items():
        options: dict[str, Any] = {"target": "late"} if name in TABLES else {}
        data = adapt(thing, **options)
        assert len(np.unique(data.train.x)) == len(data.train.x), name
        if name not in ("real numbers", "images", "csv"):
            continue
        run = fedray.run(scenario(SCENARIO), data=data, clients__number=4)
        assert run.metrics["accuracy"] > 0.95, name
        answers = run.predict(rows).probabilities
        assert answers is not None and (answers.argmax(axis=1) == LATE).mean() > 0.95, name
        x, y = run.study.split("test", 0)
        assert (run.predict(x).mean.argmax(axis=1) == y.numpy()).mean() == run.metrics["accuracy"], name


def test_what_was_subtracted_is_kept_with_the_rows(tmp_path: Path, cache: Path) -> None:
    FRAME.assign(b=1.5).to_csv(tmp_path / "times.csv", index=False)
    options = {"path": str(tmp_path / "times.csv"), "target": "late"}
    first, again = (store.open_dataset("table", None, options) for _ in range(2))
    assert list(cache.glob("table-*"))
    for data in (first, again):
        assert data.origin is not None and data.origin.tolist() == [float(TIMES[199] + 50), 0.0]
        new = pd.DataFrame({"time": TIMES[:3], "b": [1.5] * 3})
        both = read_inputs(data, new), read_inputs(data, new.to_numpy())
        assert all((x[:, 0] == [-19950.0, -19850.0, -19750.0]).all() for x in both)


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(0).normal(size=(20_000, 1)),  # of which float32 makes some equal, whatever is subtracted
        1e6 + np.arange(40.0)[:, None],
        np.full((40, 1), 1e12),
        np.where(np.arange(40)[:, None] % 2, 1e12, np.nan),
        np.full((40, 1), np.nan),
        np.arange(40.0, dtype=np.float32)[:, None] * 1e9,
    ],
)
def test_where_float32_keeps_all_values_apart_nothing_is_subtracted(x: Array) -> None:
    assert find_origin(x) is None
    data = adapt((np.nan_to_num(x), np.arange(len(x)) % 2))
    assert data.origin is None


def test_missing_times_get_the_mean_of_the_times() -> None:
    gaps = FRAME.assign(time=FRAME["time"].where(np.arange(400) % 5 > 0))
    array = gaps[["time"]].to_numpy(), LATE
    for data in (adapt(gaps, target="late", missing="mean"), adapt(array, missing="mean")):
        assert data.means is not None and data.origin is not None
        mean = np.nanmean(array[0])
        assert abs(data.means[0] + data.origin[0] - mean) < 0.1 * np.nanstd(array[0])
        assert np.isfinite(read_inputs(data, np.array([[np.nan]]))).all()
