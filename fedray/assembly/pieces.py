"""Makes the compression, loss, optimizer, augmentations and metrics of a run from a scenario and a user's code."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.assembly.registry import UserObjects, find_function, find_own, makes_transform, name_thing, spec_of
from fedray.components import compression
from fedray.core import rng
from fedray.core.errors import BadInput, warn_user
from fedray.core.method import READS, SENT, Augmentation, Compress, Local, LocalLoss, Method, Transform, reads_ensemble
from fedray.core.types import Layout, Net
from fedray.data.shards import Shards
from fedray.data.shifts import AUGMENTATIONS, PADDED
from fedray.data.types import Dataset
from fedray.metrics.scorers import SampleMetric, second_argument
from fedray.metrics.scores import PREFIXES, is_fedrays
from fedray.models.nets import RBF
from fedray.own_code.contract import contract
from fedray.own_code.user_code import list_nested, name_type, takes_positional
from fedray.scenario import names
from fedray.scenario.rows import is_stack
from fedray.scenario.schema import Scenario
from fedray.simulation.devices import Devices
from fedray.simulation.study import Study
from fedray.training.block import Steps, change_batches
from fedray.training.client_code import make_trial, mixes_targets, train_client_loop

# ---------------------------------------------------------------------------------------------------------------------
# The compression of a scenario's uploads.

UPLINK_CLIENTS = 100_000  # largest number of clients for the mean uplink


def make_compression(scenario: Scenario, layout: Layout, devices: Devices) -> Compress:
    """Returns the compression of the clients' updates.

    If `compress.adaptive` is set, clients with faster uplinks send more entries.

    Example:
        >>> from torch import nn
        >>> from fedray.core.types import Clients, Tier
        >>> from fedray.models.net import layout_of
        >>> from fedray.scenario.loader import read_scenario
        >>> layout = layout_of(nn.Linear(9, 10))  # 100 parameters
        >>> scenario = read_scenario({"compress": {"kind": "topk", "ratio": 0.1}})
        >>> compress = make_compression(scenario, layout, Devices(Clients((Tier("phones", 5),))))
        >>> compress.bytes(np.array([0]), np.array([0])).tolist()  # ten values, and a bit for each parameter
        [53]
    """
    keys = scenario.compress
    if keys.kind == "dense":
        return compression.dense(layout)
    if keys.kind == "int8":
        made = compression.int8(layout)
    else:
        tiers = devices.clients.tiers
        models = scenario.method.models
        keep = compression.keep_by_tier(layout, tiers, models, keys.ratio, keys.resource_ratio)
        if keys.adaptive:
            number = devices.clients.number
            sample = np.linspace(0, number - 1, min(number, UPLINK_CLIENTS)).astype(np.int64)  # evenly from all tiers
            mean = float(devices.figure("uplink", sample).mean())
            keep = compression.keep_by_bandwidth(layout, keep, lambda client: devices.figure("uplink", client), mean)
        top = keys.kind == "topk"
        made = compression.top_k(layout, keep) if top else compression.random_k(layout, keep, not keys.error_feedback)
    return compression.error_feedback(made) if keys.error_feedback else made


# ---------------------------------------------------------------------------------------------------------------------
# Augmentations of fedray, which have names, and of the user.

_TRIED = 16  # number of samples in a trial of augmentations
_SHRUNK = 20.0  # sd before / sd after of scaled inputs: ToTensor gives 255, and with Normalize 50 or more


def make_augmentations(wanted: Sequence[Any], options: Mapping[str, Any], data: Dataset) -> tuple[Augmentation, ...]:
    """Returns the augmentations that change the samples of each batch, in the order of `wanted`.

    Args:
        wanted: Names of augmentations, and the user's functions.
        options: The value of `local.options`.
        data: The data set on which clients train.

    Raises:
        BadInput: An augmentation of fedray needs pictures, but the data have none. Or an augmentation of the user
            cannot be used.
    """
    made = []
    for one in wanted:
        if isinstance(one, str) and not names.is_own("augmentation", one):
            if data.kind != "images" or (one == "crop" and max(data.input_shape[1:]) < PADDED):
                shape = list(data.input_shape)
                raise BadInput(
                    f"local.augment = {one} changes pictures of {PADDED} pixels or more, but inputs of {data.name} are "
                    f"{shape} ({data.kind}): give a function of your own"
                )
            made.append(AUGMENTATIONS[one])
        elif isinstance(one, str):
            known = names.declared_options("augmentation", one) or {}
            own = {key: value for key, value in options.items() if key in known}
            made.append(read_augmentation(names.find_thing("augmentation", one), one, own))
        else:
            made.append(read_augmentation(one, name_thing(one), {}))
    return tuple(made)


def read_augmentation(thing: Any, name: str, options: Mapping[str, Any]) -> Augmentation:
    """Returns a user's augmentation with its options.

    Args:
        thing: A function of one input, a function of a batch's inputs and targets, or a transform of torchvision.
        name: Name of the augmentation in messages.
        options: The options of the augmentation in the scenario.

    Example:
        >>> read_augmentation(lambda x: x, "same", {}).form, read_augmentation(lambda x, y: (x, y), "pair", {}).form
        ('row', 'batch')
    """
    if any(type(part).__name__ == "Normalize" for part in list_nested(thing)):
        raise BadInput(
            f"local.augment = {name} has Normalize: leave it out, fedray standardizes what the function returns"
        )
    of_one = takes_positional(find_function(thing), 1, options)
    return Augmentation(partial(thing, **options) if options else thing, "row" if of_one else "batch", name)


def try_augmentations(shards: Shards, rules: Sequence[Augmentation]) -> None:
    """Calls the augmentations twice on samples of one client, to find mistakes before training.

    Raises:
        FedrayError: A function cannot be used.
    """
    if all(rule.form == "rows" for rule in rules):
        return
    sizes = shards.sizes(np.zeros(shards.number, np.int64), np.arange(shards.number))
    if not sizes.any():
        return
    world, client = np.zeros(1, np.int64), np.flatnonzero(sizes)[:1]
    fetched = shards.fetch(world, client)
    rows = fetched.rows[:, : min(_TRIED, int(sizes[client[0]]))]
    x, y = fetched.x[rows][None], fetched.labels(rows, 0)[None]
    steps = Steps(rng.keys(0, "augmentation", client), 0, np.array([[rows.shape[1]]]), shards.data.classes)
    for rule in rules:
        found, again = (change_batches((rule,), x, y, steps) for _ in range(2))
        if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, again, strict=True)):
            raise BadInput(
                f"local.augment = {rule.name} has a generator of its own, or remembers its calls, so that no run could "
                "be repeated: draw from torch, numpy.random or random, or start the generator anew in each call, with "
                "int(torch.randint(2**31, ()))"
            )
        before, after = x.float(), found[0].float()
        if shards.data.kind == "images" and 0.0 < float(after.std()) < float(before.std()) / _SHRUNK:
            raise BadInput(
                f"local.augment = {rule.name} returned numbers up to {float(after.max()):.3g} for pictures up to "
                f"{float(before.max()):g}: leave ToTensor, Normalize and scaling out, fedray standardizes what the "
                "function returns"
            )
        x, y = found


# ---------------------------------------------------------------------------------------------------------------------
# Losses that use a tensor of the server.


def show_shared_rows(method: Method, net: Net | None, worlds: int) -> Method:
    """Adds an example of the server's tensor to a loss that uses this tensor.

    The example is the row that the tensor has for an initial model. It is needed to try engines and to count bytes.
    `net` is None if clients fit learners such as trees.

    Raises:
        BadInput: Clients do not receive the tensor, the server does not store it, or it has no row for some model.
    """
    phase = method.phase
    loss = phase.local.loss
    if net is None or loss is None or loss.shared is None:
        return method
    name, number, row = str(loss.shared), phase.models * worlds, net.init(0)
    kept = phase.server.init(row.expand(number, -1).clone()).get(name)
    if not name.startswith(SENT) or phase.walk is not None or kept is None or kept.shape[:1] != (number,):
        raise BadInput(
            f"local.loss = {loss.name} reads {name!r}: let Server.init return it, a row of numbers for each of "
            f"{number} models, under a name that begins with {SENT}, or leave shared out"
        )
    shown = loss._replace(example=kept[0].to(row.dtype))
    return replace(method, phase=phase.with_locals(lambda local: replace(local, loss=shown)))


# ---------------------------------------------------------------------------------------------------------------------
# A user's own loss, optimizer, augmentations, metrics and callbacks, as parts of a study.


def add_own_code(local: Local, scenario: Scenario, own: UserObjects, data: Dataset) -> Local:
    """Adds augmentations to local training, and also the user's loss and optimizer if there are any.

    Args:
        local: The local training that the scenario describes.
        scenario: The scenario, which may name a loss, an optimizer and augmentations.
        own: The user's objects, which replace the names in the scenario.
        data: The data set on which clients train.
    """
    passed = [key for key in ("loss", "optimizer", "augment") if key in own.named()]
    if passed and not spec_of(scenario, own).trains:
        name = scenario.method.name
        raise BadInput(f"{passed[0]}: {name} is fitted in closed form, without rounds: leave it out")
    keys, changes = scenario.local, dict[str, Any]()
    local = replace(local, augment=make_augmentations(own.augment or keys.augment, keys.options, data))
    for kind, named, thing in (("loss", keys.loss, own.loss), ("optimizer", keys.optimizer, own.optimizer)):
        code = find_own(kind, scenario, own)
        if code is None:
            continue
        name = str(named) if thing is None else name_thing(thing)
        known = (names.declared_options(kind, name) or {}) if thing is None else {}  # passed code has no options
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
    """Returns a user's loss with its options.

    An exception in the loss becomes an error of one line.

    Args:
        thing: A function or a `LocalLoss`.
        name: Name of the loss in messages.
        options: The options of the loss in the scenario.
    """
    loss = thing if isinstance(thing, LocalLoss) else LocalLoss(thing)
    function = partial(loss.function, **options) if options else loss.function
    remedy = "" if loss.reads else f": in its context {', '.join(READS)} are None: name them in LocalLoss(..., reads=)"
    return loss._replace(function=contract(f"local.loss = {name}", function, remedy=remedy), name=name)


def read_optimizer(thing: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Returns a user's optimizer with its options.

    The result is a `Transform`, or a function that takes (parameters, lr=...) and returns a torch optimizer.
    """
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


def find_metrics(scenario: Scenario, own: UserObjects, data: Dataset) -> dict[str, Callable[..., Any]]:
    """Returns metrics by name: those that the scenario names, and those that the user passes as objects.

    Raises:
        BadInput: A name cannot be the name of a column, fedray has a metric of this name, or scikit-learn's scorer of
            this name does not fit the task. The error is also raised if `evaluate.positive` would have no effect.
    """
    positive = find_positive(scenario, data)
    if scenario.evaluate.positive is not None and not (scenario.evaluate.metrics or own.metrics):
        raise BadInput(
            f"evaluate.positive = {scenario.evaluate.positive!r} cannot act, because evaluate.metrics is "
            "empty: leave it out"
        )
    named = {name: names.find_thing("metric", name) for name in scenario.evaluate.metrics or ()}
    found = dict[str, Any]()
    for name, function in {**named, **own.metrics}.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name):
            raise BadInput(
                f"evaluate.metrics = {name} cannot be the name of a column: use letters, digits and '_', as in "
                "metrics={'gap': function}"
            )
        if is_fedrays(name) and function is not None:
            raise BadInput(
                f"evaluate.metrics = {name} is a column of fedray's own, or begins like some ({', '.join(PREFIXES)}): "
                "choose another name"
            )
        if function is None or second_argument(function):
            found[name] = SampleMetric(name, positive, function)
            found[name].try_out(data.classes)
        else:
            found[name] = function
    return found


def find_positive(scenario: Scenario, data: Dataset) -> int:
    """Returns the index of the positive class, which by default is the second of two classes.

    Raises:
        BadInput: The data set does not have two classes, or it lacks the class that the scenario names.
    """
    given, classes = scenario.evaluate.positive, data.class_names
    if given is None:
        return 1
    if data.classes != 2:
        kind = f"{data.classes} classes" if data.classes else "real targets"
        raise BadInput(f"evaluate.positive = {given}, but {data.name} has {kind}: leave it out")
    if str(given) in classes:
        return classes.index(str(given))
    if given in (0, 1):
        return int(given)
    raise BadInput(f"evaluate.positive = {given} is no class of {data.name}: give {classes[0]} or {classes[1]}")


def find_callbacks(scenario: Scenario, own: UserObjects) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Returns the names and functions of the callbacks.

    An exception in a callback becomes an error of one line.
    """
    named = [(name, names.find_thing("callback", name)) for name in scenario.callbacks or ()]
    passed = [(name_thing(one), one) for one in own.callbacks]
    return tuple((name, contract(f"callbacks = {name}", one)) for name, one in [*named, *passed])


def try_own_code(study: Study) -> None:
    """Tries the user's code for local training, to find mistakes before the run begins.

    A loss or an optimizer is used in two training steps, and augmentations are called twice on samples of a client.

    Raises:
        FedrayError: The code cannot be used.
    """
    phase, tried = study.method.phase, study.parts[0].study if study.parts else study
    for one in study.method.parts or (phase,):
        for piece in one.pieces:
            piece.check(one, study.method.name)
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
        train_client_loop(tried.net, make_trial(tried.net, tried.example, phase.local, [0], phase.models))
        if mixes_targets(tried.net, phase.local):
            name = "" if phase.local.loss is None else phase.local.loss.name
            warn_user(
                f"local.loss = {name}: the loss of a row depends on the other rows of its batch. Outputs "
                "are [B, C], targets of a regression [B, q], [B, 1] where there is one: compare equal shapes"
            )


# ---------------------------------------------------------------------------------------------------------------------
# The sizes of the outputs of a network's layers, for the memory of a forward pass.


def measure_layers(module: nn.Module, example: Tensor) -> tuple[float, float]:
    """Counts the output values of all layers together, and of the widest layer, for one input.

    Both counts are 0 if the module fails.

    Args:
        module: The network.
        example: One input, without a batch dimension.

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
    except Exception:  # the run itself will report the error
        return 0.0, 0.0
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return sum(sizes), max(sizes)
