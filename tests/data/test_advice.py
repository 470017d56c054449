"""What is said of a user's data is true, and doing it helps: each test is named after what was false."""

import gzip
import json
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import fedray
from fedray.core.errors import BadInput, FedrayWarning
from fedray.data.adaptation import adapt
from fedray.data.store import load_data
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
    frame = pd.DataFrame({0: [0, 1] * 30, 1: np.arange(N) / 7, 2: np.arange(N) / 5, 3: ["x", "y", "z"] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    named = frame.rename(columns=str)
    targets: list[Any] = [0, np.int64(0), "0", [0], np.array([0])]
    for thing in (frame, pl.from_pandas(named), datasets.Dataset.from_pandas(named, preserve_index=False)):
        for target in targets:
            assert adapt(thing, target=target, input=[1, 2]).features == ("1", "2")
        assert adapt(thing, target=0, input=1, group=3).features == ("1",)
    run = fedray.run(SMALL, data=frame, data__target=0, data__group=3)
    assert run.study.client_names == ("x", "y", "z") and run.predict(frame[:3]).mean.shape == (3, 2)
    keys = {"name": "table", "path": str(tmp_path / "t.csv"), "target": 0, "features": [1, 2], "group": 3}
    assert fedray.run(SMALL, data=keys).study.client_names == ("x", "y", "z")


def test_a_column_of_numbers_that_are_objects_was_text_of_too_many_values() -> None:
    half = [Decimal(i) / 7 for i in range(N)]
    frames = {
        "objects": make_table().astype(object),
        "decimals": make_table(a=half),
        "mixed": make_table(a=pd.Series([i if i % 2 else i / 4 for i in range(N)], dtype=object)),
        "of an array": pd.DataFrame(np.array(make_table(), dtype=object), columns=["a", "b", "kind"]),
        "texts": make_table().assign(a=lambda one: one.a.astype(str)),
    }
    for name, frame in frames.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error" if name != "texts" else "ignore")
            data = adapt(frame, target="kind")
            named = adapt(frame, target="kind", input=["a", "b"])
        assert data.features == named.features == ("a", "b")
        assert np.array_equal(data.train.x, named.train.x) and len(np.unique(data.train.x[:, 0])) > 40
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert adapt(frame, target="a").classes == 0
    run = fedray.run({**SMALL, "clients": 3}, data=frames["objects"], data__target="kind")
    assert run.predict(frames["objects"][:3]).mean.shape == (3, 2)
    pa_table = pa.table({"a": pa.array([Decimal(i) / 8 for i in range(N)]), "kind": ["no", "yes"] * 30})
    assert adapt(pa_table, target="kind").features == ("a",)


def test_whole_numbers_of_more_than_20_values_are_classes_in_every_form_and_it_is_said(tmp_path: Path) -> None:
    frame = pd.concat([make_table(kind=np.arange(N) % 30)] * 6, ignore_index=True)
    line = r"30 different whole numbers in \d+ rows are read as classes: write data.task: regression if they are quant"
    x, y = frame[["a", "b"]].to_numpy(), frame["kind"].to_numpy()
    forms = read_all_forms(frame, tmp_path, target="kind")
    forms |= {
        "arrays": lambda: adapt((x, y)),
        "pair": lambda: adapt((frame[["a", "b"]], frame["kind"])),
        "torch": lambda: adapt(TensorDataset(torch.from_numpy(x), torch.from_numpy(y))),
    }
    for name, read in forms.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            data = read()
        assert data.classes == 30, name
        assert any(re.search(line, text) for text in [*data.remarks, *(str(one.message) for one in said)]), name
    assert adapt(frame, target="kind", task="regression").classes == 0
    assert adapt(frame, target="kind", task="classification").classes == 30


def make_users(*names: str, low: float = -2.0, features: int = 784) -> dict[str, Any]:
    """Rows of users in LEAF's form, standardized as FedProx's MNIST."""
    rows = {name: {"x": (low + 3 * RNG.random((12, features))).tolist(), "y": [0, 1, 2] * 4} for name in names}
    return {"users": list(names), "num_samples": [12] * len(names), "user_data": rows}


def test_the_json_of_leaf_is_read_a_client_a_user(tmp_path: Path) -> None:
    train, test = make_users("ann", "bob", features=4), make_users("cem", "bob", features=4)
    for part, given in (("dev", train), ("train", train), ("test", test)):
        (tmp_path / "leaf" / part).mkdir(parents=True)
        (tmp_path / "leaf" / part / "all_data_0.json").write_text(json.dumps(given))
    (tmp_path / "one.json.gz").write_bytes(gzip.compress(json.dumps(train).encode()))
    for thing in (train, tmp_path / "one.json.gz"):
        data = adapt(thing)
        assert (data.classes, data.train.x.shape, data.columns["client"][0]) == (3, (18, 4), "ann")
    both = [(train, test), {"train": train, "test": test}, tmp_path / "leaf"]
    for data in [*map(adapt, both), adapt(train, test=test), load_data("leaf", None, path=str(tmp_path / "leaf"))]:
        assert data.train.group is not None and data.test.group is not None
        assert (np.unique(data.train.group).tolist(), np.unique(data.test.group).tolist()) == ([0, 1], [-1, 1])
        assert np.allclose(data.train.x[:12], train["user_data"]["ann"]["x"])
    for thing in ({"name": "leaf", "path": str(tmp_path / "leaf")}, train, tmp_path / "leaf"):
        run = fedray.run({**SMALL, "evaluate": {"personal": True}}, data=thing)
        assert run.study.client_names == ("ann", "bob")
    run = fedray.run(SMALL, data=train, data__test=test)
    assert "cem" not in (run.path / "scenario.yaml").read_text()
    assert fedray.load(run.path, data=(train, test)).study.client_names == ("ann", "bob")


def test_other_data_in_the_form_of_femnist_wrapped_around_in_bytes(tmp_path: Path) -> None:
    """FedProx's MNIST is standardized."""
    for part, given in (("train", make_users("ann", "bob")), ("test", make_users("ann"))):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        (tmp_path / "femnist" / part / "a.json").write_text(json.dumps(given))
    with pytest.raises(BadInput, match=r"has pixels from -2 to .*data: \{name: leaf, path: (.*)\}") as wrong:
        load_data("femnist", tmp_path)
    path = re.search(r"path: (.*)\}", str(wrong.value))
    assert path is not None and load_data("leaf", None, path=path[1]).train.x.min() < -1.9


def test_text_beside_folders_of_classes_made_tables_of_them(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        for i in range(5):
            (tmp_path / "pictures" / kind).mkdir(parents=True, exist_ok=True)
            picture = np.full((8, 8), i, np.uint8) + np.arange(64, dtype=np.uint8).reshape(8, 8)
            Image.fromarray(picture).save(tmp_path / "pictures" / kind / f"{i}.png")
    for name in ("README.txt", "labels.csv", "classes.txt", "README.md"):
        (tmp_path / "pictures" / name).write_text("file,label\n1.png,cat\n")
        with pytest.warns(FedrayWarning):
            data = adapt(tmp_path / "pictures")
        assert (data.class_names, data.train.group) == (("cat", "dog"), None)
        (tmp_path / "pictures" / name).unlink()
    (tmp_path / "tables").mkdir()
    for name in ("Rome", "Oslo"):
        make_table().to_csv(tmp_path / "tables" / f"{name}.csv", index=False)
    (tmp_path / "tables" / "README.txt").write_text("Made in 2020, by us\n")
    with pytest.warns(FedrayWarning):
        assert len(np.unique(adapt(tmp_path / "tables", target="kind").columns["client"])) == 2
    places = {"Rome": tmp_path / "pictures", "Oslo": tmp_path / "pictures"}
    with pytest.warns(FedrayWarning):
        data = adapt(places)
    assert data.columns["client"][[0, -1]].tolist() == ["Rome", "Oslo"] and data.class_names == ("cat", "dog")
