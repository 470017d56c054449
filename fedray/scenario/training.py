"""The keys that say how models change in a round: local training, compression, server.

Example:
    >>> LocalKeys(epochs=2).batch_size, ServerKeys().weighting
    (16, 'uniform')
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import ConfigDict, PlainValidator
from pydantic.dataclasses import dataclass

from fedray.scenario.spec import Needs
from fedray.scenario.validators import either, flag, list_of, maybe, one_of, real, whole

_STRICT = ConfigDict(extra="forbid")
_V = PlainValidator
_SGD = Needs("local.optimizer", ("sgd",))
_SPARSE = Needs("compress.kind", ("topk", "randomk"))
_LOSSY = Needs("compress.kind", ("topk", "randomk", "int8"))
_STEPS = Needs("server.optimizer", ("momentum", "adam", "yogi"))
_TRIMMED = Needs("server.robust", ("trimmed_mean",))
_KRUM = Needs("server.robust", ("krum", "multi_krum"))


@dataclass(frozen=True, config=_STRICT)
class LocalKeys:
    """How a client trains.

    Attributes:
        optimizer: the optimizer, sgd or adam.
        lr: learning rate.
        lr_grid: candidates, of which each (replicate, fold) takes the best on held-out training rows.
        lr_decay: factor of the learning rate; 1: it stays.
        lr_decay_every: rounds between two decays.
        momentum: momentum of SGD.
        weight_decay: L2 penalty on the weights.
        batch_size: samples in a step, or `full` for all samples of the client.
        epochs: passes over the client's rows in a round.
        steps: optimizer steps in a round, in the place of epochs.
        pull: mu of the proximal term `mu / 2 |w - w_start|^2`.
    """

    optimizer: Annotated[str, _V(one_of("sgd", "adam"))] = "sgd"
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


@dataclass(frozen=True, config=_STRICT)
class CompressKeys:
    """Compression of uploads.

    Attributes:
        kind: kind of compression.
        ratio: share of the entries that a client which trains one model sends.
        resource_ratio: r: how many times the entries of a client that trains one model a client that trains several may
            send in total; None: K, so that every model is compressed alike.
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
        weighting: how uploads weigh in the mean: all alike, or by their clients' numbers of samples.
        optimizer: the server optimizer, which makes its step from the mean delta.
        lr: learning rate of the server optimizer.
        momentum: momentum of the server optimizer (beta; beta_1 of adam and yogi).
        robust: the robust statistic that takes the place of the mean.
        trim: b, how many values trimmed_mean drops at each end.
        byzantine: f, how many bad clients krum and multi_krum are to withstand.
    """

    coefficients: Annotated[str, _V(one_of("equal_groups", "paper_eq2", "fedavg"))] = "fedavg"
    weighting: Annotated[str, _V(one_of("uniform", "examples"))] = "uniform"
    optimizer: Annotated[str, _V(one_of("none", "momentum", "adam", "yogi"))] = "none"
    lr: Annotated[float, _V(real("(0, inf)")), _STEPS] = 1.0
    momentum: Annotated[float, _V(real("[0, 1)")), _STEPS] = 0.9
    robust: Annotated[str, _V(one_of("none", "median", "trimmed_mean", "krum", "multi_krum"))] = "none"
    trim: Annotated[int, _V(whole(0, 10**6)), _TRIMMED] = 1
    byzantine: Annotated[int, _V(whole(0, 10**6)), _KRUM] = 1
