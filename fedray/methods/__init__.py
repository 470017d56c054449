"""The papers, one file each, as compositions of schedules, local training, compression, servers and predictions.

Beside them stands what a method of your own is made of: `federated`, servers and their exact sums. These names are
rows of `kit.pyi`, and are loaded when they are first asked for.

`METHODS` is the one registry: name -> function from a `Setting` to a `Method`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedray.methods import kit
from fedray.scenario.methods import METHOD_SPECS

if TYPE_CHECKING:
    from fedray.methods.kit import *  # noqa: F403  # the public names, for type checkers
    from fedray.methods.setting import Composition

METHODS: dict[str, Composition] = {
    name: getattr(import_module(f"fedray.methods.{spec.module or name}"), name) for name, spec in METHOD_SPECS.items()
}
"""The methods by name, your registered ones not among them."""
globals().update(METHODS)  # `fedray.methods.fedavg` is the function, and not the file of this name


def __getattr__(name: str) -> Any:
    """Loads an ingredient when it is first asked for."""
    if name == "__all__":
        return ["METHODS", *kit.list_public(), *METHODS]
    if name not in kit.list_public():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(kit, name)
