"""The simulated devices of a scenario: their speeds, how many are chosen in a round, and which uploads count.

Example:
    >>> from fedray.core.types import Tier
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"clients": {"number": 10}, "participation": {"per_round": 4}})
    >>> participants_per_tier(scenario, Clients((Tier("phones", 5), Tier("servers", 5))))
    [2, 2]
"""

from __future__ import annotations

from dataclasses import replace

from fedray.components.schedule import overcommit, share_out
from fedray.core.errors import BadInput, warn_user
from fedray.core.types import Clients
from fedray.files.plain import expand_user_path
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario
from fedray.simulation.clock import CountingRule
from fedray.simulation.devices import Devices, diurnal_availability, read_trace
from fedray.simulation.profiles import make_profile


def participants_per_tier(scenario: Scenario, clients: Clients) -> list[int]:
    """How many clients of each tier a round waits for."""
    keys = scenario.participation
    if keys.per_round is not None:
        return share_out(clients, keys.per_round)
    if keys.fraction is not None:
        return share_out(clients, max(1, round(keys.fraction * clients.number)))
    return share_out(clients, clients.number)


def warn_of_left_tiers(scenario: Scenario, clients: Clients) -> None:
    """Warns of tiers of which no client ever takes part, because rounds have fewer places than it would need."""
    if scenario.participation.mode != "sync" or method_spec_of(scenario.method.name).walks:
        return
    places = participants_per_tier(scenario, clients)
    left = [tier.name for tier, number in zip(clients.tiers, places, strict=True) if tier.number and not number]
    if left:
        warn_user(
            f"no client of tier {', '.join(left)} ever takes part: rounds of {sum(places)} deal their places to the "
            "tiers by size (largest remainder): raise participation.per_round, or make the tiers more equal"
        )


def invited_per_tier(scenario: Scenario, clients: Clients) -> list[int]:
    """How many clients of each tier are chosen in a round: with over-commitment more than are waited for."""
    return overcommit(clients, participants_per_tier(scenario, clients), scenario.participation.overcommit)


def make_counting_rule(scenario: Scenario, clients: Clients) -> CountingRule:
    """Whose uploads the server will use, of the clients that were chosen."""
    keys = scenario.participation
    first = tuple(participants_per_tier(scenario, clients)) if keys.overcommit > 1 else None
    return CountingRule(first, keys.dropout, keys.deadline)


def make_devices(scenario: Scenario, clients: Clients) -> Devices:
    """What each simulated device is like."""
    keys = scenario.clients
    if keys.profile is not None:
        devices = make_profile(keys.profile, clients, scenario.seed)
    else:
        devices = read_trace(clients, expand_user_path("clients.trace", keys.trace)) if keys.trace else Devices(clients)
    if keys.availability == "diurnal":
        if devices.available is not None:
            raise BadInput("clients.availability = diurnal, but clients.trace has such times: leave one of the two out")
        return replace(devices, available=diurnal_availability())
    return devices
