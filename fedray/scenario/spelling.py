"""Sections that are one word or one number, spelled out: `method: fedavg` is `method: {name: fedavg}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.scenario.names import NameKind
from fedray.scenario.nested import Tree

_SHORT = {  # what a section means that is one word or one number: `method: fedavg`, `clients: 50`
    "method": "name",
    "data": "name",
    "data.partition": "name",
    "participation.selection": "name",
    "model": "name",
    "clients": "number",
    "local.schedule": "kind",
}
NESTED: dict[str, NameKind] = {"data": "partition", "participation": "selection"}  # sections with names in others


def spell_sections(tree: Mapping[str, Any], path: str = "") -> Tree:
    """The keys with every section spelled out that is one word or one number.

    Args:
        tree: plain values, nested or with dotted keys.
        path: where they stand.

    Example:
        >>> spell_sections({"method": "fedavg", "data": {"partition": "iid"}, "clients": 50})
        {'method': {'name': 'fedavg'}, 'data': {'partition': {'name': 'iid'}}, 'clients': {'number': 50}}
        >>> spell_sections({"method": "fedprox", "method.mu": 0.1})
        {'method': {'name': 'fedprox'}, 'method.mu': 0.1}
    """
    out: Tree = {}
    for key, value in tree.items():
        short = _SHORT.get(f"{path}{key}")
        if isinstance(value, Mapping):
            out[key] = spell_sections(value, f"{path}{key}.") if f"{path}{key}" in (*NESTED, "local") else value
        elif short is not None and isinstance(value, int | float if short == "number" else str):
            out[key] = {short: value}
        else:
            out[key] = value
    return out
