"""Makes the networks of a study, and estimates the memory that the study needs."""

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedray.assembly.clients import invited_per_tier
from fedray.assembly.pieces import measure_layers
from fedray.assembly.registry import UserObjects, spec_of
from fedray.components.distillation import TORCH, ask_model, use_torch
from fedray.core import rng
from fedray.core.errors import BadInput, FedrayError, format_bytes
from fedray.core.method import EngineOf, StudentEngine
from fedray.core.types import EVALUATED_CLIENTS, EVALUATED_ROWS, Clients, Lanes, Layout, Members, Net, Objective
from fedray.data.types import Dataset
from fedray.features.measure import MAPPED_NUMBERS, Curvature, Measure, count_gradients
from fedray.features.stacking import Base, Stack
from fedray.features.windows import Windows
from fedray.files.plain import expand_user_path
from fedray.files.run_files import STATE_FILE, find_checkpoints, read_sealed
from fedray.models.net import find_dropout, layout_of, net_of, state_dict
from fedray.models.nets import MODEL_NAMES, model_maker
from fedray.models.network_checks import guard_factory, try_factory, try_network, try_training
from fedray.scenario.loader import tier_table
from fedray.scenario.names import method_spec_of
from fedray.scenario.schema import ModelKeys, Scenario
from fedray.simulation.study import Study, choose_study_engine
from fedray.training.block import PIECE_NUMBERS, choose_batch_width, count_steps
from fedray.training.compiled import CONV_KERNEL, ask_compiled, begin_compiled, find_student_kernel

# ---------------------------------------------------------------------------------------------------------------------
# Initial models from weights in a run directory or a safetensors file (`model.weights`).


def hash_layers(layout: Layout) -> str:
    """Returns a hash of the names and shapes of a network's tensors."""
    text = f"{layout.names} {layout.shapes} {layout.trainable} {layout.counters}"
    return hashlib.sha256(text.encode()).hexdigest()


def read_weights(weights: str, net: Net) -> Tensor:
    """Reads the models from which training starts, `[worlds, K, d]`.

    `weights` is a run directory with models, or a safetensors file with the state dict of one model. Batch counters of
    BatchNorm (`num_batches_tracked`) always start at 0.

    Raises:
        BadInput: `weights` names no models, or models that do not fit the network.
    """
    path, key = expand_user_path("model.weights", weights), f"model.weights = {weights}"
    remedy = "give the directory of a run, or a .safetensors file"
    if path.is_dir():
        rounds = find_checkpoints(path / "checkpoints")
        if not rounds:
            raise BadInput(f"{key} holds no checkpoint of a run: {remedy}")
        if read_sealed(path / "identity.json")["network"]["layers"] != hash_layers(net.layout):
            raise BadInput(f"{key}: the networks of this run have other layers than {net.name}: give model as there")
        worlds = int(read_sealed(path / "manifest.json")["study"]["worlds"])
        models = _load(path / "checkpoints" / f"round-{rounds[-1]:06d}" / STATE_FILE, key, remedy)["models"]
        return models.float().view(worlds, -1, net.layout.d)
    found, wanted = _load(path, key, remedy), state_dict(net, torch.zeros(net.layout.d))
    # further names of shared tensors, which a file may leave out
    first, every = (dict(net.module.named_parameters(remove_duplicate=once)).keys() for once in (True, False))
    shared = every - first
    for name in sorted(found.keys() | wanted.keys() - (shared - found.keys())):
        shapes = [list(each[name].shape) if name in each else "no such tensor" for each in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise BadInput(f"{key}: {name} is {shapes[0]}, but in {net.name} it is {shapes[1]}: {remedy} of {net.name}")
    row = torch.cat([found[name].reshape(-1).float() for name in net.layout.names])
    wanted = state_dict(net, row)  # a shared tensor now has its value under each name
    for name in found.keys() - {*net.layout.names, *net.layout.counters}:
        if not torch.equal(found[name].to(wanted[name]), wanted[name]):
            raise BadInput(f"{key}: {name} is not trained and differs from that of {net.name}: load it in your network")
    return row.view(1, 1, -1)


def _load(file: Path, key: str, remedy: str) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError, FedrayError) as error:
        raise BadInput(f"{key} cannot be read ({error}): {remedy}") from None


def start_from(net: Net, weights: str, seeds: Sequence[int], models: int) -> Net:
    """Returns the network with the initial models that `weights` names.

    If `weights` is a run directory of W worlds, world w starts from the models of world `w mod W` of that run. A single
    model is the start of all K models.

    Args:
        net: The network.
        weights: A run directory or a safetensors file (see `read_weights`).
        seeds: The seed of each world's initial models.
        models: Number of models, K.

    Raises:
        BadInput: `weights` has neither one model nor K models.
    """
    rows = read_weights(weights, net)
    if rows.shape[1] not in (1, models):
        raise BadInput(
            f"model.weights = {weights} has {rows.shape[1]} models, but method.models is {models}: give a run of "
            "as many, or one"
        )
    given = {
        int(rng.keys(seed, "init", k)): rows[w % len(rows), k % rows.shape[1]]
        for w, seed in enumerate(seeds)
        for k in range(models)
    }
    return replace(net, init=lambda key: given[int(key)].clone() if int(key) in given else net.init(key))


# ---------------------------------------------------------------------------------------------------------------------
# Estimates of the memory that a scenario needs, before any of it is allocated. Each key has a range, but several keys
# together may still request 10^4 models of 10^9 parameters, a round of 10^9 jobs, or a client with 10^12 samples.
# `estimate_scenario` estimates the memory that follows from the keys alone. `check_network_memory` estimates the models
# before the first model is made. `estimate_study` estimates everything. If this machine has too little memory, an error
# names the deciding keys.

SIZED_CLIENTS = 100_000  # most clients whose sizes are computed; their largest size stands for all clients
JOB, CHOICE = 400, 24  # bytes of a job's columns, and of each model that the job's client could choose
SCORED = 250.0  # bytes of a client's scores in buffers and in `client_scores.parquet`
MODEL = 64  # bytes per parameter of a model in a round: old and new state, exact sums in three float64 limbs, mean
LANE = 28  # bytes per parameter of a lane: start, stack, gradient, optimizer, upload
BATCH = 64  # bytes per sample of a lane's batches: position in the permutations, index, weight


class Need(NamedTuple):
    """The memory that a run needs for one purpose.

    Attributes:
        what: Description of the purpose.
        keys: The keys of the scenario that decide the size.
        bytes: Size in bytes.
    """

    what: str
    keys: str
    bytes: float


def read_machine_memory() -> float:
    """Returns the bytes of memory of this machine, or of its container if the container has less."""
    available = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            available = min(available, float(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or the word `max`
            continue
    return available


def check_memory(needs: Iterable[Need]) -> None:
    """Checks that this machine has enough memory for all purposes together.

    Raises:
        BadInput: The memory is not enough. The message names the purpose that needs most.

    Example:
        >>> check_memory([Need("5 models of 10 numbers", "method.models", 200.0)])
    """
    known, available = list(needs), read_machine_memory()
    total = sum(need.bytes for need in known)
    if total > available:
        worst = max(known, key=lambda need: need.bytes)
        raise BadInput(
            f"{worst.keys}: {worst.what} would take about {format_bytes(worst.bytes)} and the whole run about "
            f"{format_bytes(total)}, but this machine has {format_bytes(available)} of memory: lower one of these keys"
        )


# ---------------------------------------------------------------------------------------------------------------------
# The memory for samples and clients.


def estimate_rows(scenario: Scenario, data: Dataset, worlds: int, *, copied: bool = False) -> list[Need]:
    """Estimates the memory for partitions of the samples, and for copied or changed samples.

    Args:
        scenario: The scenario. Its partition may request copies of samples, or changes that differ between clients.
        data: The data set.
        worlds: Number of worlds (replicates times folds).
        copied: Whether `data` already includes the copies that `data.partition.copies` requests.

    Example:
        >>> from fedray.data.store import load_data
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
    if changed := row * turned + 8.0 * bool(keys.get("permute_labels")):
        what = f"{worlds:,} x {rows:,} rows of shifted clients"
        needs.append(Need(what, "replicates x data", changed * rows * worlds))
    return needs


def count_jobs(scenario: Scenario, number: int, worlds: int) -> tuple[int, bool]:
    """Returns how many jobs a round can have at most, and whether all `number` clients take part in every round."""
    tiers = tier_table(scenario, number)
    invited = invited_per_tier(scenario, Clients(tiers))
    k, every = scenario.method.models, method_spec_of(scenario.method.name).all_models
    models = [k if every or t.models_per_round is None else t.models_per_round for t in tiers]
    return worlds * sum(n * k for n, k in zip(invited, models, strict=True)), sum(invited) == number


def estimate_scenario(scenario: Scenario, clients: int | None = None, worlds: int | None = None) -> list[Need]:
    """Estimates the memory that the scenario's keys alone determine.

    Such memory is used for generated data, and for tables of clients, jobs and scores.

    Args:
        scenario: The scenario.
        clients: The number of clients, N. None means that it is not known yet.
        worlds: The number of worlds, R. None means that it is not known yet.
    """
    keys, number, needs = scenario.data.options, clients or scenario.clients.number, list[Need]()
    if scenario.data.name in ("sine", "interval", "cubic"):
        rows = int(keys.get("clients", number or 1)) * int(keys.get("samples", 16))
        needs.append(Need(f"{rows:,} rows", "data.clients x data.samples", 64.0 * rows))
    elif scenario.data.name == "synthetic":
        people, row = number or 1, 12.0 * keys["features"] + 64
        held = min(people, EVALUATED_CLIENTS) * keys["samples"] * scenario.data.hold_out
        tail = keys["spread"] * math.sqrt(2 * math.log(max(people, 2)))  # the largest of N normal numbers
        rows = keys["test"] + held + keys["samples"] * math.exp(min(tail, 600.0))
        which = "data.test, data.samples, data.spread or data.hold_out x data.features"
        needs.append(Need(f"{rows:,.3g} rows for testing and of the largest client", which, row * rows))
        means = 12.0 * keys["classes"] * keys["features"]
        needs.append(Need(f"means of {keys['classes']:,} classes", "data.classes x data.features", means))
    if number is None:
        return needs
    worlds, partition = worlds or scenario.replicates, scenario.data.partition.options
    jobs, everyone = count_jobs(scenario, number, worlds)
    each = 64.0 if scenario.clients.trace or scenario.clients.profile else 16.0 * everyone  # bytes a client
    each += 16.0 * min(worlds, 64) * (scenario.schedule.rows == "stratum")
    each += 16.0 * worlds * ("flipped" in partition or "noisy" in partition)
    each += (32.0 * worlds + 1600.0) * bool(partition.get("allow_empty"))
    wanted = scenario.evaluate.clients or 0
    scored = worlds * min(number, EVALUATED_CLIENTS if wanted == "all" else int(wanted))
    size = (JOB + CHOICE * scenario.method.models) * float(jobs)
    return [
        *needs,
        Need(f"tables of {number:,} clients", "clients.number x replicates", each * number),
        Need(f"{jobs:,} jobs a round", "participation x clients.number x method.models x replicates", size),
        Need(f"scores of {scored:,} clients", "evaluate.clients x replicates", SCORED * scored),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# The memory for models, batches and predictions.


def check_network_memory(scenario: Scenario, factory: Callable[[], nn.Module], worlds: int) -> None:
    """Checks that this machine can hold the models, without making them in memory.

    One model is made on torch's meta device, which uses no memory. If a user's model cannot be made there, nothing is
    checked.

    Raises:
        BadInput: This machine cannot hold the models.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # loading weights into the meta device warns
            d = layout_of(factory()).d
    except Exception:  # the module will raise the error again later
        return
    check_memory([*estimate_scenario(scenario), _estimate_models(scenario.method.models * worlds, d)])


def _estimate_models(number: int, d: int, lane: int | None = None) -> Need:
    """Estimates memory for the server's models (d values each) and three models in training (`lane` values each)."""
    what = f"{number:,} models of {d:,} numbers"
    return Need(what, "method.models x replicates x model", float(MODEL * number) * d + 3.0 * LANE * (lane or d))


def estimate_study(scenario: Scenario, study: Study) -> list[Need]:
    """Estimates all memory that a process of a run needs at the same time."""
    phase, number, worlds, d = study.method.phase, study.clients.number, study.worlds, study.net.layout.d
    trained = [part.study for part in study.parts if part.voter is None and part.last_round is None] or [study]
    jobs, _ = count_jobs(scenario, number, worlds)
    together = None if study.parts or study.asynchronous is not None else jobs  # without rounds, jobs of many steps
    work = [_estimate_work(one, together) for one in trained]  # these are trained one after another
    extra = sum(value.numel() * value.element_size() for value in _extra_tensors(study).values())
    stay = min(number * phase.models * worlds, study.rounds * jobs)
    stay *= len(phase.compress.own) + sum(len(one.keeps) for one in phase.chain if one.kept_numbers is None)
    sized = max((part.study.net.layout.d for part in study.parts), default=d)  # numbers of an upload, at most
    sized *= 1 + (phase.find(Measure) is not None)
    kept = phase.work.kept_numbers(sized) if phase.work is not None else sized if phase.server.keeps else 0
    what = "what the server and the clients keep beside the models"
    return [
        *estimate_rows(scenario, study.shards.data, worlds, copied=True),
        *estimate_scenario(scenario, number, worlds),
        _estimate_models(phase.models * worlds, d, max(one.net.layout.d for one in trained)),
        Need(what, "method x participation x rounds x model", 3.0 * extra + 12.0 * kept * jobs + 8.0 * d * stay),
        *max(work, key=lambda some: sum(need.bytes for need in some)),
    ]


def _extra_tensors(study: Study) -> dict[str, Tensor]:
    """Returns, on the meta device, the tensors that the server has besides the models.

    The dict is empty if the user's server raises an exception.
    """
    phase = study.method.phase
    try:
        with torch.device("meta"):
            models = torch.empty(phase.models * study.worlds, study.net.layout.d, dtype=study.dtype)
            return phase.server.init(models)
    except Exception:  # a user's own server
        return {}


def _estimate_work(study: Study, jobs: int | None) -> list[Need]:
    """Estimates the memory for training, and for predictions on test samples.

    Training needs memory for weights, batches and layer outputs of the clients that are trained together. `jobs` is the
    largest number of jobs of a round. None means that it is not known.
    """
    (all_layers, widest), engine = measure_layers(study.net.module, study.example), choose_study_engine(study)
    phase = study.method.phase
    d, sample = study.net.layout.d, math.prod(study.input_shape)
    width = engine.width if jobs is None else min(engine.width, max(jobs, engine.min_lanes))
    number = study.clients.number
    client = np.unique(np.linspace(0, number - 1, min(number, SIZED_CLIENTS)).astype(np.int64))
    size = int(study.shards.sizes(np.zeros_like(client), client).max(initial=1))  # samples of the largest client
    steps = int(count_steps(np.array([size]), phase.local)[0])
    batch = int(choose_batch_width(np.array([size]), phase.local)[0])
    samples = float(steps) * batch * width
    inputs = max(min(float(PIECE_NUMBERS), samples * sample), float(width * batch * sample))
    made = width * size * (12.0 * sample + 64) if study.shards.data.population else 0.0
    windows, how = phase.find(Windows), phase.find(Curvature)
    kept = 0.0 if windows is None else 8.0 * min(steps, windows.number) * (width + 2) * d
    kept += 0 if how is None else 12.0 * max(MAPPED_NUMBERS, count_gradients(study.net, how.kind) * d)
    slots = max((value.shape[1] for value in _extra_tensors(study).values() if value.dim() == 3), default=1)
    draws = 1  # the networks that are drawn from a model's Gaussian for a prediction, as in PVI
    if method_spec_of(study.method.name).draws:
        draws = max(1, int(study.scenario["method"].get("samples", 1)))
    each = phase.models * (slots if study.method.answer is not None else 1) * draws
    answers = 24.0 * study.worlds * each * len(study.split("test", 0)[1]) * study.net.outputs
    answers += 8.0 * d * study.worlds * each * (draws > 1)
    answers += 24.0 * study.classes**2  # a confusion table
    inside = {"mlp": each * all_layers, "conv": 3.0 * min(each, width) * widest}
    answers += 4.0 * EVALUATED_ROWS * inside.get(engine.name.removesuffix("-c"), 3.0 * widest)
    return [
        Need(
            f"{width} models of {d:,} numbers that are trained together",
            "method x model",
            float(LANE * width) * d + kept,
        ),
        Need(f"{steps:,} steps of {batch:,} samples", "local.epochs or steps x local.batch_size", BATCH * samples),
        Need(
            f"batches of {batch:,} samples",
            "local.batch_size x model",
            12.0 * (width * batch * all_layers + inputs) + made,
        ),
        Need(f"answers of {each * study.worlds:,} models", "method.models x replicates x test rows x model", answers),
    ]


# ---------------------------------------------------------------------------------------------------------------------
# The network of a study. The data decide the sizes of its inputs and outputs.

TRIAL_ROWS = 8  # number of samples for a trial of a network


def make_network(scenario: Scenario, data: Dataset, own: UserObjects, worlds: int) -> Net:
    """Makes the network, with the input shape and number of outputs that the data require.

    Raises:
        BadInput: The network does not fit the data, or this machine cannot hold the models.

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
    check_network_memory(scenario, _as_trained(scenario, own, make, shape), worlds)
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
    """Returns a function that makes a network in the form that the scenario's method trains.

    Methods of fedray may change the network. For a user's method, `make` is returned unchanged.

    Args:
        scenario: The scenario, which names the method.
        own: The user's Python objects.
        make: A function that makes the network.
        shape: Shape of a network input.
    """
    around = spec_of(scenario, own).network
    return make if around is None else lambda: around(make(), scenario.method.options, shape, scenario.model.name)


def _choose_objective(scenario: Scenario, data: Dataset) -> Objective:
    """Returns the name of the loss that training minimizes.

    Raises `BadInput` if the loss does not fit the data.
    """
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
    """Returns a few network inputs for a trial, `[n, ...]`.

    The inputs are samples if the data are tokens. Otherwise they are small random numbers.
    """
    stored = data.test.x if data.population else data.train.x
    if data.kind == "tokens":
        return torch.from_numpy(stored[:: max(1, len(stored) // TRIAL_ROWS)][:TRIAL_ROWS].astype(np.int64))
    numbers = rng.normal(rng.keys(0, "trial"), TRIAL_ROWS * math.prod(data.input_shape))
    return 0.1 * torch.from_numpy(numbers).view(TRIAL_ROWS, *data.input_shape).float()


# ---------------------------------------------------------------------------------------------------------------------
# FedDF's clients with different networks, and the choice of each client's network.


def make_architectures(scenario: Scenario, clients: Clients, network: Callable[[Scenario], Net]) -> Stack:
    """Makes a part of the ensemble for each network of `method.networks`, with the clients that train this network.

    The ensemble averages the predictions of these parts. A network may belong to a tier without clients, because the
    server uses this network, too.

    Raises:
        BadInput: There are more networks than clients.

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
    """Raises `BadInput`. This function takes the place of `Setting.outputs` if there are several networks."""
    raise BadInput(
        "setting.outputs asks one network, but method.networks has several: call "
        "fedray.models.net.compute_raw_outputs(base.net, models, inputs) with a base of setting.stack.bases"
    )


def _choose_members(clients: Clients, i: int, number: int, tier: int | None) -> Members:
    """Returns a function that takes client ids and returns whether each client trains network i.

    Args:
        clients: All clients, with their tiers.
        i: The index of the network.
        number: The number of networks.
        tier: The tier whose clients train the network. None means the clients j with `j mod number = i`.
    """
    return lambda client: np.asarray(client % number == i if tier is None else clients.tier_of(client) == tier)


# ---------------------------------------------------------------------------------------------------------------------
# The engine (compiled kernels or torch) that trains a server's students and computes outputs of teachers.


def choose_students(lanes: Lanes) -> EngineOf:
    """Chooses the engines for students at the server: networks that learn an ensemble's predictions.

    The result is a function that takes a network and returns an engine. With `lanes: torch` no engine uses the compiled
    kernels.
    """
    return use_torch if lanes == "torch" else _choose_compiled


def _choose_compiled(net: Net) -> StudentEngine:
    """Returns compiled kernels if they can train the network. Otherwise returns torch.

    For predictions, only convolutional networks use the kernels. For other networks torch is as fast.
    """
    kernel = find_student_kernel(net)
    if kernel is None:
        return TORCH
    return StudentEngine(ask_compiled if kernel is CONV_KERNEL else ask_model, begin_compiled)


def has_compiled_students(study: Study) -> bool:
    """Returns whether compiled kernels train students at the server of a study."""
    options = study.scenario.get("method", {})
    if study.lanes == "torch" or not (options.get("distil_steps") or options.get("distil_epochs")):
        return False
    nets = [one.net for one in study.trained]
    return any(find_student_kernel(net) is not None for net in nets)
