"""Makes a `Study` from a scenario, and hashes its data, network and code."""

import inspect
import math
from dataclasses import replace

import numpy as np
from torch import nn

from fedray.assembly import models, registry
from fedray.assembly.clients import invited_per_tier, make_counting_rule, make_devices
from fedray.assembly.distillation import add_ood, share_of_server
from fedray.assembly.features import check_withheld_rows, make_async_rule, make_rule
from fedray.assembly.methods import add_stack, compose_method, make_setting
from fedray.assembly.models import Need, estimate_rows, hash_layers, make_network, read_weights, start_from
from fedray.assembly.pieces import find_callbacks, find_metrics, show_shared_rows, try_own_code
from fedray.core import rng
from fedray.core.errors import BadInput, warn_user
from fedray.core.types import EVALUATED_CLIENTS, Clients, Net
from fedray.data import store
from fedray.data.deal import PartitionSettings, UnseenClientRule, build_shards, count_clients
from fedray.data.shards import Shards, hash_array, hash_shards, hash_text, sum_up
from fedray.data.types import Dataset, check_dataset, limit_rows
from fedray.features.boosting import Ensemble, boosted_net
from fedray.files.plain import expand_user_path
from fedray.files.run_files import sum_file
from fedray.metrics import scores
from fedray.own_code.contract import hash_values, write_object
from fedray.own_code.user_code import hash_files, hash_source, is_own_module
from fedray.scenario import names
from fedray.scenario.loader import pool_clients, tier_table, to_plain
from fedray.scenario.rows import find_rule_metrics
from fedray.scenario.schema import Scenario
from fedray.simulation.devices import ServerDevice
from fedray.simulation.stacking import build_stack_study
from fedray.simulation.study import Evaluation, Patience, Study

# ---------------------------------------------------------------------------------------------------------------------
# The size of a boosted ensemble.


def make_ensemble(
    scenario: Scenario, data: Dataset, own: registry.UserObjects, clients: Clients, worlds: int
) -> tuple[Ensemble, Net]:
    """Returns the size of a scenario's boosted ensemble, and the network that computes its predictions.

    Raises:
        BadInput: The data have real targets or are text, the user passes a network, loss, optimizer or augmentation, or
            this machine cannot hold the ensembles.

    Example:
        >>> from fedray.core.types import Tier
        >>> from fedray.data.store import load_data
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"method": {"name": "distboost_f"}, "rounds": 5})
        >>> make_ensemble(scenario, load_data("digits"), registry.UserObjects(), Clients((Tier("client", 10),)), 1)[0]
        Ensemble(rounds=5, seats=10, leaves=10, classes=10, committee=True)
    """
    name, keys = scenario.method.name, scenario.method
    if not data.classes or data.kind == "tokens":
        raise BadInput(
            f"method.name = {name}, but {scenario.data.name} has real targets or text, and trees tell classes by "
            "numbers: choose a table with classes"
        )
    if given := [key for key in ("model", "loss", "optimizer", "augment") if getattr(own, key)]:
        raise BadInput(f"{given[0]}: clients of {name} fit method.learner, and no network: leave yours out")
    fits = names.method_spec_of(name).fits
    size = Ensemble(
        rounds=scenario.rounds,
        seats=1 if fits == "one" else sum(invited_per_tier(scenario, clients)),
        leaves=keys.options["learner"]["max_leaf_nodes"],
        classes=data.classes,
        committee=fits == "committee",
    )
    numbers = size.rounds * (2 + size.seats * size.tree_numbers)
    bytes_ = float(models.MODEL * worlds) * numbers
    models.check_memory(
        [Need(f"{worlds:,} ensembles of {numbers:,} numbers", "rounds x method.learner x replicates", bytes_)]
    )
    return size, boosted_net(size)


# ---------------------------------------------------------------------------------------------------------------------
# The study of a scenario. Only this folder knows both scenarios and studies.


def build_study(scenario: Scenario, own: registry.UserObjects | None = None) -> Study:
    """Builds the study of a scenario: everything that a run needs except a runtime.

    The user's Python objects replace names in the scenario.

    Raises:
        BadInput: The scenario does not fit the data, the model or this machine.
    """
    asked, scenario, own = scenario, pool_clients(scenario), own or registry.UserObjects()
    registry.check_objects(scenario, own)
    models.check_memory(models.estimate_scenario(scenario))
    with registry.explaining_own_objects(scenario, own):
        study = assemble(scenario, own, find_partition(asked, own) if asked is not scenario else None)
        models.check_memory(models.estimate_study(scenario, study))
        try_own_code(study)
    if own.data is not None:
        study.scenario["data"]["name"] = own.data.name
    return study


def find_partition(scenario: Scenario, own: registry.UserObjects) -> PartitionSettings:
    """Returns the settings of a scenario's partition, with the user's function if there is one."""
    part, function = scenario.data.partition, registry.find_own("partition", scenario, own)
    declares = own.partition is None and names.declared_options("partition", part.name) is not None
    return PartitionSettings(part.name, dict(part.options), scenario.clients.number, function, declares=declares)


def assemble(scenario: Scenario, own: registry.UserObjects, pooled: PartitionSettings | None) -> Study:
    """Builds the study of a scenario whose keys have been checked.

    If the method trains on the samples of all clients together, `pooled` is the partition into clients that the
    scenario describes. For other methods it is None.
    """
    data = open_data(scenario, own)
    if not data.classes and data.outputs > 1:
        raise BadInput(
            f"data: {data.name} has {data.outputs} targets, but a regression is scored on one: give one column"
        )
    folds = find_folds(scenario, data, own, pooled)
    # The worlds: one for each replicate, each learning rate of a grid, and each fold.
    starts = [scenario.seed + r for r in range(scenario.replicates)] * max(1, len(own.grid))
    replicates = starts if scenario.vary == "all" else [scenario.seed] * len(starts)
    seeds, first = (
        np.array([seed_world(seed, fold) for seed in each for fold in folds], dtype=np.int64)
        for each in (replicates, starts)
    )
    rates = np.repeat(own.grid, scenario.replicates * len(folds)) if own.grid else np.array(own.rates)
    spec = registry.spec_of(scenario, own)
    made = None if spec.fits else make_network(scenario, data, own, len(seeds))
    shards = deal_shards(scenario, data, replicates, folds, pooled=pooled, own=own)
    clients = Clients(tier_table(scenario, shards.number))
    if made is not None and scenario.model.weights is not None:
        models = clients.number if spec.models == "clients" else scenario.method.models
        made = start_from(made, scenario.model.weights, first.tolist(), models)
    devices = own.devices or make_devices(scenario, clients)
    size, net = (None, made) if made else make_ensemble(scenario, data, own, clients, len(seeds))
    setting = make_setting(scenario, net, shards, devices, tuple(seeds.tolist()), own=own)
    setting = replace(add_stack(scenario, data, own, setting), ensemble=size)
    study = Study(
        name=scenario.method.name,
        method=show_shared_rows(compose_method(scenario, own, setting, shards), made, len(seeds)),
        net=net,
        clients=clients,
        shards=shards,
        seeds=seeds,
        folds=np.array(folds * len(replicates), dtype=np.int64),
        rounds=scenario.rounds,
        input_shape=data.input_shape,
        classes=data.classes,
        hold_out=scenario.data.hold_out > 0,
        evaluation=make_evaluation(scenario, data, own),
        callbacks=find_callbacks(scenario, own),
        devices=devices,
        server=ServerDevice(scenario.server.seconds_per_step, scenario.server.seconds_per_sample),
        rule=make_counting_rule(scenario, clients),
        checkpoint_every=scenario.checkpoint.every,
        checkpoint_keep=scenario.checkpoint.keep,
        scenario=to_plain(scenario),
        skip=scenario.on_client_error == "skip",
        client_timeout=scenario.client_timeout,
        lanes=scenario.lanes,
        asynchronous=make_async_rule(scenario, clients),
        starts=first,
        rates=rates if len(rates) else None,
    )
    adaptive = scenario.schedule.kind == "adaptive"
    return study if setting.stack is None else build_stack_study(study, setting.stack, adaptive)


def seed_world(seed: int, fold: int) -> int:
    """Returns the seed of the world of one replicate and one fold.

    The world of fold 0 has the replicate's seed. Every other fold has a different seed.

    So folds have different initial models, batches and schedules. The spread of scores over folds includes these
    differences.

    Args:
        seed: The seed of the replicate.
        fold: The fold of the data set, from 0.

    Example:
        >>> seed_world(7, 0), seed_world(7, 1) == seed_world(7, 2)
        (7, False)
    """
    return seed if fold == 0 else int(rng.keys(seed, "fold", fold) >> np.uint64(2))


def deal_shards(
    scenario: Scenario,
    data: Dataset,
    seeds: list[int],
    folds: list[int],
    *,
    pooled: PartitionSettings | None,
    own: registry.UserObjects,
) -> Shards:
    """Divides the data among the clients.

    Args:
        scenario: The scenario.
        data: The data set.
        seeds: Seeds of the replicates.
        folds: The folds to run.
        pooled: For a method that trains on the samples of all clients together, the scenario's partition into clients.
            None means any other method.
        own: The user's objects. A partition among them replaces the scenario's partition.

    Raises:
        BadInput: This machine has too little memory for the partition, no sample is held out, or too few samples are
            held out for conformal sets.
    """
    rows = estimate_rows(scenario, data, len(seeds) * len(folds))
    models.check_memory([*models.estimate_scenario(scenario), *rows])
    part = find_partition(scenario, own)
    shards = build_shards(
        data,
        part if pooled is None else part._replace(own=None),
        seeds,
        folds=folds,
        hold_out=scenario.data.hold_out,
        server=share_of_server(scenario, own),
        pooled=pooled,
        dealt=own.dealt,
        unseen=find_test_clients(scenario),
    )
    if scenario.data.hold_out and not len(shards.holdout(0)[1]):
        raise BadInput(
            f"data.hold_out = {scenario.data.hold_out:g} holds out no row of any client: raise it, or set it to 0"
        )
    if scenario.predict.conformal is not None:
        rule = make_rule(scenario.predict.conformal, data.classes, scenario.data.name)
        check_withheld_rows(rule, shards, scenario.data.hold_out)
    return shards


def open_data(scenario: Scenario, own: registry.UserObjects) -> Dataset:
    """Returns the data set of a scenario, with out-of-distribution inputs if `evaluate.ood` names them."""
    if own.data is not None:
        return add_ood(scenario, set_input_scaling(scenario, check_dataset(own.data), own))
    root = expand_user_path("data.root", scenario.data.root) if scenario.data.root else None
    options, loader = dict(scenario.data.options), names.find_thing("data", scenario.data.name)
    is_of_loader = inspect.isfunction(loader) and "limit" in inspect.signature(loader).parameters
    limit = None if is_of_loader else options.pop("limit", None)
    data = set_input_scaling(scenario, store.open_dataset(scenario.data.name, root, options), own)
    return add_ood(scenario, data if limit is None else limit_rows(data, limit))


def find_test_clients(scenario: Scenario) -> UnseenClientRule | None:
    """Returns the rule by which whole clients stay out of training, or None if all clients train."""
    wanted, keys = scenario.data.test_clients, scenario.data
    if wanted is None:
        return None
    column = keys.partition.options.get("column", keys.options.get("group"))
    return UnseenClientRule(tuple(wanted) if isinstance(wanted, list) else wanted, column)


def find_folds(
    scenario: Scenario, data: Dataset, own: registry.UserObjects, pooled: PartitionSettings | None
) -> list[int]:
    """Returns the folds to run: one fold or all folds. Folds divide the samples or the clients.

    Args:
        scenario: The scenario.
        data: The data set.
        own: The user's objects. A partition among them replaces the scenario's partition.
        pooled: For a method that trains on the samples of all clients together, the scenario's partition into clients.
            None means any other method.
    """
    fold, known, unseen = scenario.data.fold, max(1, len(data.folds)), find_test_clients(scenario)
    if unseen is not None and fold != "all":
        return [int(fold)]
    if unseen is not None:
        if own.dealt is not None:
            return list(range(len(own.dealt.test) // (scenario.replicates * max(1, len(own.grid)))))
        settings = pooled or find_partition(scenario, own)
        return list(range(unseen.count_folds(count_clients(data, settings, scenario.seed))))
    if fold == "all":
        return list(range(known))
    if int(fold) >= known:
        raise BadInput(f"data.fold = {fold}, but {scenario.data.name} has folds 0 to {known - 1}: give one, or all")
    return [int(fold)]


def make_evaluation(scenario: Scenario, data: Dataset, own: registry.UserObjects) -> Evaluation:
    """Returns the settings of evaluation."""
    classes = data.classes
    stop, target = scenario.evaluate.stop_at, scenario.evaluate.target or scenario.evaluate.stop_at
    patience = scenario.stop
    for key, metric in find_rule_metrics(scenario).items():
        if not scores.fits_task(metric, classes):
            kind, fitting = ("classes", "accuracy or nll") if classes else ("real targets", "rmse or nll")
            raise BadInput(
                f"{key} = {metric}, but {scenario.data.name} has {kind}: choose a score of theirs, as {fitting}"
            )
        if not scores.has_direction(metric):
            warn_user(f"{key} = {metric}, of which neither more nor less is better: more counts as better here")
    gamma, sets = scenario.predict.gamma, scenario.predict.conformal
    return Evaluation(
        every=scenario.evaluate.every,
        every_seconds=scenario.evaluate.every_seconds,
        average=scenario.predict.average,
        gamma=gamma if scenario.evaluate.personal or math.isfinite(gamma) else None,
        noise=scenario.predict.noise,
        stop_at=(stop.metric, stop.value) if stop else None,
        target=(target.metric, target.value) if target else None,
        patience=Patience(patience.metric, patience.patience, patience.min_delta) if patience else None,
        best=scenario.checkpoint.best,
        metrics=find_metrics(scenario, own, data),
        clients=EVALUATED_CLIENTS if scenario.evaluate.clients == "all" else int(scenario.evaluate.clients or 0),
        conformal=None if sets is None else make_rule(sets, classes, scenario.data.name),
        dropout_at_test=scenario.predict.dropout_at_test,
        ood=scenario.evaluate.ood is not None,
        train=scenario.evaluate.train,
        by_tier=scenario.evaluate.by_tier,
        personal=scenario.evaluate.personal,
    )


LEVELS = (1, 16, 255, 65_535)  # possible largest values of a pixel


def set_input_scaling(scenario: Scenario, data: Dataset, own: registry.UserObjects) -> Dataset:
    """Returns the data set with its inputs scaled as `data.standardize` and `data.scale` describe.

    `data.scale: unit` divides pixels by the largest possible value of such pictures: 1, 16 (digits), 255 or 65,535. So
    clients need not send statistics of their pixels.

    Raises:
        BadInput: `data.standardize: false` or `data.scale: unit` would have no effect.

    Example:
        >>> from fedray.data.store import load_data
        >>> from fedray.scenario.loader import read_scenario
        >>> raw = read_scenario({"data": {"standardize": False}})
        >>> set_input_scaling(raw, load_data("digits"), registry.UserObjects()).standardized
        False
    """
    fits = registry.spec_of(scenario, own).fits  # learners such as trees
    if scenario.data.scale == "unit":
        x = (data.train.x if len(data.train.x) else data.test.x) if data.kind == "images" else np.zeros(0)
        least, most = (find(initial=0) for find in (x.min, x.max))
        if not len(x) or least < 0 or most > LEVELS[-1] or fits:
            raise BadInput(
                f"data.scale = unit cannot act, because {data.name} has no pictures of levels from 0 to {LEVELS[-1]}, "
                f"or {scenario.method.name} fits trees: leave it out"
            )
        return data._replace(unit=float(next(level for level in LEVELS if most <= level)))
    if scenario.data.standardize:
        return data
    if data.kind == "tokens" or data.origin is not None or fits:
        raise BadInput(
            f"data.standardize = false cannot act, because {data.name} has tokens or inputs that float32 does not tell "
            f"apart as they are, or {scenario.method.name} fits trees: leave it out"
        )
    return data._replace(standardized=False)


# ---------------------------------------------------------------------------------------------------------------------
# Digests of the data, the network, the user's code and the values that this code uses.

Digests = dict[str, dict[str, str]]  # kind -> name -> digest


def describe_study(scenario: Scenario, own: registry.UserObjects, study: Study) -> Digests:
    """Returns hashes (digests) of everything that decides the results of a study. The scenario's keys are left out.

    Returns:
        The digests of each kind:
        - `data`, `network`: a digest of each property whose change would change results.
        - `source`: a digest of each of the user's functions and classes, under a name such as "loss mine: smooth". The
          digest is empty if there is no source.
        - `files`: a digest of each of the user's modules that these functions and classes need.
        - `tables`: a digest of each of the files `clients.trace`, `graph.edges` and `graph.failures`.
        - `values`: a digest of each value that these functions and classes use, under a name such as "loss mine:
          weights". Values of callbacks are left out, because a callback may change them.
        - `names`: the file that registered each of the user's names, under a name such as "method mine".
    """
    name, code = scenario.data.name, registry.list_own_code(scenario, own)
    is_read = own.data is not None or names.is_own("data", name) or store.find_source(name).where is not None
    source, values = dict[str, str](), dict[str, str]()
    for (kind, called), thing in code.items():
        functions, made = registry.functions_of(thing), dict[str, str]()
        if kind == "model":
            classes = dict.fromkeys(type(part) for part in study.net.module.modules())
            functions += [part for part in classes if is_own_module(part.__module__)]
            made["constants"] = hash_text(" ".join(_list_constants(study.net.module)))
        elif kind == "augmentation":  # the `repr` of a torchvision transform names its arguments
            made["what it was made with"] = hash_text(write_object(thing))
        source |= {f"{kind} {called}: {key}": digest for key, digest in hash_source(*functions).items()}
        if kind != "callback":
            read = hash_values(*functions) | made
            values |= {f"{kind} {called}: {key}": digest for key, digest in read.items()}
    if augment := own.named().get("augment"):
        source["augmentations: their order"] = hash_text(repr(augment))
    layout, own_network = study.net.layout, any(kind == "model" for kind, _ in code)
    weights = scenario.model.weights
    tables = {"clients.trace": scenario.clients.trace, "graph.edges": scenario.graph.edges}
    tables["graph.failures"] = scenario.graph.failures
    first = {} if weights is None else {"first weights": hash_array(read_weights(weights, study.net).numpy())}
    return {
        "data": hash_shards(study.shards, exact=is_read),
        "network": {
            "layers": hash_layers(layout),
            **first,
            "objective": study.net.objective,
            "outputs": str(study.net.outputs),
            **({"modules": hash_text(write_object(study.net.module))} if own_network else {}),
        },
        "source": source,
        "tables": {key: sum_file(expand_user_path(key, at))[1] for key, at in tables.items() if at is not None},
        "files": hash_files(own.modules, code.values()),
        "values": values,
        "names": {
            f"{kind} {name}": names.list_origins()[kind, name].file
            for kind, name in registry.list_own_names(scenario, own)
        },
    }


def hash_own_values(scenario: Scenario, own: registry.UserObjects) -> dict[str, str]:
    """Returns a digest of each value that the user's code uses, under a name such as "loss mine: weights".

    Values of callbacks are left out, because a callback may change them.
    """
    return {
        f"{kind} {called}: {key}": digest
        for (kind, called), thing in registry.list_own_code(scenario, own).items()
        for key, digest in (hash_values(*registry.functions_of(thing)) if kind != "callback" else {}).items()
    }


def _list_constants(module: nn.Module) -> list[str]:
    """Returns a text for each tensor of a module that training does not change: its name, and sums of its values."""
    frozen = [(name, value) for name, value in module.named_parameters() if not value.requires_grad]
    kept = {name for name, _ in module.state_dict().items()}
    fixed = [(n, b) for n, b in module.named_buffers() if n not in kept or not (b.is_floating_point() or b.ndim == 0)]
    return [f"{name} {sum_up(value.detach().cpu().double().numpy())}" for name, value in [*frozen, *fixed]]
