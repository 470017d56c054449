"""Makes from a scenario the `Setting` for a method's function, and composes the method."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any, cast

from fedray.assembly import distillation, features
from fedray.assembly.clients import expect_seconds, invited_per_tier, keep_losses, make_participation, measure_sizes
from fedray.assembly.models import make_architectures, make_network, refuse_outputs
from fedray.assembly.own_methods import confirm_code_is_read, guard_method
from fedray.assembly.pieces import add_own_code, make_compression
from fedray.assembly.registry import UserObjects, find_own, name_own_method, spec_of
from fedray.components.schedule import guard_schedule, remember_losses
from fedray.components.servers import Optimizer
from fedray.core.errors import BadInput
from fedray.core.method import Local, Method, RateSchedule
from fedray.core.types import Net
from fedray.data.shards import Shards, count_held_labels
from fedray.data.types import Dataset
from fedray.methods import METHODS, Composition
from fedray.methods.setting import Robust, Setting
from fedray.models.net import compute_raw_outputs, is_linear, last_layer_inputs
from fedray.own_code.contract import RecordedOptions, contract, refuse_unread
from fedray.scenario.names import declared_options, method_spec_of
from fedray.scenario.rows import is_stack
from fedray.scenario.schema import Scenario
from fedray.scenario.training import CompressKeys, RateKeys, ScheduleKeys, ServerKeys
from fedray.simulation.devices import Devices


def make_setting(
    scenario: Scenario, net: Net, shards: Shards, devices: Devices, seeds: tuple[int, ...], *, own: UserObjects
) -> Setting:
    """Builds the `Setting` of a scenario: the objects from which a method's function composes the method.

    If the user passes a loss, an optimizer, augmentations, a selection or a schedule, this object replaces the
    scenario's.

    Raises:
        BadInput: The method needs classes, clients of a random walk are not always available, or another part of the
            scenario does not fit the data.
    """
    spec = spec_of(scenario, own)
    if not shards.data.classes and (spec.classes or (own.method is None and is_stack(scenario) and not spec.parts)):
        raise BadInput(
            f"method.name = {scenario.method.name} needs classes, but {scenario.data.name} has real targets: "
            "choose data with classes"
        )
    if scenario.schedule.kind == "walk" and devices.available is not None:  # a model cannot wait for its next client
        raise BadInput(
            "clients.availability = diurnal, or windows of clients.trace, but a random walk goes to any neighbor: "
            "leave them out (graph.node_failure and graph.failures make clients fail)"
        )
    clients, local, sizes = devices.clients, make_local(scenario), measure_sizes(shards)
    nets = features.cut_network(scenario, spec, net, clients.tiers, shards.data.input_shape)
    seconds = expect_seconds(devices, sizes, local, seeds, net.layout.d, nets=nets)
    declared = declared_options("method", scenario.method.name) or {}
    unset = {key: None for key, default in declared.items() if default is None}  # scenarios leave these options out
    is_least_squares = is_linear(net.module) and net.objective in ("half_mse", "mse") and net.outputs == 1
    server_rows = distillation.make_server_rows(scenario, shards, own)
    own_schedule, rule = find_own("schedule", scenario, own), features.make_async_rule(scenario, clients)
    fuse = distillation.make_fuser(scenario, shards, seeds, own)
    return Setting(
        models=scenario.method.models,
        layout=net.layout,
        clients=clients,
        seeds=seeds,
        participation=make_participation(scenario, own, clients, sizes, seconds),
        assign=scenario.schedule.kind if own_schedule is None else guard_schedule(own_schedule),
        rows=scenario.schedule.rows,
        local=add_own_code(local, scenario, own, shards.data),
        outputs=partial(compute_raw_outputs, net),
        server_rows=server_rows,
        server_inputs=distillation.make_server_inputs(scenario, shards, seeds, own, server_rows),
        label_counts=cache(partial(count_held_labels, shards)),
        score=distillation.make_score(scenario, net, server_rows, own),
        weighting=scenario.server.weighting,
        coefficients=scenario.server.coefficients,
        robust=Robust(scenario.server.robust, scenario.server.trim, scenario.server.byzantine),
        optimizer=make_server_optimizer(scenario),
        hold_out=scenario.data.hold_out > 0,
        compress=lambda layout: make_compression(scenario, layout, devices),
        participants=(
            sum(invited_per_tier(scenario, clients))
            if rule is None
            else {"buffered": rule.goal, "async": 1, "semi": rule.concurrency}[rule.mode]
        ),
        # a linear model that is fitted to one target by least squares has closed forms
        features=partial(last_layer_inputs, net.module) if is_least_squares else None,
        distil=distillation.make_learner(scenario, net, shards, own, fuse),
        fuse=fuse,
        distil_work=partial(distillation.count_student_steps, scenario, shards, seeds[0]),
        walk=(own.walk or features.make_walk(scenario, clients.number, seeds))
        if scenario.schedule.kind == "walk"
        else None,
        options={**unset, **scenario.method.options},
        private=features.find_private_layers(net, scenario.local.private or []),
        tier_nets=nets,
    )


def add_stack(scenario: Scenario, data: Dataset, own: UserObjects, setting: Setting) -> Setting:
    """Adds the networks of a stack, or of FedDF's architectures, to a setting. Other methods keep their setting.

    FedDF trains several architectures, but is no stack (`MethodSpec.parts` is False). The method `stacking` makes its
    networks from options. In all other stacks each client has a network of its own (`MethodSpec.models` is `clients`),
    and `MethodSpec.stack` joins these networks.
    """
    if not is_stack(scenario) or own.method is not None:
        return setting
    # networks that the scenario lists are used instead of the user's network
    named = scenario.method.options.get("bases") or scenario.method.options.get("networks")
    make = partial(make_network, data=data, own=UserObjects() if named else own, worlds=len(setting.seeds))
    spec, number = method_spec_of(scenario.method.name), setting.clients.number
    if not spec.parts:  # several architectures
        stack = make_architectures(scenario, setting.clients, make)
        return replace(setting, stack=stack, outputs=refuse_outputs)
    if spec.models != "clients":
        return replace(setting, stack=features.make_stack(scenario, data.classes, number, make))
    assert spec.stack is not None
    joined = spec.stack(make(scenario), number, data.classes, scenario.rounds, scenario.method.options)
    return replace(setting, stack=joined)


def compose_method(scenario: Scenario, own: UserObjects, setting: Setting, shards: Shards) -> Method:
    """Composes the method with the number of models that the scenario names.

    If the user passes a method, it replaces the scenario's method.

    Raises:
        BadInput: The method does not fit the data or the number of models.
    """
    setting = unset_defaults(scenario, setting, spec_of(scenario, own).defaults)
    users = name_own_method(scenario, own)
    method = _compose(scenario, own, replace(setting, own_method=users))
    if method.phase.models == 1 and scenario.method.models > 1:
        default = ", or register it with models=1" if own.method is None else ""
        remedy = f"set method.models = 1{default}" if users else "leave it out"
        raise BadInput(
            f"method.models = {scenario.method.models}, but {users or scenario.method.name} trains one model: {remedy}"
        )
    if scenario.local.private and not method.phase.stays:
        raise BadInput(
            f"local.private = {', '.join(scenario.local.private)}, but {method.name} does not read it: compose it with "
            "fedray.methods.federated, or leave it out"
        )
    narrow = [tier for tier in setting.clients.tiers if tier.width != 1]
    if narrow and scenario.local.private and method.phase.nets:
        raise BadInput(f"local.private does not go with {method.name}, whose clients train slices: leave it out")
    if narrow and not method.phase.nets:
        raise BadInput(
            f"clients.tiers.{narrow[0].name}.width = {narrow[0].width:g}, but {method.name} does not read it: compose "
            "it with fedray.methods.federated_slices, or leave it out"
        )
    method = features.add_tuning(scenario, setting, method)
    if users:
        confirm_code_is_read(setting.local, method)
    if (rule := features.make_async_rule(scenario, setting.clients)) is not None:
        return features.add_groups(rule, setting, method, partial(_compose, scenario, own))
    if scenario.schedule.kind == "adaptive" and setting.stack is None:  # a stack keeps the losses itself
        method = remember_losses(method, len(setting.seeds), setting.clients.number)
    return method if setting.stack is not None else keep_losses(scenario, own, method, len(setting.seeds), shards)


def _compose(scenario: Scenario, own: UserObjects, setting: Setting) -> Method:
    """Composes the method.

    Raises `BadInput` for options that a user's method neither declares nor uses.
    """
    name, where = scenario.method.name, name_own_method(scenario, own)
    if not where:
        return METHODS[name](setting)
    compose = cast(Composition, find_own("method", scenario, own))
    recorded = RecordedOptions(setting.options)
    is_open = own.method is None and declared_options("method", name) is None
    given = replace(setting, options=recorded) if is_open else setting
    method = contract(f"{where}: its function", compose)(given)
    if is_open:
        refuse_unread("method", name, recorded)
    layers = tuple(dict.fromkeys(part.rpartition(".")[0] for part in setting.layout.names))
    worlds, stack = len(setting.seeds), setting.stack
    return guard_method(method, where, worlds=worlds, clients=setting.clients, layers=layers, stack=stack)


def unset_defaults(scenario: Scenario, setting: Setting, defaults: Mapping[str, Any]) -> Setting:
    """Sets the schedule, compression and coefficients of a setting to None where the scenario has the default values.

    Then the method uses its own schedule, compression or coefficients.

    Args:
        scenario: The scenario with all defaults.
        setting: The setting that the scenario describes.
        defaults: The default keys of the method, as nested mappings.
    """
    usual = {section: defaults.get(section, {}) for section in ("schedule", "compress", "server")}
    return replace(
        setting,
        assign=None if setting.assign == ScheduleKeys(**usual["schedule"]).kind else setting.assign,
        compress=None if scenario.compress == CompressKeys(**usual["compress"]) else setting.compress,
        coefficients=(
            None if scenario.server.coefficients == ServerKeys(**usual["server"]).coefficients else setting.coefficients
        ),
    )


def make_local(scenario: Scenario) -> Local:
    """Returns the local training that the section `local` describes."""
    keys = scenario.local  # `add_own_code` replaces the name of a user's own optimizer
    same = "optimizer lr lr_decay lr_decay_every momentum nesterov weight_decay last_batch steps pull"
    return Local(
        **{name: getattr(keys, name) for name in same.split()},
        batch_size=None if keys.batch_size == "full" else int(keys.batch_size),
        epochs=None if keys.steps is not None else keys.epochs or 1,
        schedule=None if keys.schedule is None else make_rate_schedule("local", keys.schedule, scenario.rounds),
    )


def make_server_optimizer(scenario: Scenario) -> Optimizer:
    """Returns the server optimizer that the section `server` describes."""
    keys = scenario.server
    course = None if keys.schedule is None else make_rate_schedule("server", keys.schedule, scenario.rounds)
    return Optimizer(keys.optimizer, keys.lr, keys.momentum, keys.tau, course)


def make_rate_schedule(section: str, keys: RateKeys, rounds: int) -> RateSchedule:
    """Returns the schedule of the learning rate.

    Args:
        section: The section to which the learning rate belongs, `local` or `server`.
        keys: The scenario's keys of the schedule.
        rounds: The number of rounds of the scenario. It is used if `keys.rounds` is not set.

    Raises:
        BadInput: `keys.at` is missing for the kind `step`, or `keys.rounds` is missing for restarts.
    """
    if keys.kind == "step" and not keys.at:
        raise BadInput(f"{section}.schedule.at is missing: give the rounds in which the rate falls")
    if keys.restart and not keys.rounds:
        raise BadInput(
            f"{section}.schedule.rounds is missing: give the rounds after which {section}.schedule.restart begins again"
        )
    return RateSchedule(**asdict(keys) | {"rounds": keys.rounds or max(1, rounds), "at": tuple(keys.at)})
