"""Names for your own code, so that scenario files can use it.

Example:
    >>> register("method", "my_method", lambda setting: ..., options={"sigma": 0.05})  # doctest: +SKIP
    >>> register("layer", "my_layer", print)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: kind = 'layer' cannot be registered: choose one of method, model, data, partition, ...
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedray import models
from fedray.assembly import own_rules, own_training
from fedray.components.schedule import register_schedule
from fedray.components.selection import register_selection
from fedray.core.errors import BadInput
from fedray.data import catalogue
from fedray.data.own_partition import register_partition
from fedray.methods import METHODS
from fedray.own_code.user_code import explain_uncallable
from fedray.scenario import names
from fedray.scenario.schema import section_fields

_FUNCTIONS: dict[str, Callable[[str, Any], None]] = {  # kind -> who keeps its functions
    "method": METHODS.__setitem__,
    "model": models.register_model,
    "data": catalogue.register_data,
    "selection": register_selection,
    "schedule": register_schedule,
}
_ARGUMENTS = {"method": "setting", "model": "input_shape, outputs", "data": "root", **own_rules.ARGUMENTS}


def register(
    kind: str, name: str, thing: Any, *, options: Mapping[str, Any] | None = None, models: int | None = None
) -> None:
    """Gives your code a name, which scenario files can then use.

    The name is known in every process that imports the module which calls this: with `fedray run --import MODULE`, also
    with `tune` and `table`, and on the nodes of a cluster.

    Args:
        kind: "method", "model", "data", "partition", "selection", "schedule", "loss", "optimizer",
            "augmentation", "metric" or "callback".
        name: a name that fedray does not have. One of yours may be given again: the newest function counts.
        thing: for a method, a function from `fedray.methods.Setting` to `fedray.core.method.Method`; for a model,
            `thing(input_shape, outputs, **options)` makes an `nn.Module`; for data, `thing(root, **options)` makes a
            `fedray.data.types.Dataset`. For a partition, `thing(labels, clients, generator, options)` gives the rows of
            each client; for a selection, `thing(known, number, generator, options)` chooses `number` of the clients in
            a `fedray.components.selection.KnownClients`; for a schedule, `thing(models, rows)` makes an assignment as
            those of `fedray.components.schedule` are. For the others see docs/how-to/training.md.
        options: the options of the name with their defaults, such as `{"sigma": 0.05}`; a scenario that sets another
            one is refused. None: they are not declared, and those are refused that a method does not read while it is
            composed, a partition while it deals, and a selection when it is first asked. A method that declares
            `networks` (`[]`, say) may get several architectures.
        models: of a method, how many models it trains where a scenario does not say it (`method.models`); None: 5.

    Raises:
        BadInput: there is no such kind, the name cannot be used, the thing is no function, or a number of models is
            none, or not that of a method.
    """
    known = (*_ARGUMENTS, *own_training.KINDS)
    if kind not in known:
        raise BadInput(f"kind = {kind!r} cannot be registered: choose one of {', '.join(known)}")
    if models is not None and kind != "method":
        raise BadInput(f"{kind}.name = {name!r}: models = {models!r} is for methods: leave it out")
    if kind in own_training.KINDS:
        own_training.check_code(kind, f"{kind} {name!r}", thing, options if isinstance(options, Mapping) else ())
        options = own_training.declare_options(kind, thing) if options is None else options
    elif (wrong := _explain_function(kind, thing)) is not None:
        raise BadInput(f"{kind}.name = {name!r}: it {wrong}: give a function {kind}({_ARGUMENTS[kind]})")
    if kind in ("method", "model") and (taken := sorted({"name", *section_fields(kind)} & set(options or ()))):
        raise BadInput(f"{kind} {name!r}: options has {taken[0]}, which is a key of every {kind}: choose another name")
    if kind == "method":
        names.describe_method(name, models, options if isinstance(options, Mapping) else None)
    origin = _find_origin(sys._getframe(1).f_globals)
    text = f"your own, of {origin.file}; options: {_list_options(kind, thing, options)}"
    text += "" if models is None else f"; method.models: {models}"
    names.allow_name(kind, name, text, options, origin)  # type: ignore[arg-type]  # `known` has it
    if kind in own_training.KINDS:
        own_training.keep_code(kind, name, thing)
    elif kind == "partition":
        register_partition(name, thing, declares=options is not None)
    else:
        _FUNCTIONS[kind](name, thing)


def _explain_function(kind: str, thing: Any) -> str | None:
    """Why something is no function of a kind, behind the word "it"."""
    if kind in own_rules.ARGUMENTS:
        return own_rules.explain_rule(kind, thing)
    keywords = _list_needed(thing, _ARGUMENTS[kind]) if kind in ("model", "data") and callable(thing) else []
    return explain_uncallable(thing, _ARGUMENTS[kind], keywords, classes=kind == "model")


def _list_needed(thing: Callable[..., Any], arguments: str) -> list[str]:
    """The arguments behind the first ones that a function needs: options that every scenario has to give."""
    try:
        further = list(inspect.signature(thing).parameters.values())[len(arguments.split(", ")) :]
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in further if p.kind in kinds and p.default is p.empty]


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
    if options is None and kind in ("method", "partition", "selection"):
        return "those that it reads"
    if kind == "schedule":
        return "none"
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
