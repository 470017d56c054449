"""Checks of keys against each other, the scenario of pooled data, and the clients of each tier.

Example:
    >>> from fedray.scenario.clients import TierKeys
    >>> tier_counts({"strong": TierKeys(share=0.2), "weak": TierKeys()}, 10)
    {'strong': 2, 'weak': 8}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.rounding import round_to_sum
from fedray.core.text import quote_value, suggest_nearest
from fedray.core.types import Tier
from fedray.methods import METHOD_SPECS
from fedray.scenario import names
from fedray.scenario.asynchronous import check_asynchronous
from fedray.scenario.clients import ClientKeys, ParticipationKeys, TierKeys
from fedray.scenario.conformal import check_conformal
from fedray.scenario.methods import method_spec_of
from fedray.scenario.random_walk import GraphKeys
from fedray.scenario.schema import PartitionKeys, Scenario
from fedray.scenario.stacks import check_stacking, is_stack


def check_scenario(scenario: Scenario) -> None:
    """Raises `BadInput` for the first contradiction between keys."""
    method, local, participation = scenario.method, scenario.local, scenario.participation
    if method.models > 1 and method_spec_of(method.name).models != "any":
        raise BadInput(
            f"method.models = {method.models}, but {method.name} trains one model: leave it out or choose fed_ensemble"
        )
    if local.epochs is not None and local.steps is not None:
        raise BadInput(f"local.steps = {local.steps}, but local.epochs is {local.epochs}: give one of the two")
    if participation.per_round is not None and participation.fraction is not None:
        raise BadInput(
            f"participation.fraction = {participation.fraction}, but participation.per_round is "
            f"{participation.per_round}: give one of the two"
        )
    _check_server(scenario)
    _check_schedule(scenario)
    if scenario.clients.profile is not None and scenario.clients.trace is not None:
        raise BadInput(
            f"clients.profile = {scenario.clients.profile}, but clients.trace says what the devices are like: leave "
            "one of the two out"
        )
    _check_walk(scenario)
    check_asynchronous(scenario)
    _check_selection(scenario)
    check_stacking(scenario)
    _check_architectures(method.options.get("networks", ()), scenario.clients.tiers)
    _check_boosting(scenario)
    check_conformal(scenario.predict.conformal, scenario.data.hold_out)
    _check_dropout(scenario)
    _check_tiers(scenario)
    if scenario.clients.number is not None:
        check_number(scenario, scenario.clients.number)


def _check_selection(scenario: Scenario) -> None:
    """Refuses a client selection where something else chooses the clients, or keeps the losses.

    Raises:
        BadInput: One line with the reason.
    """
    keys = scenario.participation.selection
    if keys.name == "uniform" and keys.object is None:
        return
    key = f"participation.selection.name = {keys.name}"
    if scenario.schedule.kind == "walk":
        raise BadInput(f"{key}, but in a random walk the holders of models take part: leave it out")
    if scenario.schedule.rows == "stratum":
        raise BadInput(
            f"{key}, but schedule.rows is stratum, whose strata choose one client each: set schedule.rows to slot or "
            "client, or leave the selection at uniform"
        )
    if is_stack(scenario) and keys.name != "fair":
        raise BadInput(f"{key}, but the bases of a stack have losses of their own: choose uniform or fair")


def _check_architectures(networks: Sequence[Mapping[str, Any]], tiers: Collection[str]) -> None:
    """Raises `BadInput` unless either no network names a tier, or each tier is named by exactly one of them.

    Args:
        networks: `method.networks`.
        tiers: names of the tiers of the scenario.
    """
    named = [one.get("tier") for one in networks]
    if not any(named):
        return
    for i, name in enumerate(named):
        key = f"method.networks[{i}].tier"
        if name is None:
            raise BadInput(f"{key} is missing, but other networks name a tier: name one in each, or in none")
        if name not in tiers:
            raise BadInput(
                f"{key} = {name} is no tier of clients.tiers ({', '.join(tiers) or 'none'}): name one of them"
            )
        if name in named[:i]:
            raise BadInput(f"{key} = {name}, but another network has the clients of this tier: name another tier")
    left = [tier for tier in tiers if tier not in named]
    if left:
        raise BadInput(f"method.networks names no network for clients.tiers.{left[0]}: add one with tier: {left[0]}")


def _check_boosting(scenario: Scenario) -> None:
    """Raises `BadInput` for the first key that has no meaning where clients fit learners."""
    name, selection = scenario.method.name, scenario.participation.selection
    if not method_spec_of(name).fits:
        return
    if not scenario.rounds:
        raise BadInput(f"rounds = 0, but {name} adds its learners in rounds: give at least 1")
    if selection.name != "uniform" or selection.object is not None:
        raise BadInput(
            f"participation.selection.name = {selection.name}, but {name} counts the bytes of clients that come back, "
            "and must know who took part before: leave it at uniform"
        )


def _check_dropout(scenario: Scenario) -> None:
    """Raises `BadInput` where dropout cannot stay on in answers."""
    name, spec = scenario.method.name, method_spec_of(scenario.method.name)
    if scenario.predict.dropout_at_test and (spec.asks or spec.parts):
        why = "whose clients would train by such answers" if spec.asks else "whose networks are parts of a stack"
        raise BadInput(f"predict.dropout_at_test = true, but method {name}, {why}, cannot use it: leave it out")


def _check_tiers(scenario: Scenario) -> None:
    """Tiers of no clear size, or that train more models in a round than there are."""
    for name, tier in scenario.clients.tiers.items():
        key = f"clients.tiers.{name}"
        if tier.share is not None and tier.number is not None:
            raise BadInput(f"{key}.share = {tier.share}, but {key}.number is {tier.number}: give one of the two")
        if isinstance(tier.models_per_round, int) and tier.models_per_round > scenario.method.models:
            raise BadInput(
                f"{key}.models_per_round = {tier.models_per_round}, but method.models is {scenario.method.models}: "
                "lower it or write all"
            )
    _check_shares(scenario.clients.tiers)


def _check_server(scenario: Scenario) -> None:
    """Servers that contradict each other, or that the method does not have; uploads that it cannot read."""
    keys, name, spec = scenario.server, scenario.method.name, method_spec_of(scenario.method.name)
    for key, value in (("robust", keys.robust), ("optimizer", keys.optimizer)):
        if value != "none" and not (spec.robust if key == "robust" else spec.optimizer):
            raise BadInput(f"server.{key} = {value}, but {name} has a server step of its own: leave it at none")
    kind = scenario.compress.kind
    if kind in ("topk", "randomk") and not spec.sparse:
        raise BadInput(
            f"compress.kind = {kind}, but a part of what clients of {name} send says nothing without the rest: "
            "set it to int8 or dense"
        )
    if keys.coefficients == "paper_eq2" and keys.weighting != "uniform":
        raise BadInput(
            f"server.weighting = {keys.weighting}, but server.coefficients is paper_eq2, which weighs every upload by "
            "its tier: set it to uniform"
        )
    if keys.robust == "none":
        return
    for key, value, plain in (
        ("coefficients", keys.coefficients, "fedavg"),
        ("weighting", keys.weighting, "uniform"),
    ):
        if value != plain:
            raise BadInput(
                f"server.robust = {keys.robust}, but server.{key} is {value}, and a robust server gives uploads the "
                f"same weight: set server.{key} to {plain}"
            )


def _check_schedule(scenario: Scenario) -> None:
    """An unknown kind of schedule."""
    kind = scenario.schedule.kind
    if not names.is_known("schedule", kind):
        known = names.known_names("schedule")
        remedy = suggest_nearest(kind, known, "choose one, or --import the module that registers it")
        raise BadInput(f"schedule.kind = {quote_value(kind)} is not one of {', '.join(known)}: {remedy}")


def _check_walk(scenario: Scenario) -> None:
    """Graphs where there is a server, and servers' keys where there is none."""
    name, keys = scenario.method.name, scenario.participation
    if scenario.schedule.kind != "walk":
        if method_spec_of(name).walks:
            raise BadInput(f"schedule.kind = {scenario.schedule.kind}, but {name} has no server: leave it at walk")
        changed = [f.name for f in fields(GraphKeys) if getattr(scenario.graph, f.name) != getattr(GraphKeys(), f.name)]
        if changed:
            value = getattr(scenario.graph, changed[0])
            raise BadInput(
                f"graph.{changed[0]} = {value}, but {name} uses no graph: leave it out, or choose method random_walk"
            )
        return
    if name in METHOD_SPECS and not METHOD_SPECS[name].walks:
        raise BadInput(f"schedule.kind = walk, but {name} has a server: leave it out, or choose random_walk")
    everyone = {
        "fraction": keys.fraction in (None, 1.0),
        "per_round": keys.per_round in (None, scenario.clients.number),
        "overcommit": keys.overcommit == 1,
        "dropout": not keys.dropout,
        "deadline": keys.deadline is None,
    }
    for key, ok in everyone.items():
        if not ok:
            raise BadInput(
                f"participation.{key} = {getattr(keys, key)}, but in a random walk the holders of models take part: "
                "leave it out (graph.node_failure and graph.edge_failure make clients and links fail)"
            )
    if scenario.client_timeout is not None and scenario.runtime == "ray":
        raise BadInput(
            f"client_timeout = {scenario.client_timeout:g}, but a random walk on Ray cannot stop a client that takes "
            "too long: leave it out, or set runtime to inline"
        )
    for tier, one in scenario.clients.tiers.items():
        if one.models_per_round != 1:
            raise BadInput(
                f"clients.tiers.{tier}.models_per_round = {one.models_per_round}, but in a random walk a client trains "
                "the models that it holds: leave it out"
            )


def pool_clients(scenario: Scenario) -> Scenario:
    """The scenario as it is built: a method that trains on the pooled data has one client, which holds every row."""
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
    """Contradictions that need N, which a natural partition gives only when the data has been read."""
    per_round = scenario.participation.per_round
    if per_round is not None and per_round > number:
        raise BadInput(
            f"participation.per_round = {per_round}, but clients.number is {number}: lower it or raise clients.number"
        )
    tier_counts(scenario.clients.tiers, number)


def tier_table(scenario: Scenario, number: int) -> tuple[Tier, ...]:
    """The tiers with their numbers of clients, which add up to `number`; without tiers one, `client`.

    Args:
        scenario: a checked scenario.
        number: N, `scenario.clients.number` or what a natural partition gives.
    """
    check_number(scenario, number)
    tiers = scenario.clients.tiers or {"client": TierKeys()}
    counts = tier_counts(tiers, number)
    return tuple(_tier(name, keys, counts[name]) for name, keys in tiers.items())


def tier_counts(tiers: Mapping[str, TierKeys], number: int) -> dict[str, int]:
    """Clients per tier: `number` first, then shares of the rest (largest remainder), then open tiers evenly."""
    for name, tier in tiers.items():
        if tier.number is not None and tier.number > number:
            raise BadInput(
                f"clients.tiers.{name}.number = {tier.number}, but clients.number is {number}: "
                "lower it or raise clients.number"
            )
    fixed = {name: tier.number for name, tier in tiers.items() if tier.number is not None}
    taken = sum(fixed.values())
    if taken > number:
        shown = ", ".join(list(fixed)[:5])
        raise BadInput(
            f"clients.tiers have {taken} clients in all ({shown}), but clients.number is {number}: "
            "lower a tier, or take one out (clients.tiers.NAME=null)"
        )
    if tiers and len(fixed) == len(tiers) and taken < number:
        raise BadInput(f"clients.tiers have {taken} clients in all, but clients.number is {number}: raise a tier")
    rest = number - taken
    shares = {name: tier.share for name, tier in tiers.items() if tier.share is not None}
    open_tiers = [name for name in tiers if name not in fixed and name not in shares]
    total = sum(shares.values())
    left = max(0.0, 1.0 - total) if open_tiers else 0.0
    weights = {**shares, **{name: left / len(open_tiers) for name in open_tiers}}
    dealt = _deal_clients({name: weights[name] for name in tiers if name in weights}, rest)
    return {name: fixed.get(name, dealt.get(name, 0)) for name in tiers}


def _deal_clients(weights: Mapping[str, float], number: int) -> dict[str, int]:
    """Clients of each tier in proportion to the weights; of equal remainders that of the larger weight counts first."""
    total = sum(weights.values())
    if not weights or total <= 0:
        return dict.fromkeys(weights, 0)
    names = sorted(weights, key=lambda name: -weights[name])
    counts = round_to_sum(np.array([weights[name] / total * number for name in names]), number)
    return dict(zip(names, counts.tolist(), strict=True))


def _check_shares(tiers: Mapping[str, TierKeys]) -> None:
    shares = [tier.share for tier in tiers.values() if tier.share is not None]
    is_open = any(tier.share is None and tier.number is None for tier in tiers.values())
    total = sum(shares)
    if shares and (total > 1.001 or (total < 0.999 and not is_open)):
        names = ", ".join(name for name, tier in tiers.items() if tier.share is not None)
        raise BadInput(
            f"clients.tiers.*.share = {total:g} for {names[:100]} together: make these shares add up to 1 (of the "
            "clients that are in no tier with a number)"
        )


def _tier(name: str, keys: TierKeys, number: int) -> Tier:
    return Tier(
        name=name,
        number=number,
        models_per_round=None if isinstance(keys.models_per_round, str) else keys.models_per_round,
        num_cpus=keys.num_cpus,
        num_gpus=keys.num_gpus,
        resources=dict(keys.resources),
        seconds_per_step=keys.seconds_per_step,
        seconds_per_sample=keys.seconds_per_sample,
        spread=keys.spread,
        uplink=keys.uplink,
        downlink=keys.downlink,
        latency=keys.latency,
        side_by_side=keys.side_by_side,
        width=keys.width,
    )
