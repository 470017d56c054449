"""How an ensemble answers, and how sure it is.

Arrays come as NumPy arrays or CPU tensors and are computed in float64. K models, n samples, C outputs, N clients.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedray.core.errors import BadInput
from fedray.core.types import FloatArray

AverageKind = Literal["probabilities", "logits", "outputs"]
Z95 = 1.96  # FE section V-B: 95 % interval = mean +- 1.96 sd


def probabilities(logits: ArrayLike) -> FloatArray:
    """Softmax over the last axis: `[..., C]` -> `[..., C]`.

    Example:
        >>> probabilities([[1000.0, 1000.0], [0.0, -np.inf]]).tolist()
        [[0.5, 0.5], [1.0, 0.0]]
    """
    z = np.asarray(logits, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # a diverged model answers NaN
        powers = np.exp(z - z.max(axis=-1, keepdims=True))
    result: FloatArray = powers / powers.sum(axis=-1, keepdims=True)
    return result


def average(outputs: ArrayLike, kind: AverageKind = "probabilities", weights: ArrayLike | None = None) -> FloatArray:
    """The answer of an ensemble (FE eq. 2; eq. 3 with weights).

    Args:
        outputs: `[K, n, C]`, the models' raw outputs (logits, for classification).
        kind: `probabilities` averages the softmax of each model, `logits` takes the softmax of the averaged logits,
            `outputs` averages the raw outputs (regression; any trailing shape).
        weights: `[K]`, or `[K, n]` for weights of each sample; they sum to 1 over K. None means 1/K.

    Returns:
        `[n, C]`.

    Example:
        >>> average([[[0.0, 0.0]], [[50.0, 0.0]]]).round(3).tolist()
        [[0.75, 0.25]]
    """
    rows = np.asarray(member_votes(outputs, kind), dtype=np.float64)
    mean = _mean(rows, None if weights is None else np.asarray(weights, dtype=np.float64))
    return probabilities(mean) if kind == "logits" else mean


def member_votes(outputs: ArrayLike, kind: AverageKind) -> FloatArray:
    """What each model contributes to the average; the largest entry of their mean is the ensemble's class.

    Args:
        outputs: `[K, n, C]`, the models' raw outputs.
        kind: as in `average`.

    Returns:
        `[K, n, C]`: probabilities in float64, or the raw outputs as they are.

    Raises:
        BadInput: the kind is unknown.
    """
    if kind == "probabilities":
        return probabilities(outputs)
    if kind in ("logits", "outputs"):
        return np.asarray(outputs)
    raise BadInput(f"predict.average = {kind}: choose probabilities or logits")


class ClassAnswer(NamedTuple):
    """What an ensemble of classifiers answers.

    Attributes:
        members: the probabilities of each model, `[K, n, C]`.
        mean: the probabilities of the ensemble, `[n, C]`.
    """

    members: FloatArray
    mean: FloatArray


def answer_classes(
    outputs: ArrayLike, kind: AverageKind = "probabilities", weights: ArrayLike | None = None
) -> ClassAnswer:
    """The answer of an ensemble of classifiers, and those of its members.

    Args:
        outputs: `[K, n, C]`, the models' logits.
        kind: as in `average`: `predict.average` of the scenario.
        weights: `[K]` or `[K, n]`, as in `average`.

    Example:
        >>> answer = answer_classes([[[0.0, 0.0]], [[50.0, 0.0]]], "logits")
        >>> answer.members.round(3).tolist(), answer.mean.round(3).tolist()
        ([[[0.5, 0.5]], [[1.0, 0.0]]], [[1.0, 0.0]])
    """
    members = probabilities(outputs)
    if kind == "probabilities":  # the softmax of each model is known already
        return ClassAnswer(members, average(members, "outputs", weights))
    return ClassAnswer(members, average(outputs, kind, weights))


class Moments(NamedTuple):
    """mean and variance of the answer, `[n, ...]` each."""

    mean: FloatArray
    variance: FloatArray


def mixture_moments(
    outputs: ArrayLike, weights: ArrayLike | None = None, variances: ArrayLike | None = None
) -> Moments:
    """Mean and population variance over the models: knowledge uncertainty (FE section V-B; FedAG eqs. 4-5).

    Args:
        outputs: `[K, n, ...]`, each model's mean.
        weights: `[K]` or `[K, n]`, as in `average`.
        variances: `[K, n, ...]`, each model's own predicted variance; then the result is the mixture's (deep
            ensembles: Lakshminarayanan et al. 2017, section 2.4).

    Example:
        >>> mixture_moments([[1.0], [3.0]])
        Moments(mean=array([2.]), variance=array([1.]))
    """
    rows = np.asarray(outputs, dtype=np.float64)
    w = None if weights is None else np.asarray(weights, dtype=np.float64)
    mean = _mean(rows, w)
    spread = (rows - mean) ** 2
    return Moments(mean, _mean(spread if variances is None else spread + np.asarray(variances, dtype=np.float64), w))


def interval_95(mean: ArrayLike, variance: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """95 % interval `mean -+ 1.96 sd`: (lower, upper), `[n, ...]` each.

    Example:
        >>> interval_95([0.0], [4.0])
        (array([-3.92]), array([3.92]))
    """
    centre, half = np.asarray(mean, dtype=np.float64), Z95 * np.sqrt(np.asarray(variance, dtype=np.float64))
    return centre - half, centre + half


def personal_weights(losses: ArrayLike, gamma: float) -> FloatArray:
    """Each client's weights over the models: `softmax(-loss / gamma)` (FE eqs. 3-4).

    Deviation: the paper's printed closed form, exp(-gamma * loss), contradicts its text (large gamma tends to uniform);
    the temperature form is the one reading that agrees with it. gamma = 0: the model of lowest loss, ties share
    equally; gamma = inf: uniform. A model whose loss is inf or NaN at a client gets nothing there for any finite gamma;
    a client without any finite loss (no data) answers like a new one, uniformly.

    Args:
        losses: `[..., N, K]`, mean loss of model k on client i's training data.
        gamma: temperature, in the unit of the loss, 0 to inf.

    Returns:
        `[..., N, K]`, rows sum to 1.

    Example:
        >>> personal_weights([[1.0, 2.0, 1.0]], 0).tolist()
        [[0.5, 0.0, 0.5]]
    """
    if not gamma >= 0:
        raise BadInput(f"predict.gamma = {gamma}: give a number from 0 (best model only) to inf (plain average)")
    loss = np.asarray(losses, dtype=np.float64)
    if gamma == np.inf:
        return np.full(loss.shape, 1.0 / loss.shape[-1])
    finite = np.isfinite(loss)
    kept = np.where(finite, loss, np.inf)
    lowest = kept.min(axis=-1, keepdims=True)
    gap = kept - np.where(np.isfinite(lowest), lowest, 0.0)  # >= 0, inf where there is no loss
    with np.errstate(over="ignore"):
        odds = (gap == 0).astype(np.float64) if gamma == 0 else np.exp(-gap / gamma)
    odds[~finite.any(axis=-1)] = 1.0
    weights: FloatArray = odds / odds.sum(axis=-1, keepdims=True)
    return weights


def average_for_client(
    outputs: ArrayLike, weights: ArrayLike, client: ArrayLike | None = None, kind: AverageKind = "probabilities"
) -> FloatArray:
    """`f_i(x) = sum_k alpha_ik f_k(x)` (FE eq. 3).

    Args:
        outputs: `[K, n, C]`, raw outputs.
        weights: `[N, K]`, from `personal_weights`.
        client: the client that asks, one number or `[n]`, one for each sample. None: every client asks everything.
        kind: as in `average`.

    Returns:
        `[n, C]`, or `[N, n, C]` without `client`.
    """
    alpha = np.asarray(weights, dtype=np.float64)
    if client is None:
        return np.stack([average(outputs, kind, row) for row in alpha])
    chosen = alpha[np.asarray(client, dtype=np.int64)]  # [K] or [n, K]
    return average(outputs, kind, chosen.T)


class Uncertainty(NamedTuple):
    """Of each sample, in nats, `[n]`: total = data + knowledge."""

    total: FloatArray
    knowledge: FloatArray


def uncertainty(probs: ArrayLike) -> Uncertainty:
    """How unsure an ensemble is, and how much of it its members' disagreement explains.

    total: entropy of the averaged distribution. knowledge: the mutual information, that entropy minus the members' mean
    entropy; 0 for one model. Source: Depeweg et al. 2018, section 3.

    Args:
        probs: `[K, n, C]` probabilities.

    Example:
        >>> uncertainty([[[1.0, 0.0]], [[0.0, 1.0]]]).knowledge.round(4).tolist()
        [0.6931]
    """
    p = np.asarray(probs, dtype=np.float64)
    total = entropies(p.mean(axis=0))
    return Uncertainty(total, np.maximum(total - entropies(p).mean(axis=0), 0.0))


def entropies(probs: ArrayLike) -> FloatArray:
    """Entropy in nats over the last axis: `[..., C]` -> `[...]`; 0 log 0 = 0."""
    p = np.asarray(probs, dtype=np.float64)
    logs = np.log(np.where(p > 0, p, 1.0))
    result: FloatArray = np.maximum(-(p * logs).sum(axis=-1), 0.0)
    return result


def _mean(rows: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Mean over axis 0 of `[K, n, ...]`, weights `[K]` or `[K, n]`. What has weight 0 is not read: it may be NaN."""
    if weights is None:
        result: FloatArray = rows.mean(axis=0)
        return result
    spread = weights.reshape(*weights.shape, *([1] * (rows.ndim - weights.ndim)))
    weighted: FloatArray = (spread * np.where(spread == 0, 0.0, rows)).sum(axis=0)
    return weighted
