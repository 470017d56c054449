"""A user's own loss, optimizer, augmentations, metrics and callbacks, as parts of a study."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedray.assembly.pieces import make_augmentations, try_augmentations
from fedray.assembly.registry import UserObjects, declare_options, makes_transform, name_thing
from fedray.core import rng
from fedray.core.errors import BadInput, warn_user
from fedray.core.method import READS, Local, LocalLoss, Transform, reads_ensemble
from fedray.data.types import Dataset
from fedray.features.windows import check_windows
from fedray.metrics.scores import PREFIXES, is_fedrays
from fedray.models.nets import RBF
from fedray.own_code.contract import contract
from fedray.own_code.user_code import name_type
from fedray.scenario import names
from fedray.scenario.names import method_spec_of
from fedray.scenario.rows import is_stack
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study
from fedray.training.client_code import mixes_targets, try_code


def add_own_code(local: Local, scenario: Scenario, objects: UserObjects, data: Dataset) -> Local:
    """Returns local training with augmentations and with the user's loss and optimizer.

    Args:
        local: local training as the scenario's keys describe it.
        scenario: the scenario, which may name loss, optimizer and augmentations.
        objects: the user's objects, which replace names in the scenario.
        data: the data set on which clients train.
    """
    own = objects
    given_objects = [key for key in ("loss", "optimizer", "augment") if key in own.named()]
    if given_objects and objects.method is None and not method_spec_of(scenario.method.name).trains:
        name = scenario.method.name
        raise BadInput(f"{given_objects[0]}: {name} is fitted in closed form, without rounds: leave it out")
    keys, changes = scenario.local, dict[str, Any]()
    local = replace(local, augment=make_augmentations(own.augment or keys.augment, keys.options, data))
    given: tuple[tuple[Literal["loss", "optimizer"], str | None, Any], ...]
    given = (("loss", keys.loss, own.loss), ("optimizer", keys.optimizer, own.optimizer))
    for kind, named, thing in given:
        if thing is None and (named is None or not names.is_own(kind, named)):
            continue
        name = name_thing(thing) if thing is not None else str(named)
        code = thing if thing is not None else names.find_thing(kind, name)
        known = declare_options(kind, code) if thing is not None else names.declared_options(kind, name) or {}
        options = {key: value for key, value in keys.options.items() if key in known}
        if kind == "loss":
            changes["loss"] = read_loss(code, name, options)
        else:
            changes |= {"step": read_optimizer(code, name, options), "optimizer": "sgd"}
            if keys.momentum:
                raise BadInput(f"local.momentum = {keys.momentum:g}, but {name} is your own optimizer: leave it out")
    if changes and is_stack(scenario):
        raise BadInput(f"local.{min(changes)}: a stack trains with losses and optimizers of its own: leave yours out")
    return replace(local, **changes) if changes else local


def read_loss(thing: Any, name: str, options: Mapping[str, Any]) -> LocalLoss:
    """Returns a user's loss with its options; an exception in it becomes one line.

    Args:
        thing: a function or a `LocalLoss`.
        name: name of the loss in messages.
        options: options in the scenario.
    """
    loss = thing if isinstance(thing, LocalLoss) else LocalLoss(thing)
    function = partial(loss.function, **options) if options else loss.function
    remedy = "" if loss.reads else f": in its context {', '.join(READS)} are None: name them in LocalLoss(..., reads=)"
    return loss._replace(function=contract(f"local.loss = {name}", function, remedy=remedy), name=name)


def read_optimizer(thing: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Returns a user's optimizer with its options: a transformation or (parameters, lr=...) -> torch optimizer."""
    where = f"local.optimizer = {name}"
    if not isinstance(thing, Transform):
        if not makes_transform(thing, options):
            factory = contract(where, partial(thing, **options))

            def make(parameters: Any, lr: float) -> Any:
                return factory(parameters, lr=lr)

            make.__name__ = name  # the name in messages
            return make
        wanted = "return a fedray.methods.Transform"
        thing = contract(
            where, thing, lambda found: None if isinstance(found, Transform) else f"{name_type(found)}: {wanted}"
        )(**options)
    elif options:
        raise BadInput(f"{where} has options, but it is no function of them: register a function that makes it")
    at = None if thing.at is None else contract(where, thing.at)
    return thing._replace(init=contract(where, thing.init), update=contract(where, thing.update), name=name, at=at)


def find_metrics(scenario: Scenario, own: UserObjects) -> dict[str, Callable[..., Any]]:
    """Returns the user's metrics by name, from the scenario or passed.

    Raises:
        BadInput: a name cannot name a column, or is the name of one of fedray's metrics.
    """
    named = {name: names.find_thing("metric", name) for name in scenario.evaluate.metrics or ()}
    for name in (found := {**named, **own.metrics}):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name):
            raise BadInput(
                f"evaluate.metrics = {name} cannot be the name of a column: use letters, digits and '_', as in "
                "metrics={'gap': function}"
            )
        if is_fedrays(name):
            raise BadInput(
                f"evaluate.metrics = {name} is a column of fedray's own, or begins like some ({', '.join(PREFIXES)}): "
                "choose another name"
            )
    return found


def find_callbacks(scenario: Scenario, own: UserObjects) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Returns the names and functions of callbacks, called after each round; an exception in one becomes one line."""
    named = [(name, names.find_thing("callback", name)) for name in scenario.callbacks or ()]
    passed = [(name_thing(one), one) for one in own.callbacks]
    return tuple((name, contract(f"callbacks = {name}", one)) for name, one in [*named, *passed])


def try_own_code(study: Study) -> None:
    """Trains two steps if local training contains a user's code, to find mistakes in the code at once.

    Augmentations are tried twice on some samples of a client.

    Raises:
        FedrayError: the code cannot be used; the message is one line.
    """
    phase, tried = study.method.phase, study.parts[0].study if study.parts else study
    for one in study.method.parts or (phase,):
        check_windows(one, study.method.name)
        try_augmentations(study.shards, one.local.augment)
    if phase.local.has_code:
        if phase.walk is not None and phase.local.keeps_model:
            raise BadInput(
                "local.loss reads the client's previous model, which a random walk does not keep: leave it out"
            )
        lacks = phase.walk is not None or not phase.down_vectors or study.asynchronous is not None or phase.stays
        if lacks and reads_ensemble(phase.local.loss):
            raise BadInput(
                "local.loss reads the ensemble, but clients do not get all models whole as a round begins (a walk, a "
                "method that sends none, participation.mode, local.private): let it read broadcast instead"
            )
        try_code(tried.net, tried.example, phase.local, phase.models)
        if mixes_targets(tried.net, phase.local):
            name = "" if phase.local.loss is None else phase.local.loss.name
            warn_user(
                f"local.loss = {name}: the loss of a row depends on the other rows of its batch. Outputs "
                "are [B, C], targets of a regression [B, q], [B, 1] where there is one: compare equal shapes"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Counts the numbers that the layers of a network put out for one example: they decide the memory of a forward pass.


def measure_layers(module: nn.Module, example: Tensor) -> tuple[float, float]:
    """Counts the outputs of all layers, and of the widest layer, for an example; 0 if the module cannot take it.

    Args:
        module: the network.
        example: one input, without a batch dimension.

    Example:
        >>> measure_layers(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), torch.zeros(3))
        (12.0, 5.0)
    """
    sizes, training = [0.0], module.training

    def count(part: nn.Module, _inputs: Any, output: Any) -> None:
        first = output if isinstance(output, Tensor) else output[0]
        sizes.append(float(first.numel() * (part.centers.shape[1] if isinstance(part, RBF) else 1)))

    leaves = [part for part in module.modules() if next(part.children(), None) is None]
    hooks = [part.register_forward_hook(count) for part in leaves]
    try:
        with torch.no_grad(), rng.torch_scope(0):
            module.eval()(example[None])
    except Exception:  # the run itself will say what is wrong with it
        return 0.0, 0.0
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return sum(sizes), max(sizes)
