"""Describes a resolved scenario before anything runs, for `fedray check`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedray.advice import warn_of_study
from fedray.assembly import models as memory
from fedray.assembly.methods import make_server_optimizer
from fedray.assembly.study import build_study
from fedray.core import sums
from fedray.core.errors import format_bytes, name_some, quote_value
from fedray.core.method import Local, RateSchedule
from fedray.core.types import SPARSE_KINDS, Clients, IntArray, Tier
from fedray.data.forms.rows import GIVEN_ROW
from fedray.data.shards import StoredShards
from fedray.experiments.run import RuntimeChoice, choose_runtime, share_gpus
from fedray.runtime.environment import check_machine, count_gpus, device_of, pretend_gpus
from fedray.runtime.placement import ACTOR_GB, Node, plan_actors
from fedray.scenario.loader import pool_clients, tier_table
from fedray.scenario.names import is_own, method_spec_of
from fedray.scenario.schema import Scenario
from fedray.simulation.devices import Devices
from fedray.simulation.rounds import count_bytes, job_traffic
from fedray.simulation.study import Study, choose_study_engine, cost_answer

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

# ---------------------------------------------------------------------------------------------------------------------
# The data and the training of a scenario in words.

MOST_NAMED = 12  # most columns that are named


def list_data_facts(scenario: Scenario, study: Study) -> Iterator[tuple[str, str]]:
    """Yields facts about the clients' samples, the inputs and the targets, as pairs (name, text)."""
    number, data = study.clients.number, study.shards.data
    client = np.unique(np.linspace(0, number - 1, min(number, memory.SIZED_CLIENTS)).astype(np.int64))
    rows = study.shards.sizes(np.zeros_like(client), client)
    which = " in replicate 0" if study.replicates > 1 else ""
    yield "rows", f"{rows.min():,} to {rows.max():,} training rows a client{which}, median {np.median(rows):,.6g}"
    if isinstance(study.shards, StoredShards):
        dealt = study.shards.dealt
        held_out = len(dealt.test[0]) if dealt.test else 0
        spare = (len(data.folds[0][0]) if data.folds else len(data.train.y)) - (len(dealt.owned[0].rows) - held_out)
        if spare:  # a partitioner of Flower, or a user's, may leave some samples out
            yield "not dealt", f"{spare:,} training rows, which the partition gives to nobody"
        if dealt.test:
            out, names = np.setdiff1d(np.arange(dealt.owned[0].clients), dealt.ids[0]).tolist(), study.client_names
            who = name_some([names[i] if names else f"client {i}" for i in out], MOST_NAMED)
            who += f" (in fold {study.place(0)[1]})" * (study.per_replicate > 1)
            unused = len(data.test.y)
            also = f"; the {unused:,} test rows of the data are not used" * (unused > 0)
            yield "test rows", f"{len(dealt.test[0]):,} rows of clients that never train: {who}{also}"
        if dealt.server:
            yield "server rows", f"{len(dealt.server[0]):,} training rows, which the clients of other methods have"
    shape = " x ".join(map(str, data.input_shape)) or "1"
    yield "inputs", f"{data.kind} of {shape}" + (f": {name_some(data.features, MOST_NAMED)}" if data.features else "")
    if data.standardized and data.unit is None and data.kind != "tokens" and not data.population:
        yield "scale", "mean and deviation of all training rows, which devices would have to exchange (data.scale)"
    regression = "a regression" if data.outputs == 1 else f"a regression of {data.outputs} targets"
    yield "target", f"{data.classes:,} classes" if data.classes else regression
    options = scenario.data.options
    target = options.get("target") or []
    kept = {*([target] if isinstance(target, str) else target), options.get("group")}
    kept |= {*data.features, *(name.partition("=")[0] for name in data.features)}  # a category is `column=value`
    left = tuple(name for name in data.columns if name not in kept | {GIVEN_ROW})
    if data.features and left:
        yield "left out", name_some(left, MOST_NAMED)


def list_training_facts(scenario: Scenario, study: Study) -> Iterator[tuple[str, str]]:
    """Yields facts about participation, local training and the weights of uploads, as pairs (name, text).

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> scenario = read_scenario({"clients": {"number": 4}, "data": {"name": "digits", "limit": 100}})
        >>> dict(list_training_facts(scenario, build_study(scenario)))["round"]
        '4 of 4 clients take part'
    """
    spec, phase, keys = method_spec_of(scenario.method.name), study.method.phase, scenario.participation
    if not spec.trains:
        return
    plan = phase.schedule(0, None)
    chosen = f"{len(np.unique(plan.client[plan.world == 0])):,} of {study.clients.number:,} clients take part"
    if (rule := study.asynchronous) is not None:
        steps = {"semi": f"every {rule.tick:g} s", "buffered": f"after {rule.goal} uploads"}
        who = f"{rule.concurrency:,} of {study.clients.number:,} clients train at the same time"
        chosen = f"none: {who}, and the server steps {steps.get(rule.mode, 'at every arrival')}"
    if keys.overcommit > 1:
        chosen += f", {keys.overcommit:g} times as many as are waited for"
    if keys.dropout:
        chosen += f", each drops out with probability {keys.dropout:g}"
    if keys.deadline is not None:
        chosen += f", nobody is waited for after {keys.deadline:g} s"
    yield "round", chosen
    said = [line for piece in phase.pieces if (line := piece.describe()) is not None]
    with_training = [text for key, text in said if key == "training"]
    if not spec.fits:
        yield "training", ", ".join([describe_local(phase.local, scenario.local.lr_grid), *with_training])
    yield from (line for line in said if line[0] != "training")
    if "averages" not in spec.fixed:
        server = scenario.server
        parts = ["uploads weigh alike" if server.weighting == "uniform" else "uploads weigh by their clients' rows"]
        parts += [f"tiers by {server.coefficients}"] if server.coefficients != "fedavg" else []
        parts += [f"{server.robust} in place of the mean"] if server.robust != "none" else []
        course = _describe_course(make_server_optimizer(scenario).schedule)
        parts += [f"{server.optimizer}, learning rate {server.lr:g}{course}"] if server.optimizer != "none" else []
        yield "server", ", ".join(parts)


def describe_local(local: Local, grid: list[float] | None = None) -> str:
    """Describes the local training of a client in words.

    Args:
        local: The settings of local training.
        grid: The candidates for the learning rate. Each replicate and fold takes its best candidate. Empty or None
            means a single rate.

    Example:
        >>> describe_local(Local(lr=0.1, lr_decay=0.99, momentum=0.9))
        'sgd, learning rate 0.1 (times 0.99 every 10 rounds), momentum 0.9, batches of 16, 1 epochs'
    """
    rate = f"the best of {', '.join(f'{lr:g}' for lr in grid)}" if grid else f"{local.lr:g}"
    decay = f" (times {local.lr_decay:g} every {local.lr_decay_every:,} rounds)" if local.lr_decay != 1 else ""
    decay, loss = decay + _describe_course(local.schedule), local.loss
    parts = [local.optimizer_name, f"learning rate {rate}{decay}"]
    parts += [] if loss is None else [f"loss {loss.name}"]
    parts += [] if local.gradient is None else [f"gradients {local.gradient.name}"]
    parts += [f"augmented by {' and '.join(one.name for one in local.augment)}"] if local.augment else []
    parts += [f"{'Nesterov' * local.nesterov} momentum {local.momentum:g}".strip()] if local.momentum else []
    parts += [f"weight decay {local.weight_decay:g}"] if local.weight_decay else []
    parts += [f"pull {local.pull:g}"] if local.pull else []
    last = {"keep": "", "drop": ", a short last one dropped", "merge": ", a short last one merged"}[local.last_batch]
    parts += ["all rows as one batch" if local.batch_size is None else f"batches of {local.batch_size:,}{last}"]
    parts += [f"{local.steps:,} steps" if local.steps is not None else f"{local.epochs or 1:,} epochs"]
    return ", ".join(parts)


def _describe_course(rule: RateSchedule | None) -> str:
    """Returns words in brackets for the schedule of a learning rate. Without a schedule, the text is empty."""
    if rule is None:
        return ""
    falls = f" {'again every' if rule.restart else 'over'} {rule.rounds:,} rounds"
    course = f"{rule.kind} schedule" + falls * (rule.kind in ("cosine", "linear"))
    return f" ({course}{f', {rule.warmup} rounds of warm-up' * bool(rule.warmup)})"


# ---------------------------------------------------------------------------------------------------------------------
# The facts about a resolved scenario.


def explain_scenario(
    scenario: Scenario, address: str | None = None, save: Callable[[Figure], None] | None = None
) -> str:
    """Returns a text with facts about a resolved scenario: clients, tiers, memory, bytes per round and more.

    Args:
        scenario: The scenario.
        address: The address of the Ray cluster on which the scenario will run. The resources of the cluster are read.
            None means this machine.
        save: A function that saves a picture of the partition. None means no picture.

    Raises:
        BadInput: The scenario cannot run on this machine or cluster.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> print(explain_scenario(read_scenario({"clients": {"number": 10}})).splitlines()[0])
        method       fed_ensemble: 5 models, 20 rounds, schedule permutation
    """
    study = build_study(scenario)
    warn_of_study(scenario, study)  # before anything of this machine is refused
    scenario = pool_clients(scenario)
    chosen = choose_runtime(scenario, study, address)
    if chosen.gpus:
        scenario = share_gpus(scenario, chosen.gpus)
        study = replace(study, clients=Clients(tier_table(scenario, study.clients.number)))
    if chosen.name == "inline":
        most = max(tier.num_gpus for tier in study.clients.tiers)
        device_of(most, scenario.clients.device, tf32=scenario.clients.tf32)
    elif address is None:
        check_machine(study.clients.tiers, _count_gpus_here(scenario, study))
    if save is not None:
        save(draw_partition(scenario, study))
    return "\n".join(f"{name:12} {value}" for name, value in list_scenario_facts(scenario, study, chosen, address))


def draw_partition(scenario: Scenario, study: Study) -> Figure:
    """Draws the partition of the first replicate and fold.

    The picture shows how many samples of each class each client holds. For a regression, it shows each client's number
    of samples. If there are many clients, only every m-th of the first 10,000 is drawn. The title has the smallest,
    the largest and the median number of samples over all clients.
    """
    from fedray.report.clients import draw_counts  # matplotlib is slow to import
    from fedray.report.page import draw_named

    shards, client = study.shards, np.arange(study.clients.number)
    sizes = shards.sizes(np.zeros_like(client), client)
    keys = scenario.data.partition
    options = ", ".join(f"{key} {quote_value(value)}" for key, value in keys.options.items() if value is not False)
    title = f"{shards.data.name}, {study.clients.number:,} clients by {keys.name}"
    title += f" ({options[:80]})" if options else ""
    title += f": {sizes.min():,} to {sizes.max():,} rows, {int(np.median(sizes)):,} in the middle"
    counts = shards.label_counts(0) if shards.data.classes else sizes[:, None]
    ids = study.client_ids(0, np.arange(len(counts)))
    draw = partial(draw_counts, title, counts, shards.data.class_names or ("",), ids)
    return draw_named({"data": draw}, "data", "scenario")


def list_scenario_facts(
    scenario: Scenario, study: Study, chosen: RuntimeChoice, address: str | None
) -> list[tuple[str, str]]:
    """Returns the facts about a resolved scenario, as pairs (name, text).

    `address` is the address of the Ray cluster on which the scenario will run. None means this machine.
    """
    phase, keys = study.method.phase, scenario
    plan = phase.schedule(0, None)
    traffic = count_bytes(phase, np.zeros_like(plan.client), *job_traffic(study, plan))  # if all jobs are ok
    unit, spec = "round" if study.asynchronous is None else "job", method_spec_of(scenario.method.name)
    one = "in the first round" if spec.parts or spec.fits or spec.walks else f"a {unit}"  # others differ
    up, down = (format_bytes(float(each.sum() if unit == "round" else each.mean())) for each in traffic)
    needed = sum(need.bytes for need in memory.estimate_study(scenario, study))
    state = 4.0 * study.net.layout.d * phase.models * study.worlds
    plans, compress = describe_schedule(scenario, study), keys.compress
    sent = compress.kind + (f", ratio {compress.ratio:g}" if compress.kind in SPARSE_KINDS else "")
    asks_user = is_own("method", study.method.name) and study.method.answer is not None  # it may need a trained state
    facts = [
        ("method", f"{study.method.name}: {describe_models(study)}, {study.rounds} rounds, {plans}"),
        ("data", f"{keys.data.name}, {study.clients.number:,} clients by {keys.data.partition.name}"),
        *list_data_facts(scenario, study),
        *list_training_facts(scenario, study),
        *_list_networks(scenario, study),
        ("worlds", f"{study.replicates} replicates x {study.per_replicate} folds"),
        *([("jobs", f"{len(plan.client):,} a round")] if unit == "round" else []),
        ("bytes", f"about {down} down and {up} up {one}, if all jobs count; {sent}"),
        *([] if asks_user else [("answer", cost_answer(study).describe())]),
        ("runtime", _describe_runtime(scenario, study, chosen, address)),
        ("state", f"{format_bytes(state)} of models at the server"),
        ("memory", f"up to {format_bytes(needed)} in one process"),
    ]
    if phase.walk is not None:
        degree = np.bincount(phase.walk.edges.ravel(), minlength=study.clients.number)
        edges = f"{len(phase.walk.edges):,} edges, {degree.min()} to {degree.max()} a client"
        facts.append(("graph", f"{keys.graph.kind}, {edges}, {keys.graph.transition} steps"))
    tier_of = study.clients.tier_of(np.arange(study.clients.number))
    return facts + [
        (f"tier {tier.name}", _describe_tier(tier, phase.models, study.devices, np.flatnonzero(tier_of == t)))
        for t, tier in enumerate(study.clients.tiers)
    ]


def _list_networks(scenario: Scenario, study: Study) -> Iterator[tuple[str, str]]:
    """Yields the networks, their engines, and a stack's classifiers that clients fit, as pairs (name, text)."""
    has_gpus = {bool(tier.num_gpus) and scenario.clients.device == "auto" for tier in study.clients.tiers}
    devices = ["cuda" if has else "cpu" for has in sorted(has_gpus)]
    for one in study.trained:
        d = one.net.layout.d
        yield "model", f"{one.net.name}: {d:,} parameters and buffers, {format_bytes(4.0 * d)}"
    for device in devices:
        for one in study.trained:
            engine = choose_study_engine(one, device)
            precise = " with TF32" if device == "cuda" and scenario.clients.tf32 else ""
            yield "engine", f"{engine.name} on {device}{precise}, up to {engine.width} lanes ({engine.why})"
    library = sums.load_library()
    if study.lanes != "torch" and isinstance(library, str):
        yield "kernels", f"none: {library}"
    for part in study.parts:
        if part.voter is not None:
            yield "votes", f"{part.voter.name}: every client fits its own, its bytes are not counted"


def _describe_tier(tier: Tier, models: int, devices: Devices, client: IntArray) -> str:
    """Describes a tier. Its clients train `models` models in a round, unless the tier sets a different number.

    If a profile or a trace describes the devices, the speeds are medians over the tier's clients, whose ids are
    `client`.

    Example:
        >>> devices = Devices(Clients((Tier("phone", 2),)), {"uplink": np.array([5e5, 7e5])})
        >>> _describe_tier(devices.clients.tiers[0], 1, devices, np.arange(2)).partition("step, ")[2]
        '600 kB/s up, 10 MB/s down (medians of its clients)'
    """
    measured = bool(devices.figures or devices.links) and len(client) > 0
    step, sample, up, down = (
        float(np.median(devices.figure(name, client))) if measured else getattr(tier, name)
        for name in ("seconds_per_step", "seconds_per_sample", "uplink", "downlink")
    )
    models = models if tier.models_per_round is None else tier.models_per_round
    cpus = "a share of a CPU" if tier.num_cpus is None else f"{tier.num_cpus:g} CPU"
    speed = f"{step:g} s a step" + (f" and {sample:g} s a sample" if sample else "")
    links = f"{format_bytes(up)}/s up, {format_bytes(down)}/s down" + " (medians of its clients)" * measured
    seat = f"{tier.num_gpus:g} GPU" + "".join(f", {n:g} {name}" for name, n in tier.resources.items())
    width = "" if tier.width == 1 else f"width {tier.width:g}, "
    links += "".join(f", {n:,} {word}" for n, word in ((tier.epochs, "epochs"), (tier.steps, "steps")) if n is not None)
    return f"{tier.number:,} clients, {width}{models} models a round, actors of {cpus} and {seat}, {speed}, {links}"


def describe_models(study: Study) -> str:
    """Describes how many models there are.

    For a stack (base models, usually with a meta model that combines them), also tells how many rounds they train.
    """
    if not study.parts:
        return f"{study.method.phase.models} models"
    bases = [part for part in study.parts if part.last_round is None]
    subs, rest = sum(part.folds * part.models for part in bases), len(study.parts) - len(bases)
    text = f"{subs} sub models of {len(bases)} bases in {bases[0].ends} rounds"
    return text + (f", a meta model in {study.parts[-1].ends - study.parts[-1].begins}" if rest else "")


def describe_schedule(scenario: Scenario, study: Study) -> str:
    """Describes the rule that decides which model a client trains.

    The rule is the scenario's schedule, or a rule of the method. Or each client chooses its model itself.
    """
    name, kind = scenario.method.name, scenario.schedule.kind
    if study.method.phase.choose is not None:
        return "clients choose their models"
    if kind != "permutation" or "schedules" not in method_spec_of(name).fixed:
        own = ", or the method's own" if is_own("method", name) and kind == "permutation" else ""
        return f"schedule {kind}{own}"
    return "the method says who trains which model"


def _describe_runtime(scenario: Scenario, study: Study, chosen: RuntimeChoice, address: str | None) -> str:
    """Describes the runtime and why it was chosen. On Ray, also tells the number of actors.

    The number fits the present resources of the cluster at `address`, or of this machine if `address` is None.
    """
    where = chosen.name if scenario.runtime != "auto" else f"{chosen.name} (auto: {chosen.why})"
    if chosen.name == "inline":
        return where
    if address is None:
        gpus = _count_gpus_here(scenario, study)
        nodes = [Node("", {"CPU": float(os.cpu_count() or 1), "GPU": float(gpus)})]
    else:
        nodes = ask_cluster(address)
    actors = len(plan_actors(study.clients, nodes, scenario.clients.per_actor, scenario.clients.actors))
    return f"{where}, {actors} client actors, about {format_bytes(1e9 * ACTOR_GB * actors)} of memory"


def ask_cluster(address: str) -> list[Node]:
    """Returns the present nodes of a Ray cluster.

    Raises:
        BadInput: The cluster cannot be reached.
    """
    from fedray.runtime.ray.cluster import read_cluster
    from fedray.runtime.ray.connection import open_ray

    with open_ray(address, 0):
        return read_cluster().whole


def _count_gpus_here(scenario: Scenario, study: Study) -> int:
    """Returns how many GPUs Ray reports on this machine: their real number, or the number that `pretend_gpus` sets."""
    pretended = pretend_gpus(study.clients.tiers, scenario.clients.device)
    return count_gpus() if pretended is None else pretended
