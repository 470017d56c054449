"""A user's own loss, optimizer, metrics and callbacks: what he registers or passes, and how clients train with it.

Example:
    >>> def smooth(outputs, targets, context, *, smoothing=0.1):
    ...     return (1 - smoothing) * context.objective(outputs, targets)
    >>> read_loss(smooth, "smooth", {"smoothing": 0.2}).name, declare_options("loss", smooth)
    ('smooth', {'smoothing': 0.1})
    >>> declare_options("optimizer", lambda clip=1.0: ...)
    {'clip': 1.0}
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from fedray.core.errors import BadInput
from fedray.core.local import READS, LocalLoss, Transform
from fedray.core.method import Local
from fedray.own_code.source_code import name_callable
from fedray.own_code.user_code import blame_user_code, name_type
from fedray.scenario import names
from fedray.scenario.evaluation import OwnKeys
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study
from fedray.training.client_trial import try_code

KINDS: tuple[names.NameKind, ...] = ("loss", "optimizer", "metric", "callback")
WANTED = {
    "loss": "a function (outputs, targets, context) -> the loss of each row, or a fedray.methods.LocalLoss",
    "optimizer": "a fedray.methods.Transform, a function of options that makes one, or one (parameters, lr) -> "
    "torch.optim.Optimizer",
    "metric": "a function of a fedray.methods.Scored -> a number",
    "callback": "a function (round, scores, models) -> whether to stop",
}
_PLAIN = bool | int | float | str
_registered: dict[tuple[str, str], Any] = {}


@dataclass(frozen=True)
class OwnTraining:
    """Objects that a user passes for training and evaluation.

    Attributes:
        loss: takes the place of the network's loss.
        optimizer: takes the place of `local.optimizer`.
        metrics: further metrics by name.
        callbacks: called after each round.
    """

    loss: Any = None
    optimizer: Any = None
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    callbacks: tuple[Callable[..., Any], ...] = ()

    def named(self) -> dict[str, Any]:
        """What a run directory calls each object; without those that are not given."""
        found = {
            "loss": None if self.loss is None else name_thing(self.loss),
            "optimizer": None if self.optimizer is None else name_thing(self.optimizer),
            "metrics": list(self.metrics) or None,
            "callbacks": [name_thing(one) for one in self.callbacks] or None,
        }
        return {kind: name for kind, name in found.items() if name is not None}

    def things(self) -> list[tuple[names.NameKind, Any]]:
        """All of them, each with its kind."""
        each: list[tuple[names.NameKind, Any]] = [("loss", self.loss), ("optimizer", self.optimizer)]
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
    """Keeps what a user registered under a name."""
    check_code(kind, f"{kind}.name = {name!r}", thing)
    _registered[kind, name] = thing


def find_code(kind: str, name: str) -> Any:
    """What was registered under a name."""
    return _registered[kind, name]


def check_code(kind: str, where: str, thing: Any) -> None:
    """Refuses what cannot be a loss, an optimizer, a metric or a callback.

    Args:
        kind: one of `KINDS`.
        where: what messages begin with.
        thing: the user's object.
    """
    also = {"loss": LocalLoss, "optimizer": Transform}.get(kind)
    if not callable(thing) and not (also is not None and isinstance(thing, also)):
        raise BadInput(f"{where}: it is {name_type(thing)}: give {WANTED[kind]}")
    if isinstance(thing, LocalLoss) and not set(thing.reads) <= set(READS):
        raise BadInput(f"{where}: it reads {', '.join(map(str, thing.reads))}: choose among {', '.join(READS)}")


def declare_options(kind: str, thing: Any) -> dict[str, Any]:
    """The options that a function has by its signature, with their defaults: the keywords with plain defaults.

    Args:
        kind: one of `KINDS`.
        thing: a loss, whose keyword-only arguments count, or an optimizer that a function of options makes.
    """
    if not inspect.isfunction(thing) or (kind == "optimizer" and not _makes_transform(thing)):
        return {}
    only = (inspect.Parameter.KEYWORD_ONLY, *([inspect.Parameter.POSITIONAL_OR_KEYWORD] if kind == "optimizer" else []))
    parameters = inspect.signature(thing).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in only and isinstance(p.default, _PLAIN)}


def _makes_transform(thing: Any) -> bool:
    """Whether a function can be called without positional arguments: then it makes a transformation."""
    try:
        inspect.signature(thing).bind()
    except TypeError:
        return False
    return True


def read_loss(thing: Any, name: str, options: Mapping[str, Any]) -> LocalLoss:
    """A user's loss with its options; what it raises is one line.

    Args:
        thing: a function or a `LocalLoss`.
        name: what messages call it.
        options: of the scenario.
    """
    loss = thing if isinstance(thing, LocalLoss) else LocalLoss(thing)
    function = partial(loss.function, **options) if options else loss.function
    return LocalLoss(_blame(function, f"local.loss = {name}"), loss.reads, name)


def read_optimizer(thing: Any, name: str, options: Mapping[str, Any]) -> Any:
    """A user's optimizer with its options: a transformation, or a function (parameters, lr=...) -> torch optimizer."""
    where = f"local.optimizer = {name}"
    if not isinstance(thing, Transform):
        if not _makes_transform(thing):
            return named_factory(_blame(partial(thing, **options), where), name)
        with blame_user_code(where):
            thing = thing(**options)
        if not isinstance(thing, Transform):
            raise BadInput(f"{where} returned {name_type(thing)}: return a fedray.methods.Transform")
    elif options:
        raise BadInput(f"{where} has options, but it is no function of them: register a function that makes it")
    return Transform(_blame(thing.init, where), _blame(thing.update, where), thing.noise, name)


def named_factory(factory: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function with the name that messages have for it."""

    def make(parameters: Any, lr: float) -> Any:
        return factory(parameters, lr=lr)

    make.__name__ = name
    return make


def _blame(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    """A function of the user's whose exceptions are one line."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        with blame_user_code(where):
            return function(*arguments, **keywords)

    return call


def add_own_code(local: Local, scenario: Scenario, own: OwnTraining) -> Local:
    """Local training with the user's loss and optimizer.

    Args:
        local: what the keys say.
        scenario: names them.
        own: objects that take the place of names.
    """
    keys, changes = scenario.local, dict[str, Any]()
    for kind, named, thing in (("loss", keys.loss, own.loss), ("optimizer", keys.optimizer, own.optimizer)):
        if thing is None and (named is None or not names.is_own(kind, named)):  # type: ignore[arg-type]
            continue
        name = name_thing(thing) if thing is not None else str(named)
        code = thing if thing is not None else find_code(kind, name)
        known = declare_options(kind, code) if thing is not None else names.declared_options(kind, name) or {}  # type: ignore[arg-type]
        options = {key: value for key, value in keys.options.items() if key in known}
        if kind == "loss":
            changes["loss"] = read_loss(code, name, options)
        else:
            changes |= {"step": read_optimizer(code, name, options), "optimizer": "sgd"}
            if keys.momentum:
                raise BadInput(f"local.momentum = {keys.momentum:g}, but {name} is your own optimizer: leave it out")
    if changes and scenario.method.name == "stacking":
        raise BadInput(f"local.{min(changes)}: a stack trains with losses and optimizers of its own: leave yours out")
    return replace(local, **changes) if changes else local


def find_metrics(scenario: Scenario, own: OwnTraining) -> dict[str, Callable[..., Any]]:
    """The user's metrics by name: those that the scenario names, and those that were passed.

    Raises:
        BadInput: a name cannot be that of a column.
    """
    named = {name: find_code("metric", name) for name in scenario.evaluate.metrics or ()}
    for name in (found := {**named, **own.metrics}):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name):
            raise BadInput(f"evaluate.metrics = {name} cannot be the name of a column: use letters, digits and '_'")
    return found


def find_callbacks(scenario: Scenario, own: OwnTraining) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Names and functions that are called after each round; what they raise is one line."""
    named = [(name, find_code("callback", name)) for name in scenario.callbacks or ()]
    passed = [(name_thing(one), one) for one in own.callbacks]
    return tuple((name, _blame(one, f"callbacks = {name}")) for name, one in [*named, *passed])


def drop_watchers(scenario: Scenario, own: OwnTraining) -> tuple[Scenario, OwnTraining]:
    """A scenario and its objects without callbacks and rules about rounds, for runs inside a run."""
    kept = replace(scenario.own, callbacks=None) if scenario.own is not None else None
    checkpoint = replace(scenario.checkpoint, best=None)
    scenario = replace(scenario, own=kept, callbacks=None, stop=None, checkpoint=checkpoint)
    return scenario, replace(own, callbacks=())


def try_own_code(study: Study) -> None:
    """Trains two steps where there is code in local training, so that what is wrong with it is known at once.

    Raises:
        FedrayError: the code cannot be used; one line.
    """
    phase = study.method.phase
    if phase.local.has_code:
        if phase.walk is not None and phase.local.keeps_model:
            raise BadInput("local.loss reads the client's previous model, which a random walk does not keep: leave it")
        try_code(study.net, study.example, phase.local)


def record_training(scenario: Scenario, own: OwnTraining) -> Scenario:
    """The scenario with the names of the objects in the place of what it names, as a run directory keeps it."""
    named, local = own.named(), scenario.local
    if "loss" in named:
        local = replace(local, loss=None)
    if "optimizer" in named:
        local = replace(local, optimizer="sgd")
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


def check_training(loss: Any, optimizer: Any, metrics: Any, callbacks: Any) -> OwnTraining:
    """The objects that a user passes, each of the kind that is needed.

    Args:
        loss: a function or a `LocalLoss`, or None.
        optimizer: a `Transform` or a function, or None.
        metrics: functions by name, a list of functions, or None.
        callbacks: a function, a list of functions, or None.

    Raises:
        BadInput: names the one that cannot be used.
    """
    several = metrics if isinstance(metrics, Mapping) else {name_thing(one): one for one in _list(metrics)}
    made = OwnTraining(loss, optimizer, dict(several), tuple(_list(callbacks)))
    for kind, thing in made.things():
        check_code(kind, kind, thing)
    return made


def take_training(loss: Any, optimizer: Any, metrics: Any, callbacks: Any, keys: dict[str, Any]) -> OwnTraining:
    """The objects that a user passes; a loss or an optimizer that is a name goes to the keys of the scenario.

    Args:
        loss: as in `check_training`, or a name.
        optimizer: as in `check_training`, or a name.
        metrics: as in `check_training`.
        callbacks: as in `check_training`.
        keys: dotted keys of the scenario; they may get new ones.
    """
    named = {"local.loss": loss, "local.optimizer": optimizer}
    keys |= {key: value for key, value in named.items() if isinstance(value, str)}
    loss, optimizer = (None if isinstance(value, str) else value for value in (loss, optimizer))
    return check_training(loss, optimizer, metrics, callbacks)


def list_training_code(scenario: Scenario, own: OwnTraining) -> list[tuple[names.NameKind, str, Any]]:
    """Kind, name and object of the user's code in training and evaluation, registered or passed."""
    passed = [(kind, name_thing(thing), thing) for kind, thing in own.things()]
    return passed + [(kind, name, find_code(kind, name)) for kind, name in list_training_names(scenario)]


def list_training_names(scenario: Scenario) -> list[tuple[names.NameKind, str]]:
    """Kinds and names of the user's code in training and evaluation that a scenario names."""
    local = scenario.local
    wanted: list[tuple[names.NameKind, str | None]] = [("loss", local.loss), ("optimizer", local.optimizer)]
    wanted += [("metric", name) for name in scenario.evaluate.metrics or ()]
    wanted += [("callback", name) for name in scenario.callbacks or ()]
    return [(kind, name) for kind, name in wanted if name is not None and names.is_own(kind, name)]


def _list(value: Any) -> Sequence[Any]:
    """One or several objects as a list."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
