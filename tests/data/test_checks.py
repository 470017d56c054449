"""A user's own data that is wrong in a quiet way is refused before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.data import catalogue
from fedray.data.checks import check_dataset
from fedray.data.types import Array, Dataset, Split, classification, regression

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2


def own(x: Array = X, y: Array = Y, **more: Any) -> Dataset:
    """A data set of one's own with two classes."""
    return classification("mine", Split(x, y), Split(x[:9], y[:9]), ("no", "yes"))._replace(**more)


def test_500_inputs_with_490_labels_do_not_train(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="data mine: train has 60 inputs, but 49 labels: give one for each input"):
        fedray.run(scenario(), data=own(X, Y[:49]), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_with_their_channels_last_do_not_train() -> None:
    for channels in (1, 3):
        image = RNG.integers(0, 255, (60, 8, 9, channels), np.uint8)
        line = f"images of 8 x 9 x {channels}, channels last: give them first, .* as {channels} x 8 x 9"
        with pytest.raises(BadInput, match=line):
            check_dataset(own(image))
        check_dataset(own(image.transpose(0, 3, 1, 2)))
    with pytest.raises(BadInput, match=r"no tokens: images are x\[:, None\]"):
        check_dataset(own(RNG.integers(0, 255, (60, 8, 8), np.uint8)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (own(train=Split(X, Y + 1)), "the label 2, but 2 classes: labels are 0 to 1"),
        (own(train=Split(X, Y - 1)), "the label -1, but 2 classes"),
        (own(train=Split(X, Y.astype(np.float32))), "labels of type float32"),
        (own(train=Split(X, np.eye(2, dtype=np.int64)[Y])), r"labels of type int64 and shape \[60, 2\]"),
        (own(X * np.where(np.arange(60) == 3, np.nan, 1)[:, None].astype(np.float32)), "NaN or infinite"),
        (own(test=Split(X[:, :2], Y)), "inputs of train are 3, but those of test are 2"),
        (own(test=Split(X[:0], Y[:0])), "test has no rows"),
        (own(test=Split(X.astype(np.int64), Y)), "inputs of train are float32, but those of test are int64"),
        (own(columns={"site": Y[:7]}), "column site has 7 values, but train 60 rows"),
        (own(train=Split(X, Y, Y[:3])), "60 inputs, but 3 groups"),
        (regression("mine", Split(X, X[:40]), Split(X, X)), "60 inputs, but 40 targets"),
        (regression("mine", Split(X, X), Split(X, X))._replace(train=Split(X, Y[:, None])), "targets of type int64"),
    ],
)
def test_rows_labels_and_columns_that_do_not_fit_together_do_not_train(data: Dataset, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        check_dataset(data)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("data mine: ")


def test_a_registered_data_set_is_checked_like_one_that_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_SOURCES", dict(catalogue._SOURCES))
    catalogue.register_data("short", lambda _root: own(X, Y[:49]))
    with pytest.raises(BadInput, match="60 inputs, but 49 labels"):
        catalogue.load_data("short")
