"""A second data set beside the clients', named by a key, whose inputs the network takes as well.

Example:
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.scenario.loader import read_scenario
    >>> digits, scenario = load_data("digits"), read_scenario({"evaluate": {"ood": "noise"}})
    >>> open_alike("evaluate.ood", "digits", scenario, digits).name
    'digits'
    >>> add_ood(scenario, digits).ood.shape
    (359, 1, 8, 8)
"""

from __future__ import annotations

import math

import numpy as np

from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.data.catalogue import has_data
from fedray.data.forms.arrays import as_float32
from fedray.data.origins import add_back, subtract
from fedray.data.store import open_dataset
from fedray.data.types import Array, Dataset
from fedray.files.plain import expand_user_path
from fedray.scenario.schema import Scenario

NOISE = "noise"


def open_alike(key: str, name: str, scenario: Scenario, data: Dataset, choices: str = "") -> Dataset:
    """A data set whose inputs have the kind and shape of another one's.

    Args:
        key: that names it, for messages.
        name: of the data set.
        scenario: says where data files are.
        data: the clients'.
        choices: what else the key may be, for the message.

    Raises:
        BadInput: there is no such data set, it cannot be read, or its inputs are of another shape.
    """
    if not has_data(name):
        raise BadInput(f"{key} = {name} is no data set: choose {choices}or a name of `fedray list datasets`")
    root = expand_user_path("data.root", scenario.data.root) if scenario.data.root else None
    try:
        other = open_dataset(name, root, {})
    except BadInput as error:
        raise BadInput(f"{key} = {name}: {error}") from None
    if other.population or (other.kind, other.input_shape) != (data.kind, data.input_shape):
        raise BadInput(
            f"{key} = {name} has inputs of shape {list(other.input_shape)} ({other.kind}), but {data.name} has "
            f"{list(data.input_shape)} ({data.kind}): choose another data set"
        )
    return other


def add_ood(scenario: Scenario, data: Dataset) -> Dataset:
    """The data set with the out-of-distribution inputs that the scenario names, if it names some.

    They are the test rows of the other data set, or noise with the mean and standard deviation of the training rows: as
    many as there are test rows, at most, evenly spread.

    Args:
        scenario: its `evaluate.ood` names them.
        data: the clients'.

    Raises:
        BadInput: the task has real targets, or the named inputs do not fit.
    """
    name = scenario.evaluate.ood
    if name is None or data.ood is not None:  # another process has added them
        return data
    if not data.classes or data.kind == "tokens":
        has = "text" if data.classes else "real targets"
        raise BadInput(
            f"evaluate.ood = {name}, but {data.name} has {has}: "
            "choose data with classes, whose inputs are images or numbers"
        )
    rows = len(data.folds[0][1]) if data.folds else len(data.test.y)
    if name == NOISE:
        return data._replace(ood=_draw_noise(data, rows))
    other = open_alike("evaluate.ood", name, scenario, data, "noise ")
    x = (other.train if other.folds else other.test).x
    chosen = np.linspace(0, len(x) - 1, min(rows, len(x))).round().astype(np.int64)
    inputs = subtract(add_back(x[chosen], other.origin), data.origin)
    return data._replace(ood=np.ascontiguousarray(as_float32(inputs)))


def _draw_noise(data: Dataset, rows: int) -> Array:
    """Raw inputs `[rows, *sample]` that are standard normal when they are standardized."""
    shape = (rows, *data.input_shape)
    drawn = rng.normal(rng.keys(0, "out-of-distribution noise"), math.prod(shape)).reshape(shape)
    raw = data.shift[0] + data.scale[0] * drawn
    kind = data.test.x.dtype
    if np.issubdtype(kind, np.integer):
        raw = raw.round().clip(np.iinfo(kind).min, np.iinfo(kind).max)
    return np.asarray(raw, dtype=kind)
