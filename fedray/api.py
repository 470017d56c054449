"""Defines `run`, `load`, `resume` and `trainable`. The first three return a `Run` (`experiments/results.py`).

Example:
    >>> import fedray
    >>> done = fedray.run({"rounds": 1, "clients": {"number": 4}}, runtime="inline", method="fedavg")
    >>> done.summary["rounds"], len(done.models)
    (1, 1)
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedray.assembly.registry import UserObjects, take_objects
from fedray.core.errors import BadInput
from fedray.experiments.live import show_if_wanted
from fedray.experiments.results import Prediction, Run
from fedray.experiments.run import read_data_options, resume_run, run_scenario
from fedray.experiments.trainable import make_trainable
from fedray.files.plain import choose_out, expand_user_path
from fedray.own_code.user_code import import_modules
from fedray.runtime.session import Watch
from fedray.scenario.loader import import_first, list_given, read_scenario
from fedray.scenario.names import KINDS, NAMED, explain_unknown_key
from fedray.scenario.schema import Scenario, list_sections, section_fields
from fedray.storage.directory import require_run_directory
from fedray.storage.summary import read_keys

__all__ = ["Prediction", "Run", "load", "resume", "run", "trainable"]

OBJECTS = tuple(kind.given for kind in KINDS.values())  # names of the Python objects that all four functions take


def load(
    path: str | Path,
    *,
    data: Any = None,
    model: Any = None,
    method: Any = None,
    partition: Any = None,
    selection: Any = None,
    schedule: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    augment: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    modules: Sequence[str] = (),
) -> Run:
    """Opens a run directory. `load(path).best` has the models of the best round (`checkpoint.best`).

    If you passed objects to `run` (arguments from `data` to `callbacks`), pass them here, too.

    Args:
        path: The run directory (the argument `out` of `run`).
        data: The data set object.
        model: The function that makes the network.
        method: The function that composes the method.
        partition: The function or the Flower partitioner that divides the samples among clients.
        selection: The function that chooses the participants of a round.
        schedule: The function that makes the schedule.
        loss: The loss.
        optimizer: The optimizer.
        augment: The function that changes the samples of a batch.
        metrics: Your own metrics.
        callbacks: Your callbacks.
        modules: Your modules that call `fedray.register`, such as `["mine"]` or `["mine.py"]`. They are imported first.

    Raises:
        BadInput: `path` is no run directory, or a module cannot be imported.
    """
    given = _pick_objects(locals())
    import_modules(modules)
    folder = Run.from_path(path).path
    own = take_objects(given, modules=tuple(modules), reading=read_data_options(folder))
    return Run(folder, own)


def _pick_objects(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Picks the arguments that hold a user's Python objects, such as `data` or `model`."""
    return {name: arguments[name] for name in OBJECTS if name in arguments}


def run(
    scenario: Mapping[str, Any] | str | Path,
    *,
    out: str | Path | None = None,
    data: Any = None,
    model: Any = None,
    method: Any = None,
    partition: Any = None,
    selection: Any = None,
    schedule: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    augment: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    address: str | None = None,
    wait_for: Mapping[str, float] | None = None,
    watch: Watch | None = None,
    modules: Sequence[str] = (),
    progress: bool | None = None,
    **overrides: Any,
) -> Run:
    """Runs a scenario and returns the finished run.

    Args:
        scenario: A dict, a YAML file, or YAML text.
        out: The new run directory. None means a temporary directory, which stays until `fedray clean`.
        data: Your own data in one of the forms of `fedray.data.adapt`. Options of a form are arguments such as
            `data__target="ill"`. A name, or a mapping with the key `name`, replaces the scenario's key `data`.
        model: A function that makes an `nn.Module`. A name or a mapping replaces the key `model`.
        method: A function that takes a `fedray.methods.Setting` and returns a `fedray.core.method.Method`. A name or a
            mapping replaces the key `method`.
        partition: A function that takes (labels, clients, generator, options) and returns the indices of each client's
            samples, or a partitioner of `flwr_datasets`. A name or a mapping replaces the key `data.partition`.
        selection: A function that takes (known, number, generator, options) and returns the ids of `number` clients.
            `known` describes the clients of a tier (`fedray.components.selection.KnownClients`). A name or a mapping
            replaces the key `participation.selection`.
        schedule: A function that takes K and `schedule.rows`, and returns the function that assigns models to
            participants. A name or a mapping replaces the key `schedule`.
        loss: A loss for the clients, or the name of a loss that your module registers (docs/how-to/training.md).
        optimizer: An optimizer for the clients: a `fedray.methods.Transform`, a class of `torch.optim`, or a name.
        augment: A function that takes one input or a batch, and returns the changed samples. It may also be a name, or
            a list of functions and names.
        metrics: Your own metrics, in addition to those of fedray. They are a list of functions, or a dict with a
            function for each name.
        callbacks: A function that takes (round, scores, models), or a list of such functions. They are called after
            each round. The run ends if a function returns True.
        address: The address of an existing Ray cluster. None starts a cluster on this machine if the scenario runs on
            Ray.
        wait_for: The resources that the cluster must have before the run begins, as in `{"hpc": 32, "nodes": 5}`.
        watch: A function that is called after each evaluated round. It takes a snapshot of the run: a dict with the
            round, mean scores and costs.
        modules: Your modules that call `fedray.register`, such as `["mine"]` or `["mine.py"]`. Ray's workers import
            them, too.
        progress: Whether to print to stderr what the run is doing (such as reading the data), and its rounds. None
            prints this only in a notebook.
        overrides: Scenario keys, nested or with `__` in place of dots: `rounds=3`, `method__name="fedavg"`.

    Raises:
        BadInput: The scenario is wrong. The message is one line with the key, its value and the remedy.
        FedrayError: The run failed.
    """
    read, own = _read_arguments(scenario, _pick_objects(locals()), tuple(modules), overrides)
    wanted = read({})
    with choose_out(out, "run") as folder, show_if_wanted(progress, wanted.method.name, watch) as show:
        run_scenario(wanted, folder, own, show, address=address, wait_for=wait_for)
    return Run(folder, own)


def _read_arguments(
    scenario: Mapping[str, Any] | str | Path, given: Mapping[str, Any], modules: tuple[str, ...], overrides: Any
) -> tuple[Callable[[Mapping[str, Any]], Scenario], UserObjects]:
    """Reads the arguments of `run`.

    Returns:
        A pair. The first is a function that takes further keys and returns the scenario. The second has the user's
        objects.
    """
    for name in overrides:
        if (top := name.replace("__", ".").partition(".")[0]) not in section_fields(""):
            known = tuple(dict.fromkeys((*section_fields(""), *OBJECTS)))
            raise BadInput(explain_unknown_key("", top, known, sections=list_sections()))
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    modules = import_first(scenario, modules)
    keys, unseen = list_given(scenario), "data.test_clients"
    if given.get("data") is not None and unseen in keys:
        dotted = {unseen: keys[unseen], **dotted}  # reading the data needs this key, too
    own = take_objects(given, dotted, modules, file=keys)
    by_client, key = own.data is not None and own.data.train.group is not None, "data.partition"
    flat = {**keys, **dotted}
    how = flat.get(key, {})  # a name, or options as a mapping
    options = {name.removeprefix(f"{key}."): value for name, value in flat.items() if name.startswith(f"{key}.")}
    named = not isinstance(how, Mapping) or {"name", "file"} & {*how, *options}
    if by_client and own.partition is None and not named:
        dotted = {name: value for name, value in dotted.items() if not name.startswith(f"{key}.")}
        dotted[key] = {**options, **how, "name": "natural"}
    mine = [path[0] for path, kind in NAMED.items() if len(path) == 1 and kind.given in own.named()]
    return lambda further: read_scenario(scenario, {**dotted, **further}, own=mine), own


def trainable(
    scenario: Mapping[str, Any] | str | Path, *, actors: int = 0, modules: Sequence[str] = (), **given: Any
) -> Any:
    """Returns a function for `ray.tune.Tuner` that runs a scenario with the values of a trial.

    The keys of a trial's `config` replace those of the scenario. They are nested or written with dots (`{"local.lr":
    0.1}`). After every evaluated round except round 0, the trial reports `round`, total bytes, seconds, and scores on
    held-out samples such as `hold_out_accuracy`. The checkpoint of a trial is its run directory.

    Args:
        scenario: A dict, a YAML file, or YAML text. The key `data.hold_out` must be set.
        actors: The number of client actors of each trial. Each actor takes one CPU, in addition to the CPU of the
            trial. With 0 actors, the process of the trial trains.
        modules: Your modules that call `fedray.register`. They are imported first.
        given: Further arguments of `run`: your own objects (`data`, `model`, ...), and scenario keys (`rounds=3`).

    Raises:
        BadInput: The scenario is wrong. The message is one line with the key, its value and the remedy.

    Example:
        >>> train = trainable({"rounds": 4, "data": {"hold_out": 0.2}})  # ray.tune.Tuner(train, param_space=...).fit()
    """
    objects = _pick_objects(given)
    overrides = {name: value for name, value in given.items() if name not in objects}
    return make_trainable(*_read_arguments(scenario, objects, tuple(modules), overrides), actors)


def resume(
    path: str | Path,
    *,
    data: Any = None,
    model: Any = None,
    method: Any = None,
    partition: Any = None,
    selection: Any = None,
    schedule: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    augment: Any = None,
    metrics: Any = None,
    callbacks: Any = None,
    modules: Sequence[str] = (),
    address: str | None = None,
    wait_for: Mapping[str, float] | None = None,
    rounds: int | None = None,
    progress: bool | None = None,
    watch: Watch | None = None,
) -> Run:
    """Continues a run from its newest checkpoint.

    If you passed objects to `run` (arguments from `data` to `callbacks`), pass them here, too. Of the scenario's keys
    only `rounds` may change.

    Args:
        path: The run directory.
        data: The data set object.
        model: The function that makes the network.
        method: The function that composes the method.
        partition: The function or the Flower partitioner that divides the samples among clients.
        selection: The function that chooses the participants of a round.
        schedule: The function that makes the schedule.
        loss: The loss.
        optimizer: The optimizer.
        augment: The function that changes the samples of a batch.
        metrics: Your own metrics.
        callbacks: Your callbacks.
        modules: Your modules that call `fedray.register`. Ray's workers import them, too.
        address: The address of an existing Ray cluster. None starts a cluster on this machine if the scenario runs on
            Ray.
        wait_for: The resources that the cluster must have before the run continues.
        rounds: A larger total number of rounds. With it, even a finished run continues. None keeps the number of the
            scenario.
        progress: Whether to print to stderr what the run is doing (such as reading the data), and its rounds. None
            prints this only in a notebook.
        watch: A function that is called after each evaluated round, as in `run`.

    Raises:
        BadInput: `path` is no run directory, or the scenario, the data or an object of the run has changed since the
            run began.
        FedrayError: The run failed.
    """
    given = _pick_objects(locals())
    folder = expand_user_path("path", str(path))
    require_run_directory(folder)
    modules = import_first(read_keys(folder), modules)
    own = take_objects(given, modules=modules, reading=read_data_options(folder))
    with show_if_wanted(progress, str(folder), watch) as show:
        resume_run(folder, own, show, address=address, wait_for=wait_for, rounds=rounds)
    return Run(folder, own)
