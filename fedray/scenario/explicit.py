"""Keys that a user set and that nothing reads: they are refused, or named in a warning where an override made them so.

A resolved scenario holds every key, so none of them says what a user wanted: it is read without these checks.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> read_scenario({"server": {"momentum": 0.5}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: server.momentum = 0.5 cannot act, because server.optimizer is none and only ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fedray.core.errors import BadInput, warn_user
from fedray.scenario.limits import name_limits
from fedray.scenario.nested import expand, flatten, merge_keys
from fedray.scenario.relevance import Idle, explain_idle_key, find_idle_keys
from fedray.scenario.schema import Scenario

ALWAYS_DUMPED = {"graph", "checkpoint", "loggers", "predict"}  # a file with all of them may be a resolved scenario
_OLD_SECTIONS = ("graph", "predict")  # a resolved scenario of any version has all their keys
_YOUNGER = {"dropout_at_test"}  # except these
_MOST_NAMED = 3


class Place(NamedTuple):
    """A scenario that a file describes: its base, or a cell of its table.

    Attributes:
        name: of the cell; empty for the base.
        own: what the cell itself sets.
        given: all that is set.
        scenario: what it resolves to.
    """

    name: str
    own: Mapping[str, Any]
    given: Mapping[str, Any]
    scenario: Scenario


def is_dump(file: Mapping[str, Any], resolved: dict[str, Any]) -> bool:
    """Whether a file is a resolved scenario, also one of an earlier version, in which younger keys are missing.

    Args:
        file: its keys as a tree.
        resolved: what it resolves to, with every key.

    Example:
        >>> is_dump({"graph": {"kind": "ring"}, "predict": {}}, {"graph": {"kind": "ring", "edges": 3}, "predict": {}})
        False
    """
    for name in _OLD_SECTIONS:
        if not isinstance(file.get(name), dict) or not file[name].keys() >= resolved[name].keys() - _YOUNGER:
            return False
    return merge_keys(resolved, file) == resolved


def judge_keys(
    places: list[Place], overrides: Mapping[str, Any], alone: Callable[[], Scenario | None], own: Collection[str]
) -> None:
    """Refuses keys that cannot act, and warns, in one line, of those that an override or a cell made so.

    Args:
        places: the base and the cells.
        overrides: what the command line or the caller sets.
        alone: gives the scenario without the overrides; None if it cannot be read.
        own: which of data, model and method are Python objects.

    Raises:
        BadInput: a key cannot act wherever it stands.
    """
    idle = {place.name: find_idle_keys(place.given, place.scenario, own) for place in places}
    for place in places:
        for one in idle[place.name]:
            if place.name and one.key in flatten(place.own):
                raise BadInput(f"table.{place.name}: {explain_idle_key(one)}")
    for one in idle[""]:
        if all(_holds(idle[place.name], one.key) or not _is_set(place, one.key) for place in places):
            said_now = one.key in flatten(overrides)
            before = alone() if overrides and not said_now else places[0].scenario
            if said_now or (before is not None and _stays_idle(one.key, places, before)):
                raise BadInput(explain_idle_key(one))
    said = [*_name_idle(places, idle), *_name_limits(places, own)]
    if said:
        warn_user("; ".join(said))


def _stays_idle(key: str, places: list[Place], before: Scenario) -> bool:
    """Whether a key of the file could not act without the overrides and the Python objects either.

    The other keys are not looked at: `before` need not have what overrides are about, such as a tier.
    """
    return _holds(find_idle_keys(expand({key: flatten(places[0].given)[key]}), before), key)


def _holds(idle: list[Idle], key: str) -> bool:
    return any(one.key == key for one in idle)


def _is_set(place: Place, key: str) -> bool:
    return key in flatten(place.given)


def _name_idle(places: list[Place], idle: Mapping[str, list[Idle]]) -> list[str]:
    """Which keys cannot act and why, in which cells; keys with the same reason in the same cells are named together."""
    where: dict[tuple[str, str], list[str]] = {}
    for place in places[1:] or places:
        for one in idle[place.name]:
            where.setdefault((one.why, one.key), []).append(place.name)
    keys: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (why, key), cells in where.items():
        keys.setdefault((why, tuple(cells)), []).append(key)
    return [
        f"{', '.join(names)} cannot act{f' in {_name_cells(cells)}' if cells[0] else ''}, because {why}"
        for (why, cells), names in keys.items()
    ]


def _name_limits(places: list[Place], own: Collection[str]) -> list[str]:
    if len(places) == 1:
        return name_limits(places[0].scenario, own)
    limits: dict[str, list[str]] = {}
    for place in places[1:]:
        for text in name_limits(place.scenario, own):
            limits.setdefault(text, []).append(place.name)
    return [f"in {_name_cells(cells)} {text}" for text, cells in limits.items()]


def _name_cells(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - _MOST_NAMED} more" if len(cells) > _MOST_NAMED else ""
    return f"cell{'s' if len(cells) > 1 else ''} {', '.join(cells[:_MOST_NAMED])}{more}"
