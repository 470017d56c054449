"""Warnings of what a run has left out: failed clients, models that nobody trained, and scores without a mean.

Example:
    >>> find_lost_scores({"accuracy": {"mean": 0.9, "sd": None, "n": 1}, "mine": {"mean": None, "sd": None, "n": 2}})
    ['mine']
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedray.core.errors import FedrayWarning, warn_user
from fedray.runtime.session import Snapshot, Watch


def warn_of_failures(watch: Watch) -> Watch:
    """A watcher that also warns, once, when a client was left out.

    Example:
        >>> seen = []
        >>> watch = warn_of_failures(seen.append)
        >>> watch({"round": 3, "failed": 0})
        >>> seen
        [{'round': 3, 'failed': 0}]
    """
    warned = False

    def look(snapshot: Snapshot) -> None:
        nonlocal warned
        if snapshot["failed"] and not warned:
            warned = True
            warn_user(
                f"by round {snapshot['round']} {snapshot['failed']} jobs failed and were left out (on_client_error: "
                "skip): see status and error in clients.parquet",
                FedrayWarning,
            )
        watch(snapshot)

    return look


def warn_of_losses(summary: Mapping[str, Any]) -> None:
    """Warns of the models that nobody trained, and of the scores without a mean.

    Example:
        >>> warn_of_losses({"metrics": {}})
    """
    _warn_of_lost_models(summary)
    _warn_of_lost_scores(summary)


def _warn_of_lost_models(summary: Mapping[str, Any]) -> None:
    """Warns where models took no upload in the whole run, or answer as they were drawn because nobody was asked."""
    if lost := summary.get("untrained_models"):
        warn_user(
            f"models that took no upload in the run, and stay as they were drawn: {lost}: their clients were all lost, "
            "away or without rows (status in clients.parquet says which): raise rounds or participation.deadline, or "
            "lower participation.dropout",
            FedrayWarning,
        )
    if drawn := summary.get("drawn_models"):
        warn_user(
            f"models that answer as they were drawn, because no client was asked to train them, or sent them: {drawn}: "
            "raise rounds or participation.per_round, read personal_accuracy if all layers stay with the clients, or "
            "give these models the weight 0 in the Answer of the method (of method.networks: answers: false)",
            FedrayWarning,
        )


def _warn_of_lost_scores(summary: Mapping[str, Any]) -> None:
    """Warns where a score of the last evaluation is no finite number in a replicate or fold, and so has no mean."""
    if lost := find_lost_scores(summary["metrics"]):
        scores, them = ("score", "its column") if len(lost) == 1 else ("scores", "their columns")
        warn_user(
            f"no mean in summary.json, because a replicate or fold ended with nan or an infinite value: {scores} "
            f"{', '.join(lost)}: see {them} in rounds.parquet",
            FedrayWarning,
        )


def find_lost_scores(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The scores of a summary whose mean is no finite number."""
    return [name for name, found in metrics.items() if found["mean"] is None or not math.isfinite(found["mean"])]
