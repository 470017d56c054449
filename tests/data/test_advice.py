"""What is said of a user's data is true, and doing it helps: each test is named after what was false."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fedray
from fedray.core.errors import BadInput
from fedray.data.adaptation import adapt
from fedray.data.catalogue import load_data
from fedray.data.types import Dataset

N = 60
RNG = np.random.default_rng(0)
SMALL: dict[str, Any] = {"rounds": 1, "runtime": "inline", "report": False, "method": "fedavg", "local": {"epochs": 1}}


def make_table(**columns: Any) -> pd.DataFrame:
    """A table of 60 rows with two inputs and a target `kind` of two classes."""
    frame = {"a": np.arange(N) / 7, "b": np.arange(N) % 13 / 3, "kind": ["no", "yes"] * (N // 2)}
    return pd.DataFrame({**frame, **columns})


def read_all_forms(frame: pd.DataFrame, folder: Path, **options: Any) -> dict[str, Callable[[], Dataset]]:
    """Readers of a table in the forms that a user may have it, by both doors."""
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    return {
        "pandas": lambda: adapt(frame, **options),
        "polars": lambda: adapt(pl.from_pandas(frame), **options),
        "pyarrow": lambda: adapt(pa.Table.from_pandas(frame, preserve_index=False), **options),
        "hf": lambda: adapt(datasets.Dataset.from_pandas(frame, preserve_index=False), **options),
        "path": lambda: adapt(folder / "t.csv", **options),
        "csv": lambda: load_data("table", None, path=str(folder / "t.csv"), **options),
        "parquet": lambda: load_data("table", None, path=str(folder / "t.parquet"), **options),
        "clients": lambda: adapt({"A": frame, "B": frame}, **options),
    }


def test_columns_whose_names_are_numbers_ended_in_a_type_error(tmp_path: Path) -> None:
    """`data__target=3` was `'int' object is not iterable`, and 0 counted as no target."""
    frame = pd.DataFrame({0: [0, 1] * 30, 1: np.arange(N) / 7, 2: np.arange(N) / 5, 3: ["x", "y", "z"] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    named = frame.rename(columns=str)
    for thing in (frame, pl.from_pandas(named), datasets.Dataset.from_pandas(named, preserve_index=False)):
        for target in (0, np.int64(0), "0", [0], np.array([0])):
            assert adapt(thing, target=target, input=[1, 2]).features == ("1", "2")
        assert adapt(thing, target=0, input=1, group=3).features == ("1",)
    assert adapt(frame, target=0, input=frame.columns[1:3]).class_names == ("0", "1")
    assert len(adapt({"A": frame, "B": frame}, target=3, input=[1, 2]).class_names) == 3
    run = fedray.run(SMALL, data=frame, data__target=0, data__group=3)
    assert run.study.client_names == ("x", "y", "z") and run.predict(frame[:3]).probabilities.shape == (3, 2)
    keys = {"name": "table", "path": str(tmp_path / "t.csv"), "target": 0, "features": [1, 2], "group": 3}
    assert fedray.run(SMALL, data=keys).study.client_names == ("x", "y", "z")
    deal = {"name": "column", "column": 3}
    assert fedray.run(SMALL, data=frame, data__target=0, data__input=[1, 2], partition=deal).study.clients.number == 3
    with pytest.raises(BadInput, match=r"data.target is a Series: name a column, or give labels beside the table"):
        adapt(frame, target=frame[0])
    with pytest.raises(BadInput, match=r"has no column 7: .*its columns: 0, 1, 2, 3"):
        adapt(frame, target=7)
