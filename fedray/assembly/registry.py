"""Names for your own code, so that scenario files can use it.

Example:
    >>> register("method", "my_method", lambda setting: ..., options={"sigma": 0.05})  # doctest: +SKIP
    >>> register("layer", "my_layer", print)
    Traceback (most recent call last):
    fedray.core.errors.BadInput: kind = 'layer' cannot be registered: choose one of method, model, data
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedray import models
from fedray.core.errors import BadInput
from fedray.data import catalogue
from fedray.methods import METHODS
from fedray.own_code.user_code import name_type
from fedray.scenario import names


def register(kind: str, name: str, thing: Callable[..., Any], *, options: Mapping[str, Any] | None = None) -> None:
    """Gives your code a name, which scenario files can then use.

    The name is known in every process that imports the module which calls this: with `fedray run --import MODULE`, also
    with `tune` and `table`, and on the nodes of a cluster.

    Args:
        kind: "method", "model" or "data".
        name: a name that fedray does not have. One of yours may be given again: the newest function counts.
        thing: for a method, a function from `fedray.methods.Setting` to `fedray.core.method.Method`; for a model,
            `thing(input_shape, outputs, **options)` makes an `nn.Module`; for data, `thing(root, **options)` makes a
            `fedray.data.types.Dataset`.
        options: the options of the name with their defaults, such as `{"sigma": 0.05}`; a scenario that sets another
            one is refused. None: they are not declared, and of a method those are refused that it does not read while
            it is composed.

    Raises:
        BadInput: there is no such kind, the name cannot be used, or the thing is no function.
    """
    if kind not in ("method", "model", "data"):
        raise BadInput(f"kind = {kind!r} cannot be registered: choose one of method, model, data")
    if not callable(thing):
        wanted = {"method": "method(setting)", "model": "model(input_shape, outputs)", "data": "data(root)"}[kind]
        raise BadInput(f"{kind}.name = {name!r}: it is {name_type(thing)}: give a function {wanted}")
    origin = _find_origin(sys._getframe(1).f_globals)
    text = f"your own, of {origin.file}; options: {_list_options(kind, thing, options)}"
    names.allow_name(kind, name, text, options, origin)  # type: ignore[arg-type]
    if kind == "method":
        METHODS[name] = thing
    else:
        (models.register_model if kind == "model" else catalogue.register_data)(name, thing)


def _find_origin(known: Mapping[str, Any]) -> names.Origin:
    """The module that registers a name, from its global names."""
    file = known.get("__file__")
    if not isinstance(file, str):
        return names.Origin(str(known.get("__name__", "__main__")), "this session")
    path = Path(file).absolute()
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)
    return names.Origin(str(known.get("__name__", "__main__")), str(short))


def _list_options(kind: str, thing: Callable[..., Any], options: Mapping[str, Any] | None) -> str:
    """The options of a name with their defaults, for `fedray list`."""
    if not isinstance(options, Mapping | None):
        return "not known"  # refused where it is kept
    if options is None and kind == "method":
        return "those that it reads"
    if options is None:
        try:
            parameters = list(inspect.signature(thing).parameters.values())[1 if kind == "data" else 2 :]
        except (TypeError, ValueError):
            return "not known"
        options = {p.name: p.default for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return "any"
    shown = [key if value is inspect.Parameter.empty else f"{key} = {value!r}" for key, value in options.items()]
    return ", ".join(shown) or "none"
