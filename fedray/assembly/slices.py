"""The networks of the tiers, from a scenario, where clients train slices of the network.

Example:
    >>> from fedray.core.types import Tier
    >>> from fedray.models.nets import build_net
    >>> from fedray.scenario.loader import read_scenario
    >>> net, scenario = build_net("mlp", (4,), 3, "cross_entropy", hidden=[8]), read_scenario({"method": "heterofl"})
    >>> tiers = (Tier("strong", 5), Tier("weak", 5, width=0.25))
    >>> [(one.net.layout.d, round(one.work, 2)) for one in cut_network(scenario, net, tiers, (4,))]
    [(67, 1.0), (19, 0.28)]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedray.core.errors import BadInput
from fedray.core.method import Method
from fedray.core.types import Net, Tier
from fedray.models.slices import TierNet
from fedray.scenario.methods import UNKNOWN, method_spec_of
from fedray.scenario.schema import Scenario
from fedray.training.chain import find_changed_call


def cut_network(
    scenario: Scenario, net: Net, tiers: Sequence[Tier], sample: tuple[int, ...], *, is_own: bool = False
) -> tuple[TierNet, ...]:
    """Returns the network of each tier; none for a method that slices no networks.

    Args:
        scenario: names the method.
        net: the whole network.
        tiers: of the population.
        sample: shape of a network input.
        is_own: whether the method is a user's own function, which may slice networks.

    Raises:
        BadInput: a network is to be sliced that is not made of plain layers.
    """
    method = scenario.method
    cut = (UNKNOWN if is_own else method_spec_of(method.name)).slices
    if cut is None:
        return ()
    widths = [tier.width for tier in tiers]
    changed = None if min(widths) == 1 else find_changed_call(net.module)
    if changed is not None:
        raise BadInput(
            f"model.name = {net.name}: its forward {changed}, which slices of it would not have: take it out"
        )
    nets: tuple[TierNet, ...] = cut(net, widths, torch.zeros(1, *sample), method.options, method.name)
    return nets


def refuse_unread_widths(method: Method, tiers: Sequence[Tier]) -> None:
    """Raises `BadInput` where a tier has a width, but the method does not slice the network."""
    narrow = [tier for tier in tiers if tier.width != 1]
    if narrow and not method.phase.nets:
        raise BadInput(
            f"clients.tiers.{narrow[0].name}.width = {narrow[0].width:g}, but {method.name} does not read it: compose "
            "it with fedray.methods.federated_slices, or leave it out"
        )
