"""A user's own partition, selection and schedule as Python objects beside a scenario.

Example:
    >>> keys = {}
    >>> take_rules({"partition": "dirichlet", "selection": None, "schedule": {"rows": "slot"}}, keys)
    {}
    >>> keys
    {'data.partition': 'dirichlet', 'schedule': {'rows': 'slot'}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.core.errors import BadInput
from fedray.data.flower import is_partitioner
from fedray.data.own_partition import wants_columns
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import explain_uncallable

_KEYS = {"partition": "data.partition", "selection": "participation.selection", "schedule": "schedule"}
_OR = {"partition": " or a partitioner of flwr_datasets"}
ARGUMENTS = {  # what the functions are called with
    "partition": "labels, clients, generator, options",
    "selection": "known, number, generator, options",
    "schedule": "models, rows",
}


def explain_rule(kind: str, thing: Any) -> str | None:
    """Why something is no partition, selection or schedule, behind the word "it"; None where it can be one.

    Args:
        kind: which of the three.
        thing: the user's object.
    """
    keywords = ["columns"] if kind == "partition" and wants_columns(thing) else []
    return explain_uncallable(thing, ARGUMENTS[kind], keywords, classes=kind == "schedule")


def take_rules(given: Mapping[str, Any], keys: dict[str, Any] | None = None) -> dict[str, Any]:
    """The objects among what a user gave; names and mappings are keys of the scenario, as other overrides are.

    Args:
        given: partition, selection and schedule; None where they gave none.
        keys: gets the names and mappings; None: there must be none.

    Raises:
        BadInput: one is no function.
    """
    found = {}
    for kind, thing in given.items():
        if keys is not None and isinstance(thing, str | Mapping):
            keys["schedule.kind" if kind == "schedule" and isinstance(thing, str) else _KEYS[kind]] = thing
        elif thing is not None:
            wrong = None if kind == "partition" and is_partitioner(thing) else explain_rule(kind, thing)
            if wrong is not None:
                wanted = f"a function ({ARGUMENTS[kind]}){_OR.get(kind, '')}"
                raise BadInput(f"{kind}: it {wrong}: give {wanted}, or {_KEYS[kind]} as a key")
            found[kind] = thing
            if keys is not None and is_partitioner(thing):  # it says by itself how many clients there are
                keys["data.partition.object"] = name_callable(thing)
    return found
