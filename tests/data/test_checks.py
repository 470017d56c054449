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
from fedray.data.types import Array, Dataset, Split, check_dataset, classification, regression

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2


def own(x: Array = X, y: Array = Y, **more: Any) -> Dataset:
    """A data set of one's own with two classes."""
    return classification("mine", Split(x, y), Split(x[:9], y[:9]), ("no", "yes"))._replace(**more)


def test_500_inputs_with_490_labels_do_not_train(tmp_path: Path) -> None:
    line = "data mine: train has 60 inputs, but 49 labels: give one for each input"
    with pytest.raises(BadInput, match=line):
        own(X, Y[:49])
    with pytest.raises(BadInput, match=line):
        fedray.run(scenario(), data=own(train=Split(X, Y[:49])), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_with_their_channels_last_do_not_train() -> None:
    for channels in (1, 3):
        image = RNG.integers(0, 255, (60, 8, 9, channels), np.uint8)
        line = f"images of 8 x 9 x {channels}, channels last: give them first, .* as {channels} x 8 x 9"
        with pytest.raises(BadInput, match=line):
            check_dataset(own(image))
        check_dataset(own(image.transpose(0, 3, 1, 2)))
    with pytest.raises(BadInput, match=r"no tokens: give images as x\[:, None\]"):
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
        (regression("mine", Split(X, X), Split(X, X))._replace(train=Split(X, X[:40])), "60 inputs, but 40 targets"),
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


@pytest.mark.parametrize("offset", [1e8, -1e9, 3e12])
def test_errors_were_measured_against_targets_that_float32_had_rounded(offset: float) -> None:
    """Around 1e9 float32 knows every 64th number: an RMSE of 0.02 stood where the truth was 2.6."""
    y = X @ np.array([1.0, 2.0, -1.0]) + offset
    line = "the targets are near .* with a standard deviation of 2.*, and float32 rounds .*: subtract a constant first$"
    for given in (y, np.rint(2 * y).astype(np.int64), np.stack([X[:, 0], y], axis=1)):
        with pytest.raises(BadInput, match=line.replace("of 2", "of ")):
            regression("mine", Split(X, given), Split(X[:9], given[:9]))
    with pytest.raises(BadInput, match=line):
        fedray.run(scenario({"model": {"name": "mlp"}}), data=((X, y), (X[:9], y[:9])))
    made = regression("mine", Split(X, y - offset), Split(X[:9], y[:9] - offset))
    whole = y.astype(np.float32).astype(np.float64)[:, None]
    check_dataset(made._replace(train=Split(X, whole), test=Split(X[:9], whole[:9])))  # float32 holds them
    with pytest.raises(BadInput, match="data mine: " + line):
        check_dataset(made._replace(train=Split(X, y[:, None]), test=Split(X[:9], y[:9, None])))


def test_labels_in_int32_train_to_the_bits_of_int64() -> None:
    """The compiled kernels read int64: a data set whose labels were replaced by int32 ended in an `AssertionError`."""
    hashes = set()
    for kind in (np.int32, np.int64):
        made = own(X, Y)
        data = made._replace(train=made.train._replace(y=Y.astype(kind)))
        hashes.add(fedray.run(scenario({"data": {"limit": None}, "rounds": 1}), data=data).summary["model_hash"])
    assert len(hashes) == 1


def test_targets_that_are_nearly_the_same_everywhere_may_be_rounded() -> None:
    far = np.where(np.arange(60) == 3, 123456.7853, X[:, 0].astype(np.float64))  # one row that no constant brings near
    assert regression("mine", Split(X, X[:, 0]), Split(X, far)).test.y.max() > 1e5
    for y in (np.full(60, 0.1), np.where(np.arange(60) % 2, 0.3, 0.1 + 0.2), np.arange(60) * 1e-30 + 1e-28):
        assert regression("mine", Split(X, y), Split(X[:9], y[:9])).train.y.dtype == np.float32
