"""The keys of a scenario as frozen dataclasses: each field says its kind and its default.

Sections with a `name` carry what belongs to that name in `options`; in YAML those stand beside the name. The
sections of the clients, of the training and of the graph stand in `clients.py`, `training.py` and `random_walk.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_args

from fedray.core.errors import BadInput, quote_value
from fedray.core.options import (
    REQUIRED,
    Option,
    Section,
    either,
    flag,
    key,
    label,
    list_of,
    logger,
    maybe,
    means,
    one_of,
    real,
    section,
    text,
    whole,
)
from fedray.core.types import AverageKind, Lanes, Objective
from fedray.scenario.clients import ClientKeys, GraphKeys, ParticipationKeys, ScheduleKeys
from fedray.scenario.nested import KeyPath, dotted_key
from fedray.scenario.training import (
    CheckpointKeys,
    CompressKeys,
    ConformalKeys,
    EvaluateKeys,
    LocalKeys,
    PatienceKeys,
    ServerKeys,
    named,
    own_names,
)
from fedray.scenario.unknown_keys import explain_unknown_key

OptionValues = dict[str, Any]


@means("name", "letters, digits, `.`, `_` and `-`, and no `.yaml` at the end")
def _file_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise ValueError("cannot be a directory name: use letters, digits, '.', '_' and '-'")
    if value.lower().endswith(".yaml"):
        raise ValueError("ends in .yaml, as the file of a cell does: leave that out")
    return value


@dataclass(frozen=True)
class MethodKeys:
    """The method.

    Attributes:
        name: name of the method (`fedray list methods`).
        object: what fedray writes where a Python function composed the method; `name` then gives its defaults.
        models: K, the number of models.
        options: the method's own options (mu, alpha, lambda, samples, ...).
    """

    name: str = key("fed_ensemble", text)
    object: str | None = key(None, maybe(text))
    models: int = key(5, whole(1, 10**4))
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionKeys:
    """How samples are dealt to clients.

    Attributes:
        name: name of the partition (`fedray list partitions`); default: `natural` where rows belong to clients already,
            `file` where a file is named, else `iid`.
        object: what fedray writes in place of the name where it is a Python function or a Flower partitioner.
        options: the partition's own options (shards, classes, alpha, column, ...).
    """

    name: str = key("iid", text)
    object: str | None = key(None, maybe(text))
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class DataKeys:
    """The data set.

    Attributes:
        name: name of the data set (`fedray list datasets`).
        object: what fedray writes in place of the name where the data set is a Python object.
        root: the folder that holds its files; None: `FEDRAY_DATA`, or a cache folder.
        fold: which of its folds is run, or `all`.
        hold_out: share of the training rows that no model is trained on: for sweeps, choices and conformal sets.
        standardize: whether networks get the inputs standardized by the training rows; `false`: as they are, pictures
            as numbers from 0 to 255.
        partition: how samples are dealt to clients.
        options: the data set's own options.
    """

    name: str = key("digits", text)
    object: str | None = key(None, maybe(text))
    root: str | None = key(None, maybe(text))
    fold: int | str = key(0, either("all", whole(0, 10_000)))
    hold_out: float = key(0.0, real("[0, 1)"))
    standardize: bool = key(True, flag)
    partition: PartitionKeys = section(PartitionKeys)
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class ModelKeys:
    """The network.

    Attributes:
        name: name of the network (`fedray list models`).
        object: what fedray writes in place of the name where a Python function makes the network.
        objective: what is minimized; `auto`: cross entropy for classes, squared error for real targets.
        options: the network's own options (hidden, channels, norm, ...).
    """

    name: str = key("mlp", text)
    object: str | None = key(None, maybe(text))
    objective: Literal["auto"] | Objective = key("auto", one_of("auto", *get_args(Objective)))
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class PredictKeys:
    """How the ensemble answers.

    Attributes:
        average: what is averaged over the models: their probabilities or their logits.
        gamma: temperature of a known client's weights over the models; infinity: everybody's weights, which are equal
            unless the method says otherwise.
        noise: observation noise that is added to a regression's variance: `none`, the clients' mean training residual
            variance (`residual`), or a variance of 1 in standardized units (`fixed`).
        conformal: sets of labels, or intervals, that hold the right answer with a given probability.
        dropout_at_test: whether dropout stays on when the models answer: a reading of the public code of Fed-ensemble,
            and no part of any paper.
    """

    average: AverageKind = key("probabilities", one_of("probabilities", "logits"))
    gamma: float = key(float("inf"), real("[0, inf]"))
    noise: str = key("none", one_of("none", "residual", "fixed"))
    conformal: ConformalKeys | None = section(ConformalKeys, None, example={"alpha": 0.1})
    dropout_at_test: bool = key(False, flag)


@dataclass(frozen=True)
class CellKeys:
    """One cell of a table.

    Attributes:
        name: name of the cell, and of the directory of its run.
        overrides: what the cell changes in the scenario (dotted or nested keys).
        published: the paper's figures for this cell, by metric.
    """

    name: str = key(REQUIRED, _file_name)
    overrides: OptionValues = field(default_factory=dict)
    published: OptionValues = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """Everything that decides a result, and how to compute it.

    Attributes:
        seed: seed of replicate 0; replicate r has `seed + r`.
        rounds: rounds of training, T.
        runtime: where clients are trained: `ray` in the actors of a cluster, `inline` in this process, `auto` (the
            default) on Ray where there is a cluster, a GPU or enough work, else in this process. The bits are the same.
        method: which method.
        data: which data set, dealt to clients how.
        model: which network.
        clients: the population.
        participation: who takes part in a round.
        schedule: who trains what.
        local: how a client trains.
        compress: how uploads are compressed.
        server: how uploads become the next models.
        predict: how the ensemble answers.
        graph: where models walk when there is no server.
        replicates: repetitions with seeds of their own.
        vary: what a replicate draws anew: everything (`all`), or its first models only (`init`: data, schedule and
            batches stay).
        evaluate: what is measured, and when.
        stop: when a run ends that gets no better.
        checkpoint: when the state is saved.
        report: whether the finished run gets its page.
        loggers: other tools that get every evaluated round.
        on_client_error: whether a client whose training raises, diverges or takes too long ends the run (`fail`) or is
            left out of the round (`skip`).
        client_timeout: wall seconds that a client's training may take; None: no limit.
        lanes: what trains the networks: `auto` takes compiled kernels where they cover the network and are built in
            every process of the run, `compiled` takes nothing else, and `torch` never takes them.
        table: the cells of a table.
        published: the paper's figures for the scenario itself, by metric.
        callbacks: functions that your module registers, called after each round; they may end the run.
        own: what fedray writes where Python objects were passed for training and evaluation.
    """

    seed: int = key(0, whole(0, 2**62))
    rounds: int = key(20, whole(0, 10**7))
    runtime: str = key("auto", one_of("auto", "ray", "inline"))
    method: MethodKeys = section(MethodKeys)
    data: DataKeys = section(DataKeys)
    model: ModelKeys = section(ModelKeys)
    clients: ClientKeys = section(ClientKeys, example={"number": 50})
    participation: ParticipationKeys = section(ParticipationKeys, example={"per_round": 10})
    schedule: ScheduleKeys = section(ScheduleKeys, example={"kind": "permutation"})
    local: LocalKeys = section(LocalKeys, example={"lr": 0.1})
    compress: CompressKeys = section(CompressKeys, example={"kind": "topk"})
    server: ServerKeys = section(ServerKeys, example={"optimizer": "adam"})
    predict: PredictKeys = section(PredictKeys)
    graph: GraphKeys = section(GraphKeys, example={"kind": "ring"})
    replicates: int = key(1, whole(1, 10**5))
    vary: str = key("all", one_of("all", "init"))
    evaluate: EvaluateKeys = section(EvaluateKeys, example={"every": 10})
    stop: PatienceKeys | None = section(PatienceKeys, None, example={"metric": "accuracy", "patience": 10})
    checkpoint: CheckpointKeys = section(CheckpointKeys, example={"every": 10})
    report: bool = key(True, flag)
    loggers: list[str] = key([], list_of(logger, 9, scalar=True))
    on_client_error: str = key("fail", one_of("fail", "skip"))
    client_timeout: float | None = key(None, maybe(real("(0, inf)")))
    lanes: Lanes = key("auto", one_of(*get_args(Lanes)))
    table: list[CellKeys] = section(CellKeys, [])
    published: OptionValues = field(default_factory=dict)
    callbacks: list[str] | None = key(None, maybe(list_of(named("callback"), 100, scalar=True)))
    own: dict[str, Any] | None = key(None, maybe(own_names))


@cache
def section_types() -> Mapping[str, Any]:
    """Returns the dataclass of each section; `*` in a name stands for any name or index."""
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
    """Returns the keys of a section, without `options`."""
    return _list_keys(section_types()[section])


def list_sections() -> dict[str, tuple[str, ...]]:
    """Lists the keys of each section that has one place: not those of tiers, cells and objects."""
    return {name: section_fields(name) for name in section_types() if "*" not in name and name}


def find_key(section: str, name: str) -> Option | None:
    """Returns what a key of a section is; None: the section has no such key.

    Args:
        section: one of `section_types`.
        name: of the key, without its section.

    Example:
        >>> find_key("server", "lr").default, find_key("server", "color")
        (1.0, None)
    """
    found = section_types()[section].__dataclass_fields__.get(name)
    return None if found is None else found.metadata.get("key")


def _list_keys(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name != "options")


# ---------------------------------------------------------------------------------------------------------------------
# A scenario is made of its keys: each value is checked by its field, and what is wrong is one line.


def validate_scenario(tree: Mapping[str, Any]) -> Scenario:
    """Returns the scenario of a plain tree whose named sections are folded; a wrong one is one line."""
    made: Scenario = _make_section(Section(Scenario), tree, ())
    return made


def _make_section(section: Section, tree: Any, path: KeyPath) -> Any:
    """Returns a section of its keys: those that are set, each as its field says."""
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
            raise BadInput(
                explain_unknown_key(dotted_key(path), name, _list_keys(section.kind), sections=list_sections())
            )
    return section.kind(**made)


def _read_field(metadata: Mapping[str, Any], value: Any, path: KeyPath) -> Any:
    """Returns the value of a field: checked, a section, a list of sections, sections by name, or any keys."""
    if option := metadata.get("key"):
        try:
            return option.check(value)
        except ValueError as wrong:
            raise BadInput(f"{dotted_key(path)} = {quote_value(value)} {wrong}") from None
    section = metadata.get("section")
    if section is not None and section.many is list:
        if not isinstance(value, list):
            raise BadInput(
                f"{dotted_key(path)} = {quote_value(value)} is not a list: write its entries as '- ...' lines below it"
            )
        return [_make_section(section, each, (*path, f"[{i}]")) for i, each in enumerate(value)]
    if section is not None and section.many is None:
        return None if value is None else _make_section(section, value, path)
    if not isinstance(value, Mapping):
        raise BadInput(_explain_no_mapping(path, value))
    if section is None:
        return dict(value)
    for name in value:
        try:
            label(name)
        except ValueError as wrong:
            raise BadInput(f"{dotted_key(path)} has the name {quote_value(name)}, which {wrong}") from None
    return {name: _make_section(section, each, (*path, name)) for name, each in value.items()}


def _explain_no_mapping(path: KeyPath, value: Any, example: Mapping[str, Any] = {}) -> str:
    """Returns the line for a section that is one value, with keys as an example."""
    last = list(example)[-1:]
    keys = {**example, **{key: value for key in last if type(value) is type(example[key])}}
    shown = f"{{{', '.join(f'{key}: {entry}' for key, entry in keys.items())}}}"
    remedy = f"write {shown}" if example else "write its keys below it"
    return f"{dotted_key(path)} = {quote_value(value)} is not a mapping: {remedy}"
