"""Declares the keys of a scenario for schedule, training, compression, server, evaluation and conformal sets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fedray.core import options as opt
from fedray.core import types
from fedray.core.errors import suggest_nearest
from fedray.core.types import (
    CompressionKind,
    LastBatch,
    QuantileKind,
    RateKind,
    ScoreKind,
    ServerOptimizerKind,
    Weighting,
)
from fedray.scenario import names
from fedray.scenario.sections import NO_ROUNDS

# ---------------------------------------------------------------------------------------------------------------------
# The keys for the schedule, local training, compression and the server.

_SGD = opt.Needs("local.optimizer", ("sgd",))
_SPARSE = opt.Needs("compress.kind", types.SPARSE_KINDS)
_LOSSY = opt.Needs("compress.kind", tuple(one for one in get_args(CompressionKind) if one != "dense"))
_STEPS = opt.Needs("server.optimizer", tuple(one for one in get_args(ServerOptimizerKind) if one != "none"))
_TRIMMED = opt.Needs("server.robust", ("trimmed_mean",))
_KRUM = opt.Needs("server.robust", ("krum", "multi_krum"))


_FALLS = opt.Needs(".kind", ("cosine", "linear"))
_FALLS_AT = opt.Needs(".kind", ("step",))


MOST_SHOWN = 20  # names in a message; `fedray list` shows all


def named(kind: str) -> opt.Check:
    """Returns a function that checks a key whose value names an object, such as a schedule, a loss or an optimizer.

    Example:
        >>> named("optimizer")("adam")
        'adam'
    """

    @opt.means("word", "a name that `fedray list` shows")
    def check(value: Any) -> str:
        known = names.known_metrics() if kind == "metric" else names.known_names(kind)
        if isinstance(value, str) and value in known:
            return value
        remedy = suggest_nearest(value, known, f"--import the module that registers the {kind}")
        few = 0 < len(known) < MOST_SHOWN
        raise ValueError(f"is not one of {', '.join(known)}: {remedy}" if few else f"is not known: {remedy}")

    return check


@opt.means("word or number", "the name or the number of a class")
def _class_name(value: Any) -> str | int:
    if not isinstance(value, str | int):
        raise ValueError("is no class: give its name or its number")
    return str(value) if isinstance(value, bool) else value


@dataclass(frozen=True)
class ScheduleKeys:
    """The schedule, which decides which client trains which model.

    Attributes:
        kind: Name of the schedule, the rule that assigns models to participants (`fedray list schedules`).
        object: The name of the Python function that assigns the models. fedray writes this key. If it is set, `kind`
            has no effect.
        rows: The meaning of a row of the permutation. In K rounds each row gets every model once. With `client` (the
            default with full participation) a row is a client. A client that misses a round misses its model of this
            round. With `slot` (the default otherwise) a row is a position among the participants of a round, which are
            drawn uniformly. With `stratum` a row is a position that is filled from a fixed set of clients, as in SHEFL.
    """

    kind: str = opt.key("permutation", named("schedule"))
    object: str | None = opt.key(None, opt.maybe(opt.text))
    rows: str = opt.key("client", opt.one_of("client", "slot", "stratum"))


@dataclass(frozen=True)
class RateKeys:
    """The course of the learning rate over the rounds, as a multiple of `lr`. Within a round the rate is constant.

    Attributes:
        kind: The kind of course. With `cosine` and `linear` the rate falls from the first round on. With `step` the
            rate falls in the rounds `at`.
        rounds: The number of rounds in which the rate falls. In later rounds the rate is constant. The default is the
            number of rounds of the scenario.
        restart: Whether the rate starts again from the beginning after every `rounds` rounds. If so, `rounds` is
            required.
        floor: The rate at the end of the fall, as a multiple of `lr`.
        warmup: The number of rounds in which the rate rises. In round t of the first `warmup` rounds, counted from 0,
            the rate is multiplied by (t + 1) / warmup.
        at: The rounds in which the rate of `step` falls, counted from 0.
        gamma: The factor by which the rate of `step` is multiplied in each of the rounds `at`.
    """

    kind: RateKind = opt.key("constant", opt.one_of(*get_args(RateKind)))
    rounds: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**7)), _FALLS)
    restart: bool = opt.key(False, opt.flag, _FALLS)
    floor: float = opt.key(0.0, opt.real("[0, 1]"), _FALLS)
    warmup: int = opt.key(0, opt.whole(0, 10**7))
    at: list[int] = opt.key([], opt.list_of(opt.whole(1, 10**7), 100, scalar=True), _FALLS_AT)
    gamma: float = opt.key(0.1, opt.real("(0, 1]"), _FALLS_AT)


@dataclass(frozen=True)
class LocalKeys:
    """The local training of a client.

    Attributes:
        optimizer: The optimizer of a client: `sgd`, `adam`, `adamw`, `rmsprop`, or one that your module registers.
        lr: Learning rate of a client.
        lr_grid: The candidates for the learning rate. Each replicate and fold uses the candidate that is best on
            held-out training samples.
        lr_decay: Factor by which the learning rate is multiplied every `lr_decay_every` rounds. With 1 the rate is
            constant.
        lr_decay_every: The number of rounds between two decays of the learning rate.
        momentum: Momentum of `sgd`.
        nesterov: Whether the momentum of `sgd` is Nesterov's, which looks ahead.
        weight_decay: Factor of the L2 penalty on the weights. With `adamw` it is the factor of the decoupled weight
            decay.
        batch_size: The number of samples in an optimizer step, or `full` for all samples of the client.
        last_batch: What happens to the last batch of an epoch if it has fewer than `batch_size` samples. With `keep`
            the client trains on this batch. With `drop` the batch is left out, unless it is the only batch. With
            `merge` its samples are added to the previous batch.
        epochs: The number of passes over the samples of the client in a round. The default is 10 if `steps` is not set.
        steps: The number of optimizer steps of a client in a round, instead of `epochs`.
        pull: The weight mu of the proximal term `mu / 2 |w - w_start|^2`.
        loss: Name of a loss that your module registers, used instead of the loss of the network.
        schedule: The section for the course of the learning rate over the rounds. None keeps the rate constant.
        augment: Names of random changes of the samples in each batch, applied one after another: `crop` (moves a
            picture by up to an eighth of its side), `flip` (left to right), and augmentations that your module
            registers.
        private: The layers that each client keeps for itself and does not upload: `norm`, `head`, or patterns of the
            names of layers.
        options: The options of the loss, the optimizer and the augmentations that your module registers.
    """

    optimizer: str = opt.key("sgd", named("optimizer"))
    lr: float = opt.key(0.01, opt.real("(0, inf)"))
    lr_grid: list[float] = opt.key([], opt.list_of(opt.real("(0, inf)"), 20))
    lr_decay: float = opt.key(1.0, opt.real("(0, 1]"))
    lr_decay_every: int = opt.key(10, opt.whole(1, 10**7))
    momentum: float = opt.key(0.0, opt.real("[0, 1)"), _SGD)
    nesterov: bool = opt.key(False, opt.flag, _SGD)
    weight_decay: float = opt.key(0.0, opt.real("[0, inf)"))
    batch_size: int | str = opt.key(16, opt.either("full", opt.whole(1, 10**9)))
    last_batch: LastBatch = opt.key("keep", opt.one_of(*get_args(LastBatch)))
    epochs: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**6)))
    steps: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**7)))
    pull: float = opt.key(0.0, opt.real("[0, inf)"))
    loss: str | None = opt.key(None, opt.maybe(named("loss")))
    schedule: RateKeys | None = opt.section(RateKeys, None)
    augment: list[str] = opt.key([], opt.list_of(named("augmentation"), 20, scalar=True))
    private: list[str] | None = opt.key(None, opt.maybe(opt.list_of(opt.text, 100, scalar=True)))
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompressKeys:
    """Compression of uploads.

    Attributes:
        kind: The kind of compression. With `dense` a client sends all entries of its update. With `topk` it sends the
            entries of largest magnitude. With `randomk` it sends random entries. With `int8` it sends 8 bits for each
            entry.
        ratio: A client whose tier has `models_per_round: 1` sends this share of the entries of its update.
        resource_ratio: The number of entries that a client with several models may send in total, divided by the number
            of entries that a client with one model sends (r of SHEFL). None means the number of models that the client
            trains, so that every model is compressed with the same ratio.
        error_feedback: Whether a client keeps the entries that were not sent and adds them to its next upload.
        adaptive: Whether the number of entries that a client sends is proportional to its uplink bandwidth at the start
            of the run.
    """

    kind: CompressionKind = opt.key("dense", opt.one_of(*get_args(CompressionKind)))
    ratio: float = opt.key(0.1, opt.real("(0, 1]"), _SPARSE)
    resource_ratio: float | None = opt.key(None, opt.maybe(opt.real("(0, inf)")), _SPARSE)
    error_feedback: bool = opt.key(False, opt.flag, _LOSSY)
    adaptive: bool = opt.key(False, opt.flag, _SPARSE)


@dataclass(frozen=True)
class ServerKeys:
    """The rules by which the server makes the next models from uploads.

    Attributes:
        coefficients: The weights of the tiers in the mean of the uploads. With `fedavg` the weight of a tier is the sum
            of the weights of its uploads. With `equal_groups` all tiers have the same weight. `paper_eq2` is equation 2
            of SHEFL.
        weighting: The weights of the uploads in the mean. With `uniform` all uploads have the same weight. With
            `examples` the weight is the number of samples of the client. With a robust statistic or `paper_eq2` the
            default is `uniform` for every method.
        optimizer: The server optimizer, which makes a step from the mean of the deltas.
        lr: Learning rate of the server optimizer. The default is 0.01 for `adam` and `yogi`, and 1 for the others.
        momentum: Momentum of the server optimizer, which is beta_1 for `adam` and `yogi`.
        schedule: The section for the course of the server's learning rate over the rounds. In training without rounds,
            it is the course over the steps of the server. None keeps the rate constant. To use such a rate with a plain
            mean, set `optimizer: momentum` and `momentum: 0`.
        tau: The number that `adam` and `yogi` add to the denominator. With a larger number the step is less adaptive.
        robust: The robust statistic that is used instead of the mean of the deltas.
        trim: The number b of values that `trimmed_mean` drops at each end.
        byzantine: The number f of bad clients that `krum` and `multi_krum` have to withstand.
        seconds_per_step: The virtual seconds of a training step at the server, such as a step of distillation. By
            default the work of the server takes no time.
        seconds_per_sample: The virtual seconds that a training step at the server takes in addition for each of its
            samples.
    """

    coefficients: str = opt.key("fedavg", opt.one_of("equal_groups", "paper_eq2", "fedavg"))
    weighting: Weighting = opt.key("uniform", opt.one_of(*get_args(Weighting)))
    optimizer: ServerOptimizerKind = opt.key("none", opt.one_of(*get_args(ServerOptimizerKind)))
    lr: float = opt.key(1.0, opt.real("(0, inf)"), _STEPS)
    momentum: float = opt.key(0.9, opt.real("[0, 1)"), _STEPS)
    tau: float = opt.key(0.001, opt.real("(0, inf)"), opt.Needs("server.optimizer", types.ADAPTIVE_OPTIMIZERS))
    schedule: RateKeys | None = opt.section(RateKeys, None)
    robust: str = opt.key("none", opt.one_of("none", "median", "trimmed_mean", "krum", "multi_krum"))
    trim: int = opt.key(1, opt.whole(0, 10**6), _TRIMMED)
    byzantine: int = opt.key(1, opt.whole(0, 10**6), _KRUM)
    seconds_per_step: float = opt.key(0.0, opt.real("[0, inf)"))
    seconds_per_sample: float = opt.key(0.0, opt.real("[0, inf)"))


# ---------------------------------------------------------------------------------------------------------------------
# The keys for scores, early end, checkpoints, and the user's own objects.


@dataclass(frozen=True)
class StopKeys:
    """A metric, and the value that it should reach.

    Attributes:
        metric: Name of the metric, as in `rounds.parquet`.
        value: The value that the metric should reach.
    """

    metric: str = opt.key(opt.REQUIRED, opt.label)
    value: float = opt.key(opt.REQUIRED, opt.real("(-inf, inf)"))


@dataclass(frozen=True)
class EvaluateKeys:
    """The evaluation, with the scores and the times at which they are measured.

    Attributes:
        every: The number of rounds from one evaluation to the next.
        every_seconds: The virtual seconds from one evaluation to the next. It is used instead of `every` in training
            without rounds.
        stop_at: A metric and a value. The run ends when the metric has reached the value in all replicates and folds.
            With `data.hold_out` the score on held-out samples counts.
        target: A metric and a value. The summary gives the round, the virtual second and the number of bytes at which
            the metric first reached the value.
        personal: Whether every client of the run is also scored on its own samples, with its own model or its own
            weights over the ensemble's models. The scores are accuracy, log loss, Brier score and calibration
            (`personal_accuracy`, `personal_nll`, ...). In a regression the scores are RMSE and intervals. Clients with
            models or weights that the method itself gives them, as in Ditto and FedEM, have `personal_accuracy` anyway.
        personal_steps: The number of steps that a client of the run trains on its own samples before it predicts. The
            client starts from the models of the server, with the learning rate `local.lr`. Personal scores are measured
            after these steps. None means no such steps.
        clients: The number of clients of the run that get a row in `client_scores.parquet` in every evaluated round, or
            `all`. The ids of these clients are evenly spread. None means no client.
        train: Whether the predictions for the training samples of all clients are also scored (`train_accuracy`,
            `train_nll`, ...). The difference from the test scores shows how far the models overfit.
        by_tier: Whether the predictions for clients of the run are also scored per tier (`tier_NAME_nll`) and over all
            tiers together (`personal_nll`). The scores are likelihood, Brier score, calibration and conformal sets. In
            a regression they are RMSE and intervals.
        ood: The out-of-distribution inputs, given as `noise` or as the name of a data set with inputs of the same
            shape. The predictions for these inputs should be less certain than predictions for test samples. None means
            no such inputs.
        metrics: Names of further metrics, which are scorers of scikit-learn (`roc_auc`, `average_precision`,
            `balanced_accuracy`, ...) and metrics that your module registers. A scorer also scores every model of the
            ensemble (`NAME_min`, `NAME_mean`, `NAME_max`). With `clients` or `personal` it also scores clients, and
            with `by_tier` it also scores tiers. A metric of yours scores clients only if it takes `sample_weight`,
            because samples are weighted unless clients have test samples of their own.
        positive: The name or number of the positive class, if there are two classes. None means the second class.
    """

    every: int = opt.key(1, opt.whole(1, 10**7))
    every_seconds: float | None = opt.key(None, opt.maybe(opt.real("(0, inf)")), NO_ROUNDS)
    stop_at: StopKeys | None = opt.section(StopKeys, None, example={"metric": "accuracy", "value": 0.9})
    target: StopKeys | None = opt.section(StopKeys, None, example={"metric": "accuracy", "value": 0.9})
    personal: bool = opt.key(False, opt.flag)
    personal_steps: int | None = opt.key(None, opt.maybe(opt.whole(1, 10**7)))
    clients: int | str | None = opt.key(None, opt.maybe(opt.either("all", opt.whole(1, types.EVALUATED_CLIENTS))))
    train: bool = opt.key(False, opt.flag)
    by_tier: bool = opt.key(False, opt.flag)
    ood: str | None = opt.key(None, opt.maybe(opt.text))
    metrics: list[str] | None = opt.key(None, opt.maybe(opt.list_of(named("metric"), 100, scalar=True)))
    positive: str | int | None = opt.key(None, opt.maybe(_class_name))


@dataclass(frozen=True)
class PatienceKeys:
    """The rule that ends a run early when a metric gets no better.

    Attributes:
        metric: Name of the metric, as in `rounds.parquet`.
        patience: The run ends if no replicate and no fold gets a better value for this number of rounds.
        min_delta: A value counts as better only if it improves on the best value so far by more than this amount.
    """

    metric: str = opt.key(opt.REQUIRED, opt.label)
    patience: int = opt.key(10, opt.whole(1, 10**7))
    min_delta: float = opt.key(0.0, opt.real("[0, inf)"))


@dataclass(frozen=True)
class CheckpointKeys:
    """The checkpoints, with the rounds in which the state of a run is saved.

    Attributes:
        every: The number of rounds from one checkpoint to the next.
        keep: The number of newest checkpoints that stay on the disk.
        best: Name of a metric. The best round is the round with the best mean of this metric over replicates and folds.
            The models of the best round are also saved. None means that no such models are saved.
    """

    every: int = opt.key(10, opt.whole(1, 10**7))
    keep: int = opt.key(2, opt.whole(1, 10**6))
    best: str | None = opt.key(None, opt.maybe(opt.label))


@opt.means("mapping", "what fedray writes where Python objects were passed for training and evaluation: their names")
def own_names(value: Any) -> dict[str, Any]:
    """Checks a mapping from arguments of `fedray.run` to the name or names of Python objects.

    The key `modules` has the names and files of the user's modules.
    """
    known = [*(kind.given for kind in names.KINDS.values() if kind.part == "training"), "modules"]
    if not isinstance(value, Mapping) or not value.keys() <= {*known}:
        raise ValueError(f"is no mapping of names: give some of {', '.join(known)}")
    return dict(value)


# ---------------------------------------------------------------------------------------------------------------------
# The keys of conformal prediction sets.

_RAPS = opt.Needs("predict.conformal.score", ("raps",))


@dataclass(frozen=True)
class ConformalKeys:
    """Conformal sets of labels, or intervals, that contain the true value with probability 1 - alpha.

    Attributes:
        alpha: The share of true values that may lie outside of their sets or intervals.
        score: The score that measures how badly a label fits a prediction. `auto` means `lac` for classes, and
            `regression` for real targets.
        quantile: The rule for the threshold of the score. `exact` computes the threshold from all scores of the
            clients, and `qq` from one number per client (FedCP-QQ).
        penalty: The penalty of the score `raps` for each rank beyond `k_reg` (lambda in the paper).
        k_reg: The number of top ranks without a penalty in the score `raps`.
    """

    alpha: float = opt.key(0.1, opt.real("(0, 1)"))
    score: Literal["auto"] | ScoreKind = opt.key("auto", opt.one_of("auto", *get_args(ScoreKind)))
    quantile: QuantileKind = opt.key("exact", opt.one_of(*get_args(QuantileKind)))
    penalty: float = opt.key(0.01, opt.real("[0, inf)"), _RAPS)
    k_reg: int = opt.key(1, opt.whole(0, 10**6), _RAPS)
