"""From the keys of conformal sets to their rule, and whether the withheld rows are enough for it."""

from __future__ import annotations

import math

import numpy as np

from fedray.core.errors import BadInput
from fedray.core.types import EVALUATED_CLIENTS
from fedray.data.shards import Shards
from fedray.metrics.conformal import ConformalRule, choose_ranks, find_pooled_rank
from fedray.scenario.conformal import ConformalKeys


def make_rule(keys: ConformalKeys, classes: int, data: str) -> ConformalRule:
    """Returns the rule that keys mean for a data set.

    Args:
        keys: of the scenario.
        classes: C; 0 for a regression.
        data: name of the data set, for the message.

    Raises:
        BadInput: the score belongs to the other task.
    """
    score = ("lac" if classes else "regression") if keys.score == "auto" else keys.score
    if (score == "regression") == bool(classes):
        has, remedy = ("classes", "lac, aps or raps") if classes else ("real targets", "regression")
        raise BadInput(f"predict.conformal.score = {score}, but {data} has {has}: choose {remedy}, or leave it at auto")
    return ConformalRule(keys.alpha, score, keys.quantile, keys.penalty, keys.k_reg)


def check_withheld_rows(rule: ConformalRule, shards: Shards, hold_out: float) -> None:
    """Refuses an alpha for which every set of some world would hold every label.

    Args:
        rule: how sets are made.
        shards: the clients' data.
        hold_out: `data.hold_out`, for the message.

    Raises:
        BadInput: names the least alpha that the withheld rows are enough for.
    """
    for world in range(shards.worlds):
        sizes = [len(shards.client_holdout(world, c)) for c in range(min(shards.number, EVALUATED_CLIENTS))]
        each = tuple(size for size in sizes if size)
        rows, clients = sum(each), len(each)
        if rule.quantile == "qq":
            enough = choose_ranks(each, rule.alpha).r <= clients
        else:
            enough = find_pooled_rank(rule.alpha, rows, clients) <= rows
        if not enough:
            least = math.ceil(np.float64(1e4) * clients / (rows + clients)) / 1e4
            remedy = "raise it" if rule.quantile == "qq" else f"raise it to {least:g} at least"
            raise BadInput(
                f"predict.conformal.alpha = {rule.alpha:g}, but {rows} rows withheld by {clients} clients are too few "
                f"for it, so that every label would be in every set: {remedy}, or raise data.hold_out = {hold_out:g}"
            )
