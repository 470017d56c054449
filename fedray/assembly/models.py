"""The network of a study, sized for its data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedray.assembly import memory
from fedray.assembly.registry import UserObjects
from fedray.components.distillation import TORCH, ask_model, use_torch
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.method import EngineOf, StudentEngine
from fedray.core.types import Clients, Lanes, Members, Net, Objective
from fedray.data.types import Dataset
from fedray.features.stacking import Base, Stack
from fedray.models.dropout import find_dropout
from fedray.models.net import net_of, wrap_networks
from fedray.models.nets import MODEL_NAMES, model_maker
from fedray.models.trial import guard_factory, try_factory, try_network, try_training
from fedray.scenario.names import method_spec_of
from fedray.scenario.schema import ModelKeys, Scenario
from fedray.simulation.study import Study
from fedray.training.compiled import CONV_KERNEL, ask_compiled, begin_compiled, find_student_kernel

TRIAL_ROWS = 8  # rows on which a network is tried


def make_network(scenario: Scenario, data: Dataset, own: UserObjects, worlds: int) -> Net:
    """Returns the network, sized for the data.

    Args:
        scenario: the scenario.
        data: the data set.
        own: the user's Python objects.
        worlds: number of worlds R, replicates x folds.

    Raises:
        BadInput: the network does not fit the data, or this machine cannot hold the models.

    Example:
        >>> from fedray.assembly.registry import UserObjects
        >>> from fedray.data.store import load_data
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"model": {"name": "linear"}})
        >>> make_network(scenario, load_data("digits"), UserObjects(), worlds=1).layout.d  # 64 x 10 weights, 10 biases
        650
    """
    objective = _choose_objective(scenario, data)
    outputs = 2 * data.outputs if objective == "gaussian_nll" else data.outputs
    name, shape, options = scenario.model.name, data.input_shape, scenario.model.options
    if name == "rbf" and own.model is None:  # its centres are drawn, on any device
        memory.check_memory([*memory.estimate_scenario(scenario), memory.estimate_rbf(options["features"], shape)])
    if name == "lstm" and own.model is None and data.kind == "tokens":
        known = options.get("vocabulary") or outputs
        most = max(int(part.max(initial=0)) for part in (data.train.x, data.test.x))
        least = min(int(part.min(initial=0)) for part in (data.train.x, data.test.x))
        if least < 0 or most >= known:
            raise BadInput(
                f"model.vocabulary = {known}, but the tokens of {data.name} go from {least} to {most}: set it to "
                f"{most + 1} at least, and let tokens be numbers from 0"
            )
    make = own.model or model_maker(name, shape, outputs, **options)
    memory.check_network_memory(scenario, _as_trained(scenario, own, make, shape), worlds)
    is_own = own.model is not None or name not in MODEL_NAMES
    name = own.named().get("model", name)
    if is_own:
        make = guard_factory(make, name)
        try_factory(make, name, scenario.method.models)
    net = net_of(_as_trained(scenario, own, make, shape), name, objective, outputs)
    if scenario.predict.dropout_at_test and not find_dropout(net.module):
        raise BadInput(
            f"predict.dropout_at_test = true, but the network {name} has no layer that drops (torch.nn.Dropout, "
            "Dropout1d, 2d or 3d): leave it out"
        )
    rows = _draw_trial_rows(data)
    try_network(net, rows, data.kind)
    if is_own:
        try_training(net, rows)
    return net


def _as_trained(
    scenario: Scenario, own: UserObjects, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> Callable[[], nn.Module]:
    """Returns the function that makes networks in the form that the method trains; a user's method changes nothing."""
    around = None if own.method is not None else method_spec_of(scenario.method.name).network
    return make if around is None else wrap_networks(make, around, scenario.method.options, shape, scenario.model.name)


def _choose_objective(scenario: Scenario, data: Dataset) -> Objective:
    """Returns the objective of a scenario, which must fit the data."""
    objective = scenario.model.objective
    if objective == "auto":
        return "cross_entropy" if data.classes else "mse"
    if (objective == "cross_entropy") == bool(data.classes):
        return objective
    kind = "classes" if data.classes else "real targets"
    raise BadInput(
        f"model.objective = {objective} (which {scenario.method.name} may set), but {scenario.data.name} has {kind}: "
        "set model.objective to auto, or choose other data"
    )


def _draw_trial_rows(data: Dataset) -> Tensor:
    """Draws a few network inputs `[n, ...]`: rows of tokens, or small random numbers in place of features."""
    stored = data.test.x if data.population else data.train.x
    if data.kind == "tokens":
        return torch.from_numpy(stored[:: max(1, len(stored) // TRIAL_ROWS)][:TRIAL_ROWS].astype(np.int64))
    numbers = rng.normal(rng.keys(0, "trial"), TRIAL_ROWS * math.prod(data.input_shape))
    return 0.1 * torch.from_numpy(numbers).view(TRIAL_ROWS, *data.input_shape).float()


# ---------------------------------------------------------------------------------------------------------------------
# The architectures among FedDF's clients, from a scenario: which networks there are, and which client has which.


def make_architectures(scenario: Scenario, clients: Clients, network: Callable[[Scenario], Net]) -> Stack:
    """Makes one base for each of `method.networks`, with its clients; the mean combines the predictions of the bases.

    Args:
        scenario: the scenario.
        clients: the population.
        network: function that makes the network of a scenario.

    Raises:
        BadInput: there are more networks than clients. (A network of a tier without clients belongs to the server.)

    Example:
        >>> from fedray.core.types import Tier
        >>> from fedray.models.nets import build_net
        >>> from fedray.scenario.loader import read_scenario
        >>> networks = [{"name": "mlp", "hidden": [8]}, {"name": "linear"}]
        >>> scenario = read_scenario({"method": {"name": "feddf", "networks": networks}})
        >>> net = build_net("linear", (4,), 10, "cross_entropy")
        >>> stack = make_architectures(scenario, Clients((Tier("client", 5),)), lambda one: net)
        >>> [np.flatnonzero(base.members(np.arange(5))).tolist() for base in stack.bases]
        [[0, 2, 4], [1, 3]]
    """
    networks = scenario.method.options["networks"]
    if len(networks) > clients.number:
        raise BadInput(
            f"method.networks has {len(networks)} networks, but clients.number is {clients.number}: raise it, or leave "
            "some out"
        )
    tiers = [tier.name for tier in clients.tiers]
    bases = []
    for i, one in enumerate(networks):
        options = {key: value for key, value in one.items() if key not in ("name", "tier", "answers")}
        net = network(replace(scenario, model=ModelKeys(one["name"], options=options)))
        members = _choose_members(clients, i, len(networks), tiers.index(one["tier"]) if "tier" in one else None)
        bases.append(Base(net, scenario.method.models, members=members, answers=one.get("answers", True)))
    return Stack(tuple(bases), meta=None, rounds=scenario.rounds)


def refuse_outputs(_models: Tensor, _inputs: Tensor) -> Tensor:
    """Raises an error: it stands in `Setting.outputs` when there are several networks."""
    raise BadInput(
        "setting.outputs asks one network, but method.networks has several: call "
        "fedray.models.net.compute_raw_outputs(base.net, models, inputs) with a base of setting.stack.bases"
    )


def _choose_members(clients: Clients, i: int, number: int, tier: int | None) -> Members:
    """Returns the clients of network i: those of the network's tier, or every client j with `j mod number = i`."""
    return lambda client: np.asarray(client % number == i if tier is None else clients.tier_of(client) == tier)


# ---------------------------------------------------------------------------------------------------------------------
# What computes teachers and students at a server: compiled kernels where they have the network, else torch.


def choose_students(lanes: Lanes) -> EngineOf:
    """Returns a function: network -> the engine that computes its students.

    Args:
        lanes: whether compiled kernels may train.
    """
    return use_torch if lanes == "torch" else _choose_compiled


def _choose_compiled(net: Net) -> StudentEngine:
    """Returns compiled kernels for a network, else torch; kernels predict only convolutions, where torch is slower."""
    kernel = find_student_kernel(net)
    if kernel is None:
        return TORCH
    return StudentEngine(ask_compiled if kernel is CONV_KERNEL else ask_model, begin_compiled)


def has_compiled_students(study: Study) -> bool:
    """Returns whether compiled kernels train a student of a study's server.

    Args:
        study: any study; most have no students.
    """
    options = study.scenario.get("method", {})
    if study.lanes == "torch" or not (options.get("distil_steps") or options.get("distil_epochs")):
        return False
    nets = [one.net for one in study.trained]
    return any(find_student_kernel(net) is not None for net in nets)
