"""How the predictions of models become one, and how uncertain the result is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedray.core.errors import BadInput
from fedray.core.types import AverageKind, FloatArray, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# Conversions of arrays for the metrics, and the range of a score over the members of an ensemble.


def score_range(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns minimum, mean and maximum of a score under the names `<name>_min`, `<name>_mean` and `<name>_max`.

    Example:
        >>> score_range("rmse", [1.0, 3.0])
        {'rmse_min': 1.0, 'rmse_mean': 2.0, 'rmse_max': 3.0}
    """
    return {f"{name}_min": min(values), f"{name}_mean": float(np.mean(values)), f"{name}_max": max(values)}


def to_floats(values: ArrayLike) -> FloatArray:
    """Returns the values as a float64 array; CPU tensors are allowed, too."""
    return np.asarray(values, dtype=np.float64)


def to_labels(values: ArrayLike) -> IntArray:
    """Returns the values as an int64 array; CPU tensors are allowed, too."""
    return np.asarray(values, dtype=np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# There are K models, n samples, C outputs and N clients. Arrays are NumPy arrays or CPU tensors, and everything is
# computed in float64.


def probabilities(logits: ArrayLike) -> FloatArray:
    """Returns the softmax of logits `[..., C]` over the last axis.

    Example:
        >>> probabilities([[1000.0, 1000.0], [0.0, -np.inf]]).tolist()
        [[0.5, 0.5], [1.0, 0.0]]
    """
    z = to_floats(logits)
    largest = torch.as_tensor(z).amax(-1, keepdim=True).numpy()  # NumPy takes four times as long over a short axis
    with np.errstate(invalid="ignore"):  # the outputs of a diverged model are NaN
        powers: FloatArray = z - largest
        np.exp(powers, out=powers)
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def average(outputs: ArrayLike, kind: AverageKind = "probabilities", weights: ArrayLike | None = None) -> FloatArray:
    """Returns the prediction of an ensemble, the mean of its models (FE eq. 2; eq. 3 with weights).

    Args:
        outputs: Raw outputs of each model, `[K, n, C]` (logits, for classification).
        kind: `probabilities` averages the softmax of each model. `logits` takes the softmax of the averaged logits.
            `outputs` averages the raw outputs (for regression; the axes after K and n may be any).
        weights: Weight of each model, `[K]`, or of each model for each sample, `[K, n]`. They sum to 1 over K; None
            means 1/K.

    Returns:
        The average, `[n, C]`.

    Example:
        >>> average([[[0.0, 0.0]], [[50.0, 0.0]]]).round(3).tolist()
        [[0.75, 0.25]]
    """
    mean = _mean(to_floats(member_votes(outputs, kind)), None if weights is None else to_floats(weights))
    return probabilities(mean) if kind == "logits" else mean


def member_votes(outputs: ArrayLike, kind: AverageKind) -> FloatArray:
    """Returns what each model adds to the average; the class of the ensemble is the largest entry of their mean.

    Args:
        outputs: Raw outputs of each model, `[K, n, C]`.
        kind: What is averaged, as in `average`.

    Returns:
        Probabilities in float64, or the raw outputs unchanged, `[K, n, C]`.

    Raises:
        BadInput: The kind is unknown.
    """
    if kind == "probabilities":
        return probabilities(outputs)
    if kind in ("logits", "outputs"):
        return np.asarray(outputs)
    raise BadInput(f"predict.average = {kind}: choose probabilities or logits")


class ClassAnswer(NamedTuple):
    """The prediction of an ensemble of classifiers, and those of its members.

    Attributes:
        members: Probabilities of each model, `[K, n, C]`.
        mean: Probabilities of the ensemble, `[n, C]`.
    """

    members: FloatArray
    mean: FloatArray


def answer_classes(
    outputs: ArrayLike, kind: AverageKind = "probabilities", weights: ArrayLike | None = None
) -> ClassAnswer:
    """Returns the probabilities that an ensemble of classifiers predicts, and those of its members.

    Args:
        outputs: Logits of each model, `[K, n, C]`.
        kind: What is averaged, as in `average`; the scenario key `predict.average`.
        weights: Weights of the models, `[K]` or `[K, n]`, as in `average`.

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
    """Mean and variance of an ensemble's prediction.

    Attributes:
        mean: The predicted mean, `[n, ...]`.
        variance: The predicted variance, `[n, ...]`.
    """

    mean: FloatArray
    variance: FloatArray


def mixture_moments(
    outputs: ArrayLike, weights: ArrayLike | None = None, variances: ArrayLike | None = None
) -> Moments:
    """Returns mean and variance over the models.

    The variance over the models is their knowledge uncertainty (FE section V-B; FedAG eqs. 4-5). Where the models
    predict variances of their own, the result is the variance of the mixture (deep ensembles: Lakshminarayanan et al.
    2017, section 2.4).

    Args:
        outputs: Predicted mean of each model, `[K, n, ...]`.
        weights: Weights of the models, `[K]` or `[K, n]`, as in `average`.
        variances: Predicted variance of each model, `[K, n, ...]`; None if the models predict no variance.

    Example:
        >>> mixture_moments([[1.0], [3.0]])
        Moments(mean=array([2.]), variance=array([1.]))
    """
    rows, w = to_floats(outputs), None if weights is None else to_floats(weights)
    mean = _mean(rows, w)
    squares = (rows - mean) ** 2
    return Moments(mean, _mean(squares if variances is None else squares + to_floats(variances), w))


def weigh_votes(
    weights: FloatArray, votes: NDArray[np.floating[Any]], rows: IntArray, *, finite: bool = True
) -> NDArray[np.floating[Any]]:
    """Returns the weighted mean of the members' votes on some samples, `[n, C]`.

    The votes of a member that has all weight are returned unchanged.

    Args:
        weights: Weight of each member, `[K]`.
        votes: Votes of each member on all samples, `[K, N, C]`.
        rows: Indices of the requested samples, `[n]`.
        finite: Whether all votes are finite. If not, NaN of a member of weight 0 makes the result NaN.

    Example:
        >>> weigh_votes(np.array([0.0, 1.0]), np.array([[[1.0, 0.0]] * 3, [[0.2, 0.8]] * 3]), np.array([2])).tolist()
        [[0.2, 0.8]]
    """
    best = int(weights.argmax())
    if finite and weights[best] == 1.0 and np.count_nonzero(weights) == 1:
        return np.asarray(votes[best, rows])
    return np.asarray(np.tensordot(weights.astype(votes.dtype), votes[:, rows], axes=1))


def personal_weights(losses: ArrayLike, gamma: float) -> FloatArray:
    """Returns each client's weights over the models: `softmax(-loss / gamma)` (FE eqs. 3-4).

    Client i predicts `f_i(x) = sum_k alpha_ik f_k(x)`, which is `average` with the weights alpha. With gamma = 0 the
    model of lowest loss has all weight, and ties share it equally; with gamma = inf the weights are equal. A model
    whose loss is infinite or NaN at a client has weight 0 there for any finite gamma. A client without any finite loss
    (one that has no data) has equal weights, like a new client.

    Deviation: the paper prints exp(-gamma * loss). This contradicts the paper's text, by which the weights become equal
    for large gamma. The form with a temperature agrees with the text.

    Args:
        losses: Mean loss of model k on the training data of client i, `[..., N, K]`.
        gamma: Temperature, in the unit of the loss, 0 to inf.

    Returns:
        The weights alpha, `[..., N, K]`, which sum to 1 over K.

    Example:
        >>> personal_weights([[1.0, 2.0, 1.0]], 0).tolist()
        [[0.5, 0.0, 0.5]]
    """
    if not gamma >= 0:
        raise BadInput(f"predict.gamma = {gamma}: give a number from 0 (best model only) to inf (plain average)")
    loss = to_floats(losses)
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


class Uncertainty(NamedTuple):
    """The uncertainty about each sample, in nats.

    Attributes:
        total: Entropy of the averaged distribution, `[n]`.
        knowledge: The part of `total` that the members' disagreement explains, `[n]`; the rest lies in the data.
    """

    total: FloatArray
    knowledge: FloatArray


def uncertainty(probs: ArrayLike) -> Uncertainty:
    """Returns how uncertain an ensemble is about each sample, and the part that the members' disagreement explains.

    The knowledge uncertainty is the mutual information: the total uncertainty minus the members' mean entropy. It is 0
    for one model. Source: Depeweg et al. 2018, section 3.

    Args:
        probs: Probabilities of each model, `[K, n, C]`.

    Example:
        >>> uncertainty([[[1.0, 0.0]], [[0.0, 1.0]]]).knowledge.round(4).tolist()
        [0.6931]
    """
    p = to_floats(probs)
    total = entropies(p.mean(axis=0))
    return Uncertainty(total, np.maximum(total - entropies(p).mean(axis=0), 0.0))


def entropies(probs: ArrayLike) -> FloatArray:
    """Returns the entropy of distributions `[..., C]` in nats, `[...]`; 0 log 0 is 0."""
    p = to_floats(probs)
    logs = np.log(np.where(p > 0, p, 1.0))
    result: FloatArray = np.maximum(-(p * logs).sum(axis=-1), 0.0)
    return result


def _mean(rows: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Returns the mean of `[K, n, ...]` over the models, with weights `[K]` or `[K, n]`; at weight 0, NaN counts 0."""
    if weights is None:
        result: FloatArray = rows.mean(axis=0)
        return result
    wide = weights.reshape(*weights.shape, *([1] * (rows.ndim - weights.ndim)))
    weighted: FloatArray = (wide * np.where(wide == 0, 0.0, rows)).sum(axis=0)
    return weighted
