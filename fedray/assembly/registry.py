"""Registers and checks a user's code, records it in runs, and requires the same code when a run is resumed."""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedray.core.errors import BadInput, FedrayError, quote_value
from fedray.core.method import READS, LocalLoss, Transform, Walk
from fedray.core.options import MethodSpec
from fedray.data import store
from fedray.data.adaptation import adapt, is_plain, names_data, take_data_options
from fedray.data.deal import OPEN
from fedray.data.partition import PartitionedData, is_partitioner, wants_columns
from fedray.data.shards import StoredShards
from fedray.data.types import Dataset
from fedray.methods import Composition
from fedray.metrics.scorers import second_argument
from fedray.models.nets import BUILDERS
from fedray.own_code import user_code
from fedray.scenario import names
from fedray.scenario.names import KINDS, Kind, as_list
from fedray.scenario.options import describe_method, list_options
from fedray.scenario.rows import refuse_idle_objects, value_at
from fedray.scenario.schema import Scenario, section_fields
from fedray.scenario.sections import CLIENT_KINDS
from fedray.scenario.training import LocalKeys
from fedray.simulation.devices import Devices
from fedray.simulation.study import Study

# ---------------------------------------------------------------------------------------------------------------------
# Names for your own code in scenario files.

_PLAIN = bool | int | float | str


def register(
    kind: str,
    name: str,
    thing: Any,
    *,
    options: Mapping[str, Any] | None = None,
    models: int | None = None,
    spec: MethodSpec | None = None,
) -> None:
    """Gives your code a name that scenario files can use.

    Every process that imports the module in which you call `register` knows the name. The option `--import MODULE` of
    `fedray run`, `tune` and `table` imports this module, also on the nodes of a cluster.

    Args:
        kind: "method", "model", "data", "partition", "selection", "schedule", "loss", "optimizer",
            "augmentation", "metric" or "callback".
        name: A name that fedray itself does not use. If you register a name again, the new function replaces the old
            one.
        thing: The function or object to register. A method is a function that takes a `fedray.methods.Setting` and
            returns a `fedray.core.method.Method`. A model is a function `thing(input_shape, outputs, **options)` that
            makes an `nn.Module`. Data are a function `thing(root, **options)` that makes a `fedray.data.types.Dataset`.
            A partition is a function `thing(labels, clients, generator, options)` that returns the indices of each
            client's samples. A selection is a function `thing(known, number, generator, options)` that chooses `number`
            of the clients in a `fedray.components.selection.KnownClients`. A schedule is a function `thing(models,
            rows)` that returns the rule for assigning models, like the functions of `fedray.components.schedule`. For
            the other kinds see docs/how-to/training.md.
        options: The options with their defaults, such as `{"sigma": 0.05}`. A scenario that sets an option of another
            name raises an error. None means that no options are declared. Then an option of the scenario that your code
            does not use raises an error. The error is raised when the method is composed, when the partition is
            computed, or when the selection is first called. A method with `options={"networks": []}` may get several
            architectures. A schedule, metric or callback is always called with these options.
        models: The number of models that a method trains if a scenario does not set `method.models`. None means 5.
        spec: A full specification of a method. It replaces `options` and `models`. It holds the options with their
            ranges, defaults of other keys, changes of the network, and the features with which the method can be
            combined.

    Raises:
        BadInput: There is no such kind, the name cannot be used, or `thing` is no function.

    Example:
        >>> from sklearn.metrics import fbeta_score
        >>> register("metric", "f2", fbeta_score, options={"beta": 2, "average": "macro"})
        >>> register("method", "my_method", lambda setting: ..., options={"sigma": 0.05})  # doctest: +SKIP
        >>> register("layer", "my_layer", print)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedray.core.errors.BadInput: kind = 'layer' cannot be registered: choose one of method, model, data, ...
    """
    if kind not in KINDS:
        raise BadInput(f"kind = {kind!r} cannot be registered: choose one of {', '.join(KINDS)}")
    if spec is not None:
        options = {key: option.default for key, option in spec.options.items()}
    row = KINDS[kind]
    needed = (options or {}) if row.part == "training" else _list_needed(row, thing)
    check_code(kind, f"{kind}.name = {name!r}", thing, needed)
    if row.part == "training" and options is None:
        options = declare_options(kind, thing)
    reserved = {"name", *section_fields(row.section)} if row.section in ("method", "model", "local") else set()
    if taken := sorted(reserved & set(options or ())):
        raise BadInput(f"{kind} {name!r}: options has {taken[0]}, which is a key of {row.section}: choose another name")
    if kind == "method":
        describe_method(name, models, options, spec)
    if kind in ("schedule", "metric", "callback") and options:  # no key of a scenario sets their options
        thing, options = partial(thing, **options), None
    origin = _find_origin(sys._getframe(1).f_globals)
    text = f"your own, of {origin.file}" + (f"; options: {', '.join(options)}" if options else "")
    names.allow_name(kind, name, text, options=options, origin=origin, thing=thing)
    if kind == "model":
        BUILDERS[name] = thing
    elif kind == "data":
        store.SOURCES[name] = store.Source(thing)


def _list_needed(kind: Kind, thing: Any) -> list[str]:
    """Lists the options of a registered function that have no default. A scenario must set these options."""
    if kind.word == "partition":
        return ["columns"] if wants_columns(thing) else []
    if kind.word not in ("model", "data") or not callable(thing):
        return []
    try:
        further = list(inspect.signature(thing).parameters.values())[len(kind.arguments.split(", ")) :]
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in further if p.kind in kinds and p.default is p.empty]


def _find_origin(known: Mapping[str, Any]) -> names.Origin:
    """Returns the module and the file that called `register`.

    `known` has the global variables of the caller.
    """
    file = known.get("__file__")
    if not isinstance(file, str):
        return names.Origin(str(known.get("__name__", "__main__")), "this session")
    path = Path(file).absolute()
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)
    return names.Origin(str(known.get("__name__", "__main__")), str(short))


def check_code(kind: str, where: str, thing: Any, options: Iterable[str] = (), arguments: str | None = None) -> None:
    """Raises `BadInput` for an object that cannot be used, for example a loss with wrong arguments.

    Args:
        kind: The kind of the object, such as "loss" or "metric".
        where: The beginning of the message.
        thing: The user's object.
        options: Names of the keyword arguments with which fedray calls the object.
        arguments: The positional arguments with which fedray calls the object, separated by commas. None means the
            usual arguments of this kind.
    """
    given = KINDS[kind].arguments if arguments is None else arguments
    if kind == "metric" and second_argument(thing):
        given = f"y_true, {second_argument(thing)}"
    if kind == "optimizer" and (isinstance(thing, Transform) or makes_transform(thing, options)):
        return
    named = ["lr", *options] if kind == "optimizer" else options
    classes = kind in ("model", "schedule", "optimizer")
    wrong = user_code.explain_uncallable(find_function(thing), given, named, classes=classes)
    if kind == "augmentation" and wrong is not None:
        wrong = user_code.explain_uncallable(find_function(thing), "input", options)
    if wrong is not None:
        raise BadInput(f"{where}: it {wrong}: give {KINDS[kind].wants.format(given)}")
    if isinstance(thing, LocalLoss) and (isinstance(thing.reads, str) or not set(thing.reads) <= set(READS)):
        raise BadInput(f"{where}: its reads is {thing.reads!r}: give a tuple of some of {', '.join(READS)}")


def find_function(thing: Any) -> Any:
    """Returns the function of a user's object. For a torch module it is `forward`."""
    thing = thing.function if isinstance(thing, LocalLoss) else thing
    return thing.forward if isinstance(thing, nn.Module) else thing


def declare_options(kind: str, thing: Any) -> dict[str, Any]:
    """Returns the options that a function declares, with their defaults.

    Options are keyword-only arguments whose defaults are numbers, texts or truth values. For a function that makes an
    optimizer, all arguments with such defaults are options.

    Args:
        kind: "loss", "optimizer", "augmentation", "metric" or "callback".
        thing: The function.

    Example:
        >>> def smooth(outputs, targets, context, *, smoothing=0.1):
        ...     return (1 - smoothing) * context.objective(outputs, targets)
        >>> declare_options("loss", smooth)
        {'smoothing': 0.1}
        >>> declare_options("optimizer", lambda clip=1.0, *, trace=print: ...)  # a function is no value of a scenario
        {'clip': 1.0}
    """
    if not inspect.isfunction(thing) or (kind == "optimizer" and not makes_transform(thing)):
        return {}
    only = (inspect.Parameter.KEYWORD_ONLY, *([inspect.Parameter.POSITIONAL_OR_KEYWORD] if kind == "optimizer" else []))
    parameters = inspect.signature(thing).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in only and isinstance(p.default, _PLAIN)}


def makes_transform(thing: Any, options: Iterable[str] = ()) -> bool:
    """Returns whether a function makes a `Transform`. Such a function can be called with its options alone."""
    return user_code.takes_positional(thing, 0, options)


def name_thing(thing: Any) -> str:
    """Returns the name of a function, a `LocalLoss` or a `Transform`."""
    return thing.name if isinstance(thing, LocalLoss | Transform) else user_code.name_callable(thing).rpartition(".")[2]


def functions_of(thing: Any) -> list[Any]:
    """Returns the functions of a user's object."""
    if isinstance(thing, LocalLoss):
        return [thing.function]
    if isinstance(thing, Transform):
        return [thing.init, thing.update, *([] if thing.at is None else [thing.at])]
    return [thing]


# ---------------------------------------------------------------------------------------------------------------------
# The Python objects that a user passes with a scenario.


@dataclass(frozen=True)
class UserObjects:
    """The Python objects that a user passes with a scenario. Each object replaces what the scenario names.

    Attributes:
        data: The data set. None means the data set that the scenario names.
        model: A function that makes an `nn.Module`.
        method: A function that takes a `Setting` and returns a `Method`.
        modules: Modules that each process imports first (`fedray run --import`).
        rates: The learning rate of each world (a seed and a fold). The tuple is empty if the scenario's rate holds for
            all worlds.
        grid: The learning rates to compare. Every world is trained with each rate (`fedray.experiments.run`).
        devices: The simulated devices. None means the devices that the tiers and the trace describe.
        reading: The arguments of `fedray.data.adapt` with which the data were read. Only values that a scenario file
            can hold are stored.
        partition: A function that gives each client its samples, or a partitioner of `flwr_datasets`.
        selection: A function that chooses the participants of a round.
        schedule: A function that makes the assignment of models to participants.
        loss: The loss that replaces the network's loss.
        optimizer: The optimizer that replaces `local.optimizer`.
        augment: The augmentations that replace `local.augment`, as functions or names.
        metrics: Further metrics by name.
        callbacks: Functions that are called after each round.
        dealt: The samples of each client, as another process has computed them. None means that this process computes
            the scenario's partition.
        walk: The walks over a graph, as another process has made them. None means that this process makes the walks of
            the scenario.
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
    loss: Any = None
    optimizer: Any = None
    augment: tuple[Any, ...] = ()
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    callbacks: tuple[Callable[..., Any], ...] = ()
    dealt: PartitionedData | None = None
    walk: Walk | None = None

    def shipped(self, study: Study) -> "UserObjects":
        """Adds the data, devices and walks of a study to the objects, for nodes without the files of the data."""
        shards, walk = study.shards, study.method.phase.walk
        data, dealt = (shards.original, shards.dealt) if isinstance(shards, StoredShards) else (shards.data, None)
        return replace(self, data=data, devices=study.devices, dealt=dealt, walk=walk)

    def with_rows(self, scenario: Scenario, study: Study) -> "UserObjects":
        """Adds each client's samples to the objects, if the partition is from a user's function, a file or Flower."""
        name, shards = scenario.data.partition.name, study.shards
        own = find_own("partition", scenario, self) is not None or name in OPEN
        return replace(self, dealt=shards.dealt) if own and isinstance(shards, StoredShards) else self

    def things(self) -> list[tuple[str, Any]]:
        """Returns (kind, object) for each object with the user's code. Data are left out."""
        each = [(kind.word, self._list(kind)) for kind in KINDS.values() if kind.word != "data"]
        return [(word, one) for word, things in each for one in things if not isinstance(one, str)]

    def _list(self, kind: Kind) -> list[Any]:
        """Returns the objects of a kind. Some may be names."""
        found = getattr(self, kind.given)
        return list(found.values()) if isinstance(found, Mapping) else as_list(found)

    def named(self) -> dict[str, Any]:
        """Returns the names that a scenario uses for the objects, by argument of `fedray.run`."""
        found: dict[str, Any] = {}
        for kind in KINDS.values():
            if each := [_name_object(kind, one) for one in self._list(kind)]:
                found[kind.given] = each if kind.argument else each[0]
        return found | ({"metrics": list(self.metrics)} if self.metrics else {})


def _name_object(kind: Kind, thing: Any) -> str:
    """Returns the name of an object in a scenario. It has only printable characters."""
    if isinstance(thing, str) or kind.part == "training":
        return thing if isinstance(thing, str) else name_thing(thing)
    name = thing.name if kind.word == "data" else user_code.name_callable(thing)
    return "".join(c if c.isprintable() else "?" for c in name)[:1000] or "unnamed"


def take_objects(
    given: Mapping[str, Any],
    keys: dict[str, Any] | None = None,
    modules: tuple[str, ...] = (),
    reading: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
) -> UserObjects:
    """Checks and returns the user's objects. Names and mappings that the user passes become keys of the scenario.

    Args:
        given: The value of each argument of `fedray.run`. None means that an argument was not given.
        keys: Overrides by dotted key. The function adds the names in `given` to this dict, and removes keys for reading
            data. None means that `given` has only objects.
        modules: The user's modules, which each process imports first.
        reading: The arguments for reading the data, if the data are no `Dataset`. They are used only if `keys` is None.
        file: The keys of the scenario by dotted key, without overrides.

    Raises:
        BadInput: An object cannot be used, or `keys` already has a value for the same purpose.

    Example:
        >>> keys = {}
        >>> take_objects({"partition": "dirichlet", "schedule": {"rows": "slot"}, "loss": "smooth"}, keys).named()
        {}
        >>> keys
        {'data.partition': 'dirichlet', 'schedule': {'rows': 'slot'}, 'local.loss': 'smooth'}
    """
    found: dict[str, Any] = {}
    for kind in KINDS.values():
        thing = given.get(kind.given)
        named = keys is not None and _is_named(kind, thing)
        if thing is None:
            continue
        for key in (kind.key, f"{kind.section}.root"):
            if keys and key in keys and not (named and kind.part != "training"):
                raise BadInput(
                    f"{key} = {quote_value(keys[key])}, but {kind.given}= is given too: leave one of them out"
                )
        if keys is not None and named:
            keys[kind.section if kind.default or isinstance(thing, Mapping) else kind.key] = thing
        else:
            found[kind.given] = _check_object(kind, thing)
    if keys is not None:
        for kind in (kind for kind in KINDS.values() if kind.given in found):
            _refuse_options(kind, keys, file or {})
        if is_partitioner(found.get("partition")):  # the partitioner decides the number of clients
            keys["data.partition.object"] = user_code.name_callable(found["partition"])
        reading = take_data_options(found["data"], keys, section_fields("data")) if "data" in found else {}
    reading = {} if isinstance(found.get("data"), Dataset) else reading or {}
    if "data" in found:
        found["data"] = adapt(found["data"], **reading)
    said = {key: one for key, one in reading.items() if is_plain(one) and (key != "test" or isinstance(one, str))}
    return UserObjects(**found, modules=modules, reading=said if "data" in found else {})


def _is_named(kind: Kind, thing: Any) -> bool:
    """Returns whether a value has only names or keys of a scenario, and no object."""
    if kind.word == "data":
        return names_data(thing)
    if kind.part == "training":
        return isinstance(thing, str) or (type(thing) in (list, tuple) and all(isinstance(one, str) for one in thing))
    return isinstance(thing, str | Mapping)


def _refuse_options(kind: Kind, keys: Mapping[str, Any], file: Mapping[str, Any]) -> None:
    """Raises `BadInput` if keys set options of a method or network that the user passes as a function.

    Only registered functions have options. The options of the method or network that the function replaces may still be
    set. `file` has the keys of the scenario, which names it.
    """
    if kind.word not in ("method", "model"):
        return
    known = {*section_fields(kind.section), *list_options(kind.word, str(file.get(kind.key, kind.default)))[0]}
    set_now = (key for key, value in keys.items() if value is not None and key.startswith(f"{kind.section}."))
    for key in (key for key in set_now if key.split(".")[1] not in known):
        raise BadInput(
            f"{key} = {quote_value(keys[key])}: a {kind.word} that is passed as a function has no options: bind it "
            f"with functools.partial, or name it with fedray.register({kind.word!r}, NAME, FUNCTION, options=...)"
        )


def _check_object(kind: Kind, thing: Any) -> Any:
    """Checks an object of the user, and converts it to the form that `UserObjects` holds."""
    if kind.word == "data" or (kind.word == "partition" and is_partitioner(thing)):
        return thing
    if kind.word == "model" and isinstance(thing, nn.Module):
        made = type(thing).__name__
        raise BadInput(f"model is a module, {made}(...): give a function that makes it, model=lambda: {made}(...)")
    found = tuple(as_list(thing)) if kind.argument else thing
    if kind.word == "metric" and isinstance(thing, Mapping):
        found = dict(thing)
    elif kind.word == "metric":  # functions that are passed without names keep their Python names
        called = [name_thing(one) for one in found]
        if twice := [name for name in called if called.count(name) > 1]:
            raise BadInput(f"metrics: two functions are called {twice[0]}: give a mapping {{name: function}}")
        found = dict(zip(called, found, strict=True))
    for one in found.values() if isinstance(found, Mapping) else found if kind.argument else [found]:
        if kind.word == "augmentation" and isinstance(one, str) and names.is_known(kind.word, one):
            continue
        where = f"{kind.word} {name_thing(one)}" if kind.argument and callable(one) else kind.word
        options = _list_needed(kind, one) if kind.word == "partition" else ()
        check_code(kind.word, where, one, options, arguments="" if kind.word == "model" else None)
    return found


def spec_of(scenario: Scenario, own: UserObjects) -> MethodSpec:
    """Returns the specification of a run's method. A function that the user passes has the general specification."""
    return names.method_spec_of(scenario.method.name if own.method is None else None)


def find_own(kind: str, scenario: Scenario, own: UserObjects) -> Any:
    """Returns the user's object of a kind, or None if the run uses an object of fedray.

    The user has passed the object, or the scenario names it. `kind` must be a kind of which a run uses at most one
    object, such as "loss".
    """
    passed = getattr(own, KINDS[kind].given)
    return names.find_thing(kind, value_at(scenario, KINDS[kind].key)) if passed is None else passed


def list_own_names(scenario: Scenario, own: UserObjects) -> list[tuple[str, str]]:
    """Returns the kind and the name of each registered object that a run uses."""
    wanted = [(kind.word, name) for kind in KINDS.values() for name in as_list(value_at(scenario, kind.key))]
    wanted += [("augmentation", name) for name in own.augment if isinstance(name, str)]
    bases = scenario.method.options.get("bases") or scenario.method.options.get("networks") or ()
    wanted += [("model", base["name"]) for base in bases if isinstance(base, Mapping) and "name" in base]
    return [known for known in dict.fromkeys(wanted) if known in names.list_origins()]


def list_own_code(scenario: Scenario, own: UserObjects) -> dict[tuple[str, str], Any]:
    """Returns the objects that the user passes or has registered, by kind and name.

    Data and Flower's partitioners are left out. If two objects have the same name, the second name gets a number:
    "crop 2".
    """
    each = [(kind, name_thing(thing), thing) for kind, thing in own.things()]
    each += [(kind, name, names.find_thing(kind, name)) for kind, name in list_own_names(scenario, own)]
    count, found = Counter[tuple[str, str]](), dict[tuple[str, str], Any]()
    for kind, name, thing in each:
        if kind != "data" and not is_partitioner(thing):  # the digest of the data covers dealt samples
            count[kind, name] += 1
            number = count[kind, name]
            found[kind, name if number == 1 else f"{name} {number}"] = thing
    return found


def record_objects(scenario: Scenario, own: UserObjects) -> Scenario:
    """Returns the scenario for the run directory, with the names of the passed Python objects.

    Raises:
        BadInput: A passed schedule or selection has no effect.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> from torch import nn
        >>> recorded = record_objects(read_scenario({}), UserObjects(model=nn.Identity))
        >>> recorded.model.object, recorded.data.object
        ('torch.nn.modules.linear.Identity', None)
    """
    named = own.named()
    kept = {key: value for key, value in scenario.data.partition.options.items() if key in CLIENT_KINDS}
    options, lost = {"data": dict(own.reading), "partition": kept}, {"data": {"root": None}}
    for kind in (kind for kind in KINDS.values() if kind.given in named):
        if kind.section == "local":
            scenario = _change(scenario, "local", {kind.given: getattr(LocalKeys(), kind.given)})
        elif kind.part != "training":
            name = named[kind.given]
            alone = {"name": name, "options": options.get(kind.word, {}), **lost.get(kind.word, {})}
            scenario = _change(scenario, kind.section, {"object": name, **(alone if kind.alone else {})})
    refuse_idle_objects(scenario)
    mine = {kind.given: named[kind.given] for kind in KINDS.values() if kind.part == "training" and kind.given in named}
    if own.modules:
        mine["modules"] = [
            str(Path(name).expanduser().absolute()) if name.endswith(".py") else name for name in own.modules
        ]
    return replace(scenario, own=mine) if mine else scenario


def _change(keys: Any, section: str, changes: Mapping[str, Any]) -> Any:
    """Copies the keys of a scenario and changes some keys of a section."""
    if not section:
        return replace(keys, **changes)
    first, _, rest = section.partition(".")
    return replace(keys, **{first: _change(getattr(keys, first), rest, changes)})


def check_objects(scenario: Scenario, own: UserObjects, *, refuses: bool = False) -> None:
    """Checks that every Python object with which the run was started is passed again.

    Args:
        scenario: The scenario of the run, with the names of its objects.
        own: The objects that are passed.
        refuses: Whether an object is refused if the run was started without an object of this kind.

    Raises:
        BadInput: An object is missing or refused. The message names the object.
    """
    recorded = scenario.own or {}
    for kind in KINDS.values():
        wanted = recorded.get(kind.given) if kind.part == "training" else value_at(scenario, kind.object_key)
        given = kind.given in own.named()
        if wanted is not None and not given:
            raise BadInput(
                f"{kind.object_key} = {wanted}: this run was started with a Python object as its {kind.given}: pass "
                f"the same {kind.given}= to fedray.resume or fedray.load"
            )
        if refuses and given and wanted is None:
            usual = value_at(scenario, kind.key)
            what = f"with {kind.key} = {usual}" if usual else "without"
            raise BadInput(f"{kind.given}= was given, but the run was started {what}: leave it out")


def explain_own_objects(error: Exception, scenario: Scenario, own: UserObjects) -> FedrayError | None:
    """Turns an exception in a run with a user's objects into an error of one line.

    Errors of fedray stay unchanged.

    Returns:
        The error, or None if the run uses no object of the user. The result is also None for an `OSError` or
        `MemoryError` that the user's code did not raise.
    """
    if isinstance(error, FedrayError):
        return error
    mine = [_describe_object(kind, scenario, own) for kind in KINDS.values()]
    line = user_code.find_user_line(error)
    if not any(mine) or (line is None and isinstance(error, OSError | MemoryError)):
        return None
    told = FedrayError(f"{', '.join(filter(None, mine))}: {user_code.describe_exception(error)}")
    told.__cause__ = error
    return told


@contextmanager
def explaining_own_objects(scenario: Scenario, own: UserObjects) -> Iterator[None]:
    """Replaces an exception in the `with` block with the error that `explain_own_objects` returns."""
    try:
        yield
    except Exception as error:
        told = explain_own_objects(error, scenario, own)
        if told is None or told is error:
            raise
        raise told from error


def name_own_method(scenario: Scenario, own: UserObjects) -> str:
    """Returns the name of a user's method for messages, or an empty text for a method of fedray."""
    return _describe_object(KINDS["method"], scenario, own) or ""


def _describe_object(kind: Kind, scenario: Scenario, own: UserObjects) -> str | None:
    """Names the user's object of a kind for messages. Returns None if the run uses an object of fedray."""
    name = own.named().get(kind.given)
    if kind.part == "training":
        return None if name is None else f"{kind.given} = {name}"
    known = value_at(scenario, kind.key)
    name = known if name is None and names.is_own(kind.word, known) else name
    return None if name is None else f"method {name}" if kind.word == "method" else f"{kind.word}.name = {name}"
