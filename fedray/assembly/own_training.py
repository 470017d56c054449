"""A user's own loss, optimizer, augmentations, metrics and callbacks: what they register or pass, and their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from fedray.core.errors import BadInput
from fedray.core.local import READS, LocalLoss, Transform
from fedray.core.text import quote_value, suggest_nearest
from fedray.data.own_partition import is_partitioner, wants_columns
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import explain_uncallable, takes_positional
from fedray.scenario import names
from fedray.scenario.schema import Scenario
from fedray.scenario.training import OwnKeys

# ---------------------------------------------------------------------------------------------------------------------
# A user's own loss, optimizer, augmentations, metrics and callbacks: what they register or pass, and their names.

KINDS: tuple[names.NameKind, ...] = ("loss", "optimizer", "augmentation", "metric", "callback")
WANTED = {
    "loss": "a function (outputs, targets, context) -> the loss of each row, such as lambda outputs, targets, context: "
    "cross_entropy(outputs, targets, reduction='none'), or a fedray.methods.LocalLoss",
    "optimizer": "a fedray.methods.Transform, a function of options that makes one, or one (parameters, lr=...) -> "
    "torch.optim.Optimizer",
    "augmentation": "a function of one input -> the changed input, such as a transform of torchvision, or of a batch, "
    "(inputs, targets) -> both",
    "metric": "a function of a fedray.methods.Scored -> a number",
    "callback": "a function (round, scores, models) -> whether to stop",
}
_ARGUMENTS = {
    "loss": "outputs, targets, context",
    "augmentation": "inputs, targets",
    "metric": "scored",
    "callback": "round, scores, models",
}
_IMPORT = "give modules= the one that registers it"
_PLAIN = bool | int | float | str
_registered: dict[tuple[str, str], Any] = {}


@dataclass(frozen=True)
class OwnTraining:
    """Objects that a user passes for training and evaluation.

    Attributes:
        loss: takes the place of the network's loss.
        optimizer: takes the place of `local.optimizer`.
        augment: takes the place of `local.augment`: functions, and names among them.
        metrics: further metrics by name.
        callbacks: called after each round.
    """

    loss: Any = None
    optimizer: Any = None
    augment: tuple[Any, ...] = ()
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    callbacks: tuple[Callable[..., Any], ...] = ()

    def named(self) -> dict[str, Any]:
        """What a run directory calls each object; without those that are not given."""
        found = {
            "loss": None if self.loss is None else name_thing(self.loss),
            "optimizer": None if self.optimizer is None else name_thing(self.optimizer),
            "augment": [one if isinstance(one, str) else name_thing(one) for one in self.augment] or None,
            "metrics": list(self.metrics) or None,
            "callbacks": [name_thing(one) for one in self.callbacks] or None,
        }
        return {kind: name for kind, name in found.items() if name is not None}

    def things(self) -> list[tuple[names.NameKind, Any]]:
        """All of them, each with its kind."""
        each: list[tuple[names.NameKind, Any]] = [("loss", self.loss), ("optimizer", self.optimizer)]
        each += [("augmentation", one) for one in self.augment if not isinstance(one, str)]
        each += [("metric", one) for one in self.metrics.values()] + [("callback", one) for one in self.callbacks]
        return [(kind, one) for kind, one in each if one is not None]


def name_thing(thing: Any) -> str:
    """The name of a function, or the one that a loss or a transformation has."""
    return thing.name if isinstance(thing, LocalLoss | Transform) else name_callable(thing).rpartition(".")[2]


def functions_of(thing: Any) -> list[Any]:
    """The functions that a registered or passed object consists of."""
    if isinstance(thing, LocalLoss):
        return [thing.function]
    return [thing.init, thing.update] if isinstance(thing, Transform) else [thing]


def keep_code(kind: str, name: str, thing: Any) -> None:
    """Keeps what a user registered under a name, which `check_code` has seen."""
    _registered[kind, name] = thing


def find_code(kind: str, name: str) -> Any:
    """What was registered under a name."""
    return _registered[kind, name]


def check_code(kind: str, where: str, thing: Any, options: Iterable[str] = ()) -> None:
    """Refuses what cannot be of a kind.

    Args:
        kind: one of `KINDS`.
        where: what messages begin with.
        thing: the user's object.
        options: names of keywords that a scenario gives it.
    """
    if kind == "optimizer":
        wrong = _explain_transform(thing, options)
    else:
        wrong = explain_uncallable(find_function(thing), _ARGUMENTS[kind], options)
    if kind == "augmentation" and wrong is not None:
        wrong = explain_uncallable(find_function(thing), "input", options)
        wrong = wrong and wrong.replace("does not take (input)", "takes neither (input) nor (inputs, targets)")
    if wrong is not None:
        raise BadInput(f"{where}: it {wrong}: give {WANTED[kind]}")
    if isinstance(thing, LocalLoss) and isinstance(thing.reads, str):
        raise BadInput(f"{where}: its reads is text: give a tuple, reads=({thing.reads!r},)")
    if isinstance(thing, LocalLoss) and not set(thing.reads) <= set(READS):
        raise BadInput(f"{where}: it reads {', '.join(map(str, thing.reads))}: choose among {', '.join(READS)}")


def find_function(thing: Any) -> Any:
    """The function of what a user gives; torch's modules are called by their `forward`."""
    thing = thing.function if isinstance(thing, LocalLoss) else thing
    return thing.forward if isinstance(thing, nn.Module) else thing


def _explain_transform(thing: Any, options: Iterable[str]) -> str | None:
    """Why something is no optimizer, behind the word "it"; None where it can be one."""
    if isinstance(thing, Transform):
        each = {"init": "parameters", "update": "gradient, state, parameters, context", "at": "parameters, noise"}
        functions = {name: getattr(thing, name) for name in each if name != "at" or thing.at is not None}
        found = ((name, explain_uncallable(function, each[name])) for name, function in functions.items())
        return next((f"has an {name} that {wrong}" for name, wrong in found if wrong is not None), None)
    alone = explain_uncallable(thing, "", options, classes=True)
    return alone and explain_uncallable(thing, "parameters", ["lr", *options], classes=True)


def declare_options(kind: str, thing: Any) -> dict[str, Any]:
    """The options that a function has by its signature, with their defaults: the keywords with plain defaults.

    Args:
        kind: one of `KINDS`.
        thing: one whose keyword-only arguments count, or an optimizer that a function of options makes.

    Example:
        >>> def smooth(outputs, targets, context, *, smoothing=0.1):
        ...     return (1 - smoothing) * context.objective(outputs, targets)
        >>> declare_options("loss", smooth)
        {'smoothing': 0.1}
        >>> declare_options("optimizer", lambda clip=1.0: ...)
        {'clip': 1.0}
    """
    if not inspect.isfunction(thing) or (kind == "optimizer" and not makes_transform(thing)):
        return {}
    only = (inspect.Parameter.KEYWORD_ONLY, *([inspect.Parameter.POSITIONAL_OR_KEYWORD] if kind == "optimizer" else []))
    parameters = inspect.signature(thing).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in only and isinstance(p.default, _PLAIN)}


def makes_transform(thing: Any, options: Iterable[str] = ()) -> bool:
    """Whether a function can be called with its options alone: then it makes a transformation."""
    return takes_positional(thing, 0, options)


def drop_watchers(scenario: Scenario, own: OwnTraining) -> tuple[Scenario, OwnTraining]:
    """A scenario and its objects without callbacks and rules about rounds, for runs inside a run."""
    kept = replace(scenario.own, callbacks=None) if scenario.own is not None else None
    checkpoint = replace(scenario.checkpoint, best=None)
    scenario = replace(scenario, own=kept, callbacks=None, stop=None, checkpoint=checkpoint)
    return scenario, replace(own, callbacks=())


def record_training(scenario: Scenario, own: OwnTraining) -> Scenario:
    """The scenario with the names of the objects instead of what it names, as a run directory keeps it."""
    named, local = own.named(), scenario.local
    if "loss" in named:
        local = replace(local, loss=None)
    if "optimizer" in named:
        local = replace(local, optimizer="sgd")
    if "augment" in named:
        local = replace(local, augment=[])
    return replace(scenario, local=local, own=OwnKeys(**named)) if named else scenario


def _list_recorded(scenario: Scenario) -> dict[str, Any]:
    """The objects for training that a run was started with, by what they are called."""
    kept = asdict(scenario.own) if scenario.own is not None else {}
    return {key: name for key, name in kept.items() if name is not None}


def require_training(scenario: Scenario, own: OwnTraining) -> None:
    """Raises `BadInput` where an object is not given that the run was started with."""
    for key, name in _list_recorded(scenario).items():
        if key not in own.named():
            raise BadInput(
                f"own.{key} = {name}: this run was started with a Python object as its {key}: pass the same {key}= to "
                "fedray.resume or fedray.load"
            )


def refuse_training(scenario: Scenario, own: OwnTraining) -> None:
    """Raises `BadInput` where an object is given that the run was started without."""
    for key in own.named().keys() - _list_recorded(scenario).keys():
        raise BadInput(f"{key}= was given, but the run was started without: leave it out")


def check_training(loss: Any, optimizer: Any, augment: Any, metrics: Any, callbacks: Any) -> OwnTraining:
    """The objects that a user passes, each of the kind that is needed.

    Args:
        loss: a function or a `LocalLoss`, or None.
        optimizer: a `Transform` or a function, or None.
        augment: a function, a list of functions and names, or None.
        metrics: functions by name, a list of functions, or None.
        callbacks: a function, a list of functions, or None.

    Raises:
        BadInput: names the one that cannot be used.
    """
    made = OwnTraining(loss, optimizer, tuple(_list(augment)), _name_metrics(metrics), tuple(_list(callbacks)))
    for name in (one for one in made.augment if isinstance(one, str) and not names.is_known("augmentation", one)):
        known = names.known_names("augmentation")
        raise BadInput(f"augment = {name} is not one of {', '.join(known)}: {suggest_nearest(name, known, _IMPORT)}")
    for kind, thing in made.things():
        several = kind in ("augmentation", "metric", "callback") and callable(thing)
        check_code(kind, f"{kind} {name_thing(thing)}" if several else kind, thing)
    return made


def _name_metrics(metrics: Any) -> dict[str, Any]:
    """Metrics by name; functions without names given are called what they are called."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    named: dict[str, Any] = {}
    for one in _list(metrics):
        if (name := name_thing(one)) in named:
            raise BadInput(f"metrics: two functions are called {name}: give a mapping {{name: function}}")
        named[name] = one
    return named


def take_training(given: Mapping[str, Any], keys: dict[str, Any]) -> OwnTraining:
    """The objects that a user passes; what is a name goes to the keys of the scenario.

    Args:
        given: what `check_training` takes; a loss, an optimizer and augmentations may be names.
        keys: dotted keys of the scenario; they may get new ones.

    Raises:
        BadInput: an object cannot be used, or the keys have another one in its place.
    """
    for key in (key for key in ("loss", "optimizer", "augment") if given[key] is not None and f"local.{key}" in keys):
        raise BadInput(
            f"local.{key} = {quote_value(keys[f'local.{key}'])}, but {key}= is given too: leave one of them out"
        )
    named = {key: given[key] for key in ("loss", "optimizer", "augment") if _is_named(given[key])}
    keys |= {f"local.{key}": value for key, value in named.items()}
    return check_training(**{key: None if key in named else value for key, value in given.items()})


def _is_named(value: Any) -> bool:
    """Whether something is a name, or a list of names alone."""
    return isinstance(value, str) or (type(value) in (list, tuple) and all(isinstance(one, str) for one in value))


def list_training_code(scenario: Scenario, own: OwnTraining) -> list[tuple[names.NameKind, str, Any]]:
    """Kind, name and object of the user's code in training and evaluation, registered or passed."""
    passed = [(kind, name_thing(thing), thing) for kind, thing in own.things()]
    return passed + [(kind, name, find_code(kind, name)) for kind, name in list_training_names(scenario, own)]


def list_training_names(scenario: Scenario, own: OwnTraining) -> list[tuple[names.NameKind, str]]:
    """Kinds and names of the user's code in training and evaluation that is named, in a scenario or among objects."""
    local = scenario.local
    wanted: list[tuple[names.NameKind, str | None]] = [("loss", local.loss), ("optimizer", local.optimizer)]
    wanted += [("augmentation", name) for name in (*local.augment, *own.augment) if isinstance(name, str)]
    wanted += [("metric", name) for name in scenario.evaluate.metrics or ()]
    wanted += [("callback", name) for name in scenario.callbacks or ()]
    return [(kind, name) for kind, name in wanted if name is not None and names.is_own(kind, name)]


def _list(value: Any) -> Sequence[Any]:
    """One or several objects as a list."""
    return [] if value is None else list(value) if type(value) in (list, tuple) else [value]


# ---------------------------------------------------------------------------------------------------------------------
# A user's own partition, selection and schedule as Python objects beside a scenario.

_KEYS = {"partition": "data.partition", "selection": "participation.selection", "schedule": "schedule"}
_OR = {"partition": " or a partitioner of flwr_datasets"}
ARGUMENTS = {  # what the functions are called with
    "partition": "labels, clients, generator, options",
    "selection": "known, number, generator, options",
    "schedule": "models, rows",
}


def explain_rule(kind: str, thing: Any) -> str | None:
    """Why something is no partition, selection or schedule, behind the word "it"; None where it can be one.

    Args:
        kind: which of the three.
        thing: the user's object.
    """
    keywords = ["columns"] if kind == "partition" and wants_columns(thing) else []
    return explain_uncallable(thing, ARGUMENTS[kind], keywords, classes=kind == "schedule")


def take_rules(given: Mapping[str, Any], keys: dict[str, Any] | None = None) -> dict[str, Any]:
    """The objects among what a user gave; names and mappings are keys of the scenario, as other overrides are.

    Args:
        given: partition, selection and schedule; None where they gave none.
        keys: gets the names and mappings; None: there must be none.

    Raises:
        BadInput: one is no function.

    Example:
        >>> keys = {}
        >>> take_rules({"partition": "dirichlet", "selection": None, "schedule": {"rows": "slot"}}, keys)
        {}
        >>> keys
        {'data.partition': 'dirichlet', 'schedule': {'rows': 'slot'}}
    """
    found = {}
    for kind, thing in given.items():
        if keys is not None and isinstance(thing, str | Mapping):
            keys["schedule.kind" if kind == "schedule" and isinstance(thing, str) else _KEYS[kind]] = thing
        elif thing is not None:
            wrong = None if kind == "partition" and is_partitioner(thing) else explain_rule(kind, thing)
            if wrong is not None:
                wanted = f"a function ({ARGUMENTS[kind]}){_OR.get(kind, '')}"
                raise BadInput(f"{kind}: it {wrong}: give {wanted}, or {_KEYS[kind]} as a key")
            found[kind] = thing
            if keys is not None and is_partitioner(thing):  # it says by itself how many clients there are
                keys["data.partition.object"] = name_callable(thing)
    return found
