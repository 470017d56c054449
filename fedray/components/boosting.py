"""Boosting's server: which learners of a round are asked about, which one joins the ensemble, and with what weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core.method import Schedule, Server, Traffic
from fedray.core.sums import LIMIT, Kept, exact_sum
from fedray.core.types import FloatArray, IntArray, Layout, Plan, State, Stats
from fedray.models.boosting import has_root

# ---------------------------------------------------------------------------------------------------------------------
# The weights of a client's rows are no state: they follow from the ensemble and the rows, so a client that was away,
# or an actor that is new, computes them again. `weigh_rows` says how; alpha and scale are the numbers of the
# ensemble.

CANDIDATES = "broadcast/candidates"  # name of the extra tensor of the learners that clients are asked about
SMOOTHING = 1e-10  # of the paper, so that an error of 0 has a finite weight
_ERRORS, _STEP = "errors/", 16  # names of sums of weights in statistics; of exponents of powers of two
CHOICE, ERROR = 8, 8  # bytes of a learner's number with its weight, and of a sum of weights
Candidates = Callable[[Tensor], Tensor]  # learners of each client `[P, F, n, 3]` -> candidates `[M, S, n, 3]`


class Sizes(NamedTuple):
    """How large a boosted ensemble is.

    Attributes:
        worlds: R.
        seats: S, the most learners that a round adds.
        classes: C.
        layout: Of a row: alpha, scale, trees.
    """

    worlds: int
    seats: int
    classes: int
    layout: Layout


def samme(error: float, classes: int) -> float:
    """Weight of a learner, `log((1 - e) / (e + 1e-10)) + log(C - 1)`, rounded to the float32 that is sent.

    Args:
        error: its weighted error, in [0, 1 - 1 / C).
        classes: C, at least 2.

    Example:
        >>> samme(error=0.2, classes=3)  # log(0.8 / 0.2) + log(2)
        2.0794415...
        >>> is_chance(0.6, 3), is_chance(0.7, 3)
        (False, True)
    """
    return float(np.float32(np.log((1.0 - error) / (error + SMOOTHING)) + np.log(classes - 1.0)))


def is_chance(error: float, classes: int) -> bool:
    """Whether a learner is no better than guessing: its error is at least 1 - 1 / C."""
    return error >= 1.0 - 1.0 / classes


def weigh_rows(wrong: Tensor, alpha: Tensor, scale: Tensor) -> Tensor:
    """Logarithms of the factors by which the weights of rows have changed in some rounds.

    `D <- D exp(alpha [wrong]) / Z`, where log Z is `scale`: the weights of all clients' rows add up to 1 again.

    Args:
        wrong: whether each round's learner was wrong on each row, `[n, t]`.
        alpha: its weight, `[t]`.
        scale: log Z, `[t]`.

    Returns:
        `[n]` float64.
    """
    return (wrong.double() * alpha.double() - scale.double()).sum(1)


def each_alone(learners: Tensor) -> Tensor:
    """Every learner of every client is a candidate: `[P, F, n, 3]` -> `[P F, 1, n, 3]`."""
    return learners.flatten(0, 1)[:, None]


def as_committee(learners: Tensor) -> Tensor:
    """All learners together are the only candidate: `[P, F, n, 3]` -> `[1, P F, n, 3]`."""
    return learners.flatten(0, 1)[None]


def join_learners(worlds: int, stats: Stats, candidates: Candidates) -> Tensor:
    """Joins the candidates of a round in every world, `[R, M, S, n, 3]`, in the order of the clients; else zeros.

    Args:
        worlds: R.
        stats: holds the learners of each client.
        candidates: what becomes of them.
    """
    rows = stats["learners"].rows
    each = [[rows[key] for key in sorted(rows) if key[0] == world] for world in range(worlds)]
    empty = torch.zeros_like(next(iter(rows.values())))[None]
    found = [candidates(torch.stack(some) if some else empty) for some in each]
    shape = [max(one.shape[axis] for one in found) for axis in (0, 1)]
    out = torch.zeros(worlds, *shape, *empty.shape[-2:])
    for world, one in enumerate(found):
        out[world, : one.shape[0], : one.shape[1]] = one
    return out


def ask_about(worlds: int, candidates: Candidates) -> Callable[[State, Stats], State | None]:
    """Returns what the clients of a round are asked about: its learners, or nothing if they were asked already.

    Args:
        worlds: R.
        candidates: what becomes of the learners.
    """

    def ask(state: State, stats: Stats) -> State | None:
        if "learners" not in stats:
            return None
        return state._replace(extra={**state.extra, CANDIDATES: join_learners(worlds, stats, candidates)})

    return ask


def bound_weights(log: Tensor, rows: int) -> tuple[FloatArray, int]:
    """Returns the weights of a client's rows, divided by a power of two if they are too large to be added.

    Where some clients are absent, the weights of all rows add up to more than 1: a learner that is never wrong on the
    participants' rows has alpha = 23 and more, and log Z = 0.

    Args:
        log: Logarithms of the factors by which they have changed, `[n]`.
        rows: Of all clients.

    Returns:
        The weights `[n]`, and the exponent b of the power: a multiple of 16, at least 0.

    Example:
        >>> bound_weights(torch.zeros(2, dtype=torch.float64), rows=4)
        (array([0.25, 0.25]), 0)
        >>> bound_weights(torch.full((2,), 100 * math.log(2), dtype=torch.float64), rows=4)[1]  # 2^100 / 2^96 each
        96
    """
    with np.errstate(over="ignore"):
        weights: FloatArray = np.exp(log.numpy()) / rows
    if weights.sum() < LIMIT:
        return weights, 0
    shift = _STEP * math.floor(float(log.max()) / math.log(2.0) / _STEP)
    return np.exp(log.numpy() - shift * math.log(2.0)) / rows, shift


def sum_errors(errors: Tensor, world: IntArray, worlds: int, shift: int = 0) -> Stats:
    """Returns the weights of clients' rows `[J, 1 + M]`: of all rows, then of those on which each candidate is wrong.

    Args:
        errors: These sums.
        world: Of each client, `[J]`.
        worlds: R.
        shift: Exponent of the power of two by which they were divided.
    """
    ones = torch.ones(len(errors), dtype=torch.int64)
    return {f"{_ERRORS}{shift}": exact_sum(errors.contiguous(), torch.from_numpy(world), worlds, ones, limbs=2)}


def join_errors(stats: Stats) -> Tensor:
    """Adds `[R, 1 + M]` over all clients, divided in each world by the largest of its clients' powers of two.

    Args:
        stats: Those of `sum_errors`, added.

    Example:
        >>> both = [sum_errors(torch.tensor([[0.5, 0.25]]), np.array([0]), 1, shift) for shift in (32, 48)]
        >>> (join_errors({**both[0], **both[1]}) * 2**16).tolist()
        [[32768.5, 16384.25]]
    """
    sums = {int(name.removeprefix(_ERRORS)): part.value() for name, part in stats.items() if name.startswith(_ERRORS)}
    joined = torch.zeros_like(next(iter(sums.values())))
    reached = torch.zeros(len(joined), 1, dtype=torch.float64)
    for shift in sorted(sums):
        here = sums[shift][:, :1] > 0
        joined = torch.where(here, joined * 2.0 ** (reached - shift) + sums[shift], joined)
        reached = torch.where(here, float(shift), reached)
    return joined


def keep_learners(learners: Tensor, client: int, world: int) -> Stats:
    """Returns the learners `[F, n, 3]` of one client."""
    return {"learners": Kept({(world, 0, client): learners})}


def boosting_server(sizes: Sizes, candidates: Candidates, *, keeps_pool: bool = False) -> Server:
    """The candidate of the least error joins the ensemble with SAMME's weight; a world whose best one is chance stops.

    Args:
        sizes: of the ensemble.
        candidates: what becomes of the learners of a round.
        keeps_pool: whether the candidates of the first round are those of all rounds.
    """

    def init(_models: Tensor) -> dict[str, Tensor]:
        return {"stopped": torch.zeros(sizes.worlds, dtype=torch.int64)}

    def step(state: State, stats: Stats, t: int) -> State:
        extra, known = dict(state.extra), state.extra.get(CANDIDATES)
        found = join_learners(sizes.worlds, stats, candidates) if known is None else known
        if keeps_pool:
            extra[CANDIDATES] = found
        parts, stopped = _copy_parts(state, sizes.layout), extra["stopped"].clone()
        for world, (total, *wrong) in enumerate(join_errors(stats).tolist()):
            if not total:  # nobody took part
                continue
            here = has_root(found[world]).any(1).tolist()
            share = [e / total if is_there else np.inf for e, is_there in zip(wrong, here, strict=True)]
            best = int(np.argmin(share))  # the first of several
            alpha = 0.0 if is_chance(share[best], sizes.classes) else samme(share[best], sizes.classes)
            if alpha <= 0:  # also where only rounding is between the error and chance
                stopped[world] = t + 1
                continue
            parts["alpha"][world, t] = alpha
            parts["scale"][world, t] = np.log1p(share[best] * np.expm1(alpha))
            parts["trees"][world, t, : found.shape[2]] = found[world, best]
        return State(_join_parts(parts), state.counters, {**extra, "stopped": stopped})

    return Server(init, lambda _uploads: {}, step)  # learners are no deltas


def bagging_server(sizes: Sizes) -> Server:
    """All learners of a round join the ensemble, each with a vote of its own."""

    def step(state: State, stats: Stats, t: int) -> State:
        found, parts = join_learners(sizes.worlds, stats, as_committee), _copy_parts(state, sizes.layout)
        parts["trees"][:, t, : found.shape[2]] = found[:, 0]
        parts["alpha"][:, t] = has_root(found[:, 0]).any(1).float()
        return State(_join_parts(parts), state.counters, state.extra)

    return Server(lambda _models: {"stopped": torch.zeros(sizes.worlds, dtype=torch.int64)}, lambda _uploads: {}, step)


def until_chance(schedule: Schedule) -> Schedule:
    """Returns a schedule without the worlds whose boosting has stopped."""

    def plan(t: int, state: State | None) -> Plan:
        jobs = schedule(t, state)
        return jobs if state is None else jobs.take(state.extra["stopped"].numpy()[jobs.world] == 0)

    return plan


def explain_stop(state: State) -> str:
    """Returns why boosting is over in every world; empty while it goes on in one."""
    return "no learner is better than guessing" if bool((state.extra["stopped"] > 0).all()) else ""


def _copy_parts(state: State, layout: Layout) -> dict[str, Tensor]:
    """Copies of alpha, scale and trees of all worlds, `[R, ...]` each."""
    return {name: view.clone() for name, view in layout.views(state.models).items()}


def _join_parts(parts: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten(1) for part in parts.values()], dim=1)


# ---------------------------------------------------------------------------------------------------------------------
# Bytes of boosting: learners, errors and choices as they would really be sent.
#
# A learner takes 4 bytes a number, a sum of weights 8, and a choice 8: the number of a learner and its weight. A
# client that was away for some rounds also fetches the learners that were chosen meanwhile, from which its weights
# follow.


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
    """Returns a function: round -> the last round before it that each client was planned in, `[R * N]`; -1 for none.

    Args:
        schedule: plans without a state.
        worlds: R.
        clients: N.

    Example:
        >>> clients, everyone = 3, np.arange(3)
        >>> def schedule(t, state):
        ...     return Plan(everyone, 0 * everyone, 0 * everyone)
        >>> last_round(schedule, 1, clients)(2).tolist()
        [1, 1, 1]
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
