"""A user's own Python objects, passed beside a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedray.data.types import Dataset
from fedray.methods import Composition
from fedray.simulation.devices import Devices
from fedray.simulation.study import Study


@dataclass(frozen=True)
class UserObjects:
    """A user's own Python objects, passed beside the scenario: they win over its names.

    data: a `Dataset`. model: a function that makes an `nn.Module`. method: a function from `Setting` to `Method`.
    rates: the learning rate of each world. grid: learning rates with each of which every world is trained
    (`fedray.experiments.learning_rates`). devices: instead of the tiers' and the trace's.
    """

    data: Dataset | None = None
    model: Any = None
    method: Composition | None = None
    modules: tuple[str, ...] = field(default_factory=tuple)  # to import first (`fedray run --import`)
    rates: tuple[float, ...] = ()
    grid: tuple[float, ...] = ()
    devices: Devices | None = None

    def shipped(self, study: Study) -> UserObjects:
        """Itself with the data set and the devices as read here, for nodes that may lack the files they come from."""
        return replace(self, data=study.shards.data, devices=study.devices)
