"""The keys that say how models change in a round, and what is measured and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fedray.core.errors import suggest_nearest
from fedray.core.options import (
    REQUIRED,
    Check,
    Needs,
    either,
    flag,
    key,
    label,
    list_of,
    maybe,
    means,
    one_of,
    real,
    section,
    text,
    whole,
)
from fedray.core.types import EVALUATED_CLIENTS, QuantileKind, RateKind, ScoreKind, ServerOptimizerKind, Weighting
from fedray.scenario import names
from fedray.scenario.clients import NO_ROUNDS

# ---------------------------------------------------------------------------------------------------------------------
# The keys that say how models change in a round: local training, compression, server.

_SGD = Needs("local.optimizer", ("sgd",))
_SPARSE = Needs("compress.kind", ("topk", "randomk"))
_LOSSY = Needs("compress.kind", ("topk", "randomk", "int8"))
_STEPS = Needs("server.optimizer", ("momentum", "adam", "yogi"))
_TRIMMED = Needs("server.robust", ("trimmed_mean",))
_KRUM = Needs("server.robust", ("krum", "multi_krum"))


_FALLS = Needs("local.schedule.kind", ("cosine", "linear"))
_FALLS_AT = Needs("local.schedule.kind", ("step",))


def named(kind: str) -> Check:
    """Returns a name of a kind, fedray's or a user's own.

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


@dataclass(frozen=True)
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

    kind: RateKind = key("constant", one_of(*get_args(RateKind)))
    rounds: int | None = key(None, maybe(whole(1, 10**7)), _FALLS)
    restart: bool = key(False, flag, _FALLS)
    floor: float = key(0.0, real("[0, 1]"), _FALLS)
    warmup: int = key(0, whole(0, 10**7))
    at: list[int] = key([], list_of(whole(1, 10**7), 100, scalar=True), _FALLS_AT)
    gamma: float = key(0.1, real("(0, 1]"), _FALLS_AT)


@dataclass(frozen=True)
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

    optimizer: str = key("sgd", named("optimizer"))
    lr: float = key(0.01, real("(0, inf)"))
    lr_grid: list[float] = key([], list_of(real("(0, inf)"), 20))
    lr_decay: float = key(1.0, real("(0, 1]"))
    lr_decay_every: int = key(10, whole(1, 10**7))
    momentum: float = key(0.0, real("[0, 1)"), _SGD)
    weight_decay: float = key(0.0, real("[0, inf)"))
    batch_size: int | str = key(16, either("full", whole(1, 10**9)))
    epochs: int | None = key(None, maybe(whole(1, 10**6)))
    steps: int | None = key(None, maybe(whole(1, 10**7)))
    pull: float = key(0.0, real("[0, inf)"))
    loss: str | None = key(None, maybe(named("loss")))
    schedule: RateKeys | None = section(RateKeys, None)
    augment: list[str] = key([], list_of(named("augmentation"), 20, scalar=True))
    private: list[str] | None = key(None, maybe(list_of(text, 100, scalar=True)))
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
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

    kind: str = key("dense", one_of("dense", "topk", "randomk", "int8"))
    ratio: float = key(0.1, real("(0, 1]"), _SPARSE)
    resource_ratio: float | None = key(None, maybe(real("(0, inf)")), _SPARSE)
    error_feedback: bool = key(False, flag, _LOSSY)
    adaptive: bool = key(False, flag, _SPARSE)


@dataclass(frozen=True)
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

    coefficients: str = key("fedavg", one_of("equal_groups", "paper_eq2", "fedavg"))
    weighting: Weighting = key("uniform", one_of(*get_args(Weighting)))
    optimizer: ServerOptimizerKind = key("none", one_of(*get_args(ServerOptimizerKind)))
    lr: float = key(1.0, real("(0, inf)"), _STEPS)
    momentum: float = key(0.9, real("[0, 1)"), _STEPS)
    robust: str = key("none", one_of("none", "median", "trimmed_mean", "krum", "multi_krum"))
    trim: int = key(1, whole(0, 10**6), _TRIMMED)
    byzantine: int = key(1, whole(0, 10**6), _KRUM)


# ---------------------------------------------------------------------------------------------------------------------
# The keys that say what is measured and kept: scores, checkpoints, and the user's own objects.


@dataclass(frozen=True)
class StopKeys:
    """A metric and a value that it shall reach.

    Attributes:
        metric: name of the metric, as in `rounds.parquet`.
        value: the value that it is to reach.
    """

    metric: str = key(REQUIRED, label)
    value: float = key(REQUIRED, real("(-inf, inf)"))


@dataclass(frozen=True)
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
        by_tier: whether the answers that known clients get are scored by every score (likelihood, Brier score,
            calibration, conformal sets; RMSE, intervals), tier by tier (`tier_NAME_nll`) and over all
            (`personal_nll`).
        ood: out-of-distribution inputs, whose uncertainty is compared with that of the test rows: another data set with
            inputs of the same shape, or `noise`; None: none.
        metrics: further metrics, which your module registers.
    """

    every: int = key(1, whole(1, 10**7))
    every_seconds: float | None = key(None, maybe(real("(0, inf)")), NO_ROUNDS)
    stop_at: StopKeys | None = section(StopKeys, None, example={"metric": "accuracy", "value": 0.9})
    target: StopKeys | None = section(StopKeys, None, example={"metric": "accuracy", "value": 0.9})
    personal: bool = key(False, flag)
    clients: int | str | None = key(None, maybe(either("all", whole(1, EVALUATED_CLIENTS))))
    by_tier: bool = key(False, flag)
    ood: str | None = key(None, maybe(text))
    metrics: list[str] | None = key(None, maybe(list_of(named("metric"), 100, scalar=True)))


@dataclass(frozen=True)
class PatienceKeys:
    """Ends a run that gets no better.

    Attributes:
        metric: name of the metric, as in `rounds.parquet`.
        patience: rounds that may pass without a better value, in every replicate and fold.
        min_delta: by how much a value must be better to count.
    """

    metric: str = key(REQUIRED, label)
    patience: int = key(10, whole(1, 10**7))
    min_delta: float = key(0.0, real("[0, inf)"))


@dataclass(frozen=True)
class CheckpointKeys:
    """When the state is saved.

    Attributes:
        every: rounds between checkpoints.
        keep: how many checkpoints stay on the disk, the newest ones.
        best: the metric whose best round keeps its models too (the mean over replicates and folds counts).
    """

    every: int = key(10, whole(1, 10**7))
    keep: int = key(2, whole(1, 10**6))
    best: str | None = key(None, maybe(label))


@means("mapping", "what fedray writes where Python objects were passed for training and evaluation: their names")
def own_names(value: Any) -> dict[str, Any]:
    """Names of Python objects by what `fedray.run` calls them: one, or a list."""
    known = {kind.given: kind for kind in names.KINDS.values() if kind.part == "training"}
    if not isinstance(value, Mapping) or not value.keys() <= known.keys():
        raise ValueError(f"is no mapping of names: give some of {', '.join(known)}")
    checks = {key: list_of(text, 100) if kind.argument else text for key, kind in known.items()}
    return {key: check(value[key]) for key, check in checks.items() if value.get(key) is not None}


# ---------------------------------------------------------------------------------------------------------------------
# The keys of conformal prediction sets.

_RAPS = Needs("predict.conformal.score", ("raps",))


@dataclass(frozen=True)
class ConformalKeys:
    """Sets of labels, or intervals, that hold the right answer with probability 1 - alpha.

    Attributes:
        alpha: share of the answers that may be outside of their sets.
        score: how badly a label fits an answer; `auto`: `lac` for classes, `regression` for real targets.
        quantile: how clients find the threshold: from all their scores (`exact`), or from one number each (`qq`,
            FedCP-QQ).
        penalty: of `raps`, added for each rank beyond `k_reg` (lambda of its paper).
        k_reg: of `raps`, how many ranks have no penalty.
    """

    alpha: float = key(0.1, real("(0, 1)"))
    score: Literal["auto"] | ScoreKind = key("auto", one_of("auto", *get_args(ScoreKind)))
    quantile: QuantileKind = key("exact", one_of(*get_args(QuantileKind)))
    penalty: float = key(0.01, real("[0, inf)"), _RAPS)
    k_reg: int = key(1, whole(0, 10**6), _RAPS)
