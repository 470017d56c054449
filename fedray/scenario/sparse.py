"""A scenario as the keys that make it, for files that people go on with: what a method sets by itself is not in them.

So another method gets its own defaults in such a file, where a resolved scenario keeps those of the first.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"method": {"name": "shefl", "models": 3}, "rounds": 9})
    >>> drop_defaults(scenario)
    {'rounds': 9, 'method': {'name': 'shefl', 'models': 3}, 'data': {'name': 'digits'}, 'model': {'name': 'mlp'}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedray.core.errors import BadInput
from fedray.scenario.explicit import is_dump
from fedray.scenario.loader import read_scenario, to_plain
from fedray.scenario.methods import method_spec_of
from fedray.scenario.nested import KeyPath, Tree, find_changes, flatten, merge_keys
from fedray.scenario.relevance import find_idle_keys
from fedray.scenario.schema import Scenario

_NAMED = ("method", "data", "model")  # sections that stay, and their names


def drop_defaults(scenario: Scenario, given: Mapping[str, Any] | None = None) -> Tree:
    """The keys of a scenario, as a tree that reads as it, without those that are the defaults of its method.

    Keys that cannot act are left out too.

    Args:
        scenario: resolved, without a table.
        given: keys that a user has set, of which only those are left out that the method sets to the same value; None,
            or a resolved scenario: nobody knows, and all defaults are left out.
    """
    resolved = to_plain(replace(scenario, table=[]))
    if given is None or is_dump(given, resolved):
        tree, paths = resolved, list(_list_paths(resolved))
    else:
        tree = merge_keys(given, find_changes(to_plain(read_scenario(given, explicit=False)), resolved))
        paths = _list_shared(tree, method_spec_of(scenario.method.name).defaults)
    for path in dict.fromkeys(paths):
        less = _without(tree, path)
        if less != tree and _reads_as(less, scenario):
            tree = less
    for one in find_idle_keys(tree, scenario):
        tree = _without(tree, tuple(one.key.split(".")))
    return tree


def _list_paths(tree: Mapping[str, Any], path: KeyPath = ()) -> Iterator[KeyPath]:
    """All sections and keys, a section before its keys."""
    for key, value in tree.items():
        here = (*path, key)
        if here[0] not in _NAMED or (len(here) > 1 and here[1:] != ("name",)):
            yield here
        if isinstance(value, Mapping):
            yield from _list_paths(value, here)


def _list_shared(tree: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[KeyPath]:
    """The keys of a tree that a method sets by itself, outside of its section, and the sections that hold no others."""
    shared = [key for key in flatten(tree) if key in flatten(defaults) and not key.startswith("method.")]
    sections = {key.rpartition(".")[0] for key in shared} | {key.split(".")[0] for key in shared} | {"clients.tiers"}
    whole = [one for one in sections if one and all(k in shared for k in flatten(tree) if k.startswith(f"{one}."))]
    return [tuple(key.split(".")) for key in (*sorted(whole), *shared)]


def _without(tree: Mapping[str, Any], path: KeyPath) -> Tree:
    """The tree without a section or a key; the same where it has none."""
    out = dict(tree)
    if path[0] in out and len(path) == 1:
        del out[path[0]]
    elif isinstance(out.get(path[0]), Mapping):
        out[path[0]] = _without(out[path[0]], path[1:])
        if not out[path[0]]:
            del out[path[0]]
    return out


def _reads_as(tree: Mapping[str, Any], scenario: Scenario) -> bool:
    try:
        return read_scenario(tree, explicit=False) == replace(scenario, table=[])
    except BadInput:  # it needs the key
        return False
