"""The clients' networks of FENS and the aggregator that reads them, from a scenario.

Example:
    >>> from fedray.models.nets import build_net
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"method": {"name": "fens", "aggregator": "client_weights"}})
    >>> stack = make_fens(scenario, 10, 5, lambda one: build_net("linear", (4,), 10, "cross_entropy"))
    >>> stack.bases[0].models, stack.meta.layout.d, stack.meta_rounds
    (5, 5, 500)
"""

from __future__ import annotations

from collections.abc import Callable

from fedray.core.errors import BadInput
from fedray.core.types import Net
from fedray.methods.fens import FIXED
from fedray.models.aggregators import build_aggregator
from fedray.models.stacking import Base, Stack
from fedray.scenario.schema import Scenario

MOST_CLIENTS = 1000  # whose networks one process keeps and asks


def make_fens(scenario: Scenario, classes: int, clients: int, network: Callable[[Scenario], Net]) -> Stack:
    """Returns the one base, which has a network for each client, and the aggregator.

    Args:
        scenario: the scenario.
        classes: C of the data; 0 for regression.
        clients: N.
        network: makes the network of a scenario.

    Raises:
        BadInput: there are no classes, or too many clients.
    """
    keys = scenario.method.options
    if not classes:
        raise BadInput(f"method.name = fens, but {scenario.data.name} has real targets: choose data with classes")
    if clients > MOST_CLIENTS:
        raise BadInput(
            f"clients.number = {clients:,}, but the ensemble of fens has a network of every client: set it to "
            f"{MOST_CLIENTS:,} at most"
        )
    kind, fixed = keys["aggregator"], keys["aggregator"] in FIXED
    return Stack(
        bases=(Base(network(scenario), clients),),
        meta=None if fixed else build_aggregator(kind, clients, classes, keys["width"]),
        folds=1,
        within=False,
        rounds=scenario.rounds,
        meta_rounds=keys["meta_rounds"],
        meta_lr=keys["meta_lr"],
        meta_optimizer="sgd",
        combine=kind if fixed else "mean",
        proxy=0.0 if fixed else keys["proxy"],
        name="fens",
    )
