"""The simulated devices of a scenario: what they are like, who is chosen in a round, and who of them counts."""

from __future__ import annotations

from dataclasses import replace

from fedray.components.schedule import Participation, full, overcommitted, sampled, shared_out, strata
from fedray.core.errors import BadInput
from fedray.core.files import user_path
from fedray.core.types import Clients
from fedray.scenario.loader import Scenario
from fedray.simulation.clock import Rule
from fedray.simulation.devices import Devices, diurnal, traced


def per_tier(scenario: Scenario, clients: Clients) -> list[int]:
    """Participants of a round from each tier."""
    keys = scenario.participation
    if keys.per_round is None and keys.fraction is None:
        return shared_out(clients, clients.number)
    return shared_out(clients, keys.per_round or max(1, round(keys.fraction * clients.number)))  # type: ignore[operator]


def chosen(scenario: Scenario, clients: Clients) -> list[int]:
    """How many clients of each tier are chosen in a round: with over-commitment more than are waited for."""
    return overcommitted(clients, per_tier(scenario, clients), scenario.participation.overcommit)


def participation(scenario: Scenario, clients: Clients) -> Participation:
    """Who is chosen in a round."""
    rows, counts = scenario.schedule.rows, chosen(scenario, clients)
    if sum(counts) == clients.number and rows == "client":
        return full(clients)
    return (sampled if rows == "client" else strata)(clients, counts)


def rule(scenario: Scenario, clients: Clients) -> Rule:
    """Which of the chosen count."""
    keys = scenario.participation
    first = tuple(per_tier(scenario, clients)) if keys.overcommit > 1 else None
    return Rule(first, keys.dropout, keys.deadline)


def devices(scenario: Scenario, clients: Clients) -> Devices:
    """What each simulated device is like."""
    keys = scenario.clients
    known = traced(clients, user_path("clients.trace", keys.trace)) if keys.trace else Devices(clients)
    if keys.availability == "diurnal":
        if known.available is not None:
            raise BadInput("clients.availability = diurnal, but clients.trace says when clients are there: drop one")
        return replace(known, available=diurnal())
    return known
