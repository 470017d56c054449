"""Inputs that networks get as they are, and not standardized (`data.standardize: false`).

Example:
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.scenario.loader import read_scenario
    >>> leave_inputs(read_scenario({"data": {"standardize": False}}), load_data("digits")).standardized
    False
"""

from __future__ import annotations

from fedray.core.errors import BadInput
from fedray.data.types import Dataset
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario


def leave_inputs(scenario: Scenario, data: Dataset) -> Dataset:
    """The data set, whose inputs stay as they are where the scenario says so.

    Args:
        scenario: has the key.
        data: the clients'.

    Raises:
        BadInput: the key cannot act.
    """
    if scenario.data.standardize:
        return data
    plain = not data.shift.any() and bool((data.scale == 1).all())
    name = scenario.method.name
    reasons = {
        f"{data.name} has tokens": data.kind == "tokens",
        f"the inputs of {data.name} are not standardized anyway": plain,
        f"clients of {name} fit trees, to which the scale of an input is all the same": bool(method_spec_of(name).fits),
    }
    for why, is_so in reasons.items():
        if is_so:
            raise BadInput(f"data.standardize = false cannot act, because {why}: leave it out")
    return data._replace(standardized=False)
