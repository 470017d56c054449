"""The keys that a scenario leaves out: the defaults of its method, and those that follow from its other keys.

Example:
    >>> with_defaults({"method": {"name": "stacking"}})["clients"]
    {'number': 5}
    >>> with_defaults({"participation": {"per_round": 10}})["schedule"]
    {'rows': 'slot'}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.files.layout import holds_clients
from fedray.scenario.data import data_spec_of
from fedray.scenario.methods import method_spec_of
from fedray.scenario.names import NAMED
from fedray.scenario.nested import Tree, merge_keys

_SIZES = ("share", "number")
GIVES_CLIENTS = ("natural", "column", "file", "flower")  # partitions that say by themselves how many clients there are


def with_defaults(given: Mapping[str, Any]) -> Tree:
    """The given keys with the method's defaults and those that follow from other keys; wrong types are left alone."""
    named = {path[0]: {"name": kind.default} for path, kind in NAMED.items() if len(path) == 1}
    method = _part(given, "method").get("name", NAMED["method",].default)
    out = merge_keys(
        merge_keys(named, {"method": {"name": method}}),
        _for_tiers(method_spec_of(method).defaults, _part(given, "clients", "tiers")),
    )
    if _part(given, "participation").get("fraction") is not None and "participation" in out:  # instead of the method's
        out["participation"] = {**out["participation"], "per_round": None}
    out = merge_keys(out, given)
    data = _part(out, "data")  # the partition is a file, the natural clients of the data, or i.i.d. rows
    if data and isinstance(data.get("partition", {}), Mapping):
        natural = data_spec_of(data.get("name")).natural or data.get("group") is not None
        natural = natural or holds_clients(str(data.get("name")), data.get("path"))
        by_file = "file" in data.get("partition", {})
        partition = {"name": "file" if by_file else "natural" if natural else "iid", **data.get("partition", {})}
        out["data"] = {**data, "partition": partition}
    _fill(out, "local", "epochs", 10, unless=("steps",))
    _fill(out, "clients", "number", _number(out, method), unless=())
    schedule = _part(out, "local", "schedule")  # a rate that falls without restarts reaches its end in the last round
    if schedule.get("kind") in ("cosine", "linear") and not schedule.get("restart"):
        out["local"] = dict(out["local"])
        _fill(out["local"], "schedule", "rounds", out.get("rounds") or 20, unless=())
    if data_spec_of(_part(out, "data").get("name")).toy and _part(out, "data", "partition").get("name") == "natural":
        _fill(out, "data", "clients", _part(out, "clients").get("number"), unless=())
    everyone = _part(out, "clients").get("number", ...)
    share, count = (_part(out, "participation").get(key) for key in ("fraction", "per_round"))
    _fill(out, "participation", "fraction", 1.0, unless=("per_round",))
    full = share in (None, 1) and count in (None, everyone)
    _fill(out, "schedule", "rows", "client" if full else "slot", unless=())
    _fill_server(out, _part(given, "server"))
    return out


def _fill_server(out: Tree, given: Mapping[str, Any]) -> None:
    """Sets the learning rate of the server, and equal weights where its rule does not know others."""
    server = _part(out, "server")
    equal = server.get("robust", "none") != "none" or server.get("coefficients") == "paper_eq2"
    if equal and "weighting" not in given:
        out["server"] = {**server, "weighting": "uniform"}
    _fill(out, "server", "lr", 0.01 if server.get("optimizer") in ("adam", "yogi") else 1.0, unless=())


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
    made = data_spec_of(data).clients
    if made is not None:
        given = _part(tree, "data").get("clients")
        return given if isinstance(given, int) and not isinstance(given, bool) else made
    given = _part(tree, "data", "partition")
    if partition in GIVES_CLIENTS or "file" in given or str(given.get("object")).startswith("flwr_datasets."):
        return None
    return method_spec_of(method).clients


def _for_tiers(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a method's defaults, its tiers fitted to those that are given.

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
