"""The compression of a scenario's uploads.

Example:
    >>> from torch import nn
    >>> from fedray.core.types import Clients, Tier
    >>> from fedray.models.net import layout_of
    >>> from fedray.scenario.loader import read_scenario
    >>> layout = layout_of(nn.Linear(9, 10))  # 100 parameters
    >>> scenario = read_scenario({"compress": {"kind": "topk", "ratio": 0.1}})
    >>> compress = make_compression(scenario, layout, Devices(Clients((Tier("phones", 5),))))
    >>> compress.bytes(np.array([0]), np.array([0])).tolist()  # ten values, and a bit for each parameter
    [53]
"""

from __future__ import annotations

import numpy as np

from fedray.components import compression
from fedray.core.method import Compress
from fedray.core.types import Layout
from fedray.scenario.schema import Scenario
from fedray.simulation.devices import Devices

UPLINK_CLIENTS = 100_000  # clients whose uplinks give the mean


def make_compression(scenario: Scenario, layout: Layout, devices: Devices) -> Compress:
    """What clients send of their updates.

    Args:
        scenario: the scenario.
        layout: of the model.
        devices: the simulated devices, whose uplinks decide how much is kept with `compress.adaptive`.
    """
    keys = scenario.compress
    if keys.kind == "dense":
        return compression.dense(layout)
    if keys.kind == "int8":
        made = compression.int8(layout)
    else:
        tiers = devices.clients.tiers
        models = scenario.method.models
        keep = compression.keep_by_tier(layout, tiers, models, keys.ratio, keys.resource_ratio)
        if keys.adaptive:
            number = devices.clients.number
            sample = np.linspace(0, number - 1, min(number, UPLINK_CLIENTS)).astype(np.int64)  # of every tier its share
            mean = float(devices.figure("uplink", sample).mean())
            keep = compression.keep_by_bandwidth(layout, keep, lambda client: devices.figure("uplink", client), mean)
        top = keys.kind == "topk"
        made = compression.top_k(layout, keep) if top else compression.random_k(layout, keep, not keys.error_feedback)
    return compression.error_feedback(made) if keys.error_feedback else made
