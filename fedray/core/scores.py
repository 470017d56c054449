"""Defines the unit, name and meaning of each score of fedray, and says which values are better.

Example:
    >>> find_score("hold_out_rmse_mean")[:3]
    ('target units', True, "members' mean RMSE")
    >>> find_score("rmse_of_ours") is None  # a metric of your own, or a mistake
    True
"""

import re
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")
SHARE, NATS, TARGET, SQUARED, LABELS = "share", "nats", "target units", "squared target units", "labels"
CLIENTS, BYTES = "clients", "bytes"
HIGHER, LOWER, NEITHER = False, True, None


class Score(NamedTuple):
    """A score of fedray.

    Attributes:
        unit: Unit of the score. It may be empty. A score of unit `share` is from 0 to 1 and is printed in percent.
        lower: Whether lower values are better. None means that no direction is better.
        name: Name of the score on pages, in tables, in the live view and in the summary.
        text: Meaning of the score.
    """

    unit: str
    lower: bool | None
    name: str
    text: str


SCORES = {
    "accuracy": Score(SHARE, HIGHER, "accuracy", "rows that are predicted correctly"),
    "f1_weighted": Score(SHARE, HIGHER, "weighted F1", "mean F1 of the classes, weighted by frequency"),
    "f1_macro": Score(SHARE, HIGHER, "macro F1", "F1, the plain mean over the classes"),
    "nll": Score(NATS, LOWER, "NLL", "negative log likelihood of a row"),
    "brier": Score("", LOWER, "Brier score", "Brier score of a row, summed over the classes: 0 to 2"),
    "ece": Score(SHARE, LOWER, "calibration error", "mean distance of confidence and accuracy, in 15 bins"),
    "entropy": Score(NATS, NEITHER, "entropy", "entropy of the prediction"),
    "disagreement": Score(SHARE, NEITHER, "disagreement", "pairs of members that predict different classes"),
    "rmse": Score(TARGET, LOWER, "RMSE", "root mean squared error"),
    "crps": Score(TARGET, LOWER, "CRPS", "continuous ranked probability score"),
    "coverage_50": Score(SHARE, NEITHER, "coverage 50", "targets inside the central 50 % interval"),
    "coverage_90": Score(SHARE, NEITHER, "coverage 90", "targets inside the central 90 % interval"),
    "coverage_95": Score(SHARE, NEITHER, "95 % coverage", "targets inside the central 95 % interval"),
    "width_95": Score(TARGET, LOWER, "width 95", "mean width of the 95 % interval"),
    "sharpness": Score(TARGET, LOWER, "sharpness", "mean predicted standard deviation"),
    "sharpness_geometric": Score(TARGET, LOWER, "sharpness geometric", "geometric mean of the predicted sd"),
    "nll_none": Score(NATS, LOWER, "NLL without noise", "negative log likelihood without observation noise"),
    "nll_residual": Score(NATS, LOWER, "NLL with residual noise", "NLL with the residual variance as noise"),
    "residual_sd": Score(TARGET, NEITHER, "residual sd", "root of the mean variance of training residuals"),
    "bias2": Score(SQUARED, LOWER, "bias2", "squared bias of the replicates' mean prediction"),
    "variance": Score(SQUARED, LOWER, "variance", "variance of the prediction over the replicates"),
    "noise": Score(SQUARED, NEITHER, "noise", "variance of the noise in a toy's targets"),
    "accuracy_average": Score(SHARE, HIGHER, "plain average's accuracy", "accuracy of a stack's plain average"),
    "f1_average": Score(SHARE, HIGHER, "f1 average", "weighted F1 of the plain average of a stack's sub models"),
    "rmse_average": Score(TARGET, LOWER, "plain average's RMSE", "RMSE of the plain average of a stack's sub models"),
    "ood_auroc": Score(SHARE, HIGHER, "OOD AUROC", "pairs in which an OOD input has more entropy than a row"),
    "ood_auroc_knowledge": Score(SHARE, HIGHER, "OOD AUROC by disagreement", "`ood_auroc` by knowledge uncertainty"),
    "ood_fpr95": Score(SHARE, LOWER, "OOD FPR at 95 %", "rows mistaken for OOD if 95 % of OOD inputs are found"),
    "ood_entropy": Score(NATS, NEITHER, "OOD entropy", "entropy of the predictions for out-of-distribution inputs"),
    "personal_accuracy": Score(
        SHARE,
        HIGHER,
        "personalized accuracy",
        "mean accuracy of the known clients, each with its own weights or models, if it has any",
    ),
    "personal_p10": Score(
        SHARE, HIGHER, "personalized accuracy, 10th percentile", "10th percentile of the known clients' accuracies"
    ),
    "personal_worst": Score(SHARE, HIGHER, "personalized accuracy, worst client", "accuracy of the worst known client"),
    "personal_rmse": Score(TARGET, LOWER, "personalized RMSE", "mean RMSE of the known clients"),
    "personal_rmse_p90": Score(
        TARGET, LOWER, "personalized RMSE, 90th percentile", "90th percentile of the known clients' RMSE"
    ),
    "personal_rmse_worst": Score(TARGET, LOWER, "personalized RMSE, worst client", "RMSE of the worst known client"),
    "personal_nll": Score(NATS, LOWER, "personalized NLL", "mean negative log likelihood of the known clients' rows"),
    "personal_brier": Score("", LOWER, "personalized Brier score", "mean Brier score of the known clients' rows"),
    "personal_ece": Score(SHARE, LOWER, "personalized calibration error", "calibration error of the known clients"),
    "personal_coverage_95": Score(
        SHARE, NEITHER, "personalized 95 % coverage", "known clients' targets inside their intervals"
    ),
    "personal_width_95": Score(TARGET, LOWER, "personalized width 95", "mean width of the known clients' intervals"),
    "cluster_ari": Score("", HIGHER, "cluster ari", "adjusted Rand index of best models and true clusters, at most 1"),
    "conformal_coverage": Score(SHARE, NEITHER, "coverage of the sets", "rows whose true value is in their set"),
    "conformal_coverage_clients": Score(
        SHARE,
        NEITHER,
        "coverage of the sets, known clients",
        "coverage of known clients, weighted by withheld rows plus 1",
    ),
    "conformal_coverage_client_worst": Score(
        SHARE, NEITHER, "coverage of the sets, worst client", "coverage of the worst known client"
    ),
    "conformal_coverage_class": Score(SHARE, NEITHER, "conformal coverage class", "coverage of each class, a list"),
    "conformal_coverage_class_worst": Score(
        SHARE, NEITHER, "coverage of the sets, worst class", "coverage of the worst class"
    ),
    "conformal_size": Score(LABELS, LOWER, "labels in a set", "mean size of the conformal sets"),
    "conformal_size_clients": Score(
        LABELS, LOWER, "labels in a set, known clients", "set size of known clients, weighted by withheld rows plus 1"
    ),
    "conformal_width": Score(TARGET, LOWER, "width of the intervals", "mean width of the conformal intervals"),
    "conformal_width_clients": Score(
        TARGET,
        LOWER,
        "width of the intervals, known clients",
        "interval width of known clients, weighted by withheld rows plus 1",
    ),
    "conformal_threshold": Score("", NEITHER, "threshold of the sets", "the largest score inside of a conformal set"),
    "conformal_bytes": Score(
        BYTES,
        LOWER,
        "bytes for the threshold",
        "what all clients send once for the threshold of a model; not in `up_bytes`",
    ),
}
# suffix of accuracy and rmse -> (meaning, name if higher values are better, name if lower values are better)
_DERIVED = {
    "min": ("least of the members", "worst member's", "best member's"),
    "mean": ("mean over the members", "members' mean", "members' mean"),
    "max": ("largest of the members", "best member's", "worst member's"),
    "last3": ("mean of the last 3 evaluated rounds", "last 3 rounds' mean", "last 3 rounds' mean"),
}
NUMBERED = {
    r"personal_.+_clients": (CLIENTS, "known clients for which the metric is defined; the mean is over these clients"),
    r"accuracy_base_\d+(_fold_\d+)?": (SHARE, "accuracy of one base of a stack, or of its sub models of one fold"),
    r"rmse_base_\d+(_fold_\d+)?": (TARGET, "RMSE of one base of a stack, or of its sub models of one fold"),
}


OOD = ("ood_auroc", "ood_auroc_knowledge", "ood_fpr95", "ood_entropy")
_SETS = ("conformal_coverage", "conformal_size", "conformal_width")
BY_TIER = ("accuracy", "nll", "brier", "ece", "rmse", "coverage_95", "width_95", *_SETS, *OOD)


# prefix of a score on other samples than those of the test -> in names for people
SPLITS = {"hold_out_": "held-out ", "train_": "training "}


def cut_split(name: str) -> tuple[str, str]:
    """Cuts a score's key into the prefix that names the samples, and the rest. Test samples have an empty prefix.

    Example:
        >>> cut_split("train_nll"), cut_split("nll")
        (('train_', 'nll'), ('', 'nll'))
    """
    prefix = next((prefix for prefix in SPLITS if name.startswith(prefix)), "")
    return prefix, name.removeprefix(prefix)


def find_score(name: str) -> Score | None:
    """Returns the score with the key `name`, or None if fedray has no such score.

    Args:
        name: Key in `rounds.parquet`. The prefix `hold_out_` means held-out samples, and `train_` training samples.
            Accuracy and RMSE may have a suffix. `_min`, `_mean` and `_max` mean the smallest, mean and largest value of
            the ensemble's members. `_last3` means the mean of the last three evaluated rounds.
    """
    inner = cut_split(name)[1]
    base, _, over = inner.rpartition("_")
    if base in ("accuracy", "rmse") and over in _DERIVED:
        score, (what, *names) = SCORES[base], _DERIVED[over]
        return score._replace(name=f"{names[bool(score.lower)]} {score.name}", text=f"{what}: {score.text}")
    # balanced_accuracy is a scorer of scikit-learn
    if (tier := re.fullmatch(rf"tier_(.+)(?<!_balanced)_({'|'.join(BY_TIER)})", inner)) is not None:
        score, (first, minus, other) = SCORES[tier[2]], tier[1].partition("_minus_")
        if minus:
            text = f"{score.text}: clients of tier {first} minus those of tier {other}"
            return score._replace(lower=NEITHER, name=f"{score.name}, {first} minus {other} clients", text=text)
        return score._replace(name=f"{score.name}, {tier[1]} clients", text=f"{score.text}: clients of tier {tier[1]}")
    for pattern, (unit, text) in NUMBERED.items():
        if re.fullmatch(pattern, inner):
            return Score(unit, LOWER if unit == TARGET else HIGHER, inner.replace("_", " "), text)
    return SCORES.get(inner)


def drop_repeats(metrics: Mapping[str, _T]) -> dict[str, _T]:
    """Returns `metrics` without the scores of members if these scores only repeat the score of the ensemble.

    Example:
        >>> drop_repeats({"accuracy": 0.5, "accuracy_min": 0.5, "accuracy_mean": 0.5, "accuracy_max": 0.5})
        {'accuracy': 0.5}
        >>> drop_repeats({"rmse": 0.5, "rmse_min": 0.5, "rmse_mean": 0.5, "rmse_max": 0.5})
        {'rmse': 0.5}
    """
    repeats: set[str] = set()
    for split, score in product(("", *SPLITS), ("accuracy", "rmse")):
        members = [f"{split}{score}_{over}" for over in ("min", "mean", "max")]
        if split + score in metrics and all(metrics.get(name) == metrics[split + score] for name in members):
            repeats |= {*members, f"{split}disagreement"}
    return {name: value for name, value in metrics.items() if name not in repeats}
