"""Parts of a scenario that a user's own method does not read: an object is refused, a key is named in a warning.

Example:
    >>> from types import SimpleNamespace
    >>> from fedray.core.local import LocalLoss
    >>> local = Local(loss=LocalLoss(len, name="mine"))
    >>> method = SimpleNamespace(name="own", parts=(), phase=SimpleNamespace(local=Local()))
    >>> refuse_unread_code(local, method)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fedray.core.errors.BadInput: local.loss = mine, but own does not read it: make its local with replace(setting...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType

from fedray.assembly.own_training import functions_of
from fedray.core.errors import BadInput, FedrayError, warn_user
from fedray.core.method import Local, Method
from fedray.core.text import quote_value
from fedray.methods.setting import Setting
from fedray.own_code.source_code import read_closure
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import MethodKeys, Scenario

_KEYS = (  # of the section `local`, which are fields of `Local` too
    "optimizer",
    "lr",
    "lr_decay",
    "lr_decay_every",
    "momentum",
    "weight_decay",
    "batch_size",
    "epochs",
    "steps",
    "pull",
    "schedule",
)
_REMEDY = "make its local with replace(setting.local, ...), or leave it out"


def refuse_unread_code(given: Local, method: Method) -> None:
    """Refuses a loss, an optimizer or augmentations, of the scenario's or passed, that a method does not train with.

    Where a method has others, which do not hold the one that was given, a warning says so.

    Args:
        given: how the scenario says that clients train.
        method: the user's own.

    Raises:
        BadInput: names what is not read.
    """
    if method.parts:
        return
    local = method.phase.local
    held = {id(thing) for one in local.augment for thing in (one.function, *_list_closure(one.function))}
    if unread := ", ".join(one.name for one in given.augment if not {id(one), id(one.function)} & held):
        if not local.augment:
            raise BadInput(f"local.augment = {unread}, but {method.name} does not read it: {_REMEDY}")
        warn_user(f"local.augment = {unread}, but {method.name} augments with others: {_REMEDY}")
    named = {"loss": given.loss and given.loss.name, "optimizer": given.step and given.optimizer_name}
    for key, wanted, has in (("loss", given.loss, local.loss), ("optimizer", given.step, local.step)):
        if wanted is None or has is wanted:
            continue
        if has is None:
            raise BadInput(f"local.{key} = {named[key]}, but {method.name} does not read it: {_REMEDY}")
        if not _list_parts(wanted) & _list_held(has):
            warn_user(f"local.{key} = {named[key]}, but {method.name} trains with one of its own: {_REMEDY}")


def _list_parts(thing: object) -> set[int]:
    """The identities of a loss or an optimizer and of its functions."""
    return {id(thing), *map(id, functions_of(thing))}


def _list_held(thing: object) -> set[int]:
    """The identities of its functions, and of what their closures hold."""
    functions = functions_of(thing)
    return {*map(id, functions), *(id(one) for function in functions for one in _list_closure(function))}


def _list_closure(function: object) -> list[object]:
    """What the closure of a function holds."""
    return list(read_closure(function).values()) if isinstance(function, FunctionType) else []


def warn_of_unread_keys(
    scenario: Scenario, pieces: Setting, usual: Local, method: Method, compose: Callable[[Setting], Method]
) -> None:
    """Says which keys of `local` a method replaces by values of its own.

    A method may compute with a key (half of the learning rate). So it is composed once more without the keys, and those
    that make no difference are named.

    Args:
        scenario: has the keys.
        pieces: of the method.
        usual: how clients train where no key says anything.
        method: the user's own.
        compose: makes it from other pieces.
    """
    given, local = pieces.local, method.phase.local
    asked = [
        key
        for key in _KEYS
        if getattr(given, key) not in (getattr(usual, key), getattr(local, key))
        and not (key == "epochs" and given.epochs is None)
        and not (key == "lr" and scenario.local.lr_grid)
    ]
    if method.parts or method.phase.fitting is not None or not asked:
        return
    plain = replace(given, **{key: getattr(usual, key) for key in _KEYS})
    try:
        other = compose(replace(pieces, local=plain))
    except FedrayError:  # it needs them
        return
    idle = [key for key in asked if _fields(method, key) == _fields(other, key)]
    if idle:
        named = ", ".join(f"local.{key} = {quote_value(getattr(scenario.local, key))}" for key in idle)
        warn_user(
            f"{named} does not change how clients train with {method.name}, which has values of its own: {_REMEDY}"
        )


def _fields(method: Method, key: str) -> list[object]:
    """A field of every local training of a method."""
    return [getattr(local, key) for local in (method.phase.local, *method.phase.personal)]


def warn_of_idle_keys(
    scenario: Scenario, pieces: Setting, method: Method, compose: Callable[[Setting], Method]
) -> None:
    """Says which keys beside `local` a method answers, or counts bytes, without.

    Args:
        scenario: has the keys.
        pieces: of the method.
        method: the user's own.
        compose: makes it from other pieces.
    """
    asked, trained = scenario.method.models, method.phase.models
    if asked not in (trained, _usual_models(scenario)):
        warn_user(
            f"method.models = {asked} cannot act, because {method.name} trains {trained} models: leave it out, or let "
            "the method read setting.models"
        )
    if method.one_model_per_client and math.isfinite(scenario.predict.gamma):
        warn_user(
            f"predict.gamma = {scenario.predict.gamma:g} cannot act, because a known client of {method.name} answers "
            "with a model of its own: leave it out"
        )
    if pieces.compress is not None and any(phase.traffic is not None for phase in method.parts or (method.phase,)):
        try:
            idle = _count_first_round(method) == _count_first_round(compose(replace(pieces, compress=None)))
        except FedrayError:  # it needs the key, or a state
            return
        if idle:
            warn_user(
                f"compress.kind = {scenario.compress.kind} changes the uploads of {method.name}, but not the bytes "
                "that its traffic counts: leave it out, or let traffic count them (phase.compress.bytes)"
            )


def _count_first_round(method: Method) -> list[list[int]]:
    """The bytes up of each job of the first round, as the `traffic` of each phase counts them."""
    phases = method.parts or (method.phase,)
    return [one.traffic(0, one.schedule(0, None))[0].tolist() for one in phases if one.traffic is not None]


def _usual_models(scenario: Scenario) -> int:
    """K where a scenario does not say it: what the method was registered with, or that of any other."""
    registered: Mapping[str, int] = method_spec_of(scenario.method.name).defaults.get("method", {})
    return registered.get("models", MethodKeys().models)
