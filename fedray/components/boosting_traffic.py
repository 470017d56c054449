"""Bytes of boosting: learners, errors and choices as they would really be sent.

A learner takes 4 bytes a number, a sum of weights 8, and a choice 8: the number of a learner and its weight. A client
that was away for some rounds also fetches the learners that were chosen meanwhile, from which its weights follow.

Example:
    >>> clients, everyone = 3, np.arange(3)
    >>> def schedule(t, state):
    ...     return Plan(everyone, 0 * everyone, 0 * everyone)
    >>> last_round(schedule, 1, clients)(2).tolist()
    [1, 1, 1]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedray.components.boosting import CHOICE, ERROR
from fedray.core.method import Schedule, Traffic
from fedray.core.types import IntArray, Plan


class Sent(NamedTuple):
    """What the messages of a method hold.

    Attributes:
        learner: Bytes of a learner.
        series: F, learners that a client sends.
        seats: S, learners that a round adds to the ensemble.
        asked: Whether clients are asked about every learner; otherwise about all of them as one.
        pool: Whether learners are sent in the first round only.
    """

    learner: int
    series: int
    seats: int
    asked: bool
    pool: bool


def last_round(schedule: Schedule, worlds: int, clients: int) -> Callable[[int], IntArray]:
    """A function: round -> the last round before it that each client was planned in, `[R * N]`; -1 for none.

    Args:
        schedule: plans without a state.
        worlds: R.
        clients: N.
    """
    known, last = [0], np.full(worlds * clients, -1, dtype=np.int64)

    def before(t: int) -> IntArray:
        if t < known[0]:
            known[0], last[:] = 0, -1
        for earlier in range(known[0], t):
            plan = schedule(earlier, None)
            last[plan.world * clients + plan.client] = earlier
        known[0] = t
        return last

    return before


def boosting_traffic(schedule: Schedule, worlds: int, clients: int, sent: Sent) -> Traffic:
    """Bytes up and down of the jobs of a round.

    Args:
        schedule: of the method, without a state.
        worlds: R.
        clients: N.
        sent: what the messages hold.
    """
    before = last_round(schedule, worlds, clients)

    def traffic(t: int, plan: Plan) -> tuple[IntArray, IntArray]:
        last = before(t)[plan.world * clients + plan.client]
        makers = plan if t == 0 or not sent.pool else schedule(0, None)
        learners = sent.series * np.bincount(makers.world, minlength=worlds)[plan.world]  # of the round, or the pool
        everything = sent.learner * learners
        fitted = 0 if sent.pool and t > 0 else sent.learner * sent.series
        up = fitted + ERROR * (1 + (learners if sent.asked else np.ones_like(learners)))
        if sent.pool:
            return up, np.where(last < 0, everything + CHOICE * t, CHOICE * (t - last))
        missed = t - 1 - last  # rounds whose learners the client has not got
        down = everything + CHOICE * (last >= 0) + missed * (CHOICE + sent.learner * sent.seats)
        return up, down

    return traffic


def bagging_traffic(learner: int) -> Traffic:
    """A learner goes up, and nothing comes down: a client draws its rows without the others' learners.

    Args:
        learner: bytes of one.
    """

    def traffic(_t: int, plan: Plan) -> tuple[IntArray, IntArray]:
        return np.full(len(plan.client), learner, dtype=np.int64), np.zeros(len(plan.client), dtype=np.int64)

    return traffic
