"""The keys that say what is measured and kept: scores, checkpoints, and the user's own objects."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, PlainValidator
from pydantic.dataclasses import dataclass

from fedray.core.types import EVALUATED_CLIENTS
from fedray.scenario.clients import NO_ROUNDS
from fedray.scenario.training import named
from fedray.scenario.validators import either, flag, label, list_of, maybe, real, text, whole

_STRICT = ConfigDict(extra="forbid")
_V = PlainValidator


@dataclass(frozen=True, config=_STRICT)
class StopKeys:
    """A metric and a value that it shall reach.

    Attributes:
        metric: name of the metric, as in `rounds.parquet`.
        value: the value that it is to reach.
    """

    metric: Annotated[str, _V(label)]
    value: Annotated[float, _V(real("(-inf, inf)"))]


@dataclass(frozen=True, config=_STRICT)
class EvaluateKeys:
    """What is measured, and when.

    Attributes:
        every: rounds between evaluations.
        every_seconds: virtual seconds between evaluations, instead of `every`; without rounds.
        stop_at: ends the run when a metric reaches a value.
        target: the summary says at which round, virtual second and byte a metric first reached a value.
        personal: whether every known client is evaluated with its own weights or model.
        clients: how many known clients have a row in `client_scores.parquet` in every evaluated round: `all`, or so
            many, evenly spread over their ids; None: none.
        ood: out-of-distribution inputs, whose uncertainty is compared with that of the test rows: another data set with
            inputs of the same shape, or `noise`; None: none.
        metrics: further metrics, which your module registers.
    """

    every: Annotated[int, _V(whole(1, 10**7))] = 1
    every_seconds: Annotated[float | None, _V(maybe(real("(0, inf)"))), NO_ROUNDS] = None
    stop_at: StopKeys | None = None
    target: StopKeys | None = None
    personal: Annotated[bool, _V(flag)] = False
    clients: Annotated[int | str | None, _V(maybe(either("all", whole(1, EVALUATED_CLIENTS))))] = None
    ood: Annotated[str | None, _V(maybe(text))] = None
    metrics: Annotated[list[str] | None, _V(maybe(list_of(named("metric"), 100, scalar=True)))] = None


@dataclass(frozen=True, config=_STRICT)
class PatienceKeys:
    """Ends a run that gets no better.

    Attributes:
        metric: name of the metric, as in `rounds.parquet`.
        patience: rounds that may pass without a better value, in every replicate and fold.
        min_delta: by how much a value must be better to count.
    """

    metric: Annotated[str, _V(label)]
    patience: Annotated[int, _V(whole(1, 10**7))] = 10
    min_delta: Annotated[float, _V(real("[0, inf)"))] = 0.0


@dataclass(frozen=True, config=_STRICT)
class CheckpointKeys:
    """When the state is saved.

    Attributes:
        every: rounds between checkpoints.
        keep: how many checkpoints stay on the disk, the newest ones.
        best: the metric whose best round keeps its models too (the mean over replicates and folds counts).
    """

    every: Annotated[int, _V(whole(1, 10**7))] = 10
    keep: Annotated[int, _V(whole(1, 10**6))] = 2
    best: Annotated[str | None, _V(maybe(label))] = None


@dataclass(frozen=True, config=_STRICT)
class OwnKeys:
    """What fedray writes where Python objects were passed for training and evaluation.

    Attributes:
        loss: name of the loss.
        optimizer: name of the optimizer.
        augment: names of the augmentations.
        metrics: names of the metrics.
        callbacks: names of the callbacks.
    """

    loss: Annotated[str | None, _V(maybe(text))] = None
    optimizer: Annotated[str | None, _V(maybe(text))] = None
    augment: Annotated[list[str] | None, _V(maybe(list_of(text, 100)))] = None
    metrics: Annotated[list[str] | None, _V(maybe(list_of(text, 100)))] = None
    callbacks: Annotated[list[str] | None, _V(maybe(list_of(text, 100)))] = None
