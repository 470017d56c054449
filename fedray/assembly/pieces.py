"""Pieces of a method that a scenario decides: compression, augmentation, Gaussians, samples, inputs of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import torch

from fedray.assembly.registry import find_function, name_thing
from fedray.components import compression
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import SENT, Augmentation, AugmentationForm, Compress, Method
from fedray.core.types import Layout, Net
from fedray.data.shards import Shards
from fedray.data.shifts import AUGMENTATIONS, PADDED
from fedray.data.types import Dataset
from fedray.features.stacking import Base, Stack, build_interpolation
from fedray.methods.beta_predbayes import FIT, read_cycles
from fedray.own_code.contract import contract
from fedray.own_code.source_code import list_nested
from fedray.own_code.user_code import name_type, takes_positional
from fedray.scenario import names
from fedray.scenario.names import method_spec_of
from fedray.scenario.schema import Scenario
from fedray.simulation.devices import Devices
from fedray.simulation.study import Study
from fedray.training.block import Steps, change_batches

# ---------------------------------------------------------------------------------------------------------------------
# The compression of a scenario's uploads.

UPLINK_CLIENTS = 100_000  # clients whose uplinks give the mean


def make_compression(scenario: Scenario, layout: Layout, devices: Devices) -> Compress:
    """Returns the compression of the clients' updates.

    Args:
        scenario: the scenario.
        layout: the layout of the model.
        devices: the simulated devices; with `compress.adaptive`, the speed of a client's uplink decides how much it
            sends.

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
_SHRUNK = 20.0  # ToTensor divides by 255, and with a Normalize after it by 50 or more
_TAKEN = {"rows": "inputs, numbers", "row": "input", "batch": "inputs, targets"}


def make_augmentations(wanted: Sequence[Any], options: Mapping[str, Any], data: Dataset) -> tuple[Augmentation, ...]:
    """Returns the augmentations that change the samples of each batch, in the given order.

    Args:
        wanted: names of augmentations, and functions of the user's.
        options: options of the section `local`.
        data: the data set on which clients train.

    Raises:
        BadInput: an augmentation of fedray is for pictures, and the data are none; or one of the user's cannot be used.
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
        thing: a function of one input, or of the inputs and targets of a batch; or a transform of torchvision.
        name: name of the augmentation in messages.
        options: options in the scenario.

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
    """Tries the augmentations twice on samples of the first client that has some, to find mistakes at once.

    Args:
        shards: the clients' data.
        rules: the augmentations.

    Raises:
        FedrayError: a function cannot be used; the message is one line.
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


def check_augmentations(where: str, rules: Any) -> None:
    """Refuses augmentations (`local.augment`) of a user's own method that engines cannot use.

    Args:
        where: beginning of the messages.
        rules: the augmentations of the method.

    Raises:
        BadInput: they cannot be used; the message says what to give.
    """
    wanted = "give a tuple of fedray.methods.Augmentation"
    for one in rules:
        if not isinstance(one, Augmentation) or one.form not in get_args(AugmentationForm):
            raise BadInput(f"{where}: local.augment has {name_type(one)}: {wanted}, of form rows, row or batch")
        contract(f"{where}: local.augment", one.function, arguments=_TAKEN[one.form])


# ---------------------------------------------------------------------------------------------------------------------
# Networks under Gaussians over their weights (PVI).


def count_draws(study: Study) -> int:
    """Returns how many networks are drawn from each model's Gaussian for a prediction (PVI), at least 1.

    Args:
        study: the study that will run.
    """
    if method_spec_of(study.method.name).mean_field != "site":
        return 1
    return max(1, int(study.scenario["method"].get("samples", 1)))


# ---------------------------------------------------------------------------------------------------------------------
# Examples, from the first models, of the rows of a server's tensor that a loss uses.


def show_shared_rows(method: Method, net: Net | None, worlds: int) -> Method:
    """Gives the loss of a method an example of the server's row that it uses, for trials of engines and byte counts.

    Args:
        method: The composed method.
        net: The network; None if clients fit learners.
        worlds: Number of worlds, R.

    Raises:
        BadInput: Clients do not get the tensor, the server does not keep it, or the tensor lacks a row for some model.
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
# Networks as samples of a client's posterior (β-Predictive Bayes), and how their predictions are combined.

FIRST_BETA = 0.5


def count_distinct_samples(options: Mapping[str, Any], steps: int) -> int:
    """Returns how many different posterior samples a client takes.

    Args:
        options: the options of the method.
        steps: number of steps that the client makes in a round.
    """
    return len(set(read_cycles(options).taken(torch.tensor(steps)).tolist()))


def make_samples(scenario: Scenario, classes: int, clients: int, network: Callable[[Scenario], Net]) -> Stack:
    """Returns the stack of β-Predictive Bayes: one base with each client's samples, and the number beta.

    Args:
        scenario: the scenario.
        classes: number of classes, C; 0 for regression.
        clients: number of clients, N.
        network: function that makes the network of a scenario.

    Raises:
        BadInput: the server has no rows on which it could fit beta.

    Example:
        >>> from fedray.models.nets import build_net
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"method": {"name": "beta_predbayes", "beta": 1}})
        >>> stack = make_samples(scenario, 10, 5, lambda one: build_net("linear", (4,), 10, "cross_entropy"))
        >>> stack.bases[0].models, stack.meta.layout.d, stack.meta_rounds  # beta is there, and nobody trains it
        (5, 1, 0)
    """
    keys, name = scenario.method.options, scenario.method.name
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
