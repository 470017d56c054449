"""Networks under Gaussians over their weights (pFedBayes, PVI)."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedray.assembly.registry import UserObjects
from fedray.models.weights import MeanField, Partitioned, wrap_networks
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study


def add_gaussians(scenario: Scenario, own: UserObjects, make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Makes the networks under Gaussians over their weights, where the method trains these; else `make` itself.

    Args:
        scenario: names the method.
        own: the user's objects; a method of theirs trains the networks as they are.
        make: makes one freshly initialized network.
    """
    kind = "" if own.method is not None else method_spec_of(scenario.method.name).mean_field
    if not kind:
        return make
    around = MeanField if kind == "prior" else Partitioned
    return wrap_networks(make, around, scenario.method.options["rho"], scenario.model.name)


def count_draws(study: Study) -> int:
    """How many networks are drawn from each model's Gaussian to answer (PVI), at least 1.

    Args:
        study: what will run.
    """
    if method_spec_of(study.method.name).mean_field != "site":
        return 1
    return max(1, int(study.scenario["method"].get("samples", 1)))
