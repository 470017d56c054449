"""Which of the keys that a user sets cannot act: nothing reads them in this scenario.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> read_scenario({"server": {"momentum": 0.5}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: server.momentum = 0.5 cannot act, because server.optimizer is none and only ...
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from fedray.core.errors import BadInput, warn_user
from fedray.core.text import quote_value
from fedray.scenario.nested import expand, flatten, merge_keys
from fedray.scenario.rows import explain_idle, value_at
from fedray.scenario.schema import Scenario

# ---------------------------------------------------------------------------------------------------------------------
# Values of keys that say that nothing special is done: they are true, and accepted, also where the key cannot act.

_NEUTRAL: dict[str, tuple[Any, ...]] = {  # key -> values; * stands for the name of a tier
    "server.weighting": ("uniform",),
    "server.coefficients": ("fedavg",),
    "server.lr": (1,),
    "compress.ratio": (1,),
    "compress.resource_ratio": (1,),
    "schedule.kind": ("permutation", "walk"),  # a walk is refused where there is a server
    "schedule.rows": ("client",),
    "clients.number": (1,),  # where all rows are one client's
    "clients.tiers.*.share": (1,),
    "clients.tiers.*.models_per_round": (1,),
    "clients.tiers.*.width": (1,),
    "data.partition.name": ("iid",),
    "participation.selection.name": ("uniform",),
    "participation.mode": ("sync",),
    "participation.alpha": (1,),
    "participation.staleness": ("constant",),
    "model.objective": ("auto",),
    "participation.overcommit": (1,),
    "participation.fraction": (1,),
    "participation.per_round": (1,),  # where all rows are one client's
    "local.lr_decay": (1,),
    "local.schedule.kind": ("constant",),
    "local.schedule.gamma": (1,),
    "predict.gamma": (math.inf,),
    "predict.average": ("probabilities",),
    "vary": ("all",),
    "lanes": ("auto",),
    "clients.device": ("auto",),
    "graph.transition": ("uniform",),
}


def is_neutral(key: str, value: Any) -> bool:
    """Whether the value of a key says that nothing special is done.

    Args:
        key: dotted.
        value: what it is set to.

    Example:
        >>> is_neutral("clients.tiers.weak.width", 1.0), is_neutral("rounds", 1)
        (True, False)
    """
    return value in _NEUTRAL.get(re.sub(r"(?<=^clients\.tiers\.)[^.]+", "*", key), ())


# ---------------------------------------------------------------------------------------------------------------------
# Which of the keys that are set cannot act, by the rows of `rows.py`.

RUNTIME = ("clients.per_actor", "clients.actors")  # where clients are computed never changes a result


class Idle(NamedTuple):
    """A key that cannot act.

    Attributes:
        key: dotted.
        value: what it is set to.
        why: the reason, to be read behind "but".
    """

    key: str
    value: Any
    why: str


def find_idle_keys(given: Mapping[str, Any], scenario: Scenario, own: Collection[str] = ()) -> list[Idle]:
    """Returns the keys that are set and cannot act, in their order.

    Args:
        given: what the user sets, as a tree.
        scenario: what it resolves to.
        own: which of data, model and method are Python objects, of which nothing is known here.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"method": {"name": "fedavg"}})
        >>> [idle.key for idle in find_idle_keys({"server": {"lr": 0.1}, "rounds": 3}, scenario)]
        ['server.lr']
    """
    recorded = {kind for kind in ("data", "model", "method") if value_at(scenario, f"{kind}.object") is not None}
    found, own = [], {*own, *recorded}
    for key, value in flatten(given).items():
        if key not in RUNTIME and not says_nothing(key, value) and (why := explain_idle(key, scenario, own)):
            found.append(Idle(key, value, why))
    return found


def explain_idle_key(idle: Idle) -> str:
    """Returns the line that refuses a key: key, value, reason, remedy.

    Example:
        >>> explain_idle_key(Idle("server.lr", 0.1, "server.optimizer is none"))
        'server.lr = 0.1 cannot act, because server.optimizer is none: leave it out'
    """
    return f"{idle.key} = {quote_value(idle.value)} cannot act, because {idle.why}: leave it out"


def says_nothing(key: str, value: Any) -> bool:
    """Whether the value of a key says that nothing is done, which is true wherever it stands."""
    if value is None or value is False or value in ("none", "dense", "always") or value in ([], {}):
        return True
    return (value == 0 and not key.startswith("predict.")) or is_neutral(key, value)


# ---------------------------------------------------------------------------------------------------------------------
# Keys that a user set and that nothing reads: they are refused, or named in a warning where an override made them so.
#
# A resolved scenario holds every key, so none of them says what a user wanted: it is read without these checks.

ALWAYS_DUMPED = {"graph", "checkpoint", "loggers", "predict"}  # a file with all of them may be a resolved scenario
_OLD_SECTIONS = ("graph", "predict")  # a resolved scenario of any version has all their keys
_YOUNGER = {"dropout_at_test"}  # except these


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
        if all(_holds(idle[place.name], one.key) or one.key not in flatten(place.given) for place in places):
            said_now = one.key in flatten(overrides)
            before = alone() if overrides and not said_now else places[0].scenario
            # whether a key of the file could not act without the overrides and the Python objects either: the other
            # keys are not looked at, `before` need not have what overrides are about, such as a tier
            key = expand({one.key: flatten(places[0].given)[one.key]})
            if said_now or (before is not None and _holds(find_idle_keys(key, before), one.key)):
                raise BadInput(explain_idle_key(one))
    said: dict[str, list[str]] = {}  # text -> cells
    for place in places[1:] or places:
        for one in idle[place.name]:
            said.setdefault(f"{one.key} cannot act, because {one.why}", []).append(place.name)
    if said:
        warn_user("; ".join(f"in cell {', '.join(cells)} {text}" if cells[0] else text for text, cells in said.items()))


def _holds(idle: list[Idle], key: str) -> bool:
    return any(one.key == key for one in idle)
