"""Where the scores of a method are to be read: at which of its rounds, and by which of its answers.

All functions take the plain keys of a resolved scenario, as `scenario.yaml` of a run directory holds them.

Example:
    >>> keys = {"rounds": 1, "method": {"name": "fens", "aggregator": "neural", "meta_rounds": 500}}
    >>> find_last_phase(keys), has_own_rounds(keys)  # clients train alone, then they train the aggregator
    (1, True)
    >>> answers_clients_apart({"method": {"name": "fedper"}}), answers_clients_apart({"method": "fedavg"})
    (True, False)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedray.core.spec import MethodSpec
from fedray.methods.beta_predbayes import FIT
from fedray.scenario.methods import UNKNOWN, method_spec_of


def find_last_phase(keys: Mapping[str, Any]) -> int:
    """Returns the round after which the last phase of a method trains; the scores before its end are not the method's.

    0: there is one phase alone, or nothing is known of the method.

    Args:
        keys: plain keys of a resolved scenario.

    Example:
        >>> stack = {"name": "stacking", "meta": "softmax"}
        >>> [find_last_phase({"rounds": 10, "method": each}) for each in (stack, stack | {"meta": "average"})]
        [10, 0]
        >>> find_last_phase({"rounds": 10, "method": {"name": "fedpa", "burn_in": 4}})
        4
    """
    spec, options = _read_method(keys)
    if not spec.parts:
        return int(options.get("burn_in", 0))
    return int(keys.get("rounds", 0)) if count_last_phase(keys) else 0


def count_last_phase(keys: Mapping[str, Any]) -> int:
    """Counts the rounds of a method's last phase, if other phases come before it; else 0."""
    spec, options = _read_method(keys)
    if not spec.parts:
        return 0
    if spec.sampled:
        return int(options.get("beta", FIT) == FIT)
    needs = spec.options["meta_rounds"].needs
    assert needs is not None
    chosen = options.get(needs.key.partition(".")[2], needs.values[0])
    given = options.get("meta_rounds", spec.options["meta_rounds"].default)
    return (int(keys.get("rounds", 0)) if given is None else int(given)) if chosen in needs.values else 0


def has_own_rounds(keys: Mapping[str, Any]) -> bool:
    """Whether rounds of a method are no rounds of another one: its phases are, or it is there without any."""
    spec, _ = _read_method(keys)
    return spec.parts or not spec.trains


def begins_untrained(keys: Mapping[str, Any]) -> bool:
    """Whether the models of round 0 are as they were drawn; a method in closed form has its answer there."""
    return _read_method(keys)[0].trains


def answers_clients_apart(keys: Mapping[str, Any]) -> bool:
    """Whether known clients use answers of their own, so that the score of the common one is nobody's.

    Of a method of a user's own it is not known.

    Args:
        keys: plain keys of a resolved scenario.
    """
    spec, _ = _read_method(keys)
    local, predict = (_section(keys, name) for name in ("local", "predict"))
    models = (spec.own_models and spec.trains) or local.get("private")
    weights = spec.defaults.get("evaluate", {}).get("personal") or math.isfinite(predict.get("gamma", math.inf))
    return bool(models or weights)


def _section(keys: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = keys.get(name)
    return found if isinstance(found, Mapping) else {}


def _read_method(keys: Mapping[str, Any]) -> tuple[MethodSpec, Mapping[str, Any]]:
    """Returns the specification of the method, and its section."""
    section = keys.get("method")
    options: Mapping[str, Any] = section if isinstance(section, Mapping) else {"name": section}
    return (UNKNOWN if options.get("object") else method_spec_of(options.get("name"))), options
