"""What scenarios know of a method by its name: fedray's, and those that users register."""

from __future__ import annotations

from fedray.core.spec import MethodSpec
from fedray.methods import METHOD_SPECS

UNKNOWN = MethodSpec("your own", splits=True, slices=METHOD_SPECS["heterofl"].slices)
OWN_SPECS: dict[str, MethodSpec] = {}  # of users' registered methods that say more than their function


def method_spec_of(name: object) -> MethodSpec:
    """Returns the specification of a method; a user's own method, or no method at all, has the general defaults."""
    return (METHOD_SPECS.get(name) or OWN_SPECS.get(name, UNKNOWN)) if isinstance(name, str) else UNKNOWN


def trains_one_model(name: object) -> bool:
    """Whether a method trains one model where a scenario does not say how many."""
    return bool(method_spec_of(name).defaults.get("method", {}).get("models") == 1)
