"""Loaders of data sets that go wrong: what they raise, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from own_case import Case, count_calls, good_data, inputs, labels

from fedray.data import Split, classification, regression
from fedray.data.types import Dataset


def raising(error: BaseException) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


def returning(value: Any) -> Callable[[], Any]:
    return lambda: value


def changed(**fields: Any) -> Callable[[], Any]:
    """Returns a loader of the good data set with some fields replaced."""
    return lambda: good_data()._replace(**fields)


def with_train(change: Callable[[Any, Any], tuple[Any, ...]]) -> Callable[[], Any]:
    """Returns a loader of the good data set with other training samples."""

    def load() -> Any:
        data = good_data()
        return data._replace(train=Split(*change(data.train.x.copy(), data.train.y.copy())))

    return load


def made(train_x: Any, train_y: Any) -> Callable[[], Any]:
    """Returns a loader of a data set that `classification` makes from these training samples."""

    def load() -> Any:
        return classification("mine", Split(train_x, train_y), Split(inputs(24), labels(24)), ("a", "b", "c"))

    return load


def put(value: float) -> Callable[[Any, Any], tuple[Any, ...]]:
    def change(x: Any, y: Any) -> tuple[Any, ...]:
        x[3, 1] = value
        return x, y

    return change


def second_call(value: Any) -> Callable[[], Any]:
    calls = count_calls()

    def load() -> Any:
        calls.append(1)
        if len(calls) == 1:
            return good_data()
        if isinstance(value, Exception):
            raise value
        return value

    return load


def recurse() -> Any:
    return recurse()


def _generate() -> Any:
    yield good_data()


def wants_more(folder: Any, extra: Any) -> Any:
    return folder, extra


def targets(y: Any) -> Callable[[], Dataset]:
    def load() -> Dataset:
        x = inputs(48)
        good = regression("mine", Split(x, x[:, :1]), Split(x[:24], x[:24, :1]))
        return good._replace(train=Split(x, y))

    return load


X, Y = inputs(48), labels(48)
T = X[:, :1]
NATURAL = {"data": {"partition": {"name": "natural"}}, "clients": {"number": None}}
_data = partial(Case, "data")
DATA = [
    _data("returns None", returning(None), "returned None"),
    _data("returns a tuple", returning((X, Y)), r"returned a tuple"),
    _data("returns a list", returning([1, 2]), "returned a list"),
    _data("returns a dict", returning({"x": X}), "returned a dict"),
    _data("returns an array", returning(X), "returned a ndarray"),
    _data("returns rows only", returning(Split(X, Y)), "returned a Split"),
    _data("returns text", returning("rows.csv"), "returned a str"),
    _data("returns the class", returning(Dataset), "returned"),
    _data("is a generator", _generate, "returned a generator"),
    _data("raises ValueError", raising(ValueError("no such\nfolder")), "ValueError: no such folder", {}, True),
    _data("raises KeyError", raising(KeyError("target")), "KeyError: 'target'", {}, True),
    _data("raises TypeError", raising(TypeError("bad operand")), "TypeError: bad operand", {}, True),
    _data("raises without a text", raising(RuntimeError()), "RuntimeError", {}, True),
    _data("raises AssertionError", raising(AssertionError()), "AssertionError", {}, True),
    _data("raises StopIteration", raising(StopIteration()), "StopIteration", {}, True),
    _data("file is missing", Path("/no/such/file.csv").read_text, "FileNotFoundError", {}, True),
    _data("calls itself for ever", recurse, "RecursionError", {}, True),
    _data("would return None the second time", second_call(None)),  # a loader is called once
    _data("would raise the second time", second_call(OSError("gone"))),
    _data("list as inputs", with_train(lambda x, y: (x.tolist(), y)), "train has inputs .*list"),
    _data("list as labels", with_train(lambda x, y: (x, y.tolist())), "train has labels .*list"),
    _data("tensors", with_train(lambda x, y: (torch.from_numpy(x), y)), "train has inputs .*Tensor"),
    _data("no labels", with_train(lambda x, _: (x, None)), "train has labels .*None"),
    _data("train is None", changed(train=None), "train is None"),
    _data("train is a tuple", changed(train=(X, Y)), "train is a tuple"),
    _data("test is None", changed(test=None), "test is None"),
    _data("text as inputs", with_train(lambda x, y: (x.astype(str), y)), "train has inputs .* of type <U"),
    _data("objects as inputs", with_train(lambda x, y: (x.astype(object), y)), "train has inputs .* of type object"),
    _data("complex inputs", with_train(lambda x, y: (x + 1j, y)), "train has inputs .* of type complex"),
    _data("inputs in one dimension", with_train(lambda x, y: (x[:, 0], y)), r"train has inputs \[48\] of type"),
    _data("NaN in inputs", with_train(put(np.nan)), "train: 1 of 48 rows have inputs that are NaN"),
    _data("infinity in inputs", with_train(put(np.inf)), "train: 1 of 48 rows have inputs that are NaN or infinite"),
    _data("NaN in test inputs", changed(test=Split(X * np.nan, Y)), "test: 48 of 48 rows have inputs that are NaN"),
    _data("too few labels", with_train(lambda x, y: (x, y[:-1])), "48 inputs, but 47 labels"),
    _data("labels in two dimensions", with_train(lambda x, y: (x, y[:, None])), "labels of type int64 and shape"),
    _data("real labels", with_train(lambda x, y: (x, y.astype(float))), "labels of type float64"),
    _data("names as labels", with_train(lambda x, y: (x, y.astype(str))), "labels of type <U"),
    _data("a label too many", with_train(lambda x, y: (x, y + 1)), "labels 1 to 3: give 0 to 2"),
    _data("a negative label", with_train(lambda x, y: (x, y - 1)), "labels -1 to 1: give 0 to 2"),
    _data("groups of another length", with_train(lambda x, y: (x, y, y[:9])), "48 inputs, but 9 groups"),
    _data("groups with names", with_train(lambda x, y: (x, y, y.astype(str))), "groups of type <U"),
    _data("negative groups", with_train(lambda x, y: (x, y, y - 5)), None, NATURAL),
    _data("groups as a list", with_train(lambda x, y: (x, y, y.tolist())), "groups .*list"),
    _data("no training rows", with_train(lambda x, y: (x[:0], y[:0])), "train has no rows"),
    _data("no test rows", changed(test=Split(X[:0], Y[:0])), "test has no rows"),
    _data("other test shape", changed(test=Split(X[:, :3], Y)), "inputs of train are 4, but those of test are 3"),
    _data("columns of another length", changed(columns={"city": Y[:4]}), "column city has no value for each"),
    _data("targets in one dimension", targets(X[:, 0]), "targets of type float32"),
    _data("targets that are whole", targets(Y[:, None]), "targets of type int64"),
    _data("NaN in targets", targets(T * np.nan), "targets that are NaN"),
    _data("infinity in targets", targets(T + np.inf), "targets that are NaN or infinite"),
    _data("made from a list", made(X.tolist(), Y)),
    _data("made from text", made(X.astype(str), Y), "train has inputs .* of type <U"),
    _data("made from None", made(None, Y), "train has inputs .*None"),
    _data("made with NaN", made(X * np.nan, Y), "NaN"),
    _data("made without rows", made(X[:0], Y[:0]), "train has no rows"),
    _data("takes two arguments", wants_more, "missing 1 required positional argument"),
    _data("byte labels", with_train(lambda x, y: (x, y.astype(np.uint8))), "labels of type uint8"),
    # what works
    _data("good", good_data),
    _data("float64", with_train(lambda x, y: (x.astype(np.float64), y))),
    _data("read only", with_train(lambda x, y: (np.broadcast_to(x, x.shape), y))),
    _data("in Fortran order", with_train(lambda x, y: (np.asfortranarray(x), y))),
    _data("int32 labels", with_train(lambda x, y: (x, y.astype(np.int32)))),
    _data("float16", with_train(lambda x, y: (x.astype(np.float16), y))),
    _data("big endian", with_train(lambda x, y: (x.astype(">f4"), y)), "byte order different from the native"),
]  # fmt: skip
