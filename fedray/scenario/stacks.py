"""Models that are made of parts: which scenarios have one, and what it cannot be combined with.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> is_uncounted(read_scenario({"method": {"name": "fens"}}))
    False
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedray.core.errors import BadInput
from fedray.core.text import quote_value
from fedray.methods.beta_predbayes import FIT
from fedray.scenario.classifiers import CLASSIFIERS
from fedray.scenario.methods import method_spec_of

if TYPE_CHECKING:
    from fedray.scenario.schema import Scenario


def is_stack(scenario: Scenario) -> bool:
    """Whether a model is made of parts: bases and what joins them, or FedDF's several architectures.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> [is_stack(read_scenario({"method": {"name": name}})) for name in ("stacking", "fens", "feddf")]
        [True, True, False]
    """
    spec, options = method_spec_of(scenario.method.name), scenario.method.options
    return spec.parts or ("networks" in spec.options and bool(options.get("networks")))


def check_stacking(scenario: Scenario) -> None:
    """Raises `BadInput` for the first key that has no meaning for a stack."""
    name = scenario.method.name
    if not is_stack(scenario):
        return
    plain = "probabilities"
    refused = (
        ("predict.gamma", scenario.predict.gamma, math.isfinite(scenario.predict.gamma), ".inf"),
        ("schedule.kind", scenario.schedule.kind, scenario.schedule.kind == "walk", "permutation"),
        ("local.lr_grid", scenario.local.lr_grid, bool(scenario.local.lr_grid), "an empty list"),
        ("participation.overcommit", scenario.participation.overcommit, is_uncounted(scenario), "1"),
        ("predict.average", scenario.predict.average, scenario.predict.average != plain, plain),
    )
    for key, value, is_wrong, remedy in refused:
        if is_wrong:
            raise BadInput(f"{key} = {value}, but method {name} cannot use it: leave it at {remedy}")
    _check_server(scenario)
    first = next(iter(scenario.method.options.get("bases", ())), {"name": ""})["name"]
    if first in CLASSIFIERS:
        raise BadInput(
            f"method.bases[0].name = {first}, but the first base must be a network: list one before it, as in "
            f"[{{name: mlp}}, {{name: {first}}}]"
        )


def _check_server(scenario: Scenario) -> None:
    """A server that trains needs every client once, and waits for nobody afterwards."""
    keys, options = scenario.participation, scenario.method.options
    fitted = options.get("beta") == FIT
    if fitted and scenario.clients.availability != "always":
        raise BadInput(
            f"clients.availability = {quote_value(scenario.clients.availability)}, but with method.beta = fit the "
            "server works where client 0 would: set it to always, or method.beta to a number"
        )
    if options.get("meta_data") != "pooled" and not fitted:
        return
    why, remedy = (
        ("beta = fit the server works where client 0 would", "beta to a number")
        if fitted
        else ("meta_data = pooled the server needs the answers of every client", "meta_data to federated")
    )
    for key, value, wrong in (
        ("participation.dropout", keys.dropout, keys.dropout > 0),
        ("participation.deadline", keys.deadline, keys.deadline is not None),
        ("participation.mode", keys.mode, keys.mode != "sync"),
    ):
        if wrong:
            raise BadInput(f"{key} = {value}, but with method.{why}: leave it out, or set method.{remedy}")


def is_uncounted(scenario: Scenario) -> bool:
    """Whether a server would leave networks out that came late, where every client has only one to send."""
    has_one = method_spec_of(scenario.method.name).models == "clients"
    return has_one and is_stack(scenario) and scenario.participation.overcommit > 1
