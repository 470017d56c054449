"""The keys of a scenario as frozen dataclasses: each field says its kind and its default.

Sections with a `name` carry what belongs to that name in `options`; in YAML those stand beside the name. The
sections of the clients, of the training and of the graph stand in `clients.py`, `training.py` and `random_walk.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedray.core.errors import BadInput
from fedray.core.types import AverageKind, Lanes, Objective
from fedray.core.validators import (
    either,
    flag,
    list_of,
    logger,
    maybe,
    means,
    one_of,
    real,
    text,
    whole,
)
from fedray.scenario.clients import ClientKeys, ParticipationKeys, ScheduleKeys, SelectionKeys, TierKeys
from fedray.scenario.conformal import ConformalKeys
from fedray.scenario.random_walk import GraphKeys
from fedray.scenario.training import (
    CheckpointKeys,
    CompressKeys,
    EvaluateKeys,
    LocalKeys,
    OwnKeys,
    PatienceKeys,
    RateKeys,
    ServerKeys,
    StopKeys,
    named,
)
from fedray.scenario.unknown_keys import error_line

_STRICT = ConfigDict(extra="forbid")
_V = PlainValidator
OptionValues = dict[str, Any]


@means("name", "letters, digits, `.`, `_` and `-`, and no `.yaml` at the end")
def _file_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise ValueError("cannot be a directory name: use letters, digits, '.', '_' and '-'")
    if value.lower().endswith(".yaml"):
        raise ValueError("ends in .yaml, as the file of a cell does: leave that out")
    return value


@dataclass(frozen=True, config=_STRICT)
class MethodKeys:
    """The method.

    Attributes:
        name: name of the method (`fedray list methods`).
        object: what fedray writes where a Python function composed the method; `name` then gives its defaults.
        models: K, the number of models.
        options: the method's own options (mu, alpha, lambda, samples, ...).
    """

    name: Annotated[str, _V(text)] = "fed_ensemble"
    object: Annotated[str | None, _V(maybe(text))] = None
    models: Annotated[int, _V(whole(1, 10**4))] = 5
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class PartitionKeys:
    """How samples are dealt to clients.

    Attributes:
        name: name of the partition (`fedray list partitions`); default: `natural` where rows belong to clients already,
            `file` where a file is named, else `iid`.
        object: what fedray writes in place of the name where it is a Python function or a Flower partitioner.
        options: the partition's own options (shards, classes, alpha, column, ...).
    """

    name: Annotated[str, _V(text)] = "iid"
    object: Annotated[str | None, _V(maybe(text))] = None
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
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

    name: Annotated[str, _V(text)] = "digits"
    object: Annotated[str | None, _V(maybe(text))] = None
    root: Annotated[str | None, _V(maybe(text))] = None
    fold: Annotated[int | str, _V(either("all", whole(0, 10_000)))] = 0
    hold_out: Annotated[float, _V(real("[0, 1)"))] = 0.0
    standardize: Annotated[bool, _V(flag)] = True
    partition: PartitionKeys = field(default_factory=PartitionKeys)
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class ModelKeys:
    """The network.

    Attributes:
        name: name of the network (`fedray list models`).
        object: what fedray writes in place of the name where a Python function makes the network.
        objective: what is minimized; `auto`: cross entropy for classes, squared error for real targets.
        options: the network's own options (hidden, channels, norm, ...).
    """

    name: Annotated[str, _V(text)] = "mlp"
    object: Annotated[str | None, _V(maybe(text))] = None
    objective: Annotated[Literal["auto"] | Objective, _V(one_of("auto", *get_args(Objective)))] = "auto"
    options: OptionValues = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
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

    average: Annotated[AverageKind, _V(one_of("probabilities", "logits"))] = "probabilities"
    gamma: Annotated[float, _V(real("[0, inf]"))] = float("inf")
    noise: Annotated[str, _V(one_of("none", "residual", "fixed"))] = "none"
    conformal: ConformalKeys | None = None
    dropout_at_test: Annotated[bool, _V(flag)] = False


@dataclass(frozen=True, config=_STRICT)
class CellKeys:
    """One cell of a table.

    Attributes:
        name: name of the cell, and of the directory of its run.
        overrides: what the cell changes in the scenario (dotted or nested keys).
        published: the paper's figures for this cell, by metric.
    """

    name: Annotated[str, _V(_file_name)]
    overrides: OptionValues = field(default_factory=dict)
    published: OptionValues = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
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

    seed: Annotated[int, _V(whole(0, 2**62))] = 0
    rounds: Annotated[int, _V(whole(0, 10**7))] = 20
    runtime: Annotated[str, _V(one_of("auto", "ray", "inline"))] = "auto"
    method: MethodKeys = field(default_factory=MethodKeys)
    data: DataKeys = field(default_factory=DataKeys)
    model: ModelKeys = field(default_factory=ModelKeys)
    clients: ClientKeys = field(default_factory=ClientKeys)
    participation: ParticipationKeys = field(default_factory=ParticipationKeys)
    schedule: ScheduleKeys = field(default_factory=ScheduleKeys)
    local: LocalKeys = field(default_factory=LocalKeys)
    compress: CompressKeys = field(default_factory=CompressKeys)
    server: ServerKeys = field(default_factory=ServerKeys)
    predict: PredictKeys = field(default_factory=PredictKeys)
    graph: GraphKeys = field(default_factory=GraphKeys)
    replicates: Annotated[int, _V(whole(1, 10**5))] = 1
    vary: Annotated[str, _V(one_of("all", "init"))] = "all"
    evaluate: EvaluateKeys = field(default_factory=EvaluateKeys)
    stop: PatienceKeys | None = None
    checkpoint: CheckpointKeys = field(default_factory=CheckpointKeys)
    report: Annotated[bool, _V(flag)] = True
    loggers: Annotated[list[str], _V(list_of(logger, 9, scalar=True))] = field(default_factory=list)
    on_client_error: Annotated[str, _V(one_of("fail", "skip"))] = "fail"
    client_timeout: Annotated[float | None, _V(maybe(real("(0, inf)")))] = None
    lanes: Annotated[Lanes, _V(one_of(*get_args(Lanes)))] = "auto"
    table: list[CellKeys] = field(default_factory=list)
    published: OptionValues = field(default_factory=dict)
    callbacks: Annotated[list[str] | None, _V(maybe(list_of(named("callback"), 100, scalar=True)))] = None
    own: OwnKeys | None = None


_ADAPTER = TypeAdapter(Scenario)
_SECTIONS: dict[str, Any] = {  # section -> its dataclass; * stands for any name or index
    "": Scenario,
    **{f.name: f.default_factory for f in fields(Scenario) if is_dataclass(f.default_factory)},
    "data.partition": PartitionKeys,
    "participation.selection": SelectionKeys,
    "clients.tiers.*": TierKeys,
    "local.schedule": RateKeys,
    "predict.conformal": ConformalKeys,
    "own": OwnKeys,
    "stop": PatienceKeys,
    "evaluate.stop_at": StopKeys,
    "evaluate.target": StopKeys,
    "table.*": CellKeys,
}


def section_fields(section: str) -> tuple[str, ...]:
    """The keys of a section, without `options`."""
    return tuple(f.name for f in fields(_SECTIONS[section]) if f.name != "options")


def list_sections() -> dict[str, tuple[str, ...]]:
    """The keys of each section that has one place: not those of tiers, cells and objects."""
    return {name: section_fields(name) for name in _SECTIONS if "*" not in name and name not in ("", "own")}


def section_types() -> Mapping[str, Any]:
    """The dataclass of each section; `*` in a name stands for any name or index."""
    return _SECTIONS


def validate_scenario(tree: Mapping[str, Any]) -> Scenario:
    """The scenario of a plain tree whose named sections are folded; a wrong one is one line."""
    try:
        return _ADAPTER.validate_python(tree)
    except ValidationError as wrong:
        raise BadInput(error_line(wrong.errors(include_url=False)[0], section_fields, list_sections())) from None
