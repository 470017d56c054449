"""Checks of keys against each other, the scenario of pooled data, and the clients of each tier.

Example:
    >>> from fedray.scenario.clients import TierKeys
    >>> tier_counts({"strong": TierKeys(share=0.2), "weak": TierKeys()}, 10)
    {'strong': 2, 'weak': 8}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedray.core.errors import BadInput, quote_value, suggest_nearest
from fedray.core.rounding import round_to_sum
from fedray.core.types import Tier
from fedray.scenario import names
from fedray.scenario.clients import ClientKeys, ParticipationKeys, TierKeys
from fedray.scenario.names import method_spec_of
from fedray.scenario.rows import refuse_wrong
from fedray.scenario.schema import PartitionKeys, Scenario


def check_scenario(scenario: Scenario) -> None:
    """Checks that no keys contradict each other; raises `BadInput` for the first contradiction."""
    kind = scenario.schedule.kind
    if not names.is_known("schedule", kind):
        known = names.known_names("schedule")
        remedy = suggest_nearest(kind, known, "choose one, or --import the module that registers it")
        raise BadInput(f"schedule.kind = {quote_value(kind)} is not one of {', '.join(known)}: {remedy}")
    refuse_wrong(scenario)
    _check_architectures(scenario.method.options.get("networks", ()), scenario.clients.tiers)
    shares = [tier.share for tier in scenario.clients.tiers.values() if tier.share is not None]
    is_open = any(tier.share is None and tier.number is None for tier in scenario.clients.tiers.values())
    total = sum(shares)
    if shares and (total > 1.001 or (total < 0.999 and not is_open)):
        raise BadInput(
            f"clients.tiers.*.share = {total:g} together: make the shares add up to 1 (of the clients that are in no "
            "tier with a number)"
        )
    if scenario.clients.number is not None:
        check_number(scenario, scenario.clients.number)


def _check_architectures(networks: Sequence[Mapping[str, Any]], tiers: Collection[str]) -> None:
    """Checks that either no network names a tier, or each tier is named by exactly one network; else raises `BadInput`.

    Args:
        networks: the value of `method.networks`.
        tiers: names of the tiers of the scenario.
    """
    named = [str(one.get("tier")) for one in networks]
    if any("tier" in one for one in networks) and sorted(named) != sorted(tiers):
        raise BadInput(
            f"method.networks has the tiers {', '.join(named)}, but clients.tiers are {', '.join(tiers) or 'none'}: "
            "name each tier in one network, or none in any"
        )


def pool_clients(scenario: Scenario) -> Scenario:
    """Returns the scenario to build: if the method pools the data, with a single client that holds every sample."""
    if not method_spec_of(scenario.method.name).pooled:
        return scenario
    data, number = scenario.data, scenario.clients.number or 1
    if data.name == "synthetic":  # its clients make their own rows: one client makes everybody's
        more = {"samples": number * data.options["samples"], "per_client": 0, "spread": 0.0}
        data = replace(data, options={**data.options, **more})
    everything = TierKeys(models_per_round="all")
    return replace(
        scenario,
        data=replace(data, partition=PartitionKeys("natural" if data.name == "synthetic" else "iid")),
        clients=ClientKeys(number=1, tiers={"pooled": everything}),
        participation=ParticipationKeys(fraction=1.0),
        schedule=replace(scenario.schedule, kind="permutation", rows="client"),
    )


def check_number(scenario: Scenario, number: int) -> None:
    """Checks keys against N, which is known only after loading the data if the partition is natural."""
    per_round = scenario.participation.per_round
    if per_round is not None and per_round > number:
        raise BadInput(
            f"participation.per_round = {per_round}, but clients.number is {number}: lower it or raise clients.number"
        )
    tier_counts(scenario.clients.tiers, number)


def tier_table(scenario: Scenario, number: int) -> tuple[Tier, ...]:
    """Returns each tier with its number of clients; the numbers add up to N. Without tiers there is one, `client`.

    Args:
        scenario: a checked scenario.
        number: N, from `scenario.clients.number` or from a natural partition.
    """
    check_number(scenario, number)
    tiers = scenario.clients.tiers or {"client": TierKeys()}
    counts = tier_counts(tiers, number)
    return tuple(_tier(name, keys, counts[name]) for name, keys in tiers.items())


def tier_counts(tiers: Mapping[str, TierKeys], number: int) -> dict[str, int]:
    """Counts the clients per tier: `number` first, then shares of the rest (largest remainder), then open tiers."""
    fixed = {name: tier.number for name, tier in tiers.items() if tier.number is not None}
    taken = sum(fixed.values())
    if taken > number or (tiers and len(fixed) == len(tiers) and taken < number):
        shown = ", ".join(list(fixed)[:5])
        raise BadInput(
            f"clients.tiers have {taken} clients in all ({shown}), but clients.number is {number}: "
            "change the number of a tier, or take one out (clients.tiers.NAME=null)"
        )
    rest = number - taken
    shares = {name: tier.share for name, tier in tiers.items() if tier.share is not None}
    open_tiers = [name for name in tiers if name not in fixed and name not in shares]
    total = sum(shares.values())
    left = max(0.0, 1.0 - total) if open_tiers else 0.0
    weights = {**shares, **{name: left / len(open_tiers) for name in open_tiers}}
    dealt = _deal_clients({name: weights[name] for name in tiers if name in weights}, rest)
    return {name: fixed.get(name, dealt.get(name, 0)) for name in tiers}


def _deal_clients(weights: Mapping[str, float], number: int) -> dict[str, int]:
    """Deals clients to tiers in proportion to weights; among equal remainders the larger weight comes first."""
    total = sum(weights.values())
    if not weights or total <= 0:
        return dict.fromkeys(weights, 0)
    names = sorted(weights, key=lambda name: -weights[name])
    counts = round_to_sum(np.array([weights[name] / total * number for name in names]), number)
    return dict(zip(names, counts.tolist(), strict=True))


def _tier(name: str, keys: TierKeys, number: int) -> Tier:
    models = None if isinstance(keys.models_per_round, str) else keys.models_per_round
    same = {key: value for key, value in asdict(keys).items() if key != "share"}
    return Tier(**same | {"name": name, "number": number, "models_per_round": models})
