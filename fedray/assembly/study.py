"""Where names meet functions: a scenario becomes a `Study` of plain objects. No other file reads scenarios and code."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from fedray.assembly import memory
from fedray.assembly.devices import chosen, devices, participation, rule
from fedray.assembly.random_walk import walks
from fedray.assembly.stacking import stack
from fedray.assembly.user_objects import Own
from fedray.components import compression as compress
from fedray.components.adaptive import remembering
from fedray.components.distillation import learner
from fedray.core.errors import BadInput
from fedray.core.files import user_path
from fedray.core.method import Method
from fedray.core.types import Clients, Compress, Layout, Local, Net, Objective
from fedray.data.catalogue import Dataset
from fedray.data.shards import Shards, build_shards
from fedray.data.store import open_dataset
from fedray.data.types import limited
from fedray.methods import METHODS, Composition
from fedray.methods.setting import Optimizer, Robust, Setting
from fedray.metrics import names
from fedray.models import maker
from fedray.models.net import features, is_linear, net_of
from fedray.scenario.loader import Scenario, pooled, resolved, tier_table
from fedray.simulation.devices import Devices
from fedray.simulation.stacking import stacked
from fedray.simulation.study import Evaluation, Study


def build(scenario: Scenario, own: Own = Own()) -> Study:
    """Everything a run needs.

    Raises:
        BadInput: the scenario does not fit its data, model or machine; one line with the remedy.
    """
    scenario = pooled(scenario)
    memory.check(memory.asked(scenario))
    study = assembled(scenario, own)
    memory.check(memory.needs(scenario, study))
    if own.data is not None:
        study.scenario["data"]["name"] = own.data.name
    return study


def assembled(scenario: Scenario, own: Own) -> Study:
    """The study of a scenario whose keys have been checked."""
    data = dataset(scenario, own)
    folds = fold_numbers(scenario, data)
    starts = [scenario.seed + r for r in range(scenario.replicates)] * max(1, len(own.grid))
    replicates = starts if scenario.vary == "all" else [scenario.seed] * len(starts)
    rates = np.repeat(own.grid, scenario.replicates * len(folds)) if own.grid else np.array(own.rates)
    seeds = [seed for seed in replicates for _ in folds]
    net = network(scenario, data, own, len(seeds))
    shards = dealt(scenario, data, replicates, folds)
    clients = Clients(tier_table(scenario, shards.number))
    known = own.devices or devices(scenario, clients)
    pieces = with_bases(scenario, data, own, setting(scenario, net, shards, known, tuple(seeds)))
    study = Study(
        name=scenario.method.name,
        method=composed(scenario, own, pieces, data.classes),
        net=net,
        clients=clients,
        shards=shards,
        seeds=np.array(seeds, dtype=np.int64),
        folds=np.array(folds * len(replicates), dtype=np.int64),
        rounds=scenario.rounds,
        input_shape=sample_shape(data),
        classes=data.classes,
        hold_out=scenario.data.hold_out > 0,
        evaluation=evaluation(scenario, data.classes),
        devices=known,
        rule=rule(scenario, clients),
        checkpoint_every=scenario.checkpoint.every,
        checkpoint_keep=scenario.checkpoint.keep,
        scenario=resolved(scenario),
        skip=scenario.on_client_error == "skip",
        client_timeout=scenario.client_timeout,
        starts=np.repeat(np.array(starts, dtype=np.int64), len(folds)),
        rates=rates if len(rates) else None,
    )
    return study if pieces.stack is None else stacked(study, pieces.stack, scenario.schedule.kind == "adaptive")


def dealt(scenario: Scenario, data: Dataset, seeds: list[int], folds: list[int]) -> Shards:
    """The clients' data, dealt as the scenario says."""
    memory.check([*memory.asked(scenario), memory.cuts(data, len(seeds) * len(folds))])
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


def setting(scenario: Scenario, net: Net, shards: Shards, known: Devices, seeds: tuple[int, ...]) -> Setting:
    """The pieces a method is made of."""
    clients = known.clients
    return Setting(
        models=scenario.method.models,
        layout=net.layout,
        clients=clients,
        seeds=seeds,
        participation=participation(scenario, clients),
        kind=scenario.schedule.kind,
        rows=scenario.schedule.rows,
        local=local(scenario),
        weighting=scenario.server.weighting,  # type: ignore[arg-type]
        coefficients=scenario.server.coefficients,
        robust=Robust(scenario.server.robust, scenario.server.trim, scenario.server.byzantine),
        optimizer=Optimizer(scenario.server.optimizer, scenario.server.lr, scenario.server.momentum),
        hold_out=scenario.data.hold_out > 0,
        compressor=lambda layout: compression(scenario, layout, known),
        participants=sum(chosen(scenario, clients)),
        features=partial(features, net.module) if least_squares(net) else None,
        distil=learner(net, shards, scenario.method.options),
        walk=walks(scenario, clients.number, seeds) if scenario.schedule.kind == "walk" else None,
        options=scenario.method.options,
    )


def least_squares(net: Net) -> bool:
    """Whether a network is linear in its weights and fitted to one target by least squares: closed forms exist."""
    return is_linear(net.module) and net.objective in ("half_mse", "mse") and net.outputs == 1


def with_bases(scenario: Scenario, data: Dataset, own: Own, pieces: Setting) -> Setting:
    """The pieces of a method, and of stacking its networks."""
    if scenario.method.name != "stacking" or own.method is not None:
        return pieces
    alone = own if not scenario.method.options["bases"] else Own()  # named bases win over a network of one's own
    make = partial(network, data=data, own=alone, worlds=len(pieces.seeds))
    made = stack(scenario, data.classes, pieces.clients.number, make)
    return replace(pieces, stack=made)


def composed(scenario: Scenario, own: Own, pieces: Setting, classes: int) -> Method:
    """The method, of as many models as the scenario asks for."""
    method = compose(scenario, own)(pieces)
    if len(method.phases[0].personal) > 1 and not classes:
        raise BadInput("method.lambda is a list to choose from by accuracy, but the data has no classes: give a number")
    if scenario.method.models > 1 == method.phases[0].models:
        raise BadInput(
            f"method.models = {scenario.method.models}, but {scenario.method.name} trains one model: leave it out"
        )
    if scenario.schedule.kind == "adaptive" and pieces.stack is None:  # a stack remembers by itself
        return remembering(method, len(pieces.seeds), pieces.clients.number)
    return method


def dataset(scenario: Scenario, own: Own) -> Dataset:
    """The data set of a scenario."""
    if own.data is not None:
        return own.data
    root = user_path("data.root", scenario.data.root) if scenario.data.root else None
    options = dict(scenario.data.options)
    limit = options.pop("limit", None)
    data = open_dataset(scenario.data.name, root, options)
    return data if limit is None else limited(data, limit)


def fold_numbers(scenario: Scenario, data: Dataset) -> list[int]:
    """The folds to run: one, or all of the data set's."""
    fold, known = scenario.data.fold, max(1, len(data.folds))
    if fold == "all":
        return list(range(known))
    if int(fold) >= known:
        raise BadInput(f"data.fold = {fold}, but {scenario.data.name} has folds 0 to {known - 1}: lower it, or `all`")
    return [int(fold)]


def sample_shape(data: Dataset) -> tuple[int, ...]:
    """Shape of one network input."""
    return (data.population.features,) if data.population else tuple(int(n) for n in data.train.x.shape[1:])


def network(scenario: Scenario, data: Dataset, own: Own, worlds: int) -> Net:
    """The network, sized for the data; models that this machine cannot hold are refused before one is made."""
    objective: Objective = scenario.model.objective  # type: ignore[assignment]
    if scenario.model.objective == "auto":
        objective = "cross_entropy" if data.classes else "mse"
    targets = data.classes or int(data.y_scale.shape[1])
    outputs = 2 * targets if objective == "gaussian_nll" else targets
    if (objective == "cross_entropy") != bool(data.classes):
        kind = "classes" if data.classes else "real targets"
        raise BadInput(f"model.objective = {objective}, but {scenario.data.name} has {kind}: leave it at auto")
    name, shape, options = scenario.model.name, sample_shape(data), scenario.model.options
    if name == "rbf" and own.model is None:  # its centres are drawn, on any device
        memory.check([*memory.asked(scenario), memory.centres(options["features"], shape)])
    make = own.model or maker(name, shape, outputs, **options)
    memory.network(scenario, make, worlds)
    return net_of(make, "own" if own.model else name, objective, outputs)


def compression(scenario: Scenario, layout: Layout, known: Devices) -> Compress:
    """What survives the uplink."""
    keys, tiers = scenario.compress, known.clients.tiers
    if keys.kind == "dense":
        return compress.dense(layout)
    if keys.kind == "int8":
        made = compress.int8(layout)
    else:
        keep = compress.keep_by_tier(layout, tiers, scenario.method.models, keys.ratio, keys.resource_ratio)
        if keys.adaptive:
            number = known.clients.number
            everyone = np.linspace(0, number - 1, min(number, 100_000)).astype(np.int64)  # of every tier its share
            mean = float(known.figure("uplink", everyone).mean())
            keep = compress.keep_by_bandwidth(layout, keep, lambda client: known.figure("uplink", client), mean)
        made = (
            compress.top_k(layout, keep)
            if keys.kind == "topk"
            else compress.random_k(layout, keep, not keys.error_feedback)
        )
    return compress.error_feedback(made) if keys.error_feedback else made


def local(scenario: Scenario) -> Local:
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


def evaluation(scenario: Scenario, classes: int) -> Evaluation:
    """What is measured, and when."""
    stop, target = scenario.evaluate.stop_at, scenario.evaluate.target or scenario.evaluate.stop_at
    for key, wanted in (("stop_at", scenario.evaluate.stop_at), ("target", scenario.evaluate.target)):
        if wanted and not names.belongs(wanted.metric, classes):
            has = "has classes" if classes else "has none"
            raise BadInput(f"evaluate.{key}.metric = {wanted.metric}, but {scenario.data.name} {has}: choose another")
    gamma = scenario.predict.gamma
    return Evaluation(
        every=scenario.evaluate.every,
        average=scenario.predict.average,
        gamma=gamma if scenario.evaluate.personal or math.isfinite(gamma) else None,
        noise=scenario.predict.noise,
        stop_at=(stop.metric, stop.value) if stop else None,
        target=(target.metric, target.value) if target else None,
    )


def compose(scenario: Scenario, own: Own) -> Composition:
    """The function that composes the method."""
    if own.method is not None:
        return own.method
    if scenario.method.name not in METHODS:
        raise BadInput(f"method.name = {scenario.method.name} cannot run yet: choose one of {', '.join(METHODS)}")
    return METHODS[scenario.method.name]
