"""Pieces of a method that a scenario decides: compression, augmentation, Gaussians, samples, rows that a loss reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedray.assembly.features import MOST_CLIENTS
from fedray.assembly.registry import find_function, name_thing
from fedray.components import compression
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.local import SENT, Augmentation, AugmentationForm, LocalLoss
from fedray.core.method import Compress, Local, Method, Phase
from fedray.core.types import Layout, Net
from fedray.data.augmentation import AUGMENTATIONS, PADDED
from fedray.data.shards import Shards
from fedray.data.types import Dataset
from fedray.methods.beta_predbayes import FIT, read_cycles
from fedray.models.stacking import Base, Stack, build_interpolation
from fedray.own_code.contract import contract
from fedray.own_code.source_code import list_nested
from fedray.own_code.user_code import describe_exception, name_type, takes_positional
from fedray.scenario import names
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario
from fedray.simulation.devices import Devices
from fedray.simulation.study import Study
from fedray.training.block import Steps, change_batches

# ---------------------------------------------------------------------------------------------------------------------
# The compression of a scenario's uploads.

UPLINK_CLIENTS = 100_000  # clients whose uplinks give the mean


def make_compression(scenario: Scenario, layout: Layout, devices: Devices) -> Compress:
    """Returns what clients send of their updates.

    Args:
        scenario: the scenario.
        layout: of the model.
        devices: the simulated devices, whose uplinks decide how much is kept with `compress.adaptive`.

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
            sample = np.linspace(0, number - 1, min(number, UPLINK_CLIENTS)).astype(np.int64)  # of every tier its share
            mean = float(devices.figure("uplink", sample).mean())
            keep = compression.keep_by_bandwidth(layout, keep, lambda client: devices.figure("uplink", client), mean)
        top = keys.kind == "topk"
        made = compression.top_k(layout, keep) if top else compression.random_k(layout, keep, not keys.error_feedback)
    return compression.error_feedback(made) if keys.error_feedback else made


# ---------------------------------------------------------------------------------------------------------------------
# Augmentations by name, and a user's own, as parts of local training.

_TRIED = 16  # rows
_SHRUNK = 20.0  # ToTensor divides by 255, and with a Normalize behind it by 50 or more
_MIXES = "it makes mixed labels: write a loss that reads inputs and network instead (docs/how-to/training.md)"
_MISPLACED = {  # transforms of torchvision
    "Normalize": "leave it out, fedray standardizes what the function returns",
    "MixUp": _MIXES,
    "CutMix": _MIXES,
}
_TAKEN = {"rows": "inputs, numbers", "row": "input", "batch": "inputs, targets"}


def make_augmentations(wanted: Sequence[Any], options: Mapping[str, Any], data: Dataset) -> tuple[Augmentation, ...]:
    """Returns what changes the rows of each batch, in this order.

    Args:
        wanted: names, and functions of the user's.
        options: of the section `local`.
        data: what clients train on.

    Raises:
        BadInput: one of fedray's own is for pictures, which the data are not; or one of the user's cannot be used.
    """
    made = []
    for one in wanted:
        if isinstance(one, str) and not names.is_own("augmentation", one):
            _refuse_idle(one, data)
            made.append(AUGMENTATIONS[one])
        elif isinstance(one, str):
            known = names.declared_options("augmentation", one) or {}
            own = {key: value for key, value in options.items() if key in known}
            made.append(read_augmentation(names.find_thing("augmentation", one), one, own))
        else:
            made.append(read_augmentation(one, name_thing(one), {}))
    return tuple(made)


def _refuse_idle(name: str, data: Dataset) -> None:
    """Refuses fedray's own for rows that it cannot change."""
    if data.kind != "images":
        raise BadInput(f"local.augment = {name}, but {data.name} has no images: give a function of your own")
    height, width = data.input_shape[1:]
    if name == "crop" and max(height, width) < PADDED:
        raise BadInput(
            f"local.augment = crop moves pictures by up to an eighth of their sides, but those of {data.name} have "
            f"{height} x {width} pixels: give a function of your own"
        )


def read_augmentation(thing: Any, name: str, options: Mapping[str, Any]) -> Augmentation:
    """Returns a user's augmentation with its options.

    Args:
        thing: a function of one input, or of the inputs and targets of a batch; or a transform of torchvision.
        name: what messages call it.
        options: of the scenario.

    Raises:
        BadInput: it is, or holds, a transform that has no place in training.

    Example:
        >>> read_augmentation(lambda x: x, "same", {}).form, read_augmentation(lambda x, y: (x, y), "pair", {}).form
        ('row', 'batch')
    """
    for part in list_nested(thing):
        what = type(part).__name__
        if what in _MISPLACED and type(part).__module__.startswith("torchvision."):
            has = "" if part is thing else f" has {what}"
            raise BadInput(f"local.augment = {name}{has}: {_MISPLACED[what]}")
    of_one = takes_positional(find_function(thing), 1, options)
    return Augmentation(partial(thing, **options) if options else thing, "row" if of_one else "batch", name)


def try_augmentations(shards: Shards, rules: Sequence[Augmentation], net: Net) -> None:
    """Changes rows of the first client with any, twice, to find mistakes in a function at once.

    Args:
        shards: the clients' data.
        rules: the augmentations.
        net: what reads the rows.

    Raises:
        FedrayError: a function cannot be used; one line.
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
        if rule.form != "rows":
            _refuse_other_draws(rule.name, found, again)
            if shards.data.kind == "images":
                _refuse_other_scale(rule.name, x.float(), found[0].float())
        x, y = found
    if shards.data.kind == "tokens":
        _refuse_unread(net, shards.normalize(x[:, 0], torch.zeros(1, dtype=torch.int64))[0], rules)


def _refuse_unread(net: Net, rows: Tensor, rules: Sequence[Augmentation]) -> None:
    """Refuses tokens that a network does not know."""
    module, training = net.module, net.module.training
    try:
        with torch.no_grad(), rng.torch_scope(0):
            module.eval()(rows)
    except Exception as error:
        wanted = ", ".join(rule.name for rule in rules)
        raise BadInput(
            f"local.augment = {wanted} made tokens from {int(rows.min())} to {int(rows.max())}, which the network "
            f"{net.name} does not take ({describe_exception(error)}): raise its vocabulary, or return others"
        ) from error
    finally:
        module.train(training)


def _refuse_other_draws(name: str, found: tuple[Tensor, Tensor], again: tuple[Tensor, Tensor]) -> None:
    """Refuses a function that makes other rows of the same rows and the same numbers."""
    if not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, again, strict=True)):
        raise BadInput(
            f"local.augment = {name} has a generator of its own, or remembers its calls, so that no run could be "
            "repeated: draw from torch, numpy.random or random, or start the generator anew in each call, with "
            "int(torch.randint(2**31, ()))"
        )


def _refuse_other_scale(name: str, before: Tensor, after: Tensor) -> None:
    """Refuses pictures whose numbers have become much smaller, such as bytes that became numbers from 0 to 1."""
    if 0.0 < float(after.std()) < float(before.std()) / _SHRUNK:
        low, high, first, last = (float(part) for part in (after.min(), after.max(), before.min(), before.max()))
        raise BadInput(
            f"local.augment = {name} returned numbers from {low:.3g} to {high:.3g} for pictures from {first:g} to "
            f"{last:g}: leave ToTensor and scaling out, fedray standardizes what the function returns"
        )


def check_augmentations(where: str, rules: Any) -> None:
    """Refuses what a user's own method has as `local.augment`, if engines cannot read it.

    Args:
        where: what messages begin with.
        rules: of the method.

    Raises:
        BadInput: says what to give.
    """
    wanted = "give a tuple of fedray.methods.Augmentation"
    for one in rules:
        if not isinstance(one, Augmentation) or one.form not in get_args(AugmentationForm):
            raise BadInput(f"{where}: local.augment has {name_type(one)}: {wanted}, of form rows, row or batch")
        contract(f"{where}: local.augment", one.function, arguments=_TAKEN[one.form])


# ---------------------------------------------------------------------------------------------------------------------
# Networks under Gaussians over their weights (PVI).


def count_draws(study: Study) -> int:
    """Returns how many networks are drawn from each model's Gaussian to answer (PVI), at least 1.

    Args:
        study: what will run.
    """
    if method_spec_of(study.method.name).mean_field != "site":
        return 1
    return max(1, int(study.scenario["method"].get("samples", 1)))


# ---------------------------------------------------------------------------------------------------------------------
# Rows of a server's tensor that a loss reads: what they look like, from the first models.


def show_shared_rows(method: Method, net: Net | None, worlds: int) -> Method:
    """Returns a method whose loss has an example of the row that it reads, for trials of engines and counts of bytes.

    Args:
        method: What is composed.
        net: Its network; None where clients fit learners.
        worlds: R.

    Raises:
        BadInput: Clients do not get the tensor, the server does not keep it, or it has no row for each model.
    """
    phase = method.phase
    loss = phase.local.loss
    if net is None or loss is None or loss.shared is None:
        return method
    name, number = _check_name(loss, phase), phase.models * worlds
    row = net.init(0)
    kept = phase.server.init(row.expand(number, -1).clone())
    if name not in kept:
        raise BadInput(
            f"local.loss = {loss.name} reads {name!r}, which the server of {method.name} does not keep: let Server.init"
            " return it, or leave shared out"
        )
    if kept[name].ndim < 2 or len(kept[name]) != number:
        raise BadInput(
            f"local.loss = {loss.name} reads {name!r} of shape {list(kept[name].shape)}: give it a row of numbers for "
            f"each of {number} models"
        )
    shown = loss._replace(example=kept[name][0].to(row.dtype))
    return replace(method, phase=_train_with(phase, shown))


def _check_name(loss: LocalLoss, phase: Phase) -> str:
    name = str(loss.shared)
    if not name.startswith(SENT):
        raise BadInput(f"local.loss = {loss.name} reads {name!r}: clients get what is called {SENT}...: name it so")
    if phase.walk is not None:
        raise BadInput(f"local.loss = {loss.name} reads {name!r}, but a random walk has no server: leave shared out")
    return name


def _train_with(phase: Phase, loss: LocalLoss) -> Phase:
    """Returns a phase whose trainings have this loss."""

    def change(local: Local) -> Local:
        return replace(local, loss=loss)

    return phase.with_locals(change)


# ---------------------------------------------------------------------------------------------------------------------
# Networks as samples of a client's posterior (β-Predictive Bayes), and what joins their answers, from a scenario.

FIRST_BETA = 0.5


def count_distinct_samples(options: Mapping[str, Any], steps: int) -> int:
    """Returns how many different samples a client takes.

    Args:
        options: of the method.
        steps: that the client makes in a round.
    """
    return len(set(read_cycles(options).taken(torch.tensor(steps)).tolist()))


def make_samples(scenario: Scenario, classes: int, clients: int, network: Callable[[Scenario], Net]) -> Stack:
    """Returns the one base, which has the samples of each client, and the number between product and mixture.

    Args:
        scenario: the scenario.
        classes: C of the data; 0 for regression.
        clients: N.
        network: makes the network of a scenario.

    Raises:
        BadInput: there are no classes, too many clients, or no rows on which the server could find beta.

    Example:
        >>> from fedray.models.nets import build_net
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"method": {"name": "beta_predbayes", "beta": 1}})
        >>> stack = make_samples(scenario, 10, 5, lambda one: build_net("linear", (4,), 10, "cross_entropy"))
        >>> stack.bases[0].models, stack.meta.layout.d, stack.meta_rounds  # beta is there, and nobody trains it
        (5, 1, 0)
    """
    keys, name = scenario.method.options, scenario.method.name
    if not classes:
        raise BadInput(f"method.name = {name}, but {scenario.data.name} has real targets: choose data with classes")
    if clients > MOST_CLIENTS:
        raise BadInput(
            f"clients.number = {clients:,}, but {name} answers with the networks of every client: set it to "
            f"{MOST_CLIENTS:,} at most"
        )
    fitted = keys["beta"] == FIT
    if fitted and not keys["server_data"]:
        raise BadInput(
            "method.server_data = 0, but method.beta = fit: give the server a share of the rows, or give method.beta a "
            "number"
        )
    return Stack(
        bases=(Base(network(scenario), clients),),
        meta=build_interpolation(classes, FIRST_BETA if fitted else float(keys["beta"])),
        folds=1,
        within=False,
        rounds=scenario.rounds,
        meta_rounds=int(fitted),
        meta_lr=keys["beta_lr"],
        meta_optimizer="adam",
        combine="mean",
        at_server=True,
        answers_at_once=True,
        name=name,
    )
