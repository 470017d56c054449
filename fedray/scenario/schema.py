"""The keys of a scenario as frozen dataclasses: each field says its kind and its default. Only this file and `graph.py`
use pydantic.

Sections with a `name` carry what belongs to that name in `options`; in YAML those stand beside the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedray.core.errors import BadInput
from fedray.scenario.messages import error_line
from fedray.scenario.random_walk import GraphKeys
from fedray.scenario.validators import (
    either,
    flag,
    gpu_share,
    label,
    list_of,
    logger,
    map_of,
    maybe,
    one_of,
    real,
    text,
    whole,
)

_STRICT = ConfigDict(extra="forbid")
_V = PlainValidator
Options = dict[str, Any]


def _file_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise ValueError("cannot be a directory name: use letters, digits, '.', '_' and '-'")
    return value


@dataclass(frozen=True, config=_STRICT)
class MethodKeys:
    """name, models (K), and the method's options (mu, alpha, lambda, samples, ...)."""

    name: Annotated[str, _V(text)] = "fed_ensemble"
    models: Annotated[int, _V(whole(1, 10**4))] = 5
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class PartitionKeys:
    """How samples are dealt to clients, and that partition's options (shards, classes, alpha, column, ...)."""

    name: Annotated[str, _V(text)] = "iid"
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class DataKeys:
    """The data set; hold_out: share of the training data kept aside for tuning; root None: FEDRAY_DATA."""

    name: Annotated[str, _V(text)] = "digits"
    root: Annotated[str | None, _V(maybe(text))] = None
    fold: Annotated[int | str, _V(either("all", whole(0, 10_000)))] = 0
    hold_out: Annotated[float, _V(real("[0, 1)"))] = 0.0
    partition: PartitionKeys = field(default_factory=PartitionKeys)
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class ModelKeys:
    """The network, its objective (auto: by the task) and its options (hidden, channels, norm, ...)."""

    name: Annotated[str, _V(text)] = "mlp"
    objective: Annotated[str, _V(one_of("auto", "cross_entropy", "half_mse", "mse", "gaussian_nll"))] = "auto"
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class TierKeys:
    """A class of devices, as `core.Tier`. share: of the clients that no `number` claims; neither: what is left."""

    share: Annotated[float | None, _V(maybe(real("[0, 1]")))] = None
    number: Annotated[int | None, _V(maybe(whole(0, 10**9)))] = None
    models_per_round: Annotated[int | str, _V(either("all", whole(1, 10**4)))] = 1
    num_cpus: Annotated[float | None, _V(maybe(real("[0, 10000]")))] = None
    num_gpus: Annotated[float, _V(gpu_share)] = 0.0
    resources: Annotated[dict[str, float], _V(map_of(real("(0, 1e9]")))] = field(default_factory=dict)
    seconds_per_step: Annotated[float, _V(real("[0, inf)"))] = 0.01
    seconds_per_sample: Annotated[float, _V(real("[0, inf)"))] = 0.0
    spread: Annotated[float, _V(real("[0, 10]"))] = 0.0
    uplink: Annotated[float, _V(real("(0, inf)"))] = 1e6
    downlink: Annotated[float, _V(real("(0, inf)"))] = 1e7
    latency: Annotated[float, _V(real("[0, inf)"))] = 0.0
    side_by_side: Annotated[bool, _V(flag)] = False


@dataclass(frozen=True, config=_STRICT)
class ClientKeys:
    """number N (None: follows from a natural partition), and how clients are packed into actors.

    trace: a CSV or Parquet file of measured devices (`fedray.simulation.devices`); availability: diurnal clients come and go.
    """

    number: Annotated[int | None, _V(maybe(whole(1, 10**9)))] = None
    per_actor: Annotated[int | str, _V(either("auto", whole(1, 10**9)))] = "auto"
    actors: Annotated[int | str, _V(either("auto", whole(1, 10**5)))] = "auto"
    trace: Annotated[str | None, _V(maybe(text))] = None
    availability: Annotated[str, _V(one_of("always", "diurnal"))] = "always"
    tiers: dict[Annotated[str, _V(label)], TierKeys] = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class ParticipationKeys:
    """Who takes part in a round. dropout: probability that a participant never answers; deadline: virtual seconds."""

    per_round: Annotated[int | None, _V(maybe(whole(1, 10**9)))] = None
    fraction: Annotated[float | None, _V(maybe(real("(0, 1]")))] = None
    overcommit: Annotated[float, _V(real("[1, 100]"))] = 1.0
    dropout: Annotated[float, _V(real("[0, 1)"))] = 0.0
    deadline: Annotated[float | None, _V(maybe(real("(0, inf)")))] = None


@dataclass(frozen=True, config=_STRICT)
class ScheduleKeys:
    """Who trains what. rows: what a row of the permutation is; client with full participation, else stratum."""

    kind: Annotated[str, _V(one_of("permutation", "random", "balanced", "adaptive", "walk"))] = "permutation"
    rows: Annotated[str, _V(one_of("client", "stratum"))] = "client"


@dataclass(frozen=True, config=_STRICT)
class LocalKeys:
    """How a client trains, as `core.Local`; pull: coefficient of the proximal term.

    lr_grid: candidates, of which each (replicate, fold) takes the best on held-out training rows (`fedray.experiments.learning_rates`).
    """

    optimizer: Annotated[str, _V(one_of("sgd", "adam"))] = "sgd"
    lr: Annotated[float, _V(real("(0, inf)"))] = 0.01
    lr_grid: Annotated[list[float], _V(list_of(real("(0, inf)"), 20))] = field(default_factory=list)
    lr_decay: Annotated[float, _V(real("(0, 1]"))] = 0.99
    lr_decay_every: Annotated[int, _V(whole(1, 10**7))] = 10
    momentum: Annotated[float, _V(real("[0, 1)"))] = 0.0
    weight_decay: Annotated[float, _V(real("[0, inf)"))] = 0.0
    batch_size: Annotated[int | str, _V(either("full", whole(1, 10**9)))] = 16
    epochs: Annotated[int | None, _V(maybe(whole(1, 10**6)))] = None
    steps: Annotated[int | None, _V(maybe(whole(1, 10**7)))] = None
    pull: Annotated[float, _V(real("[0, inf)"))] = 0.0


@dataclass(frozen=True, config=_STRICT)
class CompressKeys:
    """What survives the uplink. ratio: entries kept; resource_ratio r: budget of an HPC client in LPC clients'.

    adaptive: entries kept in proportion to each client's uplink bandwidth.
    """

    kind: Annotated[str, _V(one_of("dense", "topk", "randomk", "int8"))] = "dense"
    ratio: Annotated[float, _V(real("(0, 1]"))] = 0.1
    resource_ratio: Annotated[float, _V(real("(0, inf)"))] = 5.0
    error_feedback: Annotated[bool, _V(flag)] = False
    adaptive: Annotated[bool, _V(flag)] = False


@dataclass(frozen=True, config=_STRICT)
class ServerKeys:
    """How uploads become the next models.

    lr, momentum: of the server optimiser. trim: b, values that trimmed_mean drops at each end; byzantine: f, bad
    clients that krum and multi_krum survive.
    """

    coefficients: Annotated[str, _V(one_of("equal_groups", "paper_eq2", "fedavg"))] = "fedavg"
    weighting: Annotated[str, _V(one_of("uniform", "examples"))] = "uniform"
    optimizer: Annotated[str, _V(one_of("none", "momentum", "adam", "yogi"))] = "none"
    lr: Annotated[float, _V(real("(0, inf)"))] = 1.0
    momentum: Annotated[float, _V(real("[0, 1)"))] = 0.9
    robust: Annotated[str, _V(one_of("none", "median", "trimmed_mean", "krum", "multi_krum"))] = "none"
    trim: Annotated[int, _V(whole(0, 10**6))] = 1
    byzantine: Annotated[int, _V(whole(0, 10**6))] = 1


@dataclass(frozen=True, config=_STRICT)
class PredictKeys:
    """How the ensemble answers. gamma: temperature of the personal weights; infinity: uniform."""

    average: Annotated[str, _V(one_of("probabilities", "logits"))] = "probabilities"
    gamma: Annotated[float, _V(real("[0, inf]"))] = float("inf")
    noise: Annotated[str, _V(one_of("none", "residual", "fixed"))] = "none"


@dataclass(frozen=True, config=_STRICT)
class StopKeys:
    """Stop when a metric reaches a value."""

    metric: Annotated[str, _V(label)]
    value: Annotated[float, _V(real("(-inf, inf)"))]


@dataclass(frozen=True, config=_STRICT)
class EvaluateKeys:
    """When to evaluate; personal: also every client with its own weights or model.

    target: the summary says at which round, virtual second and byte a metric first reached a value; stop_at: and ends.
    """

    every: Annotated[int, _V(whole(1, 10**7))] = 1
    stop_at: StopKeys | None = None
    target: StopKeys | None = None
    personal: Annotated[bool, _V(flag)] = False


@dataclass(frozen=True, config=_STRICT)
class CheckpointKeys:
    """every: rounds between checkpoints; keep: how many stay."""

    every: Annotated[int, _V(whole(1, 10**7))] = 10
    keep: Annotated[int, _V(whole(1, 10**6))] = 2


@dataclass(frozen=True, config=_STRICT)
class CellKeys:
    """One cell of a table: what it changes in the scenario (dotted or nested keys), and published figures."""

    name: Annotated[str, _V(_file_name)]
    overrides: Options = field(default_factory=dict)
    published: Options = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class Scenario:
    """Everything that decides a result, and how to compute it.

    vary: what a replicate draws anew: everything, or its first models only (data, schedule and batches stay).
    on_client_error: a client whose training raises, diverges or takes over client_timeout (wall seconds, for code that
    may hang) ends the run, or is left out of the round.
    """

    seed: Annotated[int, _V(whole(0, 2**62))] = 0
    rounds: Annotated[int, _V(whole(0, 10**7))] = 20
    runtime: Annotated[str, _V(one_of("ray", "inline"))] = "ray"
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
    checkpoint: CheckpointKeys = field(default_factory=CheckpointKeys)
    loggers: Annotated[list[str], _V(list_of(logger, 9, scalar=True))] = field(default_factory=list)
    on_client_error: Annotated[str, _V(one_of("fail", "skip"))] = "fail"
    client_timeout: Annotated[float | None, _V(maybe(real("(0, inf)")))] = None
    table: list[CellKeys] = field(default_factory=list)
    published: Options = field(default_factory=dict)


_ADAPTER = TypeAdapter(Scenario)
_SECTIONS: dict[str, Any] = {  # section -> its dataclass; * stands for any name or index
    "": Scenario,
    **{f.name: f.default_factory for f in fields(Scenario) if is_dataclass(f.default_factory)},
    "data.partition": PartitionKeys,
    "clients.tiers.*": TierKeys,
    "evaluate.stop_at": StopKeys,
    "evaluate.target": StopKeys,
    "table.*": CellKeys,
}


def section_fields(section: str) -> tuple[str, ...]:
    """The keys of a section, without `options`."""
    return tuple(f.name for f in fields(_SECTIONS[section]) if f.name != "options")


def validate_scenario(tree: Mapping[str, Any]) -> Scenario:
    """The scenario of a plain tree whose named sections are folded; a wrong one is one line."""
    try:
        return _ADAPTER.validate_python(tree)
    except ValidationError as wrong:
        raise BadInput(error_line(wrong.errors(include_url=False)[0], section_fields)) from None
