"""Networks as samples of a client's posterior (β-Predictive Bayes), and what joins their answers, from a scenario.

Example:
    >>> from fedray.models.catalogue import build_net
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"method": {"name": "beta_predbayes", "beta": 1}})
    >>> stack = make_samples(scenario, 10, 5, lambda one: build_net("linear", (4,), 10, "cross_entropy"))
    >>> stack.bases[0].models, stack.meta.layout.d, stack.meta_rounds  # beta is there, and nobody trains it
    (5, 1, 0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fedray.assembly.fens import MOST_CLIENTS
from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput
from fedray.core.types import Net
from fedray.methods.beta_predbayes import FIT, read_cycles
from fedray.models.aggregators import build_interpolation
from fedray.models.stacking import Base, Stack
from fedray.models.weights import Samples, wrap_networks
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario

FIRST_BETA = 0.5


def count_distinct_samples(options: Mapping[str, Any], steps: int) -> int:
    """How many different samples a client takes.

    Args:
        options: of the method.
        steps: that the client makes in a round.
    """
    return len(set(read_cycles(options).taken(torch.tensor(steps)).tolist()))


def add_samples(scenario: Scenario, own: UserObjects, make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Makes the networks as samples of their weights, where the method's clients sample; else `make` itself.

    Args:
        scenario: names the method.
        own: the user's objects; a method of theirs trains the networks as they are.
        make: makes one freshly initialized network.
    """
    if own.method is not None or not method_spec_of(scenario.method.name).sampled:
        return make
    return wrap_networks(make, Samples, scenario.method.options["samples"], scenario.model.name)


def make_samples(scenario: Scenario, classes: int, clients: int, network: Callable[[Scenario], Net]) -> Stack:
    """The one base, which has the samples of each client, and the number between product and mixture.

    Args:
        scenario: the scenario.
        classes: C of the data; 0 for regression.
        clients: N.
        network: makes the network of a scenario.

    Raises:
        BadInput: there are no classes, too many clients, or no rows on which the server could find beta.
    """
    keys, name = scenario.method.options, scenario.method.name
    if not classes:
        raise BadInput(f"method.name = {name}, but {scenario.data.name} has real targets: choose data with classes")
    if clients > MOST_CLIENTS:
        raise BadInput(
            f"clients.number = {clients:,}, but {name} answers with the networks of every client: set it to "
            f"{MOST_CLIENTS:,} at most"
        )
    fitted = keys["beta"] == FIT
    if fitted and not keys["server_data"]:
        raise BadInput(
            "method.server_data = 0, but method.beta = fit: give the server a share of the rows, or give method.beta a "
            "number"
        )
    return Stack(
        bases=(Base(network(scenario), clients),),
        meta=build_interpolation(classes, FIRST_BETA if fitted else float(keys["beta"])),
        folds=1,
        within=False,
        rounds=scenario.rounds,
        meta_rounds=int(fitted),
        meta_lr=keys["beta_lr"],
        meta_optimizer="adam",
        combine="mean",
        at_server=True,
        answers_at_once=True,
        name=name,
    )
