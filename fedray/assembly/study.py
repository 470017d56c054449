"""From names to functions: a scenario becomes a `Study` of plain objects. Only this folder knows both.

Example:
    >>> from fedray.scenario.loader import read_scenario
    >>> study = build_study(read_scenario({"rounds": 2, "clients": {"number": 4}, "method": {"name": "fedavg"}}))
    >>> study.clients.number, study.method.phase.models
    (4, 1)
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from fedray.assembly import memory
from fedray.assembly.compression import make_compression
from fedray.assembly.devices import invited_per_tier, make_counting_rule, make_devices, make_participation
from fedray.assembly.random_walk import make_walk
from fedray.assembly.stacking import make_stack
from fedray.assembly.user_objects import UserObjects
from fedray.components.adaptive import remember_losses
from fedray.components.distillation import make_learner
from fedray.components.server_optimizer import ServerOptimizerKind
from fedray.core.errors import BadInput
from fedray.core.files import expand_user_path
from fedray.core.method import Local, Method
from fedray.core.types import Clients, Net, Objective
from fedray.data.deal import build_shards
from fedray.data.shards import Shards
from fedray.data.store import open_dataset
from fedray.data.types import Dataset, limit_rows
from fedray.methods import METHODS, Composition
from fedray.methods.setting import Optimizer, Robust, Setting
from fedray.metrics import names
from fedray.metrics.ensemble import AverageKind
from fedray.models.catalogue import model_maker
from fedray.models.net import is_linear, last_layer_inputs, net_of
from fedray.scenario.clients import ScheduleKeys
from fedray.scenario.loader import to_plain
from fedray.scenario.methods import METHOD_SPECS
from fedray.scenario.rules import pool_clients, tier_table
from fedray.scenario.schema import Scenario
from fedray.scenario.training import CompressKeys, ServerKeys
from fedray.simulation.devices import Devices
from fedray.simulation.stacking import build_stack_study
from fedray.simulation.study import Evaluation, Study


def build_study(scenario: Scenario, own: UserObjects | None = None) -> Study:
    """Everything a run needs.

    Args:
        scenario: the scenario.
        own: the user's Python objects, which replace what the scenario names.

    Raises:
        BadInput: the scenario does not fit its data, model or machine; one line with the remedy.
    """
    scenario, own = pool_clients(scenario), own or UserObjects()
    memory.check_memory(memory.estimate_scenario(scenario))
    study = assemble(scenario, own)
    memory.check_memory(memory.estimate_study(scenario, study))
    if own.data is not None:
        study.scenario["data"]["name"] = own.data.name
    return study


def assemble(scenario: Scenario, own: UserObjects) -> Study:
    """The study of a scenario whose keys have been checked."""
    data = open_data(scenario, own)
    folds = find_folds(scenario, data)
    starts = [scenario.seed + r for r in range(scenario.replicates)] * max(1, len(own.grid))
    replicates = starts if scenario.vary == "all" else [scenario.seed] * len(starts)
    rates = np.repeat(own.grid, scenario.replicates * len(folds)) if own.grid else np.array(own.rates)
    seeds = [seed for seed in replicates for _ in folds]
    net = make_network(scenario, data, own, len(seeds))
    shards = deal_shards(scenario, data, replicates, folds)
    clients = Clients(tier_table(scenario, shards.number))
    known = own.devices or make_devices(scenario, clients)
    pieces = add_stack(scenario, data, own, make_setting(scenario, net, shards, known, tuple(seeds)))
    study = Study(
        name=scenario.method.name,
        method=compose_method(scenario, own, pieces, data.classes),
        net=net,
        clients=clients,
        shards=shards,
        seeds=np.array(seeds, dtype=np.int64),
        folds=np.array(folds * len(replicates), dtype=np.int64),
        rounds=scenario.rounds,
        input_shape=data.input_shape,
        classes=data.classes,
        hold_out=scenario.data.hold_out > 0,
        evaluation=make_evaluation(scenario, data.classes),
        devices=known,
        rule=make_counting_rule(scenario, clients),
        checkpoint_every=scenario.checkpoint.every,
        checkpoint_keep=scenario.checkpoint.keep,
        scenario=to_plain(scenario),
        skip=scenario.on_client_error == "skip",
        client_timeout=scenario.client_timeout,
        starts=np.repeat(np.array(starts, dtype=np.int64), len(folds)),
        rates=rates if len(rates) else None,
    )
    return (
        study if pieces.stack is None else build_stack_study(study, pieces.stack, scenario.schedule.kind == "adaptive")
    )


def deal_shards(scenario: Scenario, data: Dataset, seeds: list[int], folds: list[int]) -> Shards:
    """The clients' data, dealt as the scenario says.

    Args:
        scenario: the scenario.
        data: the data set.
        seeds: of the replicates.
        folds: the folds that are run.

    Raises:
        BadInput: memory does not hold the tables, or no row would be held out.
    """
    memory.check_memory([*memory.estimate_scenario(scenario), memory.estimate_partition(data, len(seeds) * len(folds))])
    shards = build_shards(
        data,
        scenario.data.partition.name,
        scenario.data.partition.options,
        scenario.clients.number,
        seeds,
        folds=folds,
        hold_out=scenario.data.hold_out,
        server=float(scenario.method.options.get("server_data", 0.0)),
    )
    if scenario.data.hold_out and not len(shards.holdout(0)[1]):
        raise BadInput(
            f"data.hold_out = {scenario.data.hold_out:g} withholds no row of these clients: raise it, or write 0"
        )
    return shards


def make_setting(scenario: Scenario, net: Net, shards: Shards, known: Devices, seeds: tuple[int, ...]) -> Setting:
    """The pieces a method is made of."""
    clients = known.clients
    return Setting(
        models=scenario.method.models,
        layout=net.layout,
        clients=clients,
        seeds=seeds,
        participation=make_participation(scenario, clients),
        assign=scenario.schedule.kind,
        rows=scenario.schedule.rows,
        local=make_local(scenario),
        weighting=scenario.server.weighting,  # type: ignore[arg-type]
        coefficients=scenario.server.coefficients,
        robust=Robust(scenario.server.robust, scenario.server.trim, scenario.server.byzantine),
        optimizer=Optimizer(
            cast(ServerOptimizerKind, scenario.server.optimizer), scenario.server.lr, scenario.server.momentum
        ),
        hold_out=scenario.data.hold_out > 0,
        compress=lambda layout: make_compression(scenario, layout, known),
        participants=sum(invited_per_tier(scenario, clients)),
        features=partial(last_layer_inputs, net.module) if has_closed_form(net) else None,
        distil=make_learner(net, shards, scenario.method.options),
        walk=make_walk(scenario, clients.number, seeds) if scenario.schedule.kind == "walk" else None,
        options=scenario.method.options,
    )


def has_closed_form(net: Net) -> bool:
    """Whether a network is linear in its weights and fitted to one target by least squares: closed forms exist."""
    return is_linear(net.module) and net.objective in ("half_mse", "mse") and net.outputs == 1


def add_stack(scenario: Scenario, data: Dataset, own: UserObjects, pieces: Setting) -> Setting:
    """The pieces of a method, and of stacking its networks."""
    if scenario.method.name != "stacking" or own.method is not None:
        return pieces
    alone = (
        own if not scenario.method.options["bases"] else UserObjects()
    )  # named bases win over a network of one's own
    make = partial(make_network, data=data, own=alone, worlds=len(pieces.seeds))
    made = make_stack(scenario, data.classes, pieces.clients.number, make)
    return replace(pieces, stack=made)


def compose_method(scenario: Scenario, own: UserObjects, pieces: Setting, classes: int) -> Method:
    """The method, of as many models as the scenario asks for."""
    if own.method is not None or scenario.method.name not in METHOD_SPECS:
        pieces = leave_open(scenario, pieces)
    method = find_composition(scenario, own)(pieces)
    if len(method.phase.personal) > 1 and not classes:
        raise BadInput("method.lambda is a list to choose from by accuracy, but the data has no classes: give a number")
    if scenario.method.models > 1 == method.phase.models:
        raise BadInput(
            f"method.models = {scenario.method.models}, but {scenario.method.name} trains one model: leave it out"
        )
    if scenario.schedule.kind == "adaptive" and pieces.stack is None:  # a stack remembers by itself
        return remember_losses(method, len(pieces.seeds), pieces.clients.number)
    return method


def leave_open(scenario: Scenario, pieces: Setting) -> Setting:
    """The pieces of a user's own method: what the scenario leaves at its default is for the method to decide."""
    return replace(
        pieces,
        assign=None if scenario.schedule.kind == ScheduleKeys().kind else pieces.assign,
        compress=None if scenario.compress.kind == CompressKeys().kind else pieces.compress,
        coefficients=None if scenario.server.coefficients == ServerKeys().coefficients else pieces.coefficients,
    )


def open_data(scenario: Scenario, own: UserObjects) -> Dataset:
    """The data set of a scenario."""
    if own.data is not None:
        return own.data
    root = expand_user_path("data.root", scenario.data.root) if scenario.data.root else None
    options = dict(scenario.data.options)
    limit = options.pop("limit", None)
    data = open_dataset(scenario.data.name, root, options)
    return data if limit is None else limit_rows(data, limit)


def find_folds(scenario: Scenario, data: Dataset) -> list[int]:
    """The folds to run: one, or all of the data set's."""
    fold, known = scenario.data.fold, max(1, len(data.folds))
    if fold == "all":
        return list(range(known))
    if int(fold) >= known:
        raise BadInput(f"data.fold = {fold}, but {scenario.data.name} has folds 0 to {known - 1}: lower it, or `all`")
    return [int(fold)]


def make_network(scenario: Scenario, data: Dataset, own: UserObjects, worlds: int) -> Net:
    """The network, sized for the data.

    Args:
        scenario: the scenario.
        data: the data set.
        own: the user's Python objects.
        worlds: worlds R, replicates x folds.

    Raises:
        BadInput: the network does not fit the data, or this machine cannot hold the models.
    """
    objective: Objective = scenario.model.objective  # type: ignore[assignment]
    if scenario.model.objective == "auto":
        objective = "cross_entropy" if data.classes else "mse"
    outputs = 2 * data.outputs if objective == "gaussian_nll" else data.outputs
    if (objective == "cross_entropy") != bool(data.classes):
        kind = "classes" if data.classes else "real targets"
        raise BadInput(f"model.objective = {objective}, but {scenario.data.name} has {kind}: leave it at auto")
    name, shape, options = scenario.model.name, data.input_shape, scenario.model.options
    if name == "rbf" and own.model is None:  # its centres are drawn, on any device
        memory.check_memory([*memory.estimate_scenario(scenario), memory.estimate_rbf(options["features"], shape)])
    make = own.model or model_maker(name, shape, outputs, **options)
    memory.check_network_memory(scenario, make, worlds)
    return net_of(make, "own" if own.model else name, objective, outputs)


def make_local(scenario: Scenario) -> Local:
    """How clients train."""
    keys = scenario.local
    return Local(
        optimizer=keys.optimizer,  # type: ignore[arg-type]
        lr=keys.lr,
        lr_decay=keys.lr_decay,
        lr_decay_every=keys.lr_decay_every,
        momentum=keys.momentum,
        weight_decay=keys.weight_decay,
        batch_size=None if keys.batch_size == "full" else int(keys.batch_size),
        epochs=None if keys.steps is not None else keys.epochs or 1,
        steps=keys.steps,
        pull=keys.pull,
    )


def make_evaluation(scenario: Scenario, classes: int) -> Evaluation:
    """What is measured, and when."""
    stop, target = scenario.evaluate.stop_at, scenario.evaluate.target or scenario.evaluate.stop_at
    for key, wanted in (("stop_at", scenario.evaluate.stop_at), ("target", scenario.evaluate.target)):
        if wanted and not names.fits_task(wanted.metric, classes):
            has = "has classes" if classes else "has none"
            raise BadInput(f"evaluate.{key}.metric = {wanted.metric}, but {scenario.data.name} {has}: choose another")
    gamma = scenario.predict.gamma
    return Evaluation(
        every=scenario.evaluate.every,
        average=cast(AverageKind, scenario.predict.average),  # the schema has checked it
        gamma=gamma if scenario.evaluate.personal or math.isfinite(gamma) else None,
        noise=scenario.predict.noise,
        stop_at=(stop.metric, stop.value) if stop else None,
        target=(target.metric, target.value) if target else None,
    )


def find_composition(scenario: Scenario, own: UserObjects) -> Composition:
    """The function that composes the method."""
    if own.method is not None:
        return own.method
    if scenario.method.name not in METHODS:
        raise BadInput(f"method.name = {scenario.method.name} cannot run yet: choose one of {', '.join(METHODS)}")
    return METHODS[scenario.method.name]
