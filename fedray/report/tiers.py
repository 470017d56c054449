"""What the clients of each tier get, round by round: from the scores of single clients (`evaluate.clients`).

Example:
    >>> scores = {"replicate": [0] * 4, "fold": [0] * 4, "round": [0, 0, 5, 5], "tier": ["a", "b"] * 2}
    >>> table = pa.table({**scores, "client": [0, 1] * 2, "accuracy": [0.1, 0.3, 0.7, 0.9]})
    >>> {tier: curve.mean.tolist() for tier, curve in average_by_tier(table, "accuracy").items()}
    {'a': [0.1, 0.7], 'b': [0.3, 0.9]}
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedray.report.read import Curve, ReadRun


def read_tier_curves(run: ReadRun) -> dict[str, Curve]:
    """The mean score of the recorded clients of each tier over the rounds, in the order of the tiers; {} without."""
    if run.client_scores is None or run.metric not in run.client_scores.column_names:
        return {}
    return average_by_tier(run.client_scores, run.metric)


def average_by_tier(scores: pa.Table, column: str) -> dict[str, Curve]:
    """The mean of a column over the clients of each tier, in every round, replicate and fold.

    Args:
        scores: `client_scores.parquet`.
        column: `accuracy`, `rmse`, or either of them on held-out rows.

    Returns:
        Tier -> curve, in the order of the tiers' first clients; a tier without any number is left out.
    """
    order = scores.group_by("tier").aggregate([("client", "min")]).sort_by("client_min")["tier"].to_pylist()
    keys = ["tier", "replicate", "fold", "round"]
    means = scores.group_by(keys).aggregate([(column, "mean")]).sort_by([(key, "ascending") for key in keys])
    found = {}
    for tier in order:
        mine = means.filter(pc.equal(means["tier"], tier))
        pairs = np.stack([mine["replicate"].to_numpy(), mine["fold"].to_numpy()])
        world = np.unique(pairs, axis=1, return_inverse=True)[1].ravel()
        rounds, place = np.unique(mine["round"].to_numpy(), return_inverse=True)
        table = np.full((int(world.max()) + 1, len(rounds)), np.nan)
        table[world, place.ravel()] = mine[f"{column}_mean"].to_numpy(zero_copy_only=False)
        known = np.isfinite(table).any(axis=0)
        if known.any():
            found[str(tier)] = Curve(rounds[known].astype(np.float64), table[:, known])
    return found
