"""Keys without a value, which remove what stands there: unknown ones are refused as those with a value are.

Example:
    >>> refuse_unknown_nulls([{"local": {"lr": None}}])
    >>> refuse_unknown_nulls([{"roundz": None}])
    Traceback (most recent call last):
    fedray.core.errors.BadInput: roundz is not a key of a scenario: did you mean rounds?
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedray.core.errors import BadInput
from fedray.scenario import names
from fedray.scenario.nested import DEFAULT_NAMES, KeyPath, dotted_key
from fedray.scenario.options import list_keys
from fedray.scenario.schema import section_fields, section_types
from fedray.scenario.unknown_keys import explain_unknown_key

_KINDS: dict[KeyPath, names.NameKind] = {  # what a section names, whose options stand beside the name
    ("method",): "method",
    ("data",): "data",
    ("data", "partition"): "partition",
    ("participation", "selection"): "selection",
    ("model",): "model",
}
_BY_KEYS = ("natural", "file")  # partitions that other keys name


def refuse_unknown_nulls(trees: Sequence[Mapping[str, Any]], own: Collection[str] = ()) -> None:
    """Refuses keys without a value that their section does not have.

    A key may be an option of any name that one of the trees gives the section: it may remove what another tree set.

    Args:
        trees: what is merged, with sections spelled out: a file, and what overrides it.
        own: which of data, model and method are Python objects, which may have any option.

    Raises:
        BadInput: names the key, and the nearest one there is.
    """
    for tree in trees:
        _check_section(tree, (), trees, own)


def _check_section(section: Mapping[str, Any], path: KeyPath, trees: Sequence[Any], own: Collection[str]) -> None:
    """The keys of a section and of those in it."""
    place = "clients.tiers.*" if path[:2] == ("clients", "tiers") and len(path) == 3 else ".".join(path)
    for key, value in section.items():
        if isinstance(value, Mapping):
            _check_section(value, (*path, key), trees, own)
        elif value is None and place in section_types():
            _check_null(key, path, section_fields(place), trees, own)


def _check_null(key: str, path: KeyPath, fields: tuple[str, ...], trees: Sequence[Any], own: Collection[str]) -> None:
    kind = _KINDS.get(path)
    given = [_find_section(tree, path) for tree in trees]
    if key in fields or (kind is not None and (kind in own or any(part.get("object") is not None for part in given))):
        return
    owner: tuple[names.NameKind, str] | None = None
    known = fields
    for one, name in _find_names(path, given):
        options = list_keys(one, name, fields) if kind is not None else tuple(names.declared_options(one, name) or ())
        if options is None or key in options:
            return
        known, owner = (options, (one, name)) if kind is not None else ((*known, *options), None)
    raise BadInput(explain_unknown_key(dotted_key(path), key, known, owner))


def _find_names(path: KeyPath, given: Sequence[Mapping[str, Any]]) -> list[tuple[names.NameKind, str]]:
    """The known names that a section has in one of the trees, the last one last."""
    if path == ("local",):
        return [found for part in given for found in names.list_own_rules(part)]
    if path not in _KINDS:
        return []
    usual = [*_BY_KEYS, DEFAULT_NAMES[path]] if path == ("data", "partition") else [DEFAULT_NAMES[path]]
    named = [part["name"] for part in given if part.get("name") is not None] or usual
    return [(_KINDS[path], name) for name in named if isinstance(name, str) and names.is_known(_KINDS[path], name)]


def _find_section(tree: Any, path: KeyPath) -> Mapping[str, Any]:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}
