"""Makes the inputs of a server's distillation, and the functions that train students."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedray.assembly.models import choose_students
from fedray.assembly.registry import UserObjects, name_own_method, spec_of
from fedray.components import distillation
from fedray.core import rng
from fedray.core.errors import BadInput, quote_value
from fedray.core.method import FORWARD, ServerWork
from fedray.core.types import Net
from fedray.data.forms.arrays import as_float32
from fedray.data.shards import Scaling, Shards
from fedray.data.store import open_dataset
from fedray.data.types import Dataset, add_back, subtract
from fedray.files.plain import expand_user_path
from fedray.scenario.schema import Scenario

# ---------------------------------------------------------------------------------------------------------------------
# A second data set that a key of the scenario names. The network must accept its inputs, too.

NOISE = "noise"


def open_alike(key: str, name: str, scenario: Scenario, data: Dataset, choices: str = NOISE) -> Dataset:
    """Opens a second data set, whose inputs must have the kind and shape of the clients' inputs.

    Args:
        key: The key that names the second data set, for messages.
        name: Name of the second data set.
        scenario: The scenario, whose key `data.root` names the folder of data files.
        data: The clients' data set.
        choices: Other possible values of the key, for messages.

    Raises:
        BadInput: There is no such data set, the data set cannot be read, or its inputs have a different shape.

    Example:
        >>> from fedray.data.store import load_data
        >>> from fedray.scenario.loader import read_scenario
        >>> digits, scenario = load_data("digits"), read_scenario({"evaluate": {"ood": "noise"}})
        >>> open_alike("evaluate.ood", "digits", scenario, digits).name
        'digits'
        >>> add_ood(scenario, digits).ood.shape
        (359, 1, 8, 8)
    """
    root = expand_user_path("data.root", scenario.data.root) if scenario.data.root else None
    try:
        other = open_dataset(name, root, {})
    except BadInput as error:
        raise BadInput(f"{key} = {name}: {error} (or choose {choices})") from None
    if other.population or (other.kind, other.input_shape) != (data.kind, data.input_shape):
        raise BadInput(
            f"{key} = {name} has inputs of shape {list(other.input_shape)} ({other.kind}), but {data.name} has "
            f"{list(data.input_shape)} ({data.kind}): choose another data set"
        )
    return other


def add_ood(scenario: Scenario, data: Dataset) -> Dataset:
    """Adds to the data set the out-of-distribution inputs that `evaluate.ood` names.

    These inputs are the test samples of a second data set, or noise with the mean and standard deviation of the
    training samples. If the second data set has folds, all of its samples count as test samples. The clients' data set
    gets at most as many inputs as it has test samples. From a larger second data set, evenly spaced samples are taken.

    Raises:
        BadInput: The data have real targets or are text, or the named inputs do not fit.
    """
    name = scenario.evaluate.ood
    if name is None or data.ood is not None:  # `data.ood` was added by a different process
        return data
    if not data.classes or data.kind == "tokens":
        has = "text" if data.classes else "real targets"
        raise BadInput(
            f"evaluate.ood = {name}, but {data.name} has {has}: "
            "choose data with classes, whose inputs are images or numbers"
        )
    rows = len(data.folds[0][1]) if data.folds else len(data.test.y) or min(1000, len(data.train.y))
    if name == NOISE:  # after standardization the noise is standard normal
        shape = (rows, *data.input_shape)
        drawn = rng.normal(rng.keys(0, "out-of-distribution noise"), math.prod(shape)).reshape(shape)
        raw, kind = data.shift[0] + data.scale[0] * drawn, data.test.x.dtype
        if np.issubdtype(kind, np.integer):
            raw = raw.round().clip(np.iinfo(kind).min, np.iinfo(kind).max)
        return data._replace(ood=np.asarray(raw, dtype=kind))
    other = open_alike("evaluate.ood", name, scenario, data, "noise")
    x = (other.train if other.folds else other.test).x
    chosen = np.linspace(0, len(x) - 1, min(rows, len(x))).round().astype(np.int64)
    inputs = subtract(add_back(x[chosen], other.origin), data.origin)
    return data._replace(ood=np.ascontiguousarray(as_float32(inputs)))


# ---------------------------------------------------------------------------------------------------------------------
# The inputs of a server's distillation: a share of the training samples, a second data set, or noise.

Learn = Callable[[int, Tensor, Tensor, rng.Keys], Tensor]  # (world, start, teachers [S, d], key) -> student [d]
Fuser = Callable[
    [int, Sequence[distillation.Student], rng.Keys], list[Tensor]
]  # (world, students, key) -> weights [d] of each student
ReadRows = Callable[[int], tuple[Tensor, Tensor]]  # world -> network inputs and targets
WITHHELD = "withheld"
_MOST_INPUTS = 10_000  # number of inputs if a user's method has no option `input_rows`


def share_of_server(scenario: Scenario, own: UserObjects | None = None) -> float:
    """Returns the share of the training samples that the server holds instead of the clients.

    For a user's method without a specification of `server_data`, the share is the value of this option. For other
    methods, the share is the sum of `server_data` and `validation`. `server_data` is added only if the server's inputs
    are withheld samples. `validation` is not added if `solver` is `exact`.

    Raises:
        BadInput: The share is below 0, or not below 1, or no number.

    Example:
        >>> from fedray.scenario.loader import read_scenario
        >>> share_of_server(read_scenario("method: {name: feddf, server_data: 0.25, validation: 0.125}"))
        0.375
        >>> share_of_server(read_scenario("method: {name: feddf, inputs: noise, validation: 0.125}"))
        0.125
    """
    options = scenario.method.options
    own = own or UserObjects()
    if name_own_method(scenario, own) and "server_data" not in _list_specified(scenario, own):
        share = options.get("server_data", 0.0)
    else:
        share = options.get("server_data", 0.0) if options.get("inputs", WITHHELD) == WITHHELD else 0.0
        share += 0.0 if options.get("solver") == "exact" else options.get("validation", 0.0)
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise BadInput(
            f"method.server_data = {quote_value(share)} (with method.validation): give the share of the training rows "
            "that the server holds instead of the clients, at least 0 and below 1"
        )
    return float(share)


def make_learner(scenario: Scenario, net: Net, shards: Shards, own: UserObjects, fuse: Fuser | None) -> Learn | None:
    """Returns the function that trains a model at the server, or None if the method has no options for distillation.

    `fuse` is the result of `make_fuser`.

    Raises:
        BadInput: The server has no inputs, or the network does not accept these inputs.
    """
    options = scenario.method.options
    if fuse is not None:
        return lambda world, start, teachers, key: fuse(world, [distillation.Student(net, start, teachers)], key)[0]
    if "distil_epochs" not in _list_specified(scenario, own):
        return None
    how = distillation.Distil(
        options["distil_epochs"], options["distil_lr"], options["distil_batch"], options["temperature"]
    )
    engine = choose_students(scenario.lanes)(net)

    def learn(world: int, _start: Tensor, teachers: Tensor, key: rng.Keys) -> Tensor:
        """Trains FedBE's student, which begins with the parameters of its first teacher."""
        x = shards.scaling.normalize(shards.server(world)[0][None], torch.tensor([world]))[0]
        return distillation.train_student(net, how, x, teachers, key, engine=engine)

    return learn


def count_student_steps(scenario: Scenario, shards: Shards, seed: int, teachers: float) -> ServerWork:
    """Returns how many steps train a student at the server at most, and how many samples these steps use.

    A prediction for one sample counts as a third of a sample.

    Args:
        scenario: The scenario, with the method's options.
        shards: The data of all clients, and the server's samples.
        seed: Seed of the first world.
        teachers: Number of teachers of the student.
    """
    options = scenario.method.options
    if "distil_epochs" in options:
        n = len(shards.server(0)[1])
        epochs = options["distil_epochs"]
        return epochs * math.ceil(n / options["distil_batch"]), epochs * n + FORWARD * teachers * n
    rows, steps = _server_rows(scenario, shards, 0, seed), options["distil_steps"]
    each = min(distillation.CHECKED_STEPS, options.get("patience", distillation.CHECKED_STEPS))
    n, looks = len(rows.inputs), 1 + math.ceil(steps / each)
    asked = teachers * n + looks * len(rows.y)
    return steps, steps * min(n, options["distil_batch"]) + FORWARD * asked


def _list_specified(scenario: Scenario, own: UserObjects) -> set[str]:
    """Lists the method's options that have a specification. fedray does not know the meaning of other options."""
    return set(scenario.method.options) & set(spec_of(scenario, own).options)


def make_fuser(scenario: Scenario, shards: Shards, seeds: Sequence[int], own: UserObjects) -> Fuser | None:
    """Returns the function that trains FedDF's students. They learn the mean prediction of all uploaded models.

    If the method trains no such students, returns None.

    Raises:
        BadInput: The server has no inputs, or the network does not accept these inputs.
    """
    options = scenario.method.options
    if "distil_steps" not in _list_specified(scenario, own):
        return None
    if options["teacher"] == "confidence" and not shards.data.classes:
        raise BadInput(
            f"method.teacher = confidence, but {scenario.data.name} has real targets, which have no logits: choose "
            "mean_logits"
        )
    rows = cache(lambda world: _server_rows(scenario, shards, world, seeds[world]))
    if own.dealt is None and options["inputs"] not in (WITHHELD, NOISE):
        _read_other(scenario, shards)  # finds errors early, which actors need not do
    how = distillation.Fusion(
        options["distil_steps"], options["distil_lr"], options["distil_batch"], options["patience"], options["teacher"]
    )
    engine_of = choose_students(scenario.lanes)
    return lambda world, students, key: distillation.fuse_models(
        how, students, rows=rows(world), key=key, engine_of=engine_of
    )


def make_server_rows(scenario: Scenario, shards: Shards, own: UserObjects) -> ReadRows:
    """Returns a function that takes a world and returns network inputs and targets of the server's samples.

    Raises:
        BadInput: The server's share of the samples is too small for a single sample. If the share is 0, only the
            returned function raises this error.
    """
    share = share_of_server(scenario, own)
    if share and not len(shards.server(0)[1]):
        options = scenario.method.options
        key = next((key for key in ("server_data", "validation") if options.get(key)), "server_data")
        raise BadInput(f"method.{key} = {share:g} leaves the server no rows: raise it")

    @cache
    def read(world: int) -> tuple[Tensor, Tensor]:
        if not share:
            raise BadInput("method.server_data: the server holds no rows: declare this option of the method, as 0.1")
        (x, y), where = shards.server(world), torch.tensor([world])
        return shards.scaling.normalize(x[None], where)[0], shards.scaling.targets(y[None], where)[0]

    return read


def make_server_inputs(
    scenario: Scenario, shards: Shards, seeds: Sequence[int], own: UserObjects, read: ReadRows
) -> Callable[[int], Tensor]:
    """Returns, for a user's method, a function that takes a world and returns the server's unlabeled inputs.

    The method's option `inputs` names the source of these inputs, as in FedDF. `withheld` (the default) means the
    server's samples, and `noise` means random inputs. Any other value is the name of a data set. In the last two cases,
    the option `input_rows` is the number of inputs.

    Raises:
        BadInput: The options name no inputs, or the network does not accept these inputs.
    """
    options = scenario.method.options
    named, number = options.get("inputs", WITHHELD), options.get("input_rows", _MOST_INPUTS)
    if named == WITHHELD or not name_own_method(scenario, own):
        return lambda world: read(world)[0]
    if own.dealt is None and named != NOISE:
        _read_other(scenario, shards)  # finds errors early, which actors need not do
    return cache(lambda world: _draw_inputs(scenario, shards, seeds[world], number))


def make_score(scenario: Scenario, net: Net, read: ReadRows, own: UserObjects) -> Callable[[int, Tensor], float] | None:
    """Returns a function that takes a world and a model `[d]`, and returns the model's score on the server's samples.

    Returns None if the method uses no such scores.
    """
    if "solver" not in _list_specified(scenario, own) or not share_of_server(scenario):
        return None
    return lambda world, row: distillation.score_model(net, row.float(), *read(world))


def _server_rows(scenario: Scenario, shards: Shards, world: int, seed: int) -> distillation.ServerRows:
    """Returns the server's unlabeled inputs in a world, and its labeled samples for early stopping."""
    options, where = scenario.method.options, torch.tensor([world])
    raw, labels = shards.server(world)
    x, y = shards.scaling.normalize(raw[None], where)[0], shards.scaling.targets(labels[None], where)[0]
    share = share_of_server(scenario)
    checked = round(len(x) * options["validation"] / share) if share else 0
    order = torch.from_numpy(rng.permutations(rng.keys(seed, "server validation"), len(x)))
    kept = order[:checked].sort().values
    if options["inputs"] == WITHHELD:
        inputs = x[order[checked:].sort().values]
        if not len(inputs):
            raise BadInput(f"method.server_data = {options['server_data']:g} leaves the server no inputs: raise it")
        return distillation.ServerRows(inputs, x[kept], y[kept])
    return distillation.ServerRows(_draw_inputs(scenario, shards, seed, options["input_rows"]), x[kept], y[kept])


def _draw_inputs(scenario: Scenario, shards: Shards, seed: int, number: int) -> Tensor:
    """Returns noise, or inputs of the data set that `method.inputs` names."""
    key = rng.keys(seed, "server inputs")
    if scenario.method.options["inputs"] != NOISE:
        other = _read_other(scenario, shards)
        return other[torch.from_numpy(rng.permutations(key, len(other))[:number]).sort().values]
    if shards.data.kind == "tokens":
        raise BadInput(f"method.inputs = noise, but {scenario.data.name} has tokens: choose withheld or a data set")
    shape = (number, *shards.data.input_shape)
    drawn = rng.normal(key, math.prod(shape)).reshape(shape)  # standard normal if inputs are standardized
    if not shards.data.standardized or shards.data.unit is not None:
        drawn = (shards.data.shift[0] + shards.data.scale[0] * drawn) / (shards.data.unit or 1.0)
    return torch.from_numpy(drawn).float()


def _read_other(scenario: Scenario, shards: Shards) -> Tensor:
    """Returns the inputs of a second data set.

    If the clients' inputs are standardized, these inputs are standardized with the statistics of the second data set.
    """
    data = open_alike("method.inputs", scenario.method.options["inputs"], scenario, shards.data, "withheld or noise")
    x = torch.from_numpy(data.train.x if data.train.x.flags.writeable else data.train.x.copy())
    data = data._replace(standardized=shards.data.standardized, unit=shards.data.unit)
    return Scaling.of(data, [0]).normalize(x[None], torch.tensor([0]))[0]
