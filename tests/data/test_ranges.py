"""Rows on another scale than the training rows are told, in every form and in predictions."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import fedray
from fedray.core.errors import FedrayWarning
from fedray.data import Split, adapt, classification, regression
from fedray.data.catalogue import load_data, register_data

DIGITS = load_data("digits").train
X = DIGITS.x[:300].astype(np.float32) * 16  # 0 to 256
Y = DIGITS.y[:300]
SMALL, LARGE = X[200:] / 256, X[200:] * 256
HUNDREDTH = "all lie in a hundredth of the range of the training rows"
OUTSIDE = "lie far outside the training rows"
SCENARIO: dict[str, Any] = {"rounds": 1, "runtime": "inline", "method": "fedavg", "report": False, "clients": 4}


def make_frame(x: Any, y: Any) -> pd.DataFrame:
    return pd.DataFrame(x.reshape(len(x), -1), columns=[f"p{i}" for i in range(64)]).assign(digit=y)


@pytest.mark.parametrize(("test", "said"), [(SMALL, HUNDREDTH), (LARGE, OUTSIDE)])
def test_pictures_for_testing_were_on_another_scale_without_a_word(test: Any, said: str) -> None:
    """0 to 255 against 0 to 1: accuracy 0.5."""
    train, held = (X[:200], Y[:200]), (test, Y[200:])
    hub = [datasets.Dataset.from_dict({"x": x.tolist(), "y": y}) for x, y in (train, held)]
    forms: list[Any] = [
        (train, held),
        {"train": train, "test": held},
        datasets.DatasetDict(train=hub[0], test=hub[1]),
        tuple(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in (train, held)),
    ]
    for thing in forms:
        with pytest.warns(FedrayWarning, match=f"^data: the test pictures {said}.*: give both on one scale$"):
            adapt(thing, target="y" if isinstance(thing, datasets.DatasetDict) else None)


@pytest.mark.parametrize(("test", "said"), [(SMALL, HUNDREDTH), (LARGE, rf"{OUTSIDE}: column p\d+ has .* in training")])
def test_rows_of_tables_for_testing_were_on_another_scale_without_a_word(tmp_path: Path, test: Any, said: str) -> None:
    train, held = make_frame(X[:200], Y[:200]), make_frame(test, Y[200:])
    folder = tmp_path / "rows"
    folder.mkdir()
    train.to_csv(folder / "train.csv", index=False)
    held.to_csv(folder / "test.csv", index=False)
    for thing, other in ((train, held), (folder, None), (folder / "train.csv", folder / "test.csv")):
        with pytest.warns(FedrayWarning, match=f"^data: the test rows {said}"):
            adapt(thing, target="digit", test=other)
    with pytest.warns(FedrayWarning, match=f"^data: the test rows {said}"):
        fedray.run({**SCENARIO, "data": {"name": "table", "path": str(folder), "target": "digit"}})


def test_data_made_by_hand_were_on_another_scale_without_a_word() -> None:
    parts = Split(X[:200], Y[:200]), Split(LARGE, Y[200:])
    data = classification("mine", *parts, tuple("0123456789"))
    with pytest.warns(FedrayWarning, match=OUTSIDE):
        fedray.run(SCENARIO, data=data)
    register_data("on another scale", lambda _root: data)
    with pytest.warns(FedrayWarning, match=OUTSIDE):
        load_data("on another scale")
    with pytest.warns(FedrayWarning) as said:
        fedray.run(SCENARIO, data=((X[:200], Y[:200]), (LARGE, Y[200:])))
    assert len([one for one in said if re.search(OUTSIDE, str(one.message))]) == 1, "it is said once"


def test_pictures_of_a_folder_on_another_scale_are_told(tmp_path: Path) -> None:
    for part, scale in (("train", 15), ("test", 0.1)):
        for i in range(20):
            file = tmp_path / part / "ab"[i % 2] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((DIGITS.x[i, 0] * scale).astype(np.uint8)).save(file)
    with pytest.warns(FedrayWarning, match=f"^data: the test pictures {HUNDREDTH}: 0 to 1 of 0 to 240"):
        adapt(tmp_path)


def test_rows_to_predict_were_on_another_scale_without_a_word() -> None:
    frame = make_frame(X[:200], Y[:200])
    pictures, table = (
        fedray.run(SCENARIO, data=(X[:200], Y[:200])),
        fedray.run(SCENARIO, data=frame, data__target="digit"),
    )
    new = make_frame(X[200:], Y[200:]).drop(columns="digit")
    for run, rows in ((pictures, X[200:]), (table, new)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", FedrayWarning)
            run.predict(rows)
        with pytest.warns(FedrayWarning, match=f"^data: the rows of x {HUNDREDTH}"):
            run.predict(rows / 256)
        with pytest.warns(FedrayWarning, match=f"^data: the rows of x {OUTSIDE}"):
            run.predict(rows * 256)


def test_usual_rows_are_not_told() -> None:
    """A column of one value, few rows that lie close together, and rows without a label of another kind."""
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    constant = x * [1, 1, 0] + [0, 0, 5]
    y = np.arange(200) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedrayWarning)
        adapt(((x, y), (x[:5] * 0, y[:5])))
        adapt(((constant, y), (x + 100 * (constant == 5), y)))
        adapt(((x, y), (x * 9, y)))
        adapt(((x[:, :1], y), (x[:, :1] * 0, y)))
        regression("mine", Split(x, x), Split(x * 9, x))
