"""The keys that say how models change in a round, and what is measured and kept."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, get_args

from pydantic import ConfigDict, PlainValidator
from pydantic.dataclasses import dataclass

from fedray.core.local import RateKind
from fedray.core.spec import Needs
from fedray.core.text import suggest_nearest
from fedray.core.types import EVALUATED_CLIENTS, ServerOptimizerKind, Weighting
from fedray.core.validators import (
    Check,
    either,
    flag,
    label,
    list_of,
    maybe,
    means,
    one_of,
    real,
    text,
    whole,
)
from fedray.scenario import names
from fedray.scenario.clients import NO_ROUNDS

# ---------------------------------------------------------------------------------------------------------------------
# The keys that say how models change in a round: local training, compression, server.

_STRICT = ConfigDict(extra="forbid")
_V = PlainValidator
_SGD = Needs("local.optimizer", ("sgd",))
_SPARSE = Needs("compress.kind", ("topk", "randomk"))
_LOSSY = Needs("compress.kind", ("topk", "randomk", "int8"))
_STEPS = Needs("server.optimizer", ("momentum", "adam", "yogi"))
_TRIMMED = Needs("server.robust", ("trimmed_mean",))
_KRUM = Needs("server.robust", ("krum", "multi_krum"))


_FALLS = Needs("local.schedule.kind", ("cosine", "linear"))
_FALLS_AT = Needs("local.schedule.kind", ("step",))


def named(kind: names.NameKind) -> Check:
    """A name of a kind, fedray's or a user's own.

    Args:
        kind: loss, optimizer, augmentation, metric or callback.

    Example:
        >>> named("optimizer")("adam")
        'adam'
    """

    @means("word", "a name that `fedray list` shows")
    def check(value: Any) -> str:
        known = names.known_names(kind)
        if isinstance(value, str) and value in known:
            return value
        remedy = suggest_nearest(value, known, f"--import the module that registers the {kind}")
        raise ValueError(f"is not one of {', '.join(known)}: {remedy}" if known else f"is not known: {remedy}")

    return check


@dataclass(frozen=True, config=_STRICT)
class RateKeys:
    """A course of the learning rate over the rounds, as a factor of `lr`; within a round the rate stays.

    Attributes:
        kind: the course: constant, cosine, linear (both fall from the first round on), or step (falls at some rounds).
        rounds: the fall ends after so many rounds, and the rate stays; default: the rounds of the scenario.
        restart: the rate does not stay, but begins to fall again every `rounds` rounds, which have to be given.
        floor: the factor at the end of the fall.
        warmup: rounds in which the rate rises: in round t, from 0, it is (t + 1) / warmup of what it else is.
        at: the rounds, from 0, in which the rate of `step` falls.
        gamma: the factor of each of these falls.
    """

    kind: Annotated[RateKind, _V(one_of(*get_args(RateKind)))] = "constant"
    rounds: Annotated[int | None, _V(maybe(whole(1, 10**7))), _FALLS] = None
    restart: Annotated[bool, _V(flag), _FALLS] = False
    floor: Annotated[float, _V(real("[0, 1]")), _FALLS] = 0.0
    warmup: Annotated[int, _V(whole(0, 10**7))] = 0
    at: Annotated[list[int], _V(list_of(whole(1, 10**7), 100, scalar=True)), _FALLS_AT] = field(default_factory=list)
    gamma: Annotated[float, _V(real("(0, 1]")), _FALLS_AT] = 0.1


@dataclass(frozen=True, config=_STRICT)
class LocalKeys:
    """How a client trains.

    Attributes:
        optimizer: the optimizer: sgd, adam, or one that your module registers.
        lr: learning rate.
        lr_grid: candidates, of which each (replicate, fold) takes the best on held-out training rows.
        lr_decay: factor of the learning rate; 1: it stays.
        lr_decay_every: rounds between two decays.
        momentum: momentum of SGD.
        weight_decay: L2 penalty on the weights.
        batch_size: samples in a step, or `full` for all samples of the client.
        epochs: passes over the client's rows in a round; default: 10, unless `steps` says how long a client trains.
        steps: optimizer steps in a round, instead of epochs.
        pull: weight mu of the proximal term `mu / 2 |w - w_start|^2`.
        loss: a loss that your module registers, instead of the network's.
        schedule: a course of the learning rate over the rounds.
        augment: random changes of the rows in each batch, one after another: `crop` (a picture moves by up to an eighth
            of its side), `flip` (left to right), and those that your module registers.
        private: layers that stay with the clients: `norm`, `head`, or patterns of the layers' names.
        options: the options of a loss, an optimizer and augmentations that your module registers.
    """

    optimizer: Annotated[str, _V(named("optimizer"))] = "sgd"
    lr: Annotated[float, _V(real("(0, inf)"))] = 0.01
    lr_grid: Annotated[list[float], _V(list_of(real("(0, inf)"), 20))] = field(default_factory=list)
    lr_decay: Annotated[float, _V(real("(0, 1]"))] = 1.0
    lr_decay_every: Annotated[int, _V(whole(1, 10**7))] = 10
    momentum: Annotated[float, _V(real("[0, 1)")), _SGD] = 0.0
    weight_decay: Annotated[float, _V(real("[0, inf)"))] = 0.0
    batch_size: Annotated[int | str, _V(either("full", whole(1, 10**9)))] = 16
    epochs: Annotated[int | None, _V(maybe(whole(1, 10**6)))] = None
    steps: Annotated[int | None, _V(maybe(whole(1, 10**7)))] = None
    pull: Annotated[float, _V(real("[0, inf)"))] = 0.0
    loss: Annotated[str | None, _V(maybe(named("loss")))] = None
    schedule: RateKeys | None = None
    augment: Annotated[list[str], _V(list_of(named("augmentation"), 20, scalar=True))] = field(default_factory=list)
    private: Annotated[list[str] | None, _V(maybe(list_of(text, 100, scalar=True)))] = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class CompressKeys:
    """Compression of uploads.

    Attributes:
        kind: kind of compression: none (`dense`), the entries of largest magnitude (`topk`), random ones (`randomk`),
            or 8 bits for each number (`int8`).
        ratio: share of the entries that a client which trains one model sends.
        resource_ratio: how many times the entries of a client that trains one model a client that trains several may
            send in total (SHEFL's r); None: as many as it trains models, which compresses every trained model alike.
        error_feedback: whether a client keeps the entries that it did not send and adds them to its next upload.
        adaptive: whether clients send entries in proportion to their uplink bandwidth.
    """

    kind: Annotated[str, _V(one_of("dense", "topk", "randomk", "int8"))] = "dense"
    ratio: Annotated[float, _V(real("(0, 1]")), _SPARSE] = 0.1
    resource_ratio: Annotated[float | None, _V(maybe(real("(0, inf)"))), _SPARSE] = None
    error_feedback: Annotated[bool, _V(flag), _LOSSY] = False
    adaptive: Annotated[bool, _V(flag), _SPARSE] = False


@dataclass(frozen=True, config=_STRICT)
class ServerKeys:
    """How uploads become the next models.

    Attributes:
        coefficients: how tiers weigh in the mean: `fedavg` (as their uploads do), `equal_groups` (all alike) or
            `paper_eq2` (SHEFL's equation 2).
        weighting: how uploads weigh in the mean: all alike (`uniform`), or by their clients' numbers of samples
            (`examples`). Where all weigh the same (a robust statistic, `paper_eq2`) the default is `uniform`, whatever
            the method's is.
        optimizer: the server optimizer, which makes its step from the mean delta.
        lr: learning rate of the server optimizer; default: 1, and 0.01 of adam and yogi.
        momentum: momentum of the server optimizer (beta; beta_1 of adam and yogi).
        robust: the robust statistic that takes the place of the mean.
        trim: how many values trimmed_mean drops at each end (b).
        byzantine: how many bad clients krum and multi_krum are to withstand (f).
    """

    coefficients: Annotated[str, _V(one_of("equal_groups", "paper_eq2", "fedavg"))] = "fedavg"
    weighting: Annotated[Weighting, _V(one_of(*get_args(Weighting)))] = "uniform"
    optimizer: Annotated[ServerOptimizerKind, _V(one_of(*get_args(ServerOptimizerKind)))] = "none"
    lr: Annotated[float, _V(real("(0, inf)")), _STEPS] = 1.0
    momentum: Annotated[float, _V(real("[0, 1)")), _STEPS] = 0.9
    robust: Annotated[str, _V(one_of("none", "median", "trimmed_mean", "krum", "multi_krum"))] = "none"
    trim: Annotated[int, _V(whole(0, 10**6)), _TRIMMED] = 1
    byzantine: Annotated[int, _V(whole(0, 10**6)), _KRUM] = 1


# ---------------------------------------------------------------------------------------------------------------------
# The keys that say what is measured and kept: scores, checkpoints, and the user's own objects.


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
