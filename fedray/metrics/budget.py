"""The score of a course at a budget: on the line between the evaluations around it, if they are near enough.

A budget is of bytes, of seconds or of rounds. Evaluations far apart say little about what lies between them, so a score
is read between two only where the later one cost at most twice the earlier one. Else the earlier one counts if it had
used 90 % of the budget, and if it had not, there is no score.

Example:
    >>> read_at_budget([10, 20], [0.75, 1.0], 16.0)
    BudgetScore(value=0.9, used=0.625, after=1.25)
    >>> read_at_budget([10, 30], [0.75, 1.0], 16.0) is None  # nothing is known between 62 % and 188 % of it
    True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAST_USED = 0.9  # of a budget, by an evaluation that stands for it alone
MOST_APART = 2.0  # how many times the cost of the earlier evaluation the later one may have


class BudgetScore(NamedTuple):
    """A score at a budget.

    Attributes:
        value: the score.
        used: share of the budget at the evaluation inside it, in (0, 1].
        after: that at the next evaluation, between which and the one inside the score was read; `used` where it is that
            of the evaluation inside.
    """

    value: float
    used: float
    after: float


def read_at_budget(cost: Sequence[float], score: Sequence[float], budget: float) -> BudgetScore | None:
    """The score of one course at a budget, or None where no evaluation is near enough.

    Args:
        cost: of each evaluation of trained models, rising, `[n]`; of several at one cost the last counts.
        score: of each, `[n]`.
        budget: at least 0; infinite: the last evaluation counts.

    Example:
        A course that ended inside the budget is read at its end only where that is near it.

        >>> [read_at_budget([9], [0.8], budget) is None for budget in (10.0, 11.0)]
        [False, True]
    """
    inside = [i for i, at in enumerate(cost) if at <= budget]
    if not inside:
        return None
    i, further = inside[-1], [i for i, at in enumerate(cost) if at > budget]
    used = cost[i] / budget if 0 < budget < math.inf else 1.0
    if used < 1 and further and cost[further[0]] <= MOST_APART * cost[i]:
        j = further[0]
        share = (budget - cost[i]) / (cost[j] - cost[i])
        return BudgetScore((1 - share) * score[i] + share * score[j], used, cost[j] / budget)
    return BudgetScore(score[i], used, used) if used >= LEAST_USED else None
