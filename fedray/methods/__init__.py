"""Defines the methods of papers, one file each, as compositions of schedules, local training, compression and servers.

The building blocks for a method of your own are here, too: `federated`, servers and their exact sums. The stub
`kit.pyi` lists their names; each is loaded when it is first used.

A file of this folder holds one method, or the methods of one paper. Its `SPECS` describes each of these methods for
scenarios, by name. A function with the name of a method composes the method. `METHODS` is the only registry: name ->
function from a `Setting` to a `Method`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from fedray.core.options import MethodSpec
from fedray.methods import kit

if TYPE_CHECKING:
    from fedray.methods.kit import *  # noqa: F403  # the public names, for type checkers
    from fedray.methods.setting import Composition

_FIRST = (  # files in the order in which lists name their methods; the methods of other files follow
    *("fed_ensemble", "fedavg", "fednova", "moon", "fedsam", "fedpa", "dsvgd", "fedper", "shefl", "heterofl"),
    *("fedrolex", "fedag", "fedbe", "feddf", "feddyn", "ditto", "pfedbayes", "pvi", "ivon_admm", "lg_fedavg"),
    *("scaffold", "ifca", "fedem", "random_walk", "stacking", "boosting", "fens", "fedfisher", "fedbens"),
    *("beta_predbayes", "references", "bayesian_linear"),
)
_FRAME = ("base", "kit", "setting")  # files that hold no method
METHOD_SPECS: dict[str, MethodSpec] = {}
"""What scenarios know of the methods, by name: the `SPECS` of all files of this folder."""
METHODS: dict[str, Composition] = {}
"""The methods by name, your registered ones not among them."""

for _file in (*_FIRST, *sorted({one.name for one in iter_modules(__path__)} - {*_FIRST, *_FRAME})):  # noqa: F405
    _paper = import_module(f"fedray.methods.{_file}")
    METHOD_SPECS |= _paper.SPECS
    METHODS |= {name: getattr(_paper, name) for name in _paper.SPECS}
globals().update(METHODS)  # `fedray.methods.fedavg` is the function, and not the file of this name


def __getattr__(name: str) -> Any:
    """Loads a building block when it is first used."""
    if name == "__all__":
        return ["METHODS", *kit.list_public(), *METHODS]
    if name not in kit.list_public():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(kit, name)
