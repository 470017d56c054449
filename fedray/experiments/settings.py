"""A scenario's data and training in words, for `fedray check`.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> scenario = read_scenario({"clients": {"number": 4}, "data": {"name": "digits", "limit": 100}})
    >>> dict(list_training_facts(scenario, build_study(scenario)))["round"]
    '4 of 4 clients take part'
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedray.assembly import memory
from fedray.assembly.students import has_compiled_students
from fedray.core.local import RateSchedule
from fedray.core.method import Local
from fedray.data.forms.rows import GIVEN_ROW
from fedray.data.stored import StoredShards
from fedray.scenario.methods import method_spec_of
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study

MOST_NAMED = 12  # columns that are named


def _count_left_rows(shards: StoredShards) -> int:
    """Training rows of the first world that nobody has: a Flower partitioner or one of your own may leave some."""
    rows = len(shards.data.folds[0][0]) if shards.data.folds else len(shards.data.train.y)
    return rows - len(shards.dealt.owned[0].rows)


def list_data_facts(scenario: Scenario, study: Study) -> Iterator[tuple[str, str]]:
    """Rows of the clients, what the inputs are, and what is to be predicted, as pairs (name, text)."""
    number, data = study.clients.number, study.shards.data
    client = np.unique(np.linspace(0, number - 1, min(number, memory.SIZED_CLIENTS)).astype(np.int64))
    rows = study.shards.sizes(np.zeros_like(client), client)
    yield "rows", f"{rows.min():,} to {rows.max():,} training rows a client, median {np.median(rows):,.6g}"
    if isinstance(study.shards, StoredShards) and (spare := _count_left_rows(study.shards)):
        yield "not dealt", f"{spare:,} training rows, which the partition gives to nobody"
    if isinstance(study.shards, StoredShards) and study.shards.dealt.server:
        yield (
            "server rows",
            f"{len(study.shards.dealt.server[0]):,} training rows, which the clients of other methods have",
        )
    shape = " x ".join(map(str, data.input_shape)) or "1"
    yield "inputs", f"{data.kind} of {shape}" + (f": {_name_some(data.features)}" if data.features else "")
    regression = "a regression" if data.outputs == 1 else f"a regression of {data.outputs} targets"
    yield "target", f"{data.classes:,} classes" if data.classes else regression
    options = scenario.data.options
    target = options.get("target") or []
    kept = {*([target] if isinstance(target, str) else target), options.get("group")}
    kept |= {*data.features, *(name.partition("=")[0] for name in data.features)}  # a category is `column=value`
    left = tuple(name for name in data.columns if name not in kept | {GIVEN_ROW})
    if data.features and left:
        yield "left out", _name_some(left)


def _name_some(names: tuple[str, ...]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def list_training_facts(scenario: Scenario, study: Study) -> Iterator[tuple[str, str]]:
    """Who takes part, how clients train, and how uploads are weighed, as pairs (name, text)."""
    spec, phase, keys = method_spec_of(scenario.method.name), study.method.phase, scenario.participation
    if not spec.trains:
        return
    plan = phase.schedule(0, None)
    chosen = f"{len(np.unique(plan.client[plan.world == 0])):,} of {study.clients.number:,} clients take part"
    if (rule := study.asynchronous) is not None:
        steps = {
            "semi": f"every {rule.tick:g} s",
            "buffered": f"after {rule.goal} uploads",
            "async": "at every arrival",
        }
        chosen = (
            f"none: {rule.concurrency:,} of {study.clients.number:,} clients train at the same time, and the server "
            f"steps {steps[rule.mode]}"
        )
    if keys.overcommit > 1:
        chosen += f", {keys.overcommit:g} times as many as are waited for"
    if keys.dropout:
        chosen += f", each drops out with probability {keys.dropout:g}"
    if keys.deadline is not None:
        chosen += f", nobody is waited for after {keys.deadline:g} s"
    yield "round", chosen
    yield "training", describe_local(phase.local, scenario.local.lr_grid)
    if phase.private:
        yield "private", f"layers {', '.join(phase.private)[:200]} stay with the clients"
    if spec.averages:
        yield "server", _describe_server(scenario)
    if distilled := _count_distilling(scenario, study):
        by = ", compiled" if has_compiled_students(study) else ""
        yield "distilling", f"{distilled} a round at the server, one after another, for each model of each world{by}"


def _count_distilling(scenario: Scenario, study: Study) -> str:
    """How many steps a server's student takes in a round; empty where none is distilled."""
    options = scenario.method.options
    steps, epochs, batch = (options.get(f"distil_{key}") for key in ("steps", "epochs", "batch"))
    if isinstance(steps, int) and steps:
        return f"up to {steps:,} steps"
    if not (isinstance(epochs, int) and isinstance(batch, int) and epochs and batch):  # as a method of one's own may
        return ""
    return f"{epochs * -(-len(study.shards.server(0)[1]) // batch):,} steps"


def describe_local(local: Local, grid: list[float] | None = None) -> str:
    """How a client trains, in words.

    Args:
        local: Its optimizer and steps.
        grid: Learning rates of which each world takes the best one; empty or None where there is one rate.

    Example:
        >>> describe_local(Local(lr=0.1, lr_decay=0.99, momentum=0.9))
        'sgd, learning rate 0.1 (times 0.99 every 10 rounds), momentum 0.9, batches of 16, 1 epochs'
    """
    rate = f"the best of {', '.join(f'{lr:g}' for lr in grid)}" if grid else f"{local.lr:g}"
    decay = f" (times {local.lr_decay:g} every {local.lr_decay_every:,} rounds)" if local.lr_decay != 1 else ""
    rule, loss = local.schedule, local.loss
    decay += "" if rule is None else f" ({_describe_course(rule)})"
    parts = [local.optimizer_name, f"learning rate {rate}{decay}"]
    parts += [] if loss is None else [f"loss {loss.name}"]
    parts += [] if local.gradient is None else [f"gradients {local.gradient.name}"]
    parts += [f"augmented by {' and '.join(one.name for one in local.augment)}"] if local.augment else []
    parts += [f"momentum {local.momentum:g}"] if local.momentum else []
    parts += [f"weight decay {local.weight_decay:g}"] if local.weight_decay else []
    parts += [f"pull {local.pull:g}"] if local.pull else []
    parts += ["all rows as one batch" if local.batch_size is None else f"batches of {local.batch_size:,}"]
    parts += [f"{local.steps:,} steps" if local.steps is not None else f"{local.epochs or 1:,} epochs"]
    parts += [] if local.windows is None else [f"sampled in {local.windows.number:,} windows"]
    return ", ".join(parts)


def _describe_course(rule: RateSchedule) -> str:
    """How the learning rate follows the rounds, in words."""
    falls = "again every" if rule.restart else "over"
    text = f"{rule.kind} schedule" + f" {falls} {rule.rounds:,} rounds" * (rule.kind in ("cosine", "linear"))
    return text + f", {rule.warmup} rounds of warm-up" * bool(rule.warmup)


def _describe_server(scenario: Scenario) -> str:
    """How uploads become the next models, in words."""
    keys = scenario.server
    parts = ["uploads weigh alike" if keys.weighting == "uniform" else "uploads weigh by their clients' rows"]
    parts += [f"tiers by {keys.coefficients}"] if keys.coefficients != "fedavg" else []
    parts += [f"{keys.robust} in place of the mean"] if keys.robust != "none" else []
    parts += [f"{keys.optimizer}, learning rate {keys.lr:g}"] if keys.optimizer != "none" else []
    return ", ".join(parts)
