"""Composes a federated training from ingredients, such as a schedule and a way to merge uploads.

Each method has its own ingredients. Some keys of scenarios (`schedule.kind`, `compress.kind`, `server.coefficients`,
...) replace them. If such a key has its default value, the method's ingredient is used.

Example:
    >>> import fedray
    >>> from dataclasses import replace
    >>> from fedray.components.schedule import random_models
    >>> from fedray.core.method import Method
    >>> def random_ensemble(setting):  # Fed-ensemble with random models and a proximal term
    ...     phase = federated(setting, assign=random_models, local=replace(setting.local, pull=0.1))
    ...     return Method("random_ensemble", phase)
    >>> scenario = {"rounds": 1, "clients": {"number": 4}, "runtime": "inline", "report": False}
    >>> run = fedray.run(scenario, method=random_ensemble)
    >>> run.summary["method"]
    'random_ensemble'
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fedray.components import servers
from fedray.components.compression import dense
from fedray.components.one_shot import Descent, Step
from fedray.components.schedule import KINDS, Assignment, guard_schedule, only, permutation, schedule
from fedray.core.errors import BadInput, warn_user
from fedray.core.method import FORWARD, Compress, Local, Phase, Piece, Schedule, Server, ServerWork
from fedray.core.types import Layout, Weighting
from fedray.features.personal import PrivateLayers, compress_rest
from fedray.features.slices import Slices, compress_slices, mark_columns, mean_of_slices
from fedray.methods.setting import Setting

Assign = Callable[[int, str], Assignment]  # (K, the value of schedule.rows) -> assignment
Compressor = Callable[[Layout], Compress]
Merge = Callable[[servers.Rows, Weighting], Server]


def federated(
    setting: Setting,
    *,
    assign: Assign = permutation,
    local: Local | None = None,
    compress: Compressor = dense,
    merge: Merge = servers.mean,
    pieces: Sequence[Piece] = (),
) -> Phase:
    """Makes one federated training of K models `[K, d]`. By default, each model is trained by FedAvg.

    Args:
        setting: The objects built from the scenario.
        assign: A function that takes K and the value of `schedule.rows`, and returns the rule that assigns models to
            the participants of a round. The scenario's key `schedule.kind` replaces this argument.
        local: Settings of a client's training. None means the scenario's section `local`.
        compress: A function that takes the layout of a model, and returns the compression of uploads. The scenario's
            key `compress.kind` replaces this argument.
        merge: A function that takes the order of the models in the state and the weighting of uploads. It returns the
            server, which turns a model's uploads into the next model. The scenario's keys `server.coefficients` and
            `server.robust` replace this argument. The server optimizer (`server.optimizer`) is applied afterwards.
        pieces: Additions to a client's job before or after training.
    """
    stay = (PrivateLayers(setting.private, setting.memory),) if setting.private else ()
    return Phase(
        models=setting.models,
        schedule=make_schedule(setting, assign),
        local=setting.local if local is None else local,
        server=make_server(setting, merge),
        compress=make_compressor(setting, compress),
        pieces=(*stay, *pieces),
    )


def federated_each(
    setting: Setting,
    *,
    assign: Assign = permutation,
    local: Local | None = None,
    compress: Compressor = dense,
    merge: Merge = servers.mean,
) -> tuple[Phase, ...]:
    """Makes one federated training for each network of `method.networks`, for `Method.parts`.

    Each network is trained by the clients that have it. The arguments are those of `federated`.

    Raises:
        BadInput: The scenario has no list `method.networks`.
    """
    if setting.stack is None:
        raise BadInput("setting.stack is None, because method.networks is empty: call federated(setting) there")
    parts = []
    for base in setting.stack.bases:
        invited = setting.participation if base.members is None else only(setting.participation, base.members)
        own = replace(setting, layout=base.net.layout, participation=invited)
        parts.append(federated(own, assign=assign, local=local, compress=compress, merge=merge))
    return tuple(parts)


def federated_slices(
    setting: Setting,
    *,
    slices: Slices,
    assign: Assign = permutation,
    local: Local | None = None,
    compress: Compressor = dense,
    pieces: Sequence[Piece] = (),
) -> Phase:
    """Makes one federated training in which each tier (group of clients) trains a slice of the network.

    The key `clients.tiers` sets the widths of the slices.

    Args:
        setting: The objects built from the scenario.
        slices: The slice of the network that each tier trains, such as `cut_slices(setting.tier_nets, window)`.
        assign: Rule that assigns models to participants, as in `federated`.
        local: Settings of a client's training, as in `federated`.
        compress: A function that takes the layout of a slice, and returns the compression of the slice's upload. The
            scenario's key `compress.kind` replaces this argument.
        pieces: Additions to a client's job, as in `federated`.
    """
    make = setting.compress or compress

    def merge(rows: servers.Rows, weighting: Weighting) -> Server:
        return mean_of_slices(rows, weighting, mark_columns(slices, setting.layout.d))

    phase = federated(replace(setting, compress=None), assign=assign, local=local, merge=merge, pieces=pieces)
    return replace(phase.add(slices), compress=compress_slices([make(net.layout) for net in slices.nets]))


def make_schedule(setting: Setting, assign: Assign = permutation) -> Schedule:
    """Makes the schedule, which plans the jobs of each round.

    The scenario says how participants are drawn. The key `schedule.kind` decides which models they train. If this key
    is not set, `assign` decides.
    """
    kind = setting.assign
    if kind is not None and assign is not permutation:
        _say_replaced(setting, f"schedule.kind = {kind if isinstance(kind, str) else 'your own'}", "assign")
    if setting.own_method and assign is not permutation:
        assign = guard_schedule(assign, f"{setting.own_method}: assign")
    make = assign if kind is None else KINDS[kind] if isinstance(kind, str) else kind
    assignment = make(setting.models, setting.rows)
    return schedule(setting.clients, setting.models, setting.seeds, setting.participation, assignment)


def make_compressor(setting: Setting, compress: Compressor = dense) -> Compress:
    """Returns the compression of uploads. A compression that the scenario sets replaces `compress`.

    Layers that stay with the clients are not sent.
    """
    if setting.compress is not None and compress is not dense:
        _say_replaced(setting, "the section compress", "compress")
    make = setting.compress or compress
    return compress_rest(make, setting.layout, setting.private) if setting.private else make(setting.layout)


def make_server(setting: Setting, merge: Merge = servers.mean) -> Server:
    """Returns a server that merges uploads and then applies the scenario's server optimizer."""
    base = merge_uploads(setting, merge)
    if setting.optimizer.kind == "none":
        return base
    return servers.with_optimizer(base, setting.state_rows, setting.layout.trainable, setting.optimizer)


def merge_uploads(setting: Setting, merge: Merge = servers.mean) -> Server:
    """Returns a server that merges uploads into the next models, without a server optimizer.

    The key `server.robust` chooses the rule. If it is not set, the key `server.coefficients` chooses the rule. If
    neither key is set, `merge` is the rule.
    """
    rows, tiers = setting.state_rows, setting.clients.tiers
    robust = setting.robust.kind != "none"
    if merge is not servers.mean and (robust or setting.coefficients is not None):
        key = f"server.robust = {setting.robust.kind}" if robust else f"server.coefficients = {setting.coefficients}"
        _say_replaced(setting, key, "merge")
    if robust:
        keys, p = setting.robust, setting.layout.trainable
        known = {
            "median": servers.median,
            "trimmed_mean": servers.trimmed_mean(keys.trim),
            "krum": servers.krum(keys.byzantine, p),
            "multi_krum": servers.krum(keys.byzantine, p, multi=True),
        }
        return servers.robust_server(rows, known[keys.kind])
    if setting.coefficients == "equal_groups":
        return servers.by_tier(rows, len(tiers), setting.weighting)
    if setting.coefficients == "paper_eq2":
        return servers.paper_eq2(rows, tiers)
    return (merge if setting.coefficients is None else servers.mean)(rows, setting.weighting)


def _say_replaced(setting: Setting, key: str, ingredient: str) -> None:
    """Warns that a key of the scenario replaces an ingredient of the user's own method."""
    if setting.own_method:
        warn_user(
            f"{key} takes the place of the {ingredient} of {setting.own_method}: leave the key out to train with that"
        )


def count_distillation(setting: Setting, more: int = 0) -> Callable[[int], ServerWork]:
    """Returns the function `Phase.server_work` of a server that trains K students by distillation, one per model.

    The function takes a round, and returns how many steps the server makes and how many samples it reads. A student
    learns from the uploads of its model, and from `more` further teachers.
    """
    models = setting.models

    def work(_t: int) -> ServerWork:
        steps, samples = setting.distil_work(more + setting.participants / models)
        return models * steps, models * samples

    return work


def find_descent(
    setting: Setting, optimizer: Callable[[float], Step], each: int
) -> tuple[Descent | None, Callable[[int], ServerWork] | None]:
    """Returns how a server finds each of K models (option `solver`), and the function `Phase.server_work`.

    With the option `exact`, both are None. With `descent`, the server makes `solver_steps` steps of `optimizer`, which
    takes the learning rate `solver_lr`. A step reads no samples. The server scores each model on the server's own
    samples at the start, after every `each` steps, and at the end.
    """
    if setting.options["solver"] == "exact":
        return None, None
    steps, models = setting.options["solver_steps"], setting.models

    def work(_t: int) -> ServerWork:
        rows = 0 if setting.score is None else len(setting.server_rows(0)[1])
        return models * steps, models * (1 - -steps // each) * rows * FORWARD

    return Descent(steps, each, optimizer(setting.options["solver_lr"]), setting.score), work


def require(method: str, **keys: tuple[object, object]) -> None:
    """Raises `BadInput` if a key of the scenario does not have the value that the method needs.

    Args:
        method: Name of the method in messages.
        keys: For each key, the scenario's value and the required value. `__` in a name stands for a dot.

    Example:
        >>> require("SCAFFOLD", local__optimizer=("adam", "sgd"))
        Traceback (most recent call last):
        fedray.core.errors.BadInput: local.optimizer = adam, but SCAFFOLD needs sgd: set it to sgd
    """
    for key, (value, plain) in keys.items():
        if value != plain:
            shown, needed = (str(one).lower() if isinstance(one, bool) else one for one in (value, plain))
            raise BadInput(f"{key.replace('__', '.')} = {shown}, but {method} needs {needed}: set it to {needed}")


def check_own_prior(local: Local, method: str, key: str) -> None:
    """Checks the settings of local training for a method that has its own prior over the weights.

    This prior replaces weight decay. `key` is the scenario's key that sets the prior.

    Raises:
        BadInput: The scenario sets weight decay, a proximal term (`local.pull`), Nesterov's momentum, or an optimizer
            that is neither Adam nor SGD.
    """
    if local.step is not None or local.optimizer not in ("sgd", "adam"):
        raise BadInput(f"local.optimizer = {local.optimizer_name}, but {method} trains with adam or sgd: set one")
    require(method, local__nesterov=(local.nesterov, False))
    require(f"{method} (with {key})", local__weight_decay=(local.weight_decay, 0), local__pull=(local.pull, 0))
