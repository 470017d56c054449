"""Composes the methods of papers from schedules, local training, compression and servers.

A file holds one method, or the methods of one paper. The file's table `SPECS` describes each method for scenarios. The
function with a method's name takes a `Setting` and returns the `Method`. `METHODS` maps names to these functions.

The package also has the building blocks of a user's own method, such as `federated`. The stub `kit.pyi` lists them.
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

_FIRST = (  # files in the order in which lists show their methods; all other files follow alphabetically
    *("fed_ensemble", "fedavg", "fednova", "moon", "fedsam", "fedpa", "dsvgd", "fedper", "shefl", "heterofl"),
    *("fedrolex", "fedag", "fedbe", "feddf", "feddyn", "ditto", "pfedbayes", "pvi", "ivon_admm", "lg_fedavg"),
    *("scaffold", "ifca", "fedem", "random_walk", "stacking", "boosting", "fens", "fedfisher", "fedbens"),
    *("beta_predbayes", "references", "bayesian_linear"),
)
_FRAME = ("base", "kit", "setting")  # files that hold no method
METHOD_SPECS: dict[str, MethodSpec] = {}
"""The description of each method, by the method's name. It joins the `SPECS` of all files of this folder."""
METHODS: dict[str, Composition] = {}
"""The functions that compose fedray's methods, by the method's name. A user's own methods are not in this dict."""

for _file in (*_FIRST, *sorted({one.name for one in iter_modules(__path__)} - {*_FIRST, *_FRAME})):  # noqa: F405
    _paper = import_module(f"fedray.methods.{_file}")
    METHOD_SPECS |= _paper.SPECS
    METHODS |= {name: getattr(_paper, name) for name in _paper.SPECS}
globals().update(METHODS)  # `fedray.methods.fedavg` is the function `fedavg`, and not the module of this name


def __getattr__(name: str) -> Any:
    """Loads the building block `name` when it is first used."""
    if name == "__all__":
        return ["METHODS", *kit.list_public(), *METHODS]
    if name not in kit.list_public():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(kit, name)
