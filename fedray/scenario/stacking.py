"""What stacking cannot be combined with."""

from __future__ import annotations

import math

from fedray.core.errors import BadInput
from fedray.scenario.names import CLASSIFIER_TEXTS
from fedray.scenario.schema import Scenario


def check_stacking(scenario: Scenario) -> None:
    """Raises `BadInput` for the first key that has no meaning for a stack."""
    if scenario.method.name != "stacking":
        return
    refused = (
        ("predict.gamma", scenario.predict.gamma, math.isfinite(scenario.predict.gamma), "inf"),
        ("schedule.kind", scenario.schedule.kind, scenario.schedule.kind == "walk", "permutation"),
        ("local.lr_grid", scenario.local.lr_grid, bool(scenario.local.lr_grid), "an empty list"),
    )
    for key, value, is_wrong, remedy in refused:
        if is_wrong:
            raise BadInput(f"{key} = {value}, but a stack has no such thing: leave it at {remedy}")
    first = next(iter(scenario.method.options["bases"]), {"name": ""})["name"]
    if first in CLASSIFIER_TEXTS:
        raise BadInput(
            f"method.bases[0].name = {first}, but the first base is to be a network: list one before it, as in "
            f"[{{name: mlp}}, {{name: {first}}}]"
        )
