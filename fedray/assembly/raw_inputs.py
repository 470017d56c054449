"""Inputs that networks get as they are, and not standardized (`data.standardize: false`).

Example:
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.scenario.loader import read_scenario
    >>> leave_inputs(read_scenario({"data": {"standardize": False}}), load_data("digits"), UserObjects()).standardized
    False
"""

from __future__ import annotations

from fedray.assembly.boosting import fits_learners
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import BadInput
from fedray.data.types import Dataset
from fedray.scenario.schema import Scenario


def leave_inputs(scenario: Scenario, data: Dataset, own: UserObjects) -> Dataset:
    """The data set, whose inputs stay as they are where the scenario says so.

    Args:
        scenario: has the key.
        data: the clients'.
        own: the user's objects, which may have a method in place of the scenario's.

    Raises:
        BadInput: the key cannot act.
    """
    if scenario.data.standardize:
        return data
    plain = not data.shift.any() and bool((data.scale == 1).all())
    name = scenario.method.name
    reasons = {
        f"{data.name} has tokens": data.kind == "tokens",
        f"float32 does not tell the inputs of {data.name} apart as they are": data.origin is not None,
        f"the inputs of {data.name} are not standardized anyway": plain,
        f"clients of {name} fit trees, to which the scale of an input is all the same": fits_learners(scenario, own),
    }
    for why, is_so in reasons.items():
        if is_so:
            raise BadInput(f"data.standardize = false cannot act, because {why}: leave it out")
    return data._replace(standardized=False)
