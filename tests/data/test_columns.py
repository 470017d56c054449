"""Tables that are wrong in a quiet way: each test is named after what was false."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedray.core.errors import BadInput, FedrayWarning
from fedray.data import adapt
from fedray.data.catalogue import load_data
from fedray.data.forms.new_rows import read_inputs
from fedray.data.store import open_dataset

AGES = [str(20 + i) for i in range(40)]


def write_table(folder: Path, **columns: Any) -> dict[str, Any]:
    """A table of 40 rows with an input `a` and a target `kind`, and the options that read it."""
    frame = {"a": np.arange(40) / 7, "kind": ["no", "yes"] * 20, **columns}
    pd.DataFrame(frame).to_csv(folder / "t.csv", index=False)
    return {"path": str(folder / "t.csv"), "target": "kind"}


def test_one_question_mark_does_not_turn_a_column_of_numbers_into_text_that_is_dropped(tmp_path: Path) -> None:
    options = write_table(tmp_path, age=[*AGES[:17], "?", *AGES[18:]])
    for features in (None, ["a", "age"]):
        with pytest.raises(BadInput, match=r"column age holds numbers, but '\?' in row 18: correct it, or"):
            load_data("table", **options, features=features)
    assert load_data("table", **options, features=["a"]).input_shape == (1,)


@pytest.mark.parametrize("task", ["auto", "regression"])
def test_one_question_mark_does_not_turn_a_target_into_classes(tmp_path: Path, task: str) -> None:
    options = write_table(tmp_path, age=[*["20"] * 17, "?", *["21"] * 22]) | {"target": "age", "features": ["a"]}
    with pytest.raises(BadInput, match=r"data.target: column age holds numbers, but '\?' in row 18"):
        load_data("table", **options, task=task)
    assert load_data("table", **options, task="classification").classes == 3


def test_text_columns_and_truth_values_are_inputs_and_no_column_is_dropped_without_a_word(tmp_path: Path) -> None:
    """Columns of text were left out."""
    options = write_table(
        tmp_path,
        city=["Rome", "Oslo"] * 20,
        code=["7", "x", "y", "z"] * 10,
        smokes=[True, False] * 20,
        ticket=[f"ticket {i}" for i in range(40)],
    )
    for _ in range(2):  # as read, and from the store
        with pytest.warns(UserWarning, match="data: ") as said:
            data = open_dataset("table", None, options)
        assert data.features == ("a", "city=Oslo", "city=Rome", "code=7", "code=x", "code=y", "code=z", "smokes")
        assert [str(one.message) for one in said] == [
            "data: column smokes holds truth values, which are read as 0 and 1",
            "data: columns city, code are text, read as categories (0 and 1 for each value)",
            "data: column ticket is text of too many different values and no input: name it in data.features",
        ]
    assert set(data.train.x[:, 1]) == {0.0, 1.0}
    assert data.shift[0, 1:7].tolist() == [0.0] * 6, "indicators are not standardized"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_dataset("table", None, options | {"features": ["a"]}).input_shape == (1,)
        assert open_dataset("table", None, options | {"features": ["a", "smokes"]}).input_shape == (2,)


def test_numbers_with_decimal_commas_are_said(tmp_path: Path) -> None:
    """The column was left out as text of too many values, and the line did not say why."""
    options = write_table(tmp_path, weight=[f"{i},{i % 7}" for i in range(40)], zone=["1", "2"] * 20)
    with pytest.warns(UserWarning, match="data: ") as said:
        open_dataset("table", None, options)
    line = "data: column weight has numbers with decimal commas: write points (pandas.read_csv: decimal=',')"
    assert line in [str(one.message) for one in said]


def test_a_target_is_not_allowed_among_the_features(tmp_path: Path) -> None:
    options = write_table(tmp_path) | {"target": "a"}
    with pytest.raises(BadInput, match="data.features: a is also the target"):
        load_data("table", **options, features=["a"])
    with pytest.raises(BadInput, match="data.target: column kind is named twice"):
        load_data("table", **(options | {"target": ["kind", "kind"]}))


def test_infinity_in_a_column_does_not_train(tmp_path: Path) -> None:
    options = write_table(tmp_path, b=[np.inf, *range(39)])
    with pytest.raises(BadInput, match="column b holds infinity"):
        load_data("table", **options)


NOISE = np.random.default_rng(0).normal(size=(200, 2))
SORTED = pd.DataFrame({"a": NOISE[:, 0], "b": NOISE[:, 1], "kind": np.arange(200) // 100})  # by class, of noise
INDEX = (
    r"^data: column (Unnamed: 0|__index_level_0__|without a name) numbers the rows and is no input: name it in data\."
)


def test_the_index_that_pandas_wrote_was_an_input(tmp_path: Path) -> None:
    """Of labels of noise, sorted by class, it told every one: accuracy 1."""
    datasets, polars, pa = (pytest.importorskip(name) for name in ("datasets", "polars", "pyarrow"))
    SORTED.to_csv(tmp_path / "rows.csv")
    SORTED.to_csv(tmp_path / "other.csv", sep=";")
    (tmp_path / "wards").mkdir()
    SORTED[::2].to_csv(tmp_path / "wards" / "Rome.csv")
    SORTED[1::2].to_csv(tmp_path / "wards" / "Oslo.csv")
    kept = SORTED[SORTED["a"] > -9].sort_values("kind", kind="stable").loc[lambda rows: rows.index != 3]
    arrow = pa.Table.from_pandas(kept)
    forms: list[Any] = [
        tmp_path / "rows.csv",
        tmp_path / "other.csv",
        tmp_path / "wards",
        pd.read_csv(tmp_path / "rows.csv"),
        {"Rome": pd.read_csv(tmp_path / "rows.csv"), "Oslo": pd.read_csv(tmp_path / "rows.csv")},
        datasets.Dataset.from_pandas(kept),
        datasets.DatasetDict(train=datasets.Dataset.from_pandas(kept)),
        arrow,
        polars.from_arrow(arrow),
        polars.read_csv(tmp_path / "rows.csv"),
    ]
    for thing in forms:
        with pytest.warns(FedrayWarning, match=INDEX + "input"):
            assert adapt(thing, target="kind").features == ("a", "b")
    options = {"path": str(tmp_path / "rows.csv"), "target": "kind"}
    with pytest.warns(FedrayWarning, match=INDEX + "features"):
        data = open_dataset("table", None, options)
    assert data.features == ("a", "b")
    read_inputs(data, pd.read_csv(tmp_path / "rows.csv"))  # it is known, and not read
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert adapt(tmp_path / "rows.csv", target="kind", input=["Unnamed: 0", "a"]).input_shape == (2,)


@pytest.mark.parametrize("as_float", [False, True])
def test_an_identity_was_an_input_without_a_word(tmp_path: Path, as_float: bool) -> None:
    patients = np.random.default_rng(1).permutation(20_000)[:200] + (1e6 if as_float else 1_000_000)
    frame = SORTED.assign(patient_id=patients, bed=np.arange(200) % 150, weight=np.arange(200) / 3)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for thing in (frame, tmp_path / "rows.csv"):
        with pytest.warns(UserWarning, match="data: ") as said:
            adapt(thing, target="kind")
        line = (
            "data: column patient_id has another whole number in every row: leave it out by data.input if it is an id"
        )
        assert [str(one.message) for one in said] == [line]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapt(frame, target="kind", input=["a", "patient_id"])
        adapt(frame.drop(columns="patient_id"), target="kind")
        adapt(frame[:15], target="bed", task="regression")
