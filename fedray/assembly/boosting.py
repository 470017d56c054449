"""The ensemble of boosting, sized for a scenario and its data.

Example:
    >>> from fedray.core.types import Tier
    >>> from fedray.data.catalogue import load_data
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"method": {"name": "distboost_f"}, "rounds": 5})
    >>> size_ensemble(scenario, load_data("digits"), UserObjects(), Clients((Tier("client", 10),)))
    Ensemble(rounds=5, seats=10, leaves=10, classes=10, committee=True)
"""

from __future__ import annotations

from fedray.assembly import memory
from fedray.assembly.clients import invited_per_tier
from fedray.assembly.memory import Need
from fedray.assembly.registry import UserObjects
from fedray.core.errors import BadInput
from fedray.core.types import Clients, Net
from fedray.data.types import Dataset
from fedray.models.boosting import Ensemble, boosted_net
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario


def fits_learners(scenario: Scenario, own: UserObjects) -> bool:
    """Whether clients fit learners and train no network; `own` may have a method in place of the scenario's."""
    return own.method is None and bool(method_spec_of(scenario.method.name).fits)


def make_ensemble(
    scenario: Scenario, data: Dataset, own: UserObjects, clients: Clients, worlds: int
) -> tuple[Ensemble, Net]:
    """Returns what the ensemble of a scenario has room for, and its network, which this machine can hold.

    Args:
        scenario: its method fits learners.
        data: the data set.
        own: the user's objects.
        clients: the population.
        worlds: R.

    Raises:
        BadInput: the data or the user's objects do not fit, or the machine cannot hold it.
    """
    size = size_ensemble(scenario, data, own, clients)
    numbers = size.rounds * (2 + size.seats * size.tree_numbers)
    what = f"{worlds:,} ensembles of {numbers:,} numbers"
    bytes_ = float(memory.MODEL * worlds) * numbers
    memory.check_memory([Need(what, "rounds x method.learner x replicates", bytes_)])
    return size, boosted_net(size)


def size_ensemble(scenario: Scenario, data: Dataset, own: UserObjects, clients: Clients) -> Ensemble:
    """Returns what the ensemble of a scenario has room for.

    Args:
        scenario: its method fits learners.
        data: the data set.
        own: the user's objects.
        clients: the population.

    Raises:
        BadInput: the data have no classes or are text, or there is a network of the user's own.
    """
    name, keys = scenario.method.name, scenario.method
    if not data.classes or data.kind == "tokens":
        raise BadInput(
            f"method.name = {name}, but {scenario.data.name} has real targets or text, and trees tell classes by "
            "numbers: choose a table with classes"
        )
    if given := [key for key in ("model", "loss", "optimizer", "augment") if getattr(own, key)]:
        raise BadInput(f"{given[0]}: clients of {name} fit method.learner, and no network: leave yours out")
    fits = method_spec_of(name).fits
    return Ensemble(
        rounds=scenario.rounds,
        seats=1 if fits == "one" else sum(invited_per_tier(scenario, clients)),
        leaves=keys.options["learner"]["max_leaf_nodes"],
        classes=data.classes,
        committee=fits == "committee",
    )
