"""What a scenario needs in memory, estimated before any of it is taken."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.assembly.clients import invited_per_tier
from fedray.assembly.pieces import count_draws
from fedray.assembly.training_code import LayerOutputs, measure_layers
from fedray.core.errors import BadInput
from fedray.core.text import format_bytes
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, Clients
from fedray.data.synthetic import POOL_NUMBERS
from fedray.data.types import Dataset
from fedray.features.measure import MAPPED_NUMBERS, Curvature, Measure, count_gradients
from fedray.features.windows import Windows
from fedray.models.net import layout_of
from fedray.scenario.methods import method_spec_of
from fedray.scenario.rules import tier_table
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Study, choose_study_engine
from fedray.training.block import PIECE_NUMBERS, choose_batch_width, count_steps
from fedray.training.choice import Engine

# ---------------------------------------------------------------------------------------------------------------------
# Estimates of what the rows of a data set need in memory: computed data, copies, rows that differ by client.


class Need(NamedTuple):
    """Some memory that a run needs.

    Attributes:
        what: what it is for, in words.
        keys: the keys of the scenario that decide its size.
        bytes: its size.
    """

    what: str
    keys: str
    bytes: float


def estimate_generated_data(scenario: Scenario, number: int) -> list[Need]:
    """Data sets that are computed, not read: nothing for the others.

    Args:
        scenario: the scenario.
        number: clients N.
    """
    keys: Mapping[str, Any] = scenario.data.options
    if scenario.data.name in ("sine", "interval", "cubic"):
        rows = int(keys.get("clients", number)) * int(keys.get("samples", 16))
        return [Need(f"{rows:,} rows", "data.clients x data.samples", 64.0 * rows)]
    if scenario.data.name != "synthetic":
        return []
    features, classes, samples = keys["features"], keys["classes"], keys["samples"]
    pool, known = max(1024, min(65_536, POOL_NUMBERS // features)), min(number, EVALUATED_CLIENTS)
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


def estimate_rows(scenario: Scenario, data: Dataset, worlds: int, *, copied: bool = False) -> list[Need]:
    """Estimates tables of clients' rows, copies of all rows, and rows that are changed world by world.

    Args:
        scenario: its partition says how the rows of clients differ.
        data: the data set.
        worlds: worlds R, replicates x folds.
        copied: whether `data` has the copies of `data.partition.copies` already.

    Example:
        >>> from fedray.data.catalogue import load_data
        >>> from fedray.scenario.loader import read_scenario
        >>> partition = {"name": "iid", "rotation": 4, "copies": True}
        >>> scenario = read_scenario({"data": {"partition": partition}})
        >>> [need.what for need in estimate_rows(scenario, load_data("digits"), worlds=2)]
        ['2 partitions of 5,752 rows', '4 copies of 1,797 rows']
    """
    keys: Mapping[str, Any] = scenario.data.partition.options
    groups = max(keys.get("rotation") or 1, keys.get("permute_labels") or 1) if keys.get("copies") else 1
    more = 1 if copied else groups
    rows, tested = more * len(data.train.y), more * len(data.test.y)
    needs = [Need(f"{worlds:,} partitions of {rows:,} rows", "replicates x data", 48.0 * rows * worlds)]
    row = data.train.x.nbytes / max(1, len(data.train.x))  # bytes
    if groups > 1:
        both = rows + tested
        what = f"{groups} copies of {both // groups:,} rows"
        needs.append(Need(what, "data.partition.copies x data", (row + 8.0) * both))
    turned = (bool(keys.get("rotation")) and groups == 1) or bool(keys.get("feature_noise"))
    changed = row * turned + 8.0 * bool(keys.get("permute_labels"))
    if changed:
        needs.append(
            Need(f"{worlds:,} x {rows:,} rows of shifted clients", "replicates x data", changed * rows * worlds)
        )
    return needs


# ---------------------------------------------------------------------------------------------------------------------
# Every key has a range, but products of keys have none: 10^4 models of 10^9 numbers, a round of 10^9 jobs, a client
# of 10^12 rows. `estimate_scenario` estimates what follows from the keys alone, `check_network_memory` what the
# models take, before the first one is made, and `estimate_study` everything. A scenario that this machine cannot hold
# is refused with a message that names the keys which decide its size.

SIZED_CLIENTS = 100_000  # clients whose size is looked up; the largest of them stands for all
JOB, CHOICE = 400, 24  # bytes of a job's columns, and of each model it was chosen from
SCORED = 250.0  # bytes of a recorded client: buffered, joined and as Parquet
MODEL = 64  # bytes a number of a model in a round: state, its successor, exact sums in three float64 limbs, their mean
LANE = 28  # bytes a number of a lane: start, stack, gradient, optimizer, upload
BATCH = 64  # bytes a sample of a lane's batches: its place in the permutations, index, weight


def read_machine_memory() -> float:
    """Bytes of memory that this machine has, or that its container may use."""
    available = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            available = min(available, float(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or the word `max`
            continue
    return available


def check_memory(needs: Iterable[Need]) -> float:
    """Checks that this machine can hold all of the needs together, and returns their bytes.

    Raises:
        BadInput: it cannot; the message names the largest need.

    Example:
        >>> check_memory([Need("5 models of 10 numbers", "method.models", 200.0)])
        200.0
    """
    known, available = list(needs), read_machine_memory()
    total = sum(need.bytes for need in known)
    if total > available:
        worst = max(known, key=lambda need: need.bytes)
        raise BadInput(
            f"{worst.keys}: {worst.what} would take about {format_bytes(worst.bytes)} and the whole run about "
            f"{format_bytes(total)}, but this machine has {format_bytes(available)} of memory: lower one of these keys"
        )
    return total


def estimate_scenario(scenario: Scenario) -> list[Need]:
    """Estimates what follows from the keys alone."""
    number = scenario.clients.number
    needs = estimate_generated_data(scenario, number or 1)
    return needs if number is None else needs + _estimate_clients(scenario, number, scenario.replicates)


def _estimate_clients(scenario: Scenario, number: int, worlds: int) -> list[Need]:
    """Estimates what grows with the N clients and with the jobs of a round."""
    partition = scenario.data.partition.options
    jobs, everyone = count_jobs(scenario, number, worlds)
    measured = scenario.clients.trace or scenario.clients.profile
    each = 64.0 if measured else 16.0 * everyone  # bytes a client
    if scenario.schedule.rows == "stratum":
        each += 16.0 * min(worlds, 64)
    if "flipped" in partition or "noisy" in partition:
        each += 16.0 * worlds
    if partition.get("allow_empty"):
        each += 32.0 * worlds + 1600.0
    size = (JOB + CHOICE * scenario.method.models) * float(jobs)
    wanted = scenario.evaluate.clients or 0
    scored = worlds * min(number, EVALUATED_CLIENTS if wanted == "all" else int(wanted))
    return [
        Need(f"tables of {number:,} clients", "clients.number x replicates", each * number),
        Need(f"{jobs:,} jobs a round", "participation x clients.number x method.models x replicates", size),
        Need(f"scores of {scored:,} clients", "evaluate.clients x replicates", SCORED * scored),
    ]


def count_jobs(scenario: Scenario, number: int, worlds: int) -> tuple[int, bool]:
    """Returns the most jobs that a round can have, and whether every client takes part.

    Args:
        scenario: the scenario.
        number: clients N.
        worlds: worlds R, replicates x folds.
    """
    tiers = tier_table(scenario, number)
    invited = invited_per_tier(scenario, Clients(tiers))
    k, every = scenario.method.models, method_spec_of(scenario.method.name).all_models
    models = [k if every or t.models_per_round is None else t.models_per_round for t in tiers]
    return worlds * sum(n * k for n, k in zip(invited, models, strict=True)), sum(invited) == number


def estimate_rbf(features: int, shape: tuple[int, ...]) -> Need:
    """Radial features (centers), and their distances to the rows of one forward pass.

    Args:
        features: number of radial features.
        shape: of one input.
    """
    wide = float(features) * math.prod(shape)
    return Need(f"{features:,} radial features", "model.features", 24.0 * wide + 8.0 * wide * EVALUATED_ROWS)


def check_network_memory(scenario: Scenario, factory: Callable[[], nn.Module], worlds: int) -> None:
    """Checks that this machine can hold the models, before the first one is made.

    Torch's meta device makes a module without memory; a module that cannot be made there (a user's own, say) is not
    checked.

    Args:
        scenario: the scenario.
        factory: makes the module.
        worlds: worlds R, replicates x folds.

    Raises:
        BadInput: it cannot hold them.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # weights that are loaded have no place there
            d = layout_of(factory()).d
    except Exception:  # making it for real says what is wrong with it
        return
    check_memory([*estimate_scenario(scenario), _estimate_models(scenario.method.models * worlds, d)])


def _estimate_models(number: int, d: int, lane: int | None = None) -> Need:
    """Estimates the models in the state, and three lanes of `lane` numbers each (of d, unless the model has parts)."""
    what = f"{number:,} models of {d:,} numbers"
    return Need(what, "method.models x replicates x model", float(MODEL * number) * d + 3.0 * LANE * (lane or d))


def estimate_study(scenario: Scenario, study: Study) -> list[Need]:
    """Everything that one process holds at the same time in a run."""
    number, worlds, d = study.clients.number, study.worlds, study.net.layout.d
    needs = estimate_generated_data(scenario, number) + _estimate_clients(scenario, number, worlds)
    trained = [part.study for part in study.parts if part.voter is None and part.trained_before is None] or [study]
    needs.append(_estimate_models(study.method.phase.models * worlds, d, max(one.net.layout.d for one in trained)))
    work = [_estimate_work(one) for one in trained]  # one after another
    largest = max(work, key=lambda some: sum(need.bytes for need in some))
    rows = estimate_rows(scenario, study.shards.data, worlds, copied=True)
    return [*rows, *needs, *_estimate_vectors(scenario, study), *largest]


def _estimate_work(study: Study) -> list[Need]:
    """Training a block of lanes, and evaluating."""
    layers = measure_layers(study.net.module, study.example)
    engine = choose_study_engine(study)
    return [*_estimate_block(study, layers, engine), *_estimate_evaluation(study, layers, engine)]


def _estimate_vectors(scenario: Scenario, study: Study) -> list[Need]:
    """Estimates what the server keeps beside the models and is sent, and what the clients keep to themselves."""
    phase, d = study.method.phase, study.net.layout.d
    extra = sum(value.numel() * value.element_size() for value in _extra_tensors(study).values())
    jobs, _ = count_jobs(scenario, study.clients.number, study.worlds)
    stay = min(study.clients.number * phase.models * study.worlds, study.rounds * jobs)
    stay *= len(phase.compress.own) + sum(len(one.keeps) for one in phase.chain if one.kept_numbers is None)
    sized = max((part.study.net.layout.d for part in study.parts), default=d)  # of an upload, at most
    sized *= 1 + (phase.find(Measure) is not None)
    kept = phase.work.kept_numbers(sized) if phase.work is not None else sized if phase.server.keeps else 0
    sent = jobs if kept else 0
    return [
        Need("the method's own numbers at the server", "method x model x participation", 3.0 * extra),
        Need(f"{sent:,} uploads of {kept:,} numbers", "participation x model", 12.0 * kept * sent),
        Need(f"{stay:,} private vectors of {d:,} numbers", "clients.number x rounds x model", 8.0 * d * stay),
    ]


def _extra_tensors(study: Study) -> dict[str, Tensor]:
    """Returns what the server keeps beside the models, without memory; nothing where it reads the models' values."""
    phase = study.method.phase
    try:
        with torch.device("meta"):
            models = torch.empty(phase.models * study.worlds, study.net.layout.d, dtype=study.dtype)
            return phase.server.init(models)
    except Exception:  # a user's own server
        return {}


def _estimate_block(study: Study, layers: LayerOutputs, engine: Engine) -> list[Need]:
    """One block of lanes: weights, batches, and what the layers put out."""
    d, local, size, sample = (
        study.net.layout.d,
        study.method.phase.local,
        _largest_client(study),
        math.prod(study.input_shape),
    )
    steps = int(count_steps(np.array([size]), local)[0])
    batch = int(choose_batch_width(np.array([size]), local.batch_size)[0])
    width = engine.width
    samples = float(steps) * batch * width
    inputs = max(min(float(PIECE_NUMBERS), samples * sample), float(width * batch * sample))
    windows, how = study.method.phase.find(Windows), study.method.phase.find(Curvature)
    sampled = 0 if windows is None else min(steps, windows.number)
    made = width * size * (12.0 * sample + 64) if study.shards.data.population else 0.0
    mapped = 0 if how is None else max(MAPPED_NUMBERS, count_gradients(study.net, how.kind) * d)
    return [
        Need(f"{width} models of {d:,} numbers that are trained together", "model", float(LANE * width) * d),
        Need(f"{sampled:,} samples of each of them", "method.samples x model", 8.0 * sampled * (width + 2.0) * d),
        Need(f"{mapped:,} numbers of gradients by row", "method.fisher x model", 12.0 * mapped),
        Need(f"{steps:,} steps of {batch:,} samples", "local.epochs or steps x local.batch_size", BATCH * samples),
        Need(f"batches of {batch:,} samples", "local.batch_size x model", 12.0 * (width * batch * layers.all + inputs)),
        Need(f"{width} clients of {size:,} rows", "data.samples x data.features", made),
    ]


def _largest_client(study: Study) -> int:
    """Training rows of the largest client of the first world, of those that are looked at."""
    number = study.clients.number
    client = np.unique(np.linspace(0, number - 1, min(number, SIZED_CLIENTS)).astype(np.int64))
    return int(study.shards.sizes(np.zeros_like(client), client).max(initial=1))


def _estimate_evaluation(study: Study, layers: LayerOutputs, engine: Engine) -> list[Need]:
    """Answers on the test rows, and the tables of classes and models behind the pictures."""
    phase, rows, outputs = study.method.phase, len(study.split("test", 0)[1]), study.net.outputs
    slots = max((value.shape[1] for value in _extra_tensors(study).values() if value.dim() == 3), default=1)
    draws = count_draws(study)
    each = phase.models * (slots if study.method.answer is not None else 1) * draws
    drawn = study.worlds * each if draws > 1 else 0
    inside = {
        "mlp": each * layers.all,
        "conv": 3.0 * min(each, engine.width) * layers.widest,
    }
    answers = 24.0 * study.worlds * each * rows * outputs
    passed = 4.0 * EVALUATED_ROWS * inside.get(engine.name.removesuffix("-c"), 3.0 * layers.widest)
    return [
        Need(f"predictions of {each * study.worlds:,} models", "method.models x replicates x test rows", answers),
        Need(f"the outputs of {each:,} models for {EVALUATED_ROWS} rows", "method.models x model", passed),
        Need(f"{drawn:,} draws from posteriors", "method.samples x model", 8.0 * study.net.layout.d * drawn),
        Need(f"a confusion table of {study.classes:,} classes", "data.classes", 24.0 * study.classes**2),
    ]
