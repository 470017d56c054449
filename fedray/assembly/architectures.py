"""The architectures among FedDF's clients, from a scenario: which networks there are, and which client has which.

Example:
    >>> from fedray.core.types import Tier
    >>> from fedray.models.catalogue import build_net
    >>> from fedray.scenario.loader import read_scenario
    >>> networks = [{"name": "mlp", "hidden": [8]}, {"name": "linear"}]
    >>> scenario = read_scenario({"method": {"name": "feddf", "networks": networks}})
    >>> net = build_net("linear", (4,), 10, "cross_entropy")
    >>> stack = make_architectures(scenario, 10, Clients((Tier("client", 5),)), lambda one: net)
    >>> [np.flatnonzero(base.members(np.arange(5))).tolist() for base in stack.bases]
    [[0, 2, 4], [1, 3]]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from fedray.core.errors import BadInput
from fedray.core.types import Clients, Members, Net
from fedray.models.stacking import Base, Stack
from fedray.scenario.schema import ModelKeys, Scenario


def make_architectures(scenario: Scenario, classes: int, clients: Clients, network: Callable[[Scenario], Net]) -> Stack:
    """One base for each of `method.networks`, with the clients that have it; nobody joins their answers but the mean.

    Args:
        scenario: the scenario.
        classes: C of the data; 0 for regression.
        clients: the population.
        network: makes the network of a scenario.

    Raises:
        BadInput: there are no classes, or more networks than clients. That of a tier without clients is the server's.
    """
    networks = scenario.method.options["networks"]
    if not classes:
        raise BadInput(
            f"method.networks has {len(networks)} networks, but {scenario.data.name} has real targets: choose data "
            "with classes, or leave it out"
        )
    if len(networks) > clients.number:
        raise BadInput(
            f"method.networks has {len(networks)} networks, but clients.number is {clients.number}: raise it, or leave "
            "some out"
        )
    tiers = [tier.name for tier in clients.tiers]
    bases = []
    for i, one in enumerate(networks):
        options = {key: value for key, value in one.items() if key not in ("name", "tier", "answers")}
        net = network(replace(scenario, model=ModelKeys(one["name"], options=options)))
        members = _in_turn(i, len(networks)) if "tier" not in one else _of_tier(clients, tiers.index(one["tier"]))
        bases.append(Base(net, scenario.method.models, members=members, answers=one.get("answers", True)))
    return Stack(
        bases=tuple(bases),
        meta=None,
        folds=1,
        within=False,
        rounds=scenario.rounds,
        meta_rounds=0,
        meta_lr=0.0,
        meta_optimizer="sgd",
    )


def refuse_outputs(_models: Tensor, _inputs: Tensor) -> Tensor:
    """Stands in `Setting.outputs` where there are several networks."""
    raise BadInput(
        "setting.outputs asks one network, but method.networks has several: call "
        "fedray.models.net.compute_raw_outputs(base.net, models, inputs) with a base of setting.stack.bases"
    )


def _in_turn(i: int, number: int) -> Members:
    """Client j has network `j mod number`."""
    return lambda client: np.asarray(client % number == i)


def _of_tier(clients: Clients, tier: int) -> Members:
    return lambda client: np.asarray(clients.tier_of(client) == tier)
