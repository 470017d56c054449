"""The scores in `rounds.parquet` and `summary.json`, with their units.

Example:
    >>> describe_score("hold_out_rmse_mean")[1:3]
    ('target units', 'mean over the members: root mean squared error; on held-out rows')
    >>> describe_score("nothing_of_ours") is None  # a metric of your own, or a mistake
    True
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fedray.files.columns import Column, ColumnKind

SHARE, NATS, TARGET = "share", "nats", "target units"
_SCORES = {
    "accuracy": (SHARE, "rows that are answered right"),
    "f1_weighted": (SHARE, "F1, the mean over the classes by their frequency"),
    "f1_macro": (SHARE, "F1, the plain mean over the classes"),
    "nll": (NATS, "negative log likelihood of a row"),
    "brier": ("", "Brier score of a row, summed over the classes: 0 to 2"),
    "ece": (SHARE, "expected calibration error: mean distance of confidence and accuracy, in 15 bins"),
    "entropy": (NATS, "entropy of the answer"),
    "disagreement": (SHARE, "pairs of members and rows with different classes"),
    "rmse": (TARGET, "root mean squared error"),
    "crps": (TARGET, "continuous ranked probability score"),
    "coverage_50": (SHARE, "targets inside the central 50 % interval"),
    "coverage_90": (SHARE, "targets inside the central 90 % interval"),
    "coverage_95": (SHARE, "targets inside the central 95 % interval"),
    "width_95": (TARGET, "mean width of the 95 % interval"),
    "sharpness": (TARGET, "mean predicted standard deviation"),
    "sharpness_geometric": (TARGET, "geometric mean of the predicted standard deviations"),
    "nll_none": (NATS, "negative log likelihood without observation noise"),
    "nll_residual": (NATS, "negative log likelihood with the residual variance as noise"),
    "residual_sd": (TARGET, "root of the clients' mean training residual variance"),
    "bias2": ("squared target units", "squared bias of the replicates' mean answer"),
    "variance": ("squared target units", "variance of the answer over the replicates"),
    "noise": ("squared target units", "noise of a toy's test targets"),
    "accuracy_average": (SHARE, "accuracy of the plain average of a stack's sub models"),
    "f1_average": (SHARE, "weighted F1 of the plain average of a stack's sub models"),
    "personal_accuracy": (SHARE, "mean accuracy of the known clients, each with its own weights or models"),
    "personal_p10": (SHARE, "10th percentile over the known clients"),
    "personal_worst": (SHARE, "accuracy of the worst known client"),
    "personal_rmse": (TARGET, "mean RMSE of the known clients, each with its own weights or models"),
    "personal_rmse_p90": (TARGET, "90th percentile over the known clients"),
    "personal_rmse_worst": (TARGET, "RMSE of the worst known client"),
    "cluster_ari": (
        "",
        "adjusted Rand index of the clients' best models and their true clusters: 1 equal, 0 by chance",
    ),
    "conformal_coverage": (SHARE, "rows whose answer is in their conformal set"),
    "conformal_coverage_clients": (SHARE, "the same of known clients, weighted by their withheld rows"),
    "conformal_coverage_client_worst": (SHARE, "the same of the worst known client"),
    "conformal_coverage_class": (SHARE, "the same of each class, a list"),
    "conformal_coverage_class_worst": (SHARE, "the same of the worst class"),
    "conformal_size": ("labels", "mean size of the conformal sets"),
    "conformal_size_clients": ("labels", "the same of known clients, weighted by their withheld rows"),
    "conformal_width": (TARGET, "mean width of the conformal intervals"),
    "conformal_width_clients": (TARGET, "the same of known clients, weighted by their withheld rows"),
    "conformal_threshold": ("", "the largest score inside of a conformal set"),
    "conformal_bytes": ("bytes", "that all clients send once for the threshold of a model; not in `up_bytes`"),
}
_LISTS = ("conformal_coverage_class",)
_OVER_MEMBERS = {"min": "least of the members", "mean": "mean over the members", "max": "largest of the members"}
_PATTERNS = {
    r"accuracy_base_\d+": (SHARE, "accuracy of one base of a stack"),
    r"accuracy_base_\d+_fold_\d+": (SHARE, "accuracy of one base's sub models that leave a fold out"),
}
SCORES: Mapping[str, Column] = {
    name: Column("numbers" if name in _LISTS else "number", unit, text) for name, (unit, text) in _SCORES.items()
}


def describe_score(name: str) -> Column | None:
    """Unit and meaning of a score; None where no evaluation of fedray makes it.

    Args:
        name: as in `rounds.parquet`: with `hold_out_` before it on held-out rows, with `member_` as a list of the
            members' scores, with `_min`, `_mean` or `_max` behind it over the members.
    """
    inner = name.removeprefix("hold_out_")
    where = "; on held-out rows" if inner != name else ""
    listed = inner.startswith("member_")
    inner = inner.removeprefix("member_")
    kind: ColumnKind = "numbers" if listed or inner in _LISTS else "number"
    each = "of each member, a list: " if listed else ""
    base, _, over = inner.rpartition("_")
    if base in ("accuracy", "rmse") and over in _OVER_MEMBERS:
        inner, each = base, f"{_OVER_MEMBERS[over]}: "
    found = _SCORES.get(inner) or next((one for p, one in _PATTERNS.items() if re.fullmatch(p, inner)), None)
    return None if found is None else Column(kind, found[0], f"{each}{found[1]}{where}", needed=False)
