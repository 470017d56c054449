"""What keys say about each other: defaults that follow from other keys, contradictions, and clients per tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.types import Tier
from fedray.scenario.defaults import DEFAULTS, NATURAL, NUMBER, ONLY_ONE, OWN_SERVER, POOLED, POPULATION, TOYS
from fedray.scenario.names import METHOD_TEXTS
from fedray.scenario.nested import Tree, merge_keys
from fedray.scenario.random_walk import GraphKeys
from fedray.scenario.schema import ClientKeys, ParticipationKeys, PartitionKeys, Scenario, TierKeys
from fedray.scenario.stacking import check_stacking


def with_defaults(given: Mapping[str, Any]) -> Tree:
    """The given keys with the method's defaults and those that follow from other keys; wrong types are left alone."""
    named = {"method": {"name": "fed_ensemble"}, "data": {"name": "digits"}, "model": {"name": "mlp"}}
    method = _part(given, "method").get("name", "fed_ensemble")
    defaults = DEFAULTS.get(method, {}) if isinstance(method, str) else {}
    out = merge_keys(
        merge_keys(named, {"method": {"name": method}}), _for_tiers(defaults, _part(given, "clients", "tiers"))
    )
    out = merge_keys(out, given)
    data = _part(out, "data")
    if isinstance(data.get("partition", {}), Mapping) and data:
        natural = data.get("name") in NATURAL
        partition = {"name": "natural" if natural else "iid", **data.get("partition", {})}
        out["data"] = {**data, "partition": partition}
    _fill(out, "local", "epochs", 10, unless=("steps",))
    _fill(out, "clients", "number", _number(out, method), unless=())
    if data.get("name") in TOYS and _part(out, "data", "partition").get("name") == "natural":
        _fill(out, "data", "clients", _part(out, "clients").get("number"), unless=())
    everyone = _part(out, "clients").get("number", ...)
    share, count = (_part(out, "participation").get(key) for key in ("fraction", "per_round"))
    _fill(out, "participation", "fraction", 1.0, unless=("per_round",))
    full = share in (None, 1) and count in (None, everyone)
    _fill(out, "schedule", "rows", "client" if full else "stratum", unless=())
    slow = _part(out, "server").get("optimizer") in ("adam", "yogi")
    _fill(out, "server", "lr", 0.01 if slow else 1.0, unless=())
    return out


def check_scenario(scenario: Scenario) -> None:
    """Raises `BadInput` for the first contradiction between keys."""
    method, local, participation = scenario.method, scenario.local, scenario.participation
    if method.models > 1 and method.name in ONLY_ONE:
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
    _check_walk(scenario)
    check_stacking(scenario)
    for name, tier in scenario.clients.tiers.items():
        key = f"clients.tiers.{name}"
        if tier.share is not None and tier.number is not None:
            raise BadInput(f"{key}.share = {tier.share}, but {key}.number is {tier.number}: give one of the two")
        if isinstance(tier.models_per_round, int) and tier.models_per_round > method.models:
            raise BadInput(
                f"{key}.models_per_round = {tier.models_per_round}, but method.models is {method.models}: "
                "lower it or write all"
            )
    _check_shares(scenario.clients.tiers)
    if scenario.clients.number is not None:
        check_number(scenario, scenario.clients.number)


def _check_server(scenario: Scenario) -> None:
    """Servers that contradict each other, or that the method does not have."""
    keys, name = scenario.server, scenario.method.name
    for key, value in (("robust", keys.robust), ("optimizer", keys.optimizer)):
        if value != "none" and name in OWN_SERVER:
            raise BadInput(f"server.{key} = {value}, but {name} has a server of its own: leave it at none")
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
                f"server.robust = {keys.robust}, but server.{key} is {value}: every upload weighs the same: "
                f"set it to {plain}"
            )


def _check_walk(scenario: Scenario) -> None:
    """Graphs where there is a server, and servers' keys where there is none."""
    name, keys = scenario.method.name, scenario.participation
    if scenario.schedule.kind != "walk":
        if name == "random_walk":
            raise BadInput(f"schedule.kind = {scenario.schedule.kind}, but random_walk has no server: leave it at walk")
        changed = [f.name for f in fields(GraphKeys) if getattr(scenario.graph, f.name) != getattr(GraphKeys(), f.name)]
        if changed:
            value = getattr(scenario.graph, changed[0])
            raise BadInput(
                f"graph.{changed[0]} = {value}, but {name} has a server: leave it out, or choose random_walk"
            )
        return
    if name in METHOD_TEXTS and name != "random_walk":
        raise BadInput(f"schedule.kind = walk, but {name} has a server: leave it out, or choose random_walk")
    everyone = keys.fraction in (None, 1.0) and keys.per_round in (None, scenario.clients.number)
    for key, ok in (("fraction", everyone), ("overcommit", keys.overcommit == 1), ("dropout", not keys.dropout),
                    ("deadline", keys.deadline is None)):  # fmt: skip
        if not ok:
            raise BadInput(
                f"participation.{key} = {getattr(keys, key)}, but in a random walk those take part who hold a model: "
                "leave it out (graph.node_failure and graph.edge_failure make clients and links fail)"
            )
    if scenario.client_timeout is not None and scenario.runtime == "ray":
        raise BadInput(
            f"client_timeout = {scenario.client_timeout:g}, but holders on Ray train outside their main threads, where "
            "no limit is kept: leave it out, or set runtime=inline"
        )
    for tier, one in scenario.clients.tiers.items():
        if one.models_per_round != 1:
            raise BadInput(
                f"clients.tiers.{tier}.models_per_round = {one.models_per_round}, but in a random walk a client trains "
                "the models that it holds: leave it out"
            )


def pool_clients(scenario: Scenario) -> Scenario:
    """The scenario as it is built: a method that trains on the pooled data has one client, which holds every row."""
    if scenario.method.name not in POOLED:
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
        raise BadInput(f"clients.tiers hold {taken} clients, but clients.number is {number}: lower one of the tiers")
    if tiers and len(fixed) == len(tiers) and taken < number:
        raise BadInput(f"clients.tiers hold {taken} clients, but clients.number is {number}: raise one of the tiers")
    rest = number - taken
    shares = {name: tier.share for name, tier in tiers.items() if tier.share is not None}
    open_tiers = [name for name in tiers if name not in fixed and name not in shares]
    total = sum(shares.values())
    left = max(0.0, 1.0 - total) if open_tiers else 0.0
    weights = {**shares, **{name: left / len(open_tiers) for name in open_tiers}}
    dealt = _largest_remainder({name: weights[name] for name in tiers if name in weights}, rest)
    return {name: fixed.get(name, dealt.get(name, 0)) for name in tiers}


def _largest_remainder(weights: Mapping[str, float], rest: int) -> dict[str, int]:
    total = sum(weights.values())
    if not weights or total <= 0:
        return dict.fromkeys(weights, 0)
    quota = {name: weight / total * rest for name, weight in weights.items()}
    counts = {name: int(q + 1e-9) for name, q in quota.items()}
    by_remainder = sorted(quota, key=lambda name: (counts[name] - quota[name], -weights[name]))
    for i in range(rest - sum(counts.values())):
        counts[by_remainder[i % len(by_remainder)]] += 1
    return counts


def _check_shares(tiers: Mapping[str, TierKeys]) -> None:
    shares = [tier.share for tier in tiers.values() if tier.share is not None]
    is_open = any(tier.share is None and tier.number is None for tier in tiers.values())
    total = sum(shares)
    if shares and (total > 1.001 or (total < 0.999 and not is_open)):
        names = ", ".join(name for name, tier in tiers.items() if tier.share is not None)
        raise BadInput(
            f"clients.tiers.*.share = {total:g} in sum over {names[:100]}: shares of the clients that no number claims "
            "add up to 1"
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
    )


def _part(tree: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    at: Any = tree
    for key in path:
        at = at.get(key) if isinstance(at, Mapping) else None
    return at if isinstance(at, Mapping) else {}


def _fill(tree: Tree, section: str, key: str, value: Any, unless: tuple[str, ...]) -> None:
    """Sets a key of a section that has neither it nor one of `unless`; a section of a wrong type is left alone."""
    old = tree.get(section, {})
    if isinstance(old, Mapping) and value is not None and all(old.get(k) is None for k in (key, *unless)):
        tree[section] = {**old, key: value}


def _number(tree: Mapping[str, Any], method: object) -> int | None:
    """N when nobody says it: what the tiers add up to, what a natural partition will give (None), or a default."""
    tiers = [_part(tier).get("number") for tier in _part(tree, "clients", "tiers").values()]
    counted = [number for number in tiers if isinstance(number, int) and not isinstance(number, bool)]
    if tiers and len(counted) == len(tiers):
        return sum(counted) or None
    data, partition = (_part(tree, *path).get("name") for path in (("data",), ("data", "partition")))
    if isinstance(data, str) and data in POPULATION:
        asked = _part(tree, "data").get("clients")
        return asked if isinstance(asked, int) and not isinstance(asked, bool) else POPULATION[data]
    if partition in ("natural", "column"):
        return None
    return NUMBER.get(method, 100) if isinstance(method, str) else 100


def _for_tiers(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A method's defaults, its tiers fitted to those that are given.

    Tiers of other names replace the default ones; a given share or number takes the place of all default shares.
    """
    tiers = _part(defaults, "clients", "tiers")
    if not tiers or not given:
        return defaults
    if set(given) - set(tiers):
        tiers = {name: keys for name, keys in tiers.items() if name in given}
    if any(_part(keys).get(key) is not None for keys in given.values() if isinstance(keys, Mapping) for key in _SIZES):
        tiers = {name: {k: v for k, v in keys.items() if k not in _SIZES} for name, keys in tiers.items()}
    return {**defaults, "clients": {**defaults["clients"], "tiers": tiers}}


_SIZES = ("share", "number")
