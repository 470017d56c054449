"""What a scenario needs in memory, estimated before any of it is taken.

Every key has a range, but products of keys have not: 10^4 models of 10^9 numbers, a round of 10^9 jobs, a client of
10^12 rows. `needs_of_scenario` counts what the keys alone decide, `check_network_memory` what models take before the first one is made, `needs_of_study`
everything. What this machine cannot hold is refused, and the keys to blame are named.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.assembly.devices import invited_per_tier
from fedray.core import rng
from fedray.core.errors import BadInput
from fedray.core.text import format_bytes
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, Clients
from fedray.data.generated import POOL
from fedray.data.types import Dataset
from fedray.models.mlp import RBF
from fedray.models.net import layout_of
from fedray.scenario.rules import tier_table
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study
from fedray.training.block import PIECE_NUMBERS, choose_batch_width, count_steps
from fedray.training.choice import Engine, choose_engine

LOOKED_AT = 100_000  # clients whose size is asked; the largest stands for all
JOB, CHOICE = 400, 24  # bytes of a job's columns, and of each model it was chosen from
MODEL = 64  # bytes a number of a model in a round: state, its successor, exact sums in three float64 limbs, their mean
LANE = 28  # bytes a number of a lane: start, stack, gradient, optimiser, upload
BATCH = 64  # bytes a sample of a lane's batches: its place in the permutations, index, weight


class Need(NamedTuple):
    """Some memory: what for, the keys that decide it, and bytes."""

    what: str
    keys: str
    bytes: float


def machine_memory() -> float:
    """Bytes that this machine has, or its container may use."""
    most = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            most = min(most, float(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or the word `max`
            continue
    return most


def check_memory(needs: Iterable[Need]) -> float:
    """The bytes of all needs together.

    Raises:
        BadInput: this machine does not have them; the largest need is named.

    Example:
        >>> check_memory([Need("5 models of 10 numbers", "method.models", 200.0)])
        200.0
    """
    known, has = list(needs), machine_memory()
    total = sum(need.bytes for need in known)
    if total > has:
        worst = max(known, key=lambda need: need.bytes)
        raise BadInput(
            f"{worst.keys}: {worst.what} would take about {format_bytes(worst.bytes)}, all together {format_bytes(total)}, but "
            f"there are {format_bytes(has)} of memory here: lower one of these"
        )
    return total


def needs_of_scenario(scenario: Scenario) -> list[Need]:
    """What the keys decide by themselves."""
    number = scenario.clients.number
    found = _made(scenario, number or 1)
    return found if number is None else found + _population(scenario, number, scenario.replicates)


def _made(scenario: Scenario, number: int) -> list[Need]:
    """Data that are made by rule."""
    keys: Mapping[str, Any] = scenario.data.options
    if scenario.data.name in ("sine", "interval", "cubic"):
        rows = int(keys.get("clients", number)) * int(keys.get("samples", 16))
        return [Need(f"{rows:,} rows", "data.clients x data.samples", 64.0 * rows)]
    if scenario.data.name != "synthetic":
        return []
    features, classes, samples = keys["features"], keys["classes"], keys["samples"]
    pool, known = max(1024, min(65_536, POOL // features)), min(number, EVALUATED_CLIENTS)
    tail = keys["spread"] * math.sqrt(2 * math.log(max(number, 2)))  # the largest of N normal numbers
    largest, row = samples * math.exp(min(tail, 600.0)), 12.0 * features + 64
    held = known * samples * scenario.data.hold_out
    return [
        Need(f"{keys['test']:,} test rows", "data.test x data.features", row * keys["test"]),
        Need(f"{classes:,} means and {pool:,} rows of noise", "data.features", 12.0 * (classes + pool) * features),
        Need(f"label counts of {known:,} clients", "data.classes x clients.number", 16.0 * known * classes),
        Need(f"a client of {largest:,.3g} rows", "data.samples, data.spread, data.features", row * largest),
        Need(f"{held:,.3g} withheld rows", "data.hold_out x data.samples x clients.number", row * held),
    ]


def _population(scenario: Scenario, number: int, worlds: int) -> list[Need]:
    """What grows with the N clients and with the jobs of a round."""
    partition = scenario.data.partition.options
    jobs, everyone = jobs_of(scenario, number, worlds)
    each = 64.0 if scenario.clients.trace else 16.0 * everyone  # bytes a client
    if scenario.schedule.rows == "stratum":
        each += 16.0 * min(worlds, 64)
    if "flipped" in partition or "noisy" in partition:
        each += 16.0 * worlds
    if partition.get("allow_empty"):
        each += 32.0 * worlds + 1600.0
    size = (JOB + CHOICE * scenario.method.models) * float(jobs)
    return [
        Need(f"tables of {number:,} clients", "clients.number x replicates", each * number),
        Need(f"{jobs:,} jobs a round", "participation x clients.number x method.models x replicates", size),
    ]


def jobs_of(scenario: Scenario, number: int, worlds: int) -> tuple[int, bool]:
    """Jobs of a round at most, and whether every client takes part."""
    tiers = tier_table(scenario, number)
    picked = invited_per_tier(scenario, Clients(tiers))
    models = [scenario.method.models if t.models_per_round is None else t.models_per_round for t in tiers]
    return worlds * sum(n * k for n, k in zip(picked, models, strict=True)), sum(picked) == number


def needs_of_partition(data: Dataset, worlds: int) -> Need:
    """Which rows whose clients hold, once a world."""
    rows = len(data.train.y)
    return Need(f"{worlds:,} partitions of {rows:,} rows", "replicates x data", 48.0 * rows * worlds)


def needs_of_rbf(features: int, shape: tuple[int, ...]) -> Need:
    """Radial features, and their distances to the rows of a piece of work."""
    wide = float(features) * math.prod(shape)
    return Need(f"{features:,} radial features", "model.features", 24.0 * wide + 8.0 * wide * EVALUATED_ROWS)


def check_network_memory(scenario: Scenario, factory: Callable[[], nn.Module], worlds: int) -> None:
    """Refuses models that cannot be held, before the first one is made (torch's meta device makes them of nothing).

    Args:
        factory: makes the module; one that cannot do without memory (a user's own, say) is not looked at.
    """
    try:
        with torch.device("meta"):
            d = layout_of(factory()).d
    except Exception:  # making it for real says what is wrong with it
        return
    check_memory([*needs_of_scenario(scenario), _models(scenario.method.models * worlds, d)])


def _models(number: int, d: int, lane: int | None = None) -> Need:
    """The state, and three lanes (of a part of the model, where it is made of parts)."""
    what = f"{number:,} models of {d:,} numbers"
    return Need(what, "method.models x replicates x model", float(MODEL * number) * d + 3.0 * LANE * (lane or d))


def needs_of_study(scenario: Scenario, study: Study) -> list[Need]:
    """Everything that one process holds at the same time in a run."""
    number, worlds, d = study.clients.number, study.worlds, study.net.layout.d
    made = _made(scenario, number) + _population(scenario, number, worlds)
    parts = [part.study for part in study.parts if part.voter is None]
    trained = parts[: -1 if len(parts) > 1 else None] or [study]
    made.append(_models(study.method.phase.models * worlds, d, max(one.net.layout.d for one in trained)))
    blocks = [_at_work(one) for one in trained]  # one after another
    here = max(blocks, key=lambda block: sum(need.bytes for need in block))
    return [needs_of_partition(study.shards.data, worlds), *made, *_kept(scenario, study), *here]


def _at_work(study: Study) -> list[Need]:
    """Training a block of lanes, and evaluating."""
    layers, engine = layers_of(study.net.module, study.example), choose_engine(study.net)
    return [*_block(study, layers, engine), *_evaluated(study, layers, engine)]


def _kept(scenario: Scenario, study: Study) -> list[Need]:
    """What the server keeps beside the models, what it is sent, and what the clients keep to themselves."""
    phase, d = study.method.phase, study.net.layout.d
    extra = sum(value.numel() * value.element_size() for value in _extra(study).values())
    jobs, _ = jobs_of(scenario, study.clients.number, study.worlds)
    stay = min(study.clients.number * phase.models * study.worlds, study.rounds * jobs) * len(phase.own)
    sent = jobs if phase.server.keeps else 0
    return [
        Need("what the server keeps", "method x model x participation", 3.0 * extra),
        Need(f"{sent:,} uploads of {d:,} numbers", "participation x model", 12.0 * d * sent),
        Need(f"{stay:,} private vectors of {d:,} numbers", "clients.number x rounds x model", 8.0 * d * stay),
    ]


def _extra(study: Study) -> dict[str, Tensor]:
    """What the server keeps beside the models, without memory; nothing where it reads the models' values."""
    phase = study.method.phase
    try:
        with torch.device("meta"):
            models = torch.empty(phase.models * study.worlds, study.net.layout.d, dtype=study.dtype)
            return phase.server.init(models)
    except Exception:  # a user's own server
        return {}


def _block(study: Study, layers: Layers, engine: Engine) -> list[Need]:
    """One block of lanes: weights, batches, and what the layers put out."""
    d, local, size, sample = (
        study.net.layout.d,
        study.method.phase.local,
        _largest(study),
        math.prod(study.input_shape),
    )
    steps = int(count_steps(np.array([size]), local)[0])
    batch = int(choose_batch_width(np.array([size]), local.batch_size)[0])
    width = engine.width
    seen = float(steps) * batch * width
    inputs = max(min(float(PIECE_NUMBERS), seen * sample), float(width * batch * sample))
    made = width * size * (12.0 * sample + 64) if study.shards.data.population else 0.0
    return [
        Need(f"{width} lanes of {d:,} numbers", "model", float(LANE * width) * d),
        Need(f"{steps:,} steps of {batch:,} samples", "local.epochs or steps x local.batch_size", BATCH * seen),
        Need(f"batches of {batch:,} samples", "local.batch_size x model", 12.0 * (width * batch * layers.all + inputs)),
        Need(f"{width} clients of {size:,} rows", "data.samples x data.features", made),
    ]


def _largest(study: Study) -> int:
    """Training rows of the largest client of the first world, of those that are looked at."""
    number = study.clients.number
    client = np.unique(np.linspace(0, number - 1, min(number, LOOKED_AT)).astype(np.int64))
    return int(study.shards.sizes(np.zeros_like(client), client).max(initial=1))


def _evaluated(study: Study, layers: Layers, engine: Engine) -> list[Need]:
    """Answers on the test rows, and the tables of classes and models behind the pictures."""
    phase, rows, outputs = study.method.phase, len(study.split("test", 0)[1]), study.net.outputs
    slots = max((value.shape[1] for value in _extra(study).values() if value.dim() == 3), default=1)
    each = phase.models * (slots if study.method.answer is not None else 1)
    inside = {"mlp": each * layers.all, "conv": 3.0 * min(each, engine.width) * layers.widest}
    answers = 24.0 * study.worlds * each * rows * outputs
    passed = 4.0 * EVALUATED_ROWS * inside.get(engine.name, 3.0 * layers.widest)
    return [
        Need(f"answers of {each * study.worlds:,} models", "method.models x replicates x test rows", answers),
        Need(f"{EVALUATED_ROWS} rows in {each:,} models", "method.models x model", passed),
        Need(f"a table of {study.classes:,} classes", "data.classes", 24.0 * study.classes**2),
    ]


class Layers(NamedTuple):
    """Numbers that layers put out for one sample: all of them together, and the widest."""

    all: float
    widest: float


def layers_of(module: nn.Module, example: Tensor) -> Layers:
    """What the layers put out for one sample, seen on one; nothing where the module cannot be asked.

    Example:
        >>> layers_of(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), torch.zeros(3))
        Layers(all=12.0, widest=5.0)
    """
    seen, training = [0.0], module.training
    recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    if recurrent:  # every step keeps four gates, cell and output
        each = [8.0 * example.numel() * part.hidden_size * part.num_layers for part in recurrent]
        return Layers(sum(each), max(each))

    def count(part: nn.Module, inputs: Any, output: Any) -> None:
        made = output if isinstance(output, Tensor) else output[0]
        seen.append(float(made.numel() * (part.centres.shape[1] if isinstance(part, RBF) else 1)))

    leaves = [part for part in module.modules() if next(part.children(), None) is None]
    hooks = [part.register_forward_hook(count) for part in leaves]
    try:
        with torch.no_grad(), rng.torch_scope(0):
            module.eval()(example[None])
    except Exception:  # the run itself will say what is wrong with it
        return Layers(0.0, 0.0)
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return Layers(sum(seen), max(seen))
