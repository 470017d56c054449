"""Names for your own code, so that scenario files can use it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedray import models
from fedray.assembly import own_training
from fedray.assembly.own_training import OwnTraining, record_training, refuse_training, require_training
from fedray.components.schedule import register_schedule
from fedray.components.selection import register_selection
from fedray.core.errors import BadInput, FedrayError
from fedray.core.random_walk import Walk
from fedray.core.text import quote_value
from fedray.data import catalogue
from fedray.data.adaptation import adapt, is_plain
from fedray.data.cut import Dealt
from fedray.data.deal import OPEN
from fedray.data.own_partition import find_partition, register_partition
from fedray.data.shards import StoredShards
from fedray.data.types import Dataset
from fedray.methods import METHODS, Composition
from fedray.models.trial import name_wrapper
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import describe_exception, explain_uncallable, find_user_line
from fedray.scenario import names
from fedray.scenario.data import CLIENT_KINDS
from fedray.scenario.options import describe_method
from fedray.scenario.schema import Scenario, section_fields
from fedray.simulation.devices import Devices
from fedray.simulation.study import Study

# ---------------------------------------------------------------------------------------------------------------------
# Names for your own code, so that scenario files can use it.

_FUNCTIONS: dict[str, Callable[[str, Any], None]] = {  # kind -> who keeps its functions
    "method": METHODS.__setitem__,
    "model": models.register_model,
    "data": catalogue.register_data,
    "selection": register_selection,
    "schedule": register_schedule,
}
_ARGUMENTS = {"method": "setting", "model": "input_shape, outputs", "data": "root", **own_training.ARGUMENTS}


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

    Example:
        >>> register("method", "my_method", lambda setting: ..., options={"sigma": 0.05})  # doctest: +SKIP
        >>> register("layer", "my_layer", print)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: kind = 'layer' cannot be registered: choose one of method, model, data, ...
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
        describe_method(name, models, options if isinstance(options, Mapping) else None)
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
    if kind in own_training.ARGUMENTS:
        return own_training.explain_rule(kind, thing)
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


# ---------------------------------------------------------------------------------------------------------------------
# A user's own Python objects, passed beside a scenario.

OBJECT_KINDS: tuple[names.NameKind, ...] = ("data", "model", "method", "partition", "selection", "schedule")


@dataclass(frozen=True)
class UserObjects:
    """A user's own Python objects, passed beside the scenario; they replace what the scenario names.

    Attributes:
        data: the data set.
        model: a function that makes an `nn.Module`.
        method: a function from `Setting` to `Method`.
        modules: modules that each process imports first (`fedray run --import`).
        rates: the learning rate of each world; empty where the scenario's own holds.
        grid: learning rates; every world is trained with each of them (`fedray.experiments.run`).
        devices: the simulated devices; None means those of the tiers and of the trace.
        reading: how the data were read (`fedray.data.adapt`), as far as a file can say it.
        partition: a function that deals the rows, or a partitioner of `flwr_datasets`.
        selection: a function that chooses the participants of a round.
        schedule: a function that makes the assignment of models to participants.
        dealt: who holds which rows, as another process has dealt them; None means as the scenario says.
        walk: the walks over a graph, as another process has read it; None means as the scenario says.
        training: a loss, an optimizer, metrics and callbacks.
    """

    data: Dataset | None = None
    model: Any = None
    method: Composition | None = None
    modules: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    grid: tuple[float, ...] = ()
    devices: Devices | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    partition: Any = None
    selection: Any = None
    schedule: Any = None
    dealt: Dealt | None = None
    walk: Walk | None = None
    training: OwnTraining = field(default_factory=OwnTraining)

    def shipped(self, study: Study) -> UserObjects:
        """These objects with all that was read from files here, which other nodes may lack."""
        shards, walk = study.shards, study.method.phase.walk
        data, dealt = (shards.original, shards.dealt) if isinstance(shards, StoredShards) else (shards.data, None)
        return replace(self, data=data, devices=study.devices, dealt=dealt, walk=walk)

    def with_rows(self, scenario: Scenario, study: Study) -> UserObjects:
        """These objects with the rows as a user's function, a file or Flower dealt them here, for all processes."""
        name, shards = scenario.data.partition.name, study.shards
        own = self.partition is not None or find_partition(name) is not None or name in OPEN
        return replace(self, dealt=shards.dealt) if own and isinstance(shards, StoredShards) else self

    def things(self) -> list[tuple[names.NameKind, Any]]:
        """The functions and objects that are the user's own code, each with its kind; without data."""
        each = [(kind, getattr(self, kind)) for kind in OBJECT_KINDS if kind != "data"]
        return [(kind, one) for kind, one in each if one is not None] + self.training.things()

    def named(self) -> dict[str, str | None]:
        """What a scenario calls each object, by its section; None where there is none."""
        known = {
            "data": None if self.data is None else self.data.name,
            "model": None if self.model is None else name_callable(self.model),
            "method": None if self.method is None else name_callable(self.method),
            "partition": None if self.partition is None else name_callable(self.partition),
            "selection": None if self.selection is None else name_callable(self.selection),
            "schedule": None if self.schedule is None else name_callable(self.schedule),
        }
        return {key: None if name is None else _printable(name) for key, name in known.items()}


def check_objects(
    data: Any, model: Any, method: Any, modules: tuple[str, ...] = (), reading: Mapping[str, Any] | None = None
) -> UserObjects:
    """The user's data, network and method, each of the kind that is needed.

    Args:
        data: in one of the forms of `fedray.data.adapt`, or None.
        model: a function that makes the network, or None.
        method: a function that composes the method, or None.
        modules: the user's, imported first.
        reading: how data are read that are no `Dataset`.

    Raises:
        BadInput: names the one that cannot be used.
    """
    if isinstance(model, nn.Module):
        if what := name_wrapper(model):
            raise BadInput(f"model is a module {what}: give a function that makes the module itself")
        kind = type(model).__name__
        raise BadInput(f"model is a module, {kind}(...): give a function that makes it, model=lambda: {kind}(...)")
    for key, value, arguments, made in (
        ("model", model, "", "that makes the network, without arguments"),
        ("method", method, "setting", "(setting) that composes the method from a Setting"),
    ):
        wrong = None if value is None else explain_uncallable(value, arguments, classes=key == "model")
        if wrong is not None:
            raise BadInput(f"{key}: it {wrong}: give a function {made}, or {key}__name")
    reading = {} if data is None or isinstance(data, Dataset) else dict(reading or {})
    dataset = None if data is None else adapt(data, **reading)
    said = {key: one for key, one in reading.items() if is_plain(one) and (key != "test" or isinstance(one, str))}
    return UserObjects(dataset, model, method, modules, reading=said)


def record_objects(scenario: Scenario, own: UserObjects) -> Scenario:
    """The scenario with the Python objects in place of what it names, as a run directory keeps it.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> from torch import nn
        >>> recorded = record_objects(read_scenario({}), UserObjects(model=nn.Identity))
        >>> recorded.model.object, recorded.data.object
        ('torch.nn.modules.linear.Identity', None)
    """
    names = own.named()
    if names["data"] is not None:
        named = replace(scenario.data, name=names["data"], object=names["data"], options=dict(own.reading), root=None)
        scenario = replace(scenario, data=named)
    if names["model"] is not None:
        made = replace(scenario.model, name=names["model"], object=names["model"], options={})
        scenario = replace(scenario, model=made)
    if names["method"] is not None:
        scenario = replace(scenario, method=replace(scenario.method, object=names["method"]))
    return _record_rules(record_training(scenario, own.training), names)


def _record_rules(scenario: Scenario, names: dict[str, str | None]) -> Scenario:
    """The scenario with the user's partition, selection and schedule in place of what it names."""
    if (found := names["partition"]) is not None:
        kinds = {key: value for key, value in scenario.data.partition.options.items() if key in CLIENT_KINDS}
        dealt = replace(scenario.data.partition, name=found, object=found, options=kinds)
        scenario = replace(scenario, data=replace(scenario.data, partition=dealt))
    if (found := names["selection"]) is not None:
        chosen = replace(scenario.participation.selection, name=found, object=found, options={})
        scenario = replace(scenario, participation=replace(scenario.participation, selection=chosen))
    if (found := names["schedule"]) is not None:
        scenario = replace(scenario, schedule=replace(scenario.schedule, object=found))
    return scenario


def find_section(scenario: Scenario, kind: str) -> Any:
    """The section of a scenario that names the object of a kind, and has an `object`.

    Args:
        scenario: the scenario.
        kind: of the objects: data, model, method, partition, selection or schedule.
    """
    inner = {"partition": scenario.data.partition, "selection": scenario.participation.selection}
    return inner[kind] if kind in inner else getattr(scenario, kind)


def require_objects(scenario: Scenario, own: UserObjects) -> None:
    """Refuses a scenario of a run that was started with Python objects, where one of them is not given.

    Raises:
        BadInput: names the object and what to do.
    """
    for key, name in own.named().items():
        wanted = find_section(scenario, key).object
        if wanted is not None and name is None:
            raise BadInput(
                f"{key}.object = {wanted}: this run was started with a Python object as its {key}: pass the same "
                f"{key}= to fedray.resume or fedray.load"
            )
    require_training(scenario, own.training)


def refuse_objects(scenario: Scenario, own: UserObjects) -> None:
    """Refuses Python objects that would take the place of what a run was started with.

    Raises:
        BadInput: names the object and what the run was started with.
    """
    for key, name in own.named().items():
        section = find_section(scenario, key)
        if name is not None and section.object is None:
            what = f"schedule.kind = {section.kind}" if key == "schedule" else f"{key}.name = {section.name}"
            raise BadInput(f"{key}= was given, but the run was started with {what}: leave it out")
    refuse_training(scenario, own.training)


def refuse_unnamed_options(keys: Mapping[str, Any], own: Collection[str]) -> None:
    """Refuses names beside objects, and options of a method or a network that is passed as a function.

    Only a registered one has options. A scenario may name what an object takes the place of, an override may not.

    Args:
        keys: overrides, by their dotted keys.
        own: which of data, model and method are Python objects.

    Example:
        >>> refuse_unnamed_options({"method.sigma": 0.1}, ["method"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: method.sigma = 0.1: a method that is passed as a function has no options: ...
    """
    for key in (key for key in ("data.root", *(f"{kind}.name" for kind in own)) if key in keys):
        if (kind := key.partition(".")[0]) in own:
            raise BadInput(f"{key} = {quote_value(keys[key])}, but {kind} is an object too: leave one of them out")
    kinds: tuple[names.NameKind, ...] = ("method", "model")
    for kind in (kind for kind in kinds if kind in own):
        known = {*section_fields(kind), *(option for spec in names.SPECS[kind].values() for option in spec.options)}
        for key in (key for key in keys if key.startswith(f"{kind}.") and key.split(".")[1] not in known):
            raise BadInput(
                f"{key} = {quote_value(keys[key])}: a {kind} that is passed as a function has no options: bind it with "
                f"functools.partial, or name it with fedray.register({kind!r}, NAME, FUNCTION, options=...)"
            )


def explain_own_objects(error: Exception, scenario: Scenario, own: UserObjects) -> FedrayError | None:
    """One line about an exception of a run with a user's own objects; errors of fedray stay as they are.

    Args:
        error: what was raised.
        scenario: what is run.
        own: the user's Python objects.

    Returns:
        None where no object is the user's, or where a disk or the memory is full.
    """
    if isinstance(error, FedrayError):
        return error
    mine = [_describe_object(kind, scenario, own) for kind in OBJECT_KINDS]
    mine += [f"{key} = {name}" for key, name in own.training.named().items()]
    line = find_user_line(error)
    if not any(mine) or (line is None and isinstance(error, OSError | MemoryError)):
        return None
    told = FedrayError(f"{', '.join(filter(None, mine))}: {describe_exception(error)}")
    told.__cause__ = error
    return told


@contextmanager
def explaining_own_objects(scenario: Scenario, own: UserObjects) -> Iterator[None]:
    """Raises what `explain_own_objects` says in place of an exception of the block.

    Args:
        scenario: what is run.
        own: the user's Python objects.
    """
    try:
        yield
    except Exception as error:
        told = explain_own_objects(error, scenario, own)
        if told is None or told is error:
            raise
        raise told from error


def name_own_method(scenario: Scenario, own: UserObjects) -> str:
    """What messages call a user's own method; empty for one of fedray's."""
    return _describe_object("method", scenario, own) or ""


def _describe_object(kind: names.NameKind, scenario: Scenario, own: UserObjects) -> str | None:
    """What messages call the user's object of a kind; None where fedray's is used."""
    section = find_section(scenario, kind)
    named = section.kind if kind == "schedule" else section.name
    name = own.named()[kind] or (named if names.is_own(kind, named) else None)
    return None if name is None else f"method {name}" if kind == "method" else f"{kind}.name = {name}"


def _printable(name: str) -> str:
    """A name that a scenario can hold."""
    return "".join(c if c.isprintable() else "?" for c in name)[:1000] or "unnamed"
