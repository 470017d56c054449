"""Scores of probabilistic classification."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedray.core.types import FloatArray, IntArray
from fedray.metrics.ensemble import entropies, score_range, to_floats, to_labels

# ---------------------------------------------------------------------------------------------------------------------
# Probabilities are `[n, C]` and labels `[n]`; an ensemble has K members. They are NumPy arrays or CPU tensors, and
# everything is computed in float64.

BINS = 15  # of the reliability diagram: Guo et al. 2017, section 2


def accuracy(probs: ArrayLike, y: ArrayLike) -> float:
    """Returns the share of the samples whose most probable class is the label; in a tie, the first class counts.

    Example:
        >>> accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
        0.5
    """
    return float((to_floats(probs).argmax(axis=-1) == to_labels(y)).mean())


def nll(probs: ArrayLike, y: ArrayLike) -> float:
    """Returns the mean of `-log p(label)` in nats; a probability below 2.2e-16 counts as 2.2e-16."""
    return float(-_log_likelihoods(to_floats(probs), to_labels(y)).mean())


def _log_likelihoods(probs: FloatArray, y: IntArray) -> FloatArray:
    """Returns `log p(label)` of each sample, `[n]`."""
    return np.asarray(np.log(np.clip(probs[np.arange(len(probs)), y], np.finfo(np.float64).eps, 1.0)))


def brier(probs: ArrayLike, y: ArrayLike) -> float:
    """Returns the mean of `sum_c (p_c - 1[c = label])^2`, 0 to 2 (Brier 1950).

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
    """The table of a reliability diagram, one entry for each bin of the confidence.

    Attributes:
        lower: Lower end of the bin, `[bins]`.
        upper: Upper end of the bin, `[bins]`.
        samples: Number of samples in the bin, `[bins]`.
        confidence: Mean confidence of the samples in the bin, `[bins]`; NaN in an empty bin.
        accuracy: Accuracy of the samples in the bin, `[bins]`; NaN in an empty bin.
    """

    lower: FloatArray
    upper: FloatArray
    samples: IntArray
    confidence: FloatArray
    accuracy: FloatArray


def calibration(probs: ArrayLike, y: ArrayLike, bins: int = BINS) -> Calibration:
    """Returns the accuracy by confidence, in bins `(lower, upper]` of equal width (Guo et al. 2017, section 2).

    Args:
        probs: Probabilities, `[n, C]`.
        y: Labels, `[n]`.
        bins: Number of bins.
    """
    edges = np.linspace(0.0, 1.0, bins + 1)
    confidence, right, index = _find_bins(to_floats(probs), to_labels(y), edges)
    count = np.bincount(index, minlength=bins)
    filled = np.where(count > 0, count, np.nan)
    sums = (np.bincount(index, weights=v, minlength=bins) for v in (confidence, right))
    means = [total / filled for total in sums]
    return Calibration(edges[:-1], edges[1:], count.astype(np.int64), means[0], means[1])


def _find_bins(probs: FloatArray, y: IntArray, edges: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """Returns for each sample the confidence, whether the prediction is right, and the number of the bin."""
    given = probs.argmax(axis=-1)
    confidence, right = probs[np.arange(len(probs)), given], (given == y).astype(np.float64)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)
    return confidence, right, index


def ece(probs: ArrayLike, y: ArrayLike, bins: int = BINS) -> float:
    """Returns the expected calibration error: the mean over the samples of |accuracy - confidence| of their bins.

    The error is NaN if a prediction holds NaN.

    Args:
        probs: Probabilities, `[n, C]`.
        y: Labels, `[n]`.
        bins: Number of bins.

    Example:
        >>> round(ece([[0.8, 0.2], [0.8, 0.2]], [0, 1]), 3)
        0.3
    """
    table = calibration(probs, y, bins)
    gap = np.where(table.samples > 0, table.samples * np.abs(table.accuracy - table.confidence), 0.0)
    return float(gap.sum() / table.samples.sum())


def entropy(probs: ArrayLike) -> float:
    """Returns the mean entropy in nats; for the averaged distribution of an ensemble, the "avg entropy" of FE."""
    return float(entropies(probs).mean())


def disagreement(members: ArrayLike) -> float:
    """Returns the share of all pairs of members, over all samples, whose most probable classes differ.

    The share is 0 for a single member, and NaN if a probability is NaN.

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
    """Returns the number of samples of each label (row) for which each class (column) was predicted, `[C, C]`.

    Example:
        >>> confusion([[0.9, 0.1], [0.8, 0.2]], [0, 1]).tolist()
        [[1, 0], [1, 0]]
    """
    rows = to_floats(probs)
    classes = rows.shape[-1]
    cells = np.bincount(to_labels(y) * classes + rows.argmax(axis=-1), minlength=classes**2)
    return cells.reshape(classes, classes).astype(np.int64)


def f1_scores(probs: ArrayLike, y: ArrayLike) -> dict[str, float]:
    """Returns two means over the classes of F1 = 2 hits / (predicted + true).

    Returns:
        `f1_weighted`: the mean weighted by how often each class is the label. `f1_macro`: the plain mean over the
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

    Args:
        members: Probabilities of each model, `[K, n, C]`.
        y: Labels, `[n]`.
        answer: The ensemble's probabilities, `[n, C]`; None means the mean of the members' probabilities.

    Returns:
        Scores of the ensemble: accuracy, f1_weighted, f1_macro, nll, brier, ece and entropy. Scores over its members:
        disagreement, accuracy_min, accuracy_mean and accuracy_max.
    """
    rows = to_floats(members)
    whole = to_floats(rows.mean(axis=0) if answer is None else answer)
    scores = {"accuracy": accuracy(whole, y), **f1_scores(whole, y), "nll": nll(whole, y), "brier": brier(whole, y)}
    scores |= {"ece": ece(whole, y), "entropy": entropy(whole), "disagreement": disagreement(rows)}
    return scores | score_range("accuracy", [accuracy(row, y) for row in rows])


def row_scores(probs: ArrayLike, y: ArrayLike) -> FloatArray:
    """Returns numbers of each sample, from whose (weighted) means `scores_of_means` computes scores, `[3 + BINS, n]`.

    The numbers are: 1 if the prediction is right, else 0; the negative log-likelihood; the Brier score; and one number
    for each bin of the confidence. In the sample's own bin that number is its confidence minus the first number; in all
    other bins it is 0.

    Args:
        probs: Probabilities, `[n, C]`.
        y: Labels, `[n]`.
    """
    rows, labels = to_floats(probs), to_labels(y)
    confidence, right, index = _find_bins(rows, labels, np.linspace(0.0, 1.0, BINS + 1))
    gaps = np.zeros((BINS, len(right)))
    gaps[index, np.arange(len(right))] = confidence - right
    return np.concatenate([np.stack([right, -_log_likelihoods(rows, labels), _square_gaps(rows, labels)]), gaps])


def scores_of_means(means: FloatArray) -> dict[str, float]:
    """Returns accuracy, nll, brier and ece from the means `[3 + BINS]` of the numbers of `row_scores`.

    Example:
        >>> rows = row_scores([[0.8, 0.2], [0.8, 0.2]], [0, 1])
        >>> {name: round(value, 3) for name, value in scores_of_means(rows.mean(axis=1)).items()}
        {'accuracy': 0.5, 'nll': 0.916, 'brier': 0.68, 'ece': 0.3}
    """
    found = dict(zip(("accuracy", "nll", "brier"), means[:3].tolist(), strict=True))
    return found | {"ece": float(np.abs(means[3:]).sum())}


def member_scores(members: ArrayLike, y: ArrayLike) -> dict[str, list[float]]:
    """Returns the scores of each member of an ensemble alone, `[K]` each: accuracy, nll, brier, ece and entropy.

    Args:
        members: Probabilities of each model, `[K, n, C]`.
        y: Labels, `[n]`.

    Example:
        >>> member_scores([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]], [0, 1])["accuracy"]
        [1.0, 0.5]
    """
    rows, scores = to_floats(members), {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": ece}
    found = {name: [score(member, y) for member in rows] for name, score in scores.items()}
    return found | {"entropy": [entropy(member) for member in rows]}


# ---------------------------------------------------------------------------------------------------------------------
# How well models tell clusters of clients apart.


def compare_clusters(true: IntArray, weights: ArrayLike) -> float:
    """Returns the adjusted Rand index of two groupings of clients: by the model of largest weight, and by true cluster.

    It is 1 for the same clusters, whatever their numbers, and about 0 by chance. Source: Hubert and Arabie 1985,
    computed by scikit-learn.

    Args:
        true: The true cluster of each client, `[N]`; only the first n clients count.
        weights: The weights that each of the first n clients gives to the models, `[n, K]`; of equal ones the first
            counts.

    Example:
        >>> compare_clusters(np.array([0, 0, 1, 1]), np.array([[0.1, 0.9], [0.0, 1.0], [0.8, 0.2], [1.0, 0.0]]))
        1.0
    """
    from sklearn.metrics import adjusted_rand_score

    chosen = np.asarray(weights).argmax(axis=1)
    return float(adjusted_rand_score(true[: len(chosen)], chosen))
