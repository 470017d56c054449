"""Whether the data and the scenario of a sweep give its objectives.

Example:
    >>> from fedray.tuning.objectives import read_objective
    >>> check_producible([read_objective("o", "accuracy"), read_objective("o", "bytes")], classes=10, data="digits")
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.text import suggest_nearest
from fedray.metrics import classification, regression
from fedray.scenario.names import is_own
from fedray.tuning.objectives import HELD_OUT_PREFIX, SweepObjective

PERSONAL = ("personal_accuracy", "personal_p10", "personal_worst")
PERSONAL_TARGETS = ("personal_rmse", "personal_rmse_p90", "personal_rmse_worst")
SETS = ("conformal_coverage", "conformal_coverage_clients", "conformal_coverage_client_worst")  # with predict.conformal
OOD = ("ood_auroc", "ood_auroc_knowledge", "ood_fpr95", "ood_entropy")  # with evaluate.ood
CLASS_SETS = (*SETS, "conformal_coverage_class_worst", "conformal_size", "conformal_size_clients")
TARGET_SETS = (*SETS, "conformal_width", "conformal_width_clients")


def check_producible(objectives: Sequence[SweepObjective], classes: int, data: str, own: Collection[str] = ()) -> None:
    """Checks that a scenario has numbers for every objective.

    Args:
        objectives: of the sweep.
        classes: C of the data; 0 for regression.
        data: name of the data set, for the message.
        own: names of the user's metrics that the scenario measures.

    Raises:
        BadInput: an objective belongs to the other task.
    """
    if classes:
        known = [
            *classification.classification_scores(np.full((1, 2, 2), 0.5), np.array([0, 1])),
            *PERSONAL,
            *CLASS_SETS,
            *OOD,
        ]
    else:
        known = [*regression.regression_scores(np.zeros((1, 2)), np.zeros(2)), *PERSONAL_TARGETS, *TARGET_SETS]
    known += own
    for objective in objectives:
        inner = objective.metric.removeprefix(HELD_OUT_PREFIX)
        if objective.kind != "total" and inner not in known:
            if is_own("metric", inner):
                raise BadInput(
                    f"objectives: {objective.name} is your own metric, which the scenario does not measure: add it "
                    "to its evaluate.metrics"
                )
            kind = "classes" if classes else "real targets"
            remedy = suggest_nearest(inner, known, f"choose one of {', '.join(known)}")
            raise BadInput(f"objectives: {objective.name} cannot be had from {data}, which has {kind}: {remedy}")
