"""Operations on nested dicts: plain copies, merging, differences, dotted keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from fedray.core.errors import BadInput, quote_value
from fedray.own_code.user_code import name_type
from fedray.scenario.names import NAMED, trains_one_model
from fedray.scenario.yaml_text import MOST_VALUES

Tree = dict[str, Any]
KeyPath = tuple[str, ...]
MOST_DEPTH = 12


def dotted_key(path: KeyPath) -> str:
    """Joins a path to a dotted key, such as `clients.tiers`; odd keys are quoted, a list entry is `table[0]`."""
    parts = [p if p.startswith("[") or (p.isprintable() and len(p) <= 60) else quote_value(p) for p in path]
    return ".".join(parts).replace(".[", "[")


def to_plain_values(value: Any, path: KeyPath = (), count: list[int] | None = None) -> Any:
    """Returns a copy that consists of dict, list, str, int, float, bool and None only, with bounded size and depth.

    Args:
        value: any object.
        path: the path of keys to the value, for messages.
        count: counts the values that were copied so far.
    """
    count = [0] if count is None else count
    count[0] += 1
    if count[0] > MOST_VALUES or len(path) > MOST_DEPTH:
        raise BadInput(f"{dotted_key(path[:3])} holds too many values: {MOST_VALUES} at most, {MOST_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {_key(k, path): to_plain_values(v, (*path, _key(k, path)), count) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_values(v, (*path, f"[{i}]"), count) for i, v in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PurePath):
        value = str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if isinstance(value, float) and not math.isnan(value):
        return float(value)
    if isinstance(value, str) and len(value) <= 10_000 and _encodable(value):
        return str(value)
    name = dotted_key(path) or "the scenario"
    raise BadInput(
        f"{name} = {_safely_shown(value)} cannot be used: give a number of ordinary size, text, list or mapping"
    )


def merge_keys(base: Mapping[str, Any], over: Mapping[str, Any], path: KeyPath = ()) -> Tree:
    """Returns `base` with the keys of `over`, merged section by section.

    The value None removes a key; its default then applies. If `over` changes the `name` of a section with options, the
    section starts empty. Of two keys that exclude each other (epochs and steps, ...) the key of `over` stays.

    Args:
        base: a tree of keys.
        over: a tree of keys that win.
        path: the path of keys to both trees.

    Example:
        >>> merge_keys({"local": {"epochs": 3, "lr": 0.1}}, {"local": {"steps": 5}})
        {'local': {'lr': 0.1, 'steps': 5}}
    """
    out = dict(base)
    if is_renamed(base, over, path):
        kept = NAMED[path].kept
        if path == ("method",) and not (trains_one_model(base.get("name")) or trains_one_model(over["name"])):
            kept = ("models",)  # K survives between two ensembles
        out = {key: value for key, value in base.items() if key in kept}
    for one, other in (name_pair(path), name_pair(path)[::-1]):
        if over.get(one) is not None:
            out.pop(other, None)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            old = out.get(key)
            out[key] = merge_keys(old if isinstance(old, Mapping) else {}, value, (*path, key))
        else:
            out[key] = value
    return out


def name_pair(path: KeyPath) -> tuple[str, str]:
    """Returns the two keys of a section that exclude each other."""
    if len(path) == 3 and path[:2] == ("clients", "tiers"):
        return "share", "number"
    pairs: dict[KeyPath, tuple[str, str]] = {
        ("local",): ("epochs", "steps"),
        ("participation",): ("per_round", "fraction"),
    }
    return pairs.get(path, ("", ""))


def is_renamed(base: Mapping[str, Any], over: Mapping[str, Any], path: KeyPath) -> bool:
    """Returns whether `over` gives a section with options another name.

    Args:
        base: a section.
        over: the keys that win.
        path: the path of keys to both.
    """
    if path not in NAMED:
        return False
    names = base.get("name", NAMED[path].default), over.get("name")
    return all(isinstance(name, str) for name in names) and names[0] != names[1]


def find_changes(base: Mapping[str, Any], cell: Mapping[str, Any], path: KeyPath = ()) -> Tree:
    """Returns the keys to merge into `base` to get `cell`: changed keys, and None for keys that `cell` lacks.

    Args:
        base: a tree of keys.
        cell: another tree of keys.
        path: the path of keys to both trees.
    """
    out: Tree = {key: None for key in base if key not in cell}
    if is_renamed(base, cell, path):
        out = {}
    for key, value in cell.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            changed = find_changes(base[key], value, (*path, key))
            if changed:
                out[key] = changed
        elif key not in base or base[key] != value or is_renamed(base, cell, path):
            out[key] = value
    return out


def expand(overrides: Mapping[str, Any]) -> Tree:
    """Returns dotted keys as nested dicts.

    Example:
        >>> expand({"local.lr": 0.1, "local": {"steps": 3}})
        {'local': {'lr': 0.1, 'steps': 3}}
    """
    out: Tree = {}
    for key, value in overrides.items():
        parts = tuple(key.split("."))
        if not all(parts):
            raise BadInput(f"{quote_value(key)} is not a key: write it like local.lr")
        at = out
        for i, part in enumerate(parts[:-1]):
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise BadInput(
                    f"{dotted_key(parts[: i + 1])} is set as a whole and again as {dotted_key(parts)}: "
                    "use one of the two"
                )
        last, old = parts[-1], at.get(parts[-1])
        if last in at and not (isinstance(old, dict) and isinstance(value, Mapping)):
            raise BadInput(f"{dotted_key(parts)} is set twice: use one of the two")
        at[last] = {**old, **value} if isinstance(old, dict) else dict(value) if isinstance(value, Mapping) else value
    return out


def flatten(tree: Mapping[str, Any], path: str = "") -> Tree:
    """Returns nested dicts as dotted keys, the reverse of `expand`; a mapping with dots in its keys stays whole."""
    out: Tree = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and not any("." in inner or not inner for inner in value):
            out |= flatten(value, f"{path}{key}.")
        else:
            out[f"{path}{key}"] = value
    return out


def _key(key: object, path: KeyPath) -> str:
    if isinstance(key, int) and not isinstance(key, bool):
        key = _safely_shown(key)
    if not isinstance(key, str) or len(key) > 200 or not _encodable(key):
        raise BadInput(
            f"{dotted_key(path) or 'the scenario'} has the key {_safely_shown(key)}, which is not text: "
            "put it in quotes"
        )
    return str(key)


def _safely_shown(value: object) -> str:
    """Returns a plain value as it is, and the type of any other object, for messages."""
    return quote_value(value) if isinstance(value, bool | int | float | str) else name_type(value)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
