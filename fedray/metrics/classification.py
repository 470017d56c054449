"""Scores probabilistic classification, ensembles, and the detection of unknown inputs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedray.core.types import AverageKind, FloatArray, IntArray

# ---------------------------------------------------------------------------------------------------------------------
# Conversions of arrays for the metrics, and the range of a score over the members of an ensemble.


def score_range(name: str, values: Sequence[float]) -> dict[str, float]:
    """Returns the minimum, mean and maximum of a score, with the names `<name>_min`, `<name>_mean` and `<name>_max`.

    Example:
        >>> score_range("rmse", [1.0, 3.0])
        {'rmse_min': 1.0, 'rmse_mean': 2.0, 'rmse_max': 3.0}
    """
    return {f"{name}_min": min(values), f"{name}_mean": float(np.mean(values)), f"{name}_max": max(values)}


def to_floats(values: ArrayLike) -> FloatArray:
    """Converts an array or a CPU tensor to a float64 array."""
    return np.asarray(values, dtype=np.float64)


def to_labels(values: ArrayLike) -> IntArray:
    """Converts an array or a CPU tensor to an int64 array."""
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
    import torch  # not at the top: reports take constants and scores from this file, and compute with NumPy alone

    z = to_floats(logits)
    largest = torch.as_tensor(z).amax(-1, keepdim=True).numpy()  # NumPy takes four times as long over a short axis
    with np.errstate(invalid="ignore"):  # the outputs of a diverged model are NaN
        powers: FloatArray = z - largest
        np.exp(powers, out=powers)
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def average(rows: ArrayLike, weights: ArrayLike | None = None) -> FloatArray:
    """Returns the mean over K models of values `[K, n, ...]`, `[n, ...]`.

    Args:
        rows: The values of each model for n samples, such as probabilities or predicted targets.
        weights: Weight of each model, `[K]`, or of each model for each sample, `[K, n]`. The weights sum to 1 over K.
            None means 1/K. A NaN with the weight 0 does not affect the mean.

    Example:
        >>> average([[[0.5, 0.5]], [[1.0, 0.0]]]).tolist()
        [[0.75, 0.25]]
    """
    values = to_floats(rows)
    if weights is None:
        result: FloatArray = values.mean(axis=0)
        return result
    given = to_floats(weights)
    wide = given.reshape(*given.shape, *([1] * (values.ndim - given.ndim)))
    weighted: FloatArray = (wide * np.where(wide == 0, 0.0, values)).sum(axis=0)
    return weighted


class ClassAnswer(NamedTuple):
    """The predictions of an ensemble of classifiers, and of each of its models.

    Attributes:
        members: Probabilities of each model, `[K, n, C]`.
        mean: Probabilities of the ensemble, `[n, C]`.
    """

    members: FloatArray
    mean: FloatArray


def answer_classes(
    outputs: ArrayLike, kind: AverageKind = "probabilities", weights: ArrayLike | None = None
) -> ClassAnswer:
    """Returns the predicted probabilities of an ensemble of classifiers, and of each of its models.

    The prediction of an ensemble is the mean of its models' predictions (Fed-ensemble eqs. 2 and 3).

    Args:
        outputs: Logits of each model, `[K, n, C]`.
        kind: `probabilities` averages the softmax of each model. `logits` takes the softmax of the averaged logits. The
            scenario's key is `predict.average`.
        weights: Weights of the models, `[K]` or `[K, n]`, as in `average`.

    Example:
        >>> answer = answer_classes([[[0.0, 0.0]], [[50.0, 0.0]]], "logits")
        >>> answer.members.round(3).tolist(), answer.mean.round(3).tolist()
        ([[[0.5, 0.5]], [[1.0, 0.0]]], [[1.0, 0.0]])
    """
    members = probabilities(outputs)
    if kind == "probabilities":  # the softmax of each model is known already
        return ClassAnswer(members, average(members, weights))
    return ClassAnswer(members, probabilities(average(outputs, weights)))


class Moments(NamedTuple):
    """The mean and the variance that an ensemble predicts.

    Attributes:
        mean: The predicted mean, `[n, ...]`.
        variance: The predicted variance, `[n, ...]`.
    """

    mean: FloatArray
    variance: FloatArray


def mixture_moments(
    outputs: ArrayLike, weights: ArrayLike | None = None, variances: ArrayLike | None = None
) -> Moments:
    """Returns the mean and the variance that an ensemble predicts.

    If the models predict only means, the variance of the ensemble is the variance of these means (Fed-ensemble section
    V-B; FedAG eqs. 4-5). This variance is the knowledge uncertainty. If the models also predict variances, the variance
    of the ensemble is the variance of the mixture (deep ensembles, Lakshminarayanan et al. 2017, section 2.4).

    Args:
        outputs: Predicted mean of each model, `[K, n, ...]`.
        weights: Weights of the models, `[K]` or `[K, n]`, as in `average`.
        variances: Predicted variance of each model, `[K, n, ...]`. None means that the models predict no variance.

    Example:
        >>> mixture_moments([[1.0], [3.0]])
        Moments(mean=array([2.]), variance=array([1.]))
    """
    rows = to_floats(outputs)
    mean = average(rows, weights)
    squares = (rows - mean) ** 2
    return Moments(mean, average(squares if variances is None else squares + to_floats(variances), weights))


def weigh_votes(
    weights: FloatArray, votes: NDArray[np.floating[Any]], rows: IntArray, *, finite: bool = True
) -> NDArray[np.floating[Any]]:
    """Returns the weighted mean of the models' votes on some samples, `[n, C]`.

    A vote is the value that an ensemble averages, such as a probability. If one model has all the weight, its votes are
    returned unchanged.

    Args:
        weights: Weight of each member, `[K]`.
        votes: Votes of each member on all samples, `[K, N, C]`.
        rows: Indices of the requested samples, `[n]`.
        finite: Whether all votes are finite. If False, a vote that is NaN makes the result NaN, even if the weight of
            its model is 0.

    Example:
        >>> weigh_votes(np.array([0.0, 1.0]), np.array([[[1.0, 0.0]] * 3, [[0.2, 0.8]] * 3]), np.array([2])).tolist()
        [[0.2, 0.8]]
    """
    best = int(weights.argmax())
    if finite and weights[best] == 1.0 and np.count_nonzero(weights) == 1:
        return np.asarray(votes[best, rows])
    return np.asarray(np.tensordot(weights.astype(votes.dtype), votes[:, rows], axes=1))


def personal_weights(losses: ArrayLike, gamma: float) -> FloatArray:
    """Returns each client's weights over the models, `softmax(-loss / gamma)` (Fed-ensemble eqs. 3-4).

    Client i predicts `f_i(x) = sum_k alpha_ik f_k(x)`, which is `average` with the weights alpha. If gamma is 0, the
    models of lowest loss share all the weight equally. If gamma is infinite, the weights are equal. If gamma is finite,
    a client gives the weight 0 to a model whose loss is infinite or NaN. A client without a finite loss has equal
    weights.

    Deviation: the paper prints exp(-gamma * loss), but its text says that the weights become equal for large gamma.
    Division by gamma agrees with the text.

    Args:
        losses: Mean loss of model k on the training data of client i, `[..., N, K]`.
        gamma: Temperature, in the unit of the loss, 0 to inf.

    Returns:
        The weights alpha, `[..., N, K]`. They sum to 1 over K.

    Example:
        >>> personal_weights([[1.0, 2.0, 1.0]], 0).tolist()
        [[0.5, 0.0, 0.5]]
    """
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
    return np.asarray(odds / odds.sum(axis=-1, keepdims=True))


class Uncertainty(NamedTuple):
    """The uncertainty of an ensemble's prediction for each sample, in nats.

    Attributes:
        total: Entropy of the averaged distribution, `[n]`.
        knowledge: The part of `total` that the members' disagreement explains, `[n]`. The rest is noise in the data.
    """

    total: FloatArray
    knowledge: FloatArray


def uncertainty(probs: ArrayLike, mean: ArrayLike | None = None, weights: FloatArray | None = None) -> Uncertainty:
    """Returns the uncertainty of an ensemble's predictions, and the part that the disagreement of its models explains.

    This part is called knowledge uncertainty. It is the entropy of the mean distribution minus the mean entropy of the
    models. For one model it is 0. Source: Depeweg et al. 2018, section 3.

    Args:
        probs: Probabilities of each model, `[K, n, C]`.
        mean: Averaged probabilities, `[n, C]`. None means the plain mean of `probs`.
        weights: Weights of the models in the mean of their entropies, `[K]` or `[K, n]`. None means equal weights.

    Example:
        >>> uncertainty([[[1.0, 0.0]], [[0.0, 1.0]]]).knowledge.round(4).tolist()
        [0.6931]
    """
    p = to_floats(probs)
    total = entropies(p.mean(axis=0) if mean is None else mean)
    return Uncertainty(total, np.maximum(total - np.average(entropies(p), axis=0, weights=weights), 0.0))


def entropies(probs: ArrayLike) -> FloatArray:
    """Returns the entropy of distributions `[..., C]` in nats, `[...]`, with 0 log 0 = 0."""
    p = to_floats(probs)
    logs = np.log(np.where(p > 0, p, 1.0))
    result: FloatArray = np.maximum(-(p * logs).sum(axis=-1), 0.0)
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Scores of probabilistic classification.
#
# Probabilities are `[n, C]`, labels are `[n]`, and an ensemble has K members. The arrays are NumPy arrays or CPU
# tensors, and everything is computed in float64.

BINS = 15  # of the reliability diagram: Guo et al. 2017, section 2
_EDGES = np.linspace(0.0, 1.0, BINS + 1)


def accuracy(probs: ArrayLike, y: ArrayLike) -> float:
    """Returns the share of the samples whose most probable class is the label.

    Of equally probable classes, the first is predicted.

    Example:
        >>> accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
        0.5
    """
    return float((to_floats(probs).argmax(axis=-1) == to_labels(y)).mean())


def nll(probs: ArrayLike, y: ArrayLike) -> float:
    """Returns the mean of `-log p(label)` in nats.

    A probability p below 2.2e-16 counts as 2.2e-16.
    """
    return float(-_log_likelihoods(to_floats(probs), to_labels(y)).mean())


def _log_likelihoods(probs: FloatArray, y: IntArray) -> FloatArray:
    """Returns `log p(label)` of each sample, `[n]`."""
    return np.asarray(np.log(np.clip(probs[np.arange(len(probs)), y], np.finfo(np.float64).eps, 1.0)))


def brier(probs: ArrayLike, y: ArrayLike) -> float:
    """Returns the mean of `sum_c (p_c - 1[c = label])^2`, which is between 0 and 2 (Brier 1950).

    Example:
        >>> brier([[0.0, 1.0]], [0])
        2.0
    """
    return float(_square_gaps(to_floats(probs), to_labels(y)).mean())


def _square_gaps(probs: FloatArray, y: IntArray) -> FloatArray:
    """Returns the Brier score of each sample, `[n]`."""
    gaps = probs.copy()
    gaps[np.arange(len(gaps)), y] -= 1.0
    return np.asarray((gaps**2).sum(axis=-1))


class Calibration(NamedTuple):
    """The table of a reliability diagram, with an entry for each bin of the confidence.

    The confidence of a prediction is the probability of the predicted class.

    Attributes:
        samples: Number of samples in the bin, `[15]`.
        confidence: Mean confidence of the samples in the bin, `[15]`. An empty bin has NaN.
        accuracy: Accuracy of the samples in the bin, `[15]`. An empty bin has NaN.
    """

    samples: IntArray
    confidence: FloatArray
    accuracy: FloatArray


def calibration(probs: ArrayLike, y: ArrayLike) -> Calibration:
    """Returns the table of a reliability diagram (Guo et al. 2017, section 2).

    Its 15 bins `(lower, upper]` have equal widths.
    """
    confidence, right, index = _find_bins(to_floats(probs), to_labels(y))
    count = np.bincount(index, minlength=BINS)
    filled = np.where(count > 0, count, np.nan)
    sums = (np.bincount(index, weights=v, minlength=BINS) for v in (confidence, right))
    return Calibration(count.astype(np.int64), *(total / filled for total in sums))


def _find_bins(probs: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """Returns for each sample the prediction's confidence, whether the prediction is right, and its bin, `[n]` each."""
    given = probs.argmax(axis=-1)
    confidence, right = probs[np.arange(len(probs)), given], (given == y).astype(np.float64)
    index = np.clip(np.searchsorted(_EDGES, confidence, side="left") - 1, 0, BINS - 1)
    return confidence, right, index


def ece(probs: ArrayLike, y: ArrayLike) -> float:
    """Returns the expected calibration error: the mean of |accuracy - confidence| over the samples.

    Accuracy and confidence are means over the sample's bin. The error is NaN if any probability is NaN.

    Example:
        >>> round(ece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 3)
        0.3
    """
    table = calibration(probs, y)
    gap = np.where(table.samples > 0, table.samples * np.abs(table.accuracy - table.confidence), 0.0)
    return float(gap.sum() / table.samples.sum())


def entropy(probs: ArrayLike) -> float:
    """Returns the mean entropy of the predictions, in nats.

    For the predictions of an ensemble, the result is called "avg entropy" in Fed-ensemble.
    """
    return float(entropies(probs).mean())


def disagreement(members: ArrayLike) -> float:
    """Returns the share of samples for which two models predict different classes, averaged over all pairs of models.

    The share is 0 for a single model, and NaN if a probability is NaN.

    Args:
        members: Probabilities of each member, `[K, n, C]`.
    """
    rows = to_floats(members)
    models, classes = rows.shape[0], rows.shape[-1]
    if np.isnan(rows).any():
        return float("nan")
    if models < 2:
        return 0.0
    given = rows.argmax(axis=-1)
    votes = np.stack([(given == c).sum(axis=0) for c in range(classes)])  # [C, n]
    agreeing = (votes * (votes - 1)).sum(axis=0)
    return float(1.0 - agreeing.mean() / (models * (models - 1)))


def confusion(probs: ArrayLike, y: ArrayLike) -> IntArray:
    """Returns the number of samples with each label (row) and each predicted class (column), `[C, C]`.

    Example:
        >>> confusion([[0.9, 0.1], [0.8, 0.2]], [0, 1]).tolist()
        [[1, 0], [1, 0]]
    """
    rows = to_floats(probs)
    classes = rows.shape[-1]
    cells = np.bincount(to_labels(y) * classes + rows.argmax(axis=-1), minlength=classes**2)
    return cells.reshape(classes, classes).astype(np.int64)


def f1_scores(probs: ArrayLike, y: ArrayLike) -> dict[str, float]:
    """Returns two means of the F1 scores of all classes.

    The F1 score of a class is `2 h / (p + n)`. Here n samples have the label of this class, p samples are predicted as
    this class, and h samples are both.

    Returns:
        `f1_weighted` weighs each class by the number of samples with its label. `f1_macro` is the plain mean over the
        classes that occur as a label or as a prediction.

    Example:
        >>> f1_scores([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.2, 0.8]], [0, 0, 1, 1])
        {'f1_weighted': 0.7333..., 'f1_macro': 0.7333...}
    """
    table = confusion(probs, y)
    true, given = table.sum(axis=1), table.sum(axis=0)
    f1 = 2.0 * np.diag(table) / np.maximum(true + given, 1)
    return {"f1_weighted": float((f1 * true).sum() / true.sum()), "f1_macro": float(f1[true + given > 0].mean())}


def classification_scores(members: ArrayLike, y: ArrayLike, answer: ArrayLike | None = None) -> dict[str, float]:
    """Returns all scores of an ensemble of classifiers.

    `members` has the probabilities of each model, `[K, n, C]`. `answer` has the probabilities of the ensemble,
    `[n, C]`. None means the mean over the members.

    Returns:
        The scores accuracy, f1_weighted, f1_macro, nll, brier, ece and entropy describe the ensemble. The scores
        disagreement, accuracy_min, accuracy_mean and accuracy_max compare its models.
    """
    rows = to_floats(members)
    whole = to_floats(rows.mean(axis=0) if answer is None else answer)
    scores = {"accuracy": accuracy(whole, y), **f1_scores(whole, y), "nll": nll(whole, y), "brier": brier(whole, y)}
    scores |= {"ece": ece(whole, y), "entropy": entropy(whole), "disagreement": disagreement(rows)}
    return scores | score_range("accuracy", [accuracy(row, y) for row in rows])


def row_scores(probs: ArrayLike, y: ArrayLike) -> FloatArray:
    """Returns 18 values of each sample, `[18, n]`. From their means, `scores_of_means` computes scores.

    The first value is 1 if the prediction is right, and 0 otherwise. The second value is the negative log-likelihood,
    and the third is the Brier score. There is one further value for each of 15 bins of the confidence. For the
    sample's own bin it is the confidence minus the first value, and for all other bins it is 0.
    """
    rows, labels = to_floats(probs), to_labels(y)
    confidence, right, index = _find_bins(rows, labels)
    gaps = np.zeros((BINS, len(right)))
    gaps[index, np.arange(len(right))] = confidence - right
    return np.concatenate([np.stack([right, -_log_likelihoods(rows, labels), _square_gaps(rows, labels)]), gaps])


def scores_of_means(means: FloatArray) -> dict[str, float]:
    """Computes accuracy, nll, brier and ece from the means of the 18 values of `row_scores`, `[18]`.

    Example:
        >>> rows = row_scores([[0.8, 0.2], [0.8, 0.2]], [0, 1])
        >>> {name: round(value, 3) for name, value in scores_of_means(rows.mean(axis=1)).items()}
        {'accuracy': 0.5, 'nll': 0.916, 'brier': 0.68, 'ece': 0.3}
    """
    found = dict(zip(("accuracy", "nll", "brier"), means[:3].tolist(), strict=True))
    return found | {"ece": float(np.abs(means[3:]).sum())}


def member_scores(members: ArrayLike, y: ArrayLike) -> dict[str, list[float]]:
    """Returns accuracy, nll, brier, ece and entropy of each member of an ensemble, `[K]` each.

    `members` has the probabilities of each model, `[K, n, C]`.

    Example:
        >>> member_scores([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]], [0, 1])["accuracy"]
        [1.0, 0.5]
    """
    rows, scores = to_floats(members), {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": ece}
    found = {name: [score(member, y) for member in rows] for name, score in scores.items()}
    return found | {"entropy": [entropy(member) for member in rows]}


# ---------------------------------------------------------------------------------------------------------------------
# The agreement of the models that clients prefer with the true clusters of clients.


def compare_clusters(true: IntArray, weights: ArrayLike) -> float:
    """Returns the adjusted Rand index between the true clusters of clients and the groups that prefer the same model.

    A client prefers the model to which it gives the largest weight. The index is 1 if the groups equal the clusters,
    and about 0 for random groups. Source: Hubert and Arabie 1985, computed by scikit-learn.

    Args:
        true: The true cluster of each of N clients, `[N]`. Only the first n clients are compared, because only they
            have weights.
        weights: The weights that each of the first n clients gives to the models, `[n, K]`. If several models have the
            largest weight, the client prefers the first of them.

    Example:
        >>> compare_clusters(np.array([0, 0, 1, 1]), np.array([[0.1, 0.9], [0.0, 1.0], [0.8, 0.2], [1.0, 0.0]]))
        1.0
    """
    from sklearn.metrics import adjusted_rand_score

    chosen = np.asarray(weights).argmax(axis=1)
    return float(adjusted_rand_score(true[: len(chosen)], chosen))


# ---------------------------------------------------------------------------------------------------------------------
# Scores of out-of-distribution detection.
#
# Source: Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural
# Networks", ICLR 2017.

MISSED = 20  # in `fpr95`, a detector may miss one of 20 unknown inputs
DIGITS = 9  # uncertainties are rounded, because entropies of the same shares differ by rounding errors


def auroc(unknown: ArrayLike, known: ArrayLike) -> float:
    """Returns the area under the ROC curve: the probability that an unknown input is more uncertain than a known input.

    A tie counts as a half. The area is NaN if an uncertainty is not finite, or if there are no known or no unknown
    inputs.

    Example:
        >>> auroc([0.9, 0.3], [0.1, 0.1 + 0.2])
        0.875
    """
    high, low = to_floats(unknown).round(DIGITS), np.sort(to_floats(known).round(DIGITS))
    if not (len(high) and len(low) and np.isfinite(high).all() and np.isfinite(low).all()):
        return float("nan")
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2 * len(low)))


def fpr95(unknown: ArrayLike, known: ArrayLike) -> float:
    """Returns the share of known inputs that a detector takes for unknown.

    The detector takes an input for unknown if its uncertainty reaches a threshold. The threshold is the largest value
    with which the detector finds at least 95 % of the unknown inputs.

    Example:
        >>> fpr95([0.9, 0.8, 0.7], [0.1, 0.2, 0.75, 0.95])
        0.5
    """
    high, low = np.sort(to_floats(unknown).round(DIGITS)), to_floats(known).round(DIGITS)
    if not (len(high) and len(low) and np.isfinite(high).all() and np.isfinite(low).all()):
        return float("nan")
    return float((low >= high[len(high) // MISSED]).mean())


# ---------------------------------------------------------------------------------------------------------------------
# Data drift. If the data of a client differ from the data on which the models were trained, the models disagree. So the
# client's knowledge uncertainty is larger than that of other clients. The scores are z-scores over the clients, and
# need no labels. SCAFFOLD's "client drift" is something else. It says how far the local training of a client leads away
# from the minimum of the global loss.

# A client is an anomaly if it is more than this number of standard deviations from the mean of the clients (the
# three-sigma rule). Among N clients no z-score exceeds sqrt(N - 1), so with fewer than 11 clients no client is flagged.
ANOMALY_Z = 3.0
# Differences of this size, relative to the largest value, come from rounding, because models predict in float32.
ROUNDING = 1e-6


class Drift(NamedTuple):
    """Drift scores, which say how much the data of each client differ from the data of other clients.

    Attributes:
        total: Mean total uncertainty of the predictions for each client's data, `[N]`. A client without data has NaN.
        knowledge: Mean knowledge uncertainty, `[N]`: the part of `total` that the models' disagreement explains. A
            client without data has NaN.
        z_total: The z-scores of `total` over the clients, `[N]`.
        z_knowledge: The drift scores, which are the z-scores of `knowledge` over the clients, `[N]`.
        anomaly: Whether `|z_knowledge|` is above 3, `[N]`.
    """

    total: FloatArray
    knowledge: FloatArray
    z_total: FloatArray
    z_knowledge: FloatArray
    anomaly: NDArray[np.bool_]


def score_drift(total: ArrayLike, knowledge: ArrayLike) -> Drift:
    """Computes the drift scores of N clients from the uncertainties of predictions for their data.

    Args:
        total: Mean total uncertainty on each client's data, `[N]`, in nats or squared target units. A client without
            data has NaN.
        knowledge: Mean knowledge uncertainty on each client's data, `[N]`, in the unit of `total`.

    Example:
        >>> drift = score_drift(total=[0.5] * 20, knowledge=[0.1] * 19 + [0.9])
        >>> drift.z_knowledge[[0, 19]].round(2).tolist()
        [-0.23, 4.36]
        >>> np.flatnonzero(drift.anomaly).tolist()
        [19]
    """
    z = z_scores(knowledge)
    anomaly = np.abs(np.nan_to_num(z)) > ANOMALY_Z
    return Drift(np.asarray(total, np.float64), np.asarray(knowledge, np.float64), z_scores(total), z, anomaly)


def z_scores(values: ArrayLike) -> FloatArray:
    """Returns the z-scores `(v - mean) / sd` of values v, `[N]`. A value that is not finite has the z-score NaN.

    Mean and sd are over the finite values. If all finite values are equal up to rounding, their z-scores are 0.

    Example:
        >>> z_scores([1.0, 3.0, np.nan]).tolist()
        [-1.0, 1.0, nan]
    """
    v = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(v)
    if not finite.any():
        return np.full(v.shape, np.nan)
    centered, sd = v - v[finite].mean(), v[finite].std()
    scores = np.zeros_like(v) if sd <= ROUNDING * np.abs(v[finite]).max() else centered / sd
    return np.where(finite, scores, np.nan)
