"""Rows and tables that are wrong in a quiet way: each test is named after what was false."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small import scenario

import fedray
from fedray.core.errors import FedrayWarning
from fedray.data import Split, adapt, classification, regression
from fedray.data.adaptation import read_inputs
from fedray.data.store import open_dataset


def test_text_columns_and_truth_values_are_inputs_and_no_column_is_dropped_without_a_word(tmp_path: Path) -> None:
    columns = {
        "a": np.arange(40) / 7, "kind": ["no", "yes"] * 20, "city": ["Rome", "Oslo"] * 20,
        "code": ["7", "x", "y", "z"] * 10, "smokes": [True, False] * 20, "ticket": [f"ticket {i}" for i in range(40)],
    }  # fmt: skip
    pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
    options = {"path": str(tmp_path / "t.csv"), "target": "kind"}
    for _ in range(2):  # as read, and from the store
        with pytest.warns(FedrayWarning) as said:
            data = open_dataset("table", None, options)
        assert data.features == ("a", "city=Oslo", "city=Rome", "code=7", "code=x", "code=y", "code=z", "smokes")
        assert [str(one.message).split(": ")[-1] for one in said] == ["smokes", "city, code", "ticket"]
    assert set(data.train.x[:, 1]) == {0.0, 1.0}
    assert data.shift[0, 1:7].tolist() == [0.0] * 6, "indicators are not standardized"
    roles: dict[str, Any] = {"target": "kind", "input": ["city"]}
    gaps = pd.DataFrame(columns).assign(city=[None, *["Oslo", "Rome", "Oslo"] * 13])
    for data in (adapt(gaps, **roles, missing="drop"), adapt(gaps[1:], **roles, test=str(tmp_path / "t.csv"))):
        assert data.features == ("city=Oslo", "city=Rome")
    assert (len(data.train.y), len(data.test.y)) == (39, 40)
    ill, days = [None, *[0, 1] * 20], [None, *range(60), *range(60), *range(60)]
    assert adapt(pd.DataFrame({"a": [0.5] * 41, "ill": ill}), target="ill", missing="drop").classes == 2
    with pytest.warns(FedrayWarning, match="60 different whole numbers"):
        adapt(pd.DataFrame({"a": [0.5] * 181, "stay": days}), target="stay", missing="drop")
    for keys in ({"features": ["a"]}, {"exclude": ["city", "code", "smokes", "ticket"]}):
        assert open_dataset("table", None, options | keys).features == ("a",)
    assert open_dataset("table", None, options | {"features": ["a", "smokes"]}).input_shape == (2,)


NOISE = np.random.default_rng(0).normal(size=(200, 2))
SORTED = pd.DataFrame({"a": NOISE[:, 0], "b": NOISE[:, 1], "kind": np.arange(200) // 100})  # by class, of noise


def test_the_index_that_pandas_wrote_was_an_input(tmp_path: Path) -> None:
    datasets, polars, pa = (pytest.importorskip(name) for name in ("datasets", "polars", "pyarrow"))
    SORTED.to_csv(tmp_path / "rows.csv")
    kept = SORTED[SORTED["a"] > -9].sort_values("kind", kind="stable").loc[lambda rows: rows.index != 3]
    arrow = pa.Table.from_pandas(kept)
    forms: list[Any] = [
        tmp_path / "rows.csv",
        pd.read_csv(tmp_path / "rows.csv"),
        {"Rome": pd.read_csv(tmp_path / "rows.csv"), "Oslo": pd.read_csv(tmp_path / "rows.csv")},
        datasets.Dataset.from_pandas(kept),
        arrow,
        polars.from_arrow(arrow),
    ]
    for thing in forms:
        with pytest.warns(FedrayWarning):
            assert adapt(thing, target="kind").features == ("a", "b")
    options = {"path": str(tmp_path / "rows.csv"), "target": "kind"}
    with pytest.warns(FedrayWarning):
        data = open_dataset("table", None, options)
    assert data.features == ("a", "b")
    read_inputs(data, pd.read_csv(tmp_path / "rows.csv"))  # it is known, and not read
    assert adapt(tmp_path / "rows.csv", target="kind", input=["Unnamed: 0", "a"]).input_shape == (2,)


# -- A user's own data that is wrong in a quiet way is refused before it trains

INPUTS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)


def test_labels_in_int32_train_to_the_bits_of_int64() -> None:
    hashes, y = set(), np.arange(60) % 2
    for kind in (np.int32, np.int64):
        made = classification("mine", Split(INPUTS, y), Split(INPUTS[:9], y[:9]), ("no", "yes"))
        data = made._replace(train=made.train._replace(y=y.astype(kind)))
        hashes.add(fedray.run(scenario({"data": {"limit": None}, "rounds": 1}), data=data).summary["model_hash"])
    assert len(hashes) == 1


def test_targets_that_are_nearly_the_same_everywhere_may_be_rounded() -> None:
    far = np.where(np.arange(60) == 3, 123456.7853, INPUTS[:, 0].astype(float))  # no constant brings that row near
    assert regression("mine", Split(INPUTS, INPUTS[:, 0]), Split(INPUTS, far)).test.y.max() > 1e5
    for y in (np.full(60, 0.1), np.where(np.arange(60) % 2, 0.3, 0.1 + 0.2), np.arange(60) * 1e-30 + 1e-28):
        assert regression("mine", Split(INPUTS, y), Split(INPUTS[:9], y[:9])).train.y.dtype == np.float32
