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
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import name_type

_KEYS = {"partition": "data.partition", "selection": "participation.selection", "schedule": "schedule"}
_WANTED = {
    "partition": "a function (labels, clients, generator, options) or a partitioner of flwr_datasets",
    "selection": "a function (known, number, generator, options)",
    "schedule": "a function (models, rows)",
}


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
            if not callable(thing) and not (kind == "partition" and is_partitioner(thing)):
                raise BadInput(f"{kind} is {name_type(thing)}: give {_WANTED[kind]}, or {_KEYS[kind]} as a key")
            found[kind] = thing
            if keys is not None and is_partitioner(thing):  # it says by itself how many clients there are
                keys["data.partition.object"] = name_callable(thing)
    return found
