"""Declares the keys of a scenario as frozen dataclasses. A field holds the check and the default of one key.

A section with a `name` holds the options of this name in `options`. In YAML the options are beside the name. The
sections about clients and the graph are in `sections.py`, and the sections about training in `training.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_args

from fedray.core import options as opt
from fedray.core.errors import BadInput, quote_value
from fedray.core.types import AverageKind, Lanes, Objective
from fedray.scenario.names import explain_unknown_key
from fedray.scenario.nested import KeyPath, dotted_key
from fedray.scenario.sections import ClientKeys, GraphKeys, ParticipationKeys
from fedray.scenario.training import (
    CheckpointKeys,
    CompressKeys,
    ConformalKeys,
    EvaluateKeys,
    LocalKeys,
    PatienceKeys,
    ScheduleKeys,
    ServerKeys,
    named,
    own_names,
)

OptionValues = dict[str, Any]


@opt.means("name", "letters, digits, spaces, `,`, `=`, `.`, `_` and `-`")
def _file_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9 ,=._-]{0,98}[A-Za-z0-9=._-])?", value):
        raise ValueError("cannot be a directory name: use letters, digits, spaces, ',', '=', '.', '_' and '-'")
    return value


@dataclass(frozen=True)
class MethodKeys:
    """The method.

    Attributes:
        name: Name of the method (`fedray list methods`).
        object: The name of the Python function that composed the method. fedray writes this key. If it is set, other
            keys have the defaults of the method `name`.
        models: The number of models, K.
        options: The options of the method itself (mu, alpha, lambda, samples, ...).
    """

    name: str = opt.key("fed_ensemble", opt.text)
    object: str | None = opt.key(None, opt.maybe(opt.text))
    models: int = opt.key(5, opt.whole(1, 10**4))
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionKeys:
    """The partition, which says which client holds which samples.

    Attributes:
        name: Name of the partition (`fedray list partitions`). The default is `file` if the scenario names a file,
            `natural` if the samples of the data set already belong to clients, and `iid` otherwise.
        object: The name of the Python function or Flower partitioner that replaces the partition `name`. fedray writes
            this key.
        options: The options of the partition itself (shards, classes, alpha, column, ...).
    """

    name: str = opt.key("iid", opt.text)
    object: str | None = opt.key(None, opt.maybe(opt.text))
    options: OptionValues = field(default_factory=dict)


@opt.means("number, share or list of names", "a whole number from 1, a share below 1, or names of clients")
def _test_clients(value: Any) -> Any:
    if isinstance(value, list | tuple | str):
        return opt.list_of(opt.column_name, 10_000, scalar=True)(value)
    if isinstance(value, float) and 0 < value < 1:
        return value
    return opt.whole(1, 10**9)(value)


@dataclass(frozen=True)
class DataKeys:
    """The data set.

    Attributes:
        name: Name of the data set (`fedray list datasets`).
        object: The name of the Python object that is used as the data set. fedray writes this key. If it is set, `name`
            has no effect.
        root: The folder that holds the files of the data set. None means the folder in the environment variable
            `FEDRAY_DATA`, or a cache folder.
        fold: The fold that is run, counted from 0, or `all` for all folds of the data set.
        hold_out: The share of the training samples that is held out, so that no model is trained on these samples.
            Sweeps, `local.lr_grid` and conformal sets use these samples.
        test_clients: The number of clients that never train, their share of all clients, or a list of their names.
            Their training samples are the test samples, and the test samples of the data set are not used. The seed of
            a replicate decides which clients never train. With `fold: all` each client is kept out in exactly one fold.
            So with `test_clients: 1` each fold keeps out one client.
        standardize: Whether the inputs of networks are standardized with the statistics of the training samples.
            With `false` inputs stay as they are, and pixels are numbers from 0 to 255.
        scale: The scale of the inputs of networks. `standard` gives `(x - mean) / sd` over all training samples. In a
            deployment, clients would have to exchange these statistics. `unit` gives pixels from 0 to 1.
        partition: The section for the partition, which says which client holds which samples.
        options: The options of the data set itself.
    """

    name: str = opt.key("digits", opt.text)
    object: str | None = opt.key(None, opt.maybe(opt.text))
    root: str | None = opt.key(None, opt.maybe(opt.text))
    fold: int | str = opt.key(0, opt.either("all", opt.whole(0, 10_000)))
    hold_out: float = opt.key(0.0, opt.real("[0, 1)"))
    test_clients: int | float | list[str] | None = opt.key(None, opt.maybe(_test_clients))
    standardize: bool = opt.key(True, opt.flag)
    scale: str = opt.key("standard", opt.one_of("standard", "unit"))
    partition: PartitionKeys = opt.section(PartitionKeys)
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class ModelKeys:
    """The network.

    Attributes:
        name: Name of the network (`fedray list models`).
        object: The name of the Python function that makes the network. fedray writes this key. If it is set, `name` has
            no effect.
        weights: The weights from which the models start, instead of random weights. The value is a run directory with
            K models or one model, or a `.safetensors` file with the state dict of one model (from `fedray export`).
        objective: The loss that training minimizes. `auto` means cross entropy for classes, and squared error for real
            targets.
        options: The options of the network itself (hidden, channels, norm, ...).
    """

    name: str = opt.key("mlp", opt.text)
    object: str | None = opt.key(None, opt.maybe(opt.text))
    weights: str | None = opt.key(None, opt.maybe(opt.text))
    objective: Literal["auto"] | Objective = opt.key("auto", opt.one_of("auto", *get_args(Objective)))
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class PredictKeys:
    """The rules by which the ensemble predicts.

    Attributes:
        average: The quantity that the ensemble averages over its models: `probabilities` or `logits`.
        gamma: The temperature of the weights with which each client of the run averages the models. If it is infinite,
            clients of the run have the same weights as new clients. These weights are equal unless the method defines
            them.
        noise: The variance of the observation noise, which is added to the predicted variance of a regression. With
            `none` this variance is 0. With `residual` it is the variance of the residuals in training, averaged over
            the clients (if clients weigh the models, with their weights); a client with models of its own takes the
            residuals of these models. With `fixed` it is 1, for targets in standardized units.
        conformal: The section for conformal prediction. Its sets of labels, or its intervals, contain the true value
            with a given probability.
        dropout_at_test: Whether dropout stays on when the models predict. A model drops the same units for all samples.
            The public code of Fed-ensemble may leave dropout on, but no paper says so.
    """

    average: AverageKind = opt.key("probabilities", opt.one_of("probabilities", "logits"))
    gamma: float = opt.key(float("inf"), opt.real("[0, inf]"))
    noise: str = opt.key("none", opt.one_of("none", "residual", "fixed"))
    conformal: ConformalKeys | None = opt.section(ConformalKeys, None, example={"alpha": 0.1})
    dropout_at_test: bool = opt.key(False, opt.flag)


@dataclass(frozen=True)
class CellKeys:
    """One cell of a table.

    Attributes:
        name: Name of the cell and of the run directory of the cell.
        overrides: The keys that the cell changes in the scenario, dotted or nested, with their values.
        published: The values that a paper reports for this cell, by metric.
    """

    name: str = opt.key(opt.REQUIRED, _file_name)
    overrides: OptionValues = field(default_factory=dict)
    published: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """All keys of a scenario. Some keys decide the result, and others only how the result is computed.

    Attributes:
        seed: Random seed of replicate 0. The seed of replicate r is `seed + r`.
        rounds: The number of rounds of training, T.
        runtime: The processes in which clients are trained. `ray` trains in actors of a Ray cluster, and `inline` in
            this process. `auto` (the default) uses actors if there is a cluster, a GPU or enough work. The results are
            equal bit for bit.
        method: The section for the method and the number of models.
        data: The section for the data set and for its partition among the clients.
        model: The section for the network and its loss.
        clients: The section for the population of clients and their devices.
        participation: The section that says which clients take part in a round.
        schedule: The section that says which client trains which model.
        local: The section for the training at a client.
        compress: The section for the compression of uploads.
        server: The section that says how the server makes the next models from uploads.
        predict: The section that says how the ensemble predicts.
        graph: The section for the graph of clients over which models walk when there is no server.
        replicates: The number of repetitions of the run, R. Each repetition has a different seed.
        vary: The random choices that differ between replicates. With `all` every choice differs. With `init` only the
            initial models differ, and data, schedule and batches are the same in all replicates.
        evaluate: The section that says what is measured, and when.
        stop: The section for ending a run early when a metric gets no better. None means that no run ends early.
        checkpoint: The section that says when the state is saved.
        report: Whether fedray writes the page `report.html` of the finished run.
        loggers: Names of other tools that receive the metrics of every evaluated round (`tensorboard`, `wandb`,
            `mlflow`).
        on_client_error: The reaction if the training of a client raises an exception, diverges or takes too long.
            `fail` ends the run, and `skip` leaves the client out of the round.
        client_timeout: Seconds of wall time that the training of a client may take. None means no limit.
        lanes: The engine that trains the networks. `auto` takes compiled kernels if these were built and can train the
            network. Otherwise `auto` takes torch. `compiled` allows only compiled kernels, and `torch` only torch.
            Unless the value is `torch`, all nodes of a cluster must have the same kernels.
        table: The list of the cells of a table, each of which is a variant of this scenario.
        published: The values that a paper reports for the cell of a table, by metric. `fedray table` writes this key
            into the scenario of the cell's run.
        callbacks: Names of functions that your module registers. They are called after each round and may end the run.
        own: The names of the Python objects for training and evaluation, and the modules of your own code. fedray
            writes this key. In a scenario file write `import: my_method.py`, or a list of modules. These modules are
            imported first, as by `--import`. Paths are relative to the scenario file.
    """

    seed: int = opt.key(0, opt.whole(0, 2**62))
    rounds: int = opt.key(20, opt.whole(0, 10**7))
    runtime: str = opt.key("auto", opt.one_of("auto", "ray", "inline"))
    method: MethodKeys = opt.section(MethodKeys)
    data: DataKeys = opt.section(DataKeys)
    model: ModelKeys = opt.section(ModelKeys)
    clients: ClientKeys = opt.section(ClientKeys, example={"number": 50})
    participation: ParticipationKeys = opt.section(ParticipationKeys, example={"per_round": 10})
    schedule: ScheduleKeys = opt.section(ScheduleKeys, example={"kind": "permutation"})
    local: LocalKeys = opt.section(LocalKeys, example={"lr": 0.1})
    compress: CompressKeys = opt.section(CompressKeys, example={"kind": "topk"})
    server: ServerKeys = opt.section(ServerKeys, example={"optimizer": "adam"})
    predict: PredictKeys = opt.section(PredictKeys)
    graph: GraphKeys = opt.section(GraphKeys, example={"kind": "ring"})
    replicates: int = opt.key(1, opt.whole(1, 10**5))
    vary: str = opt.key("all", opt.one_of("all", "init"))
    evaluate: EvaluateKeys = opt.section(EvaluateKeys, example={"every": 10})
    stop: PatienceKeys | None = opt.section(PatienceKeys, None, example={"metric": "accuracy", "patience": 10})
    checkpoint: CheckpointKeys = opt.section(CheckpointKeys, example={"every": 10})
    report: bool = opt.key(True, opt.flag)
    loggers: list[str] = opt.key([], opt.list_of(opt.logger, 9, scalar=True))
    on_client_error: str = opt.key("fail", opt.one_of("fail", "skip"))
    client_timeout: float | None = opt.key(None, opt.maybe(opt.real("(0, inf)")))
    lanes: Lanes = opt.key("auto", opt.one_of(*get_args(Lanes)))
    table: list[CellKeys] = opt.section(CellKeys, [])
    published: OptionValues = field(default_factory=dict)
    callbacks: list[str] | None = opt.key(None, opt.maybe(opt.list_of(named("callback"), 100, scalar=True)))
    own: dict[str, Any] | None = opt.key(None, opt.maybe(own_names))


@cache
def section_types() -> Mapping[str, Any]:
    """Returns the dataclass of each section, by its dotted name. `*` stands for the name of a tier or a cell."""
    found: dict[str, Any] = {"": Scenario}
    open_sections = [""]
    for path in open_sections:
        for f in fields(found[path]):
            if inner := f.metadata.get("section"):
                name = f"{path}.{f.name}".lstrip(".") + (".*" if inner.many else "")
                found[name] = inner.kind
                open_sections.append(name)
    return found


def section_fields(section: str) -> tuple[str, ...]:
    """Returns the keys of a section. The key `options` is left out."""
    return _list_keys(section_types()[section])


def list_sections() -> dict[str, tuple[str, ...]]:
    """Lists the keys of each section. Leaves out the sections of tiers and cells, which occur several times."""
    return {name: section_fields(name) for name in section_types() if "*" not in name and name}


def find_key(section: str, name: str) -> opt.Option | None:
    """Returns the declaration of a key, or None if the section has no such key.

    Example:
        >>> find_key("server", "lr").default, find_key("server", "color")
        (1.0, None)
    """
    found = section_types()[section].__dataclass_fields__.get(name)
    return None if found is None else found.metadata.get("key")


def _list_keys(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name != "options")


# ---------------------------------------------------------------------------------------------------------------------
# A scenario is made from its keys. The field of each key checks the value. An error is one line.


def validate_scenario(tree: Mapping[str, Any]) -> Scenario:
    """Checks the keys of a scenario and returns the scenario.

    Args:
        tree: The keys as plain values, with the options of each named section under `options`.

    Raises:
        BadInput: A key is unknown, missing or wrong.
    """
    made: Scenario = make_section(opt.Section(Scenario), tree)
    return made


def make_section(section: opt.Section, tree: Any, path: KeyPath = ()) -> Any:
    """Makes a section of a scenario or a sweep from the keys that are set. The field of each key checks the value.

    Args:
        section: The section, with the dataclass that declares its keys.
        tree: The keys and their values.
        path: The keys that lead to the section, for messages.

    Raises:
        BadInput: A key is unknown, missing or wrong.
    """
    if not isinstance(tree, Mapping):
        raise BadInput(_explain_no_mapping(path, tree, section.example))
    made: dict[str, Any] = {}
    for f in fields(section.kind):
        place = (*path, f.name)
        if f.name in tree:
            made[f.name] = _read_field(f.metadata, tree[f.name], place)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise BadInput(f"{dotted_key(place)} is missing: give it a value")
    for name in tree:
        if name not in section.kind.__dataclass_fields__:
            keys, sections = _list_keys(section.kind), list_sections()
            raise BadInput(explain_unknown_key(dotted_key(path), name, keys, sections=sections, what=section.what))
    return section.kind(**made)


def _read_field(metadata: Mapping[str, Any], value: Any, path: KeyPath) -> Any:
    """Returns the checked value of a field. A field holds a value, a section, several sections, or free keys."""
    if option := metadata.get("key"):
        return opt.check_value(dotted_key(path), value, option.check)
    section = metadata.get("section")
    if section is not None and section.many is list:
        if not isinstance(value, list):
            raise BadInput(
                f"{dotted_key(path)} = {quote_value(value)} is not a list: write its entries as '- ...' lines below it"
            )
        return [make_section(section, each, (*path, f"[{i}]")) for i, each in enumerate(value)]
    if section is not None and section.many is None:
        return None if value is None else make_section(section, value, path)
    if not isinstance(value, Mapping):
        raise BadInput(_explain_no_mapping(path, value))
    if section is None:
        return dict(value)
    for name in value:
        try:
            opt.label(name)
        except ValueError as wrong:
            raise BadInput(f"{dotted_key(path)} has the name {quote_value(name)}, which {wrong}") from None
    return {name: make_section(section, each, (*path, name)) for name, each in value.items()}


def _explain_no_mapping(path: KeyPath, value: Any, example: Mapping[str, Any] = {}) -> str:
    """Returns the message for a user who wrote a single value in place of a section. `example` has keys to show."""
    last = list(example)[-1:]
    keys = {**example, **{key: value for key in last if type(value) is type(example[key])}}
    shown = f"{{{', '.join(f'{key}: {entry}' for key, entry in keys.items())}}}"
    remedy = f"write {shown}" if example else "write its keys below it"
    return f"{dotted_key(path)} = {quote_value(value)} is not a mapping: {remedy}"
