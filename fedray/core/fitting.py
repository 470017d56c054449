"""What clients fit in methods that train no network by gradient descent: learners such as decision trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

CANDIDATES = "broadcast/candidates"  # name of the extra tensor of the learners that clients are asked about
Draw = Literal["rows", "weights", "bootstrap"]


class Fitting(NamedTuple):
    """What clients fit where they do not descend: learners of scikit-learn that travel as plain numbers.

    Attributes:
        options: Of the decision tree, by scikit-learn's names.
        leaves: L, the most leaves of a tree.
        classes: C.
        draw: How a client's weights reach the learner: `rows` are drawn by them, they are given as `weights`, or
            neither: the rows are a `bootstrap`.
        series: F, learners that a client boosts one after another on its own rows; 1: one learner.
        numbers: Numbers of one learner.
    """

    options: Mapping[str, Any]
    leaves: int
    classes: int
    draw: Draw
    series: int
    numbers: int


def count_kept(fitting: Fitting | None, keeps: bool, d: int) -> int:
    """Numbers of each upload that the statistics of a round hold by themselves.

    Args:
        fitting: what clients fit; None: they train a network.
        keeps: whether the server reads single uploads.
        d: numbers of a model.

    Example:
        >>> count_kept(None, True, d=50), count_kept(None, False, d=50)
        (50, 0)
    """
    return fitting.numbers * fitting.series if fitting is not None else d if keeps else 0
