"""A user's own Python objects, passed beside a scenario.

Example:
    >>> from torch import nn
    >>> UserObjects(model=lambda: nn.Linear(4, 2)).data is None  # the data set is the one the scenario names
    True
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedray.data.types import Dataset
from fedray.methods import Composition
from fedray.simulation.devices import Devices
from fedray.simulation.study import Study


@dataclass(frozen=True)
class UserObjects:
    """A user's own Python objects, passed beside the scenario; they replace what the scenario names.

    Attributes:
        data: the data set.
        model: a function that makes an `nn.Module`.
        method: a function from `Setting` to `Method`.
        modules: modules that each process imports first (`fedray run --import`).
        rates: the learning rate of each world; empty where the scenario's own holds.
        grid: learning rates; every world is trained with each of them (`fedray.experiments.learning_rates`).
        devices: the simulated devices; None means those of the tiers and of the trace.
    """

    data: Dataset | None = None
    model: Any = None
    method: Composition | None = None
    modules: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    grid: tuple[float, ...] = ()
    devices: Devices | None = None

    def shipped(self, study: Study) -> UserObjects:
        """These objects with the data set and the devices as read here: other nodes may lack the files."""
        return replace(self, data=study.shards.data, devices=study.devices)
