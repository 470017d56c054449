"""Clients that fit decision trees in place of descending, and say on which rows which of them are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core import rng
from fedray.core.method import Schedule, Server, Traffic, Work
from fedray.core.sums import LIMIT, Kept, exact_sum
from fedray.core.types import FloatArray, IntArray, Layout, Net, Plan, SizedPlan, State, Stats
from fedray.features.stacking import make_classifier
from fedray.training.update import Site

# ---------------------------------------------------------------------------------------------------------------------
# A boosted ensemble as a network: its numbers are trees and their weights; it answers with shares of their votes.

# ---------------------------------------------------------------------------------------------------------------------
# Decision trees as plain numbers: three float32 for each node, which predict exactly what scikit-learn's tree does.
#
# A node is (kind, value, child):
#
# - an inner node has kind = feature + 1, value = threshold and child = its left child; the right one is the next
# node. A row goes left where its feature is at most the threshold. - a leaf has kind = -1 and value = its class. -
# zeros stand where there is no node; a tree whose root is zeros is *absent*.
#
# A tree of L leaves has 2 L - 1 nodes. scikit-learn compares float32 features with float64 thresholds. The threshold
# is rounded down to float32 here: no float32 lies between the two, so every row goes the same way.

NUMBERS = 3  # of a node
LEAF = -1.0


def tree_nodes(leaves: int) -> int:
    """Nodes of a tree of some leaves."""
    return 2 * leaves - 1


def write_tree(tree: Any, leaves: int) -> Tensor:
    """Returns a fitted tree as numbers.

    Args:
        tree: A fitted `sklearn.tree.DecisionTreeClassifier` of at most so many leaves, on float32 inputs.
        leaves: L; room for them is left.

    Returns:
        Its nodes, `[2 L - 1, 3]` float32. The class of a leaf is its most frequent one, the first of several.

    Example:
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> tree = DecisionTreeClassifier().fit([[0.0], [1.0], [2.0]], [3, 5, 5])
        >>> write_tree(tree, leaves=2).tolist()
        [[1.0, 0.5, 1.0], [-1.0, 3.0, 0.0], [-1.0, 5.0, 0.0]]
        >>> classify_rows(write_tree(tree, leaves=2)[None], torch.tensor([[0.4], [0.6]])).tolist()
        [[3], [5]]
    """
    inner, classes = tree.tree_, tree.classes_
    nodes = np.zeros((tree_nodes(leaves), NUMBERS), dtype=np.float32)
    old = [0]  # scikit-learn's number of each node; children get neighbouring numbers
    for new in range(inner.node_count):
        at = old[new]
        left, right = int(inner.children_left[at]), int(inner.children_right[at])
        if left < 0:
            nodes[new] = LEAF, classes[inner.value[at, 0].argmax()], 0.0
            continue
        threshold, near = float(inner.threshold[at]), np.float32(inner.threshold[at])
        below = near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf))  # or equal, as a float32
        nodes[new] = inner.feature[at] + 1, below, len(old)
        old += [left, right]
    return torch.from_numpy(nodes)


def has_root(trees: Tensor) -> Tensor:
    """Returns which entries of `[..., n, 3]` hold a tree, `[...]`."""
    return trees[..., 0, 0] != 0


def classify_rows(trees: Tensor, x: Tensor) -> Tensor:
    """Returns the classes that trees predict.

    Args:
        trees: M trees, `[M, n, 3]`.
        x: Inputs, `[B, f]`.

    Returns:
        Classes `[B, M]`, int64; -1 for an absent tree.
    """
    number, n = trees.shape[:2]
    kind, value, child = trees.reshape(-1, NUMBERS).unbind(-1)
    step, first = child.long().clamp(0, n - 1), torch.arange(number) * n
    at = first.expand(len(x), number)  # [B, M]
    for _ in range(n // 2):  # the depth of the deepest tree of so many nodes
        split = kind[at]
        is_inner = split > 0
        if not bool(is_inner.any()):
            break
        feature = (split - 1).long().clamp(0, x.shape[1] - 1)
        right = (x.gather(1, feature) > value[at]).long()
        at = torch.where(is_inner, first + (step[at] + right).clamp(max=n - 1), at)
    return torch.where(kind[at] == 0, -1, value[at].long())


def vote(classes: Tensor, number: int) -> Tensor:
    """Returns the choice of committees: the class with the most votes, the first in a tie; -1 without votes.

    Args:
        classes: Of each member, `[..., S]`, -1 where it is absent.
        number: C, the number of classes.

    Example:
        >>> vote(torch.tensor([[2, 0, 2], [1, 0, -1], [-1, -1, -1]]), 3).tolist()
        [2, 0, -1]
    """
    if classes.shape[-1] == 1:
        return classes[..., 0]
    votes = torch.stack([(classes == c).sum(-1) for c in range(number)], dim=-1)  # [..., C]
    return torch.where(votes.sum(-1) > 0, votes.argmax(-1), -1)


# ---------------------------------------------------------------------------------------------------------------------
# So the trees of a run are a row of the state like the weights of any model: checkpoints, hashes, exports, evaluation
# and `Run.predict` need not know what they are, and nothing is ever unpickled.

CHUNK = 256  # trees that classify together: [500 rows, 256 trees] int64 are 1 MB
NO_VOTE = torch.finfo(torch.float32).eps  # stands for a share of 0: smaller ones add nothing to 1


class Ensemble(NamedTuple):
    """What a boosted ensemble has room for.

    Attributes:
        rounds: T, rounds of boosting.
        seats: S, the most learners that a round adds.
        leaves: L, the most leaves of a tree.
        classes: C, the number of classes.
        committee: Whether the learners of a round have one vote together; otherwise each has its own.
    """

    rounds: int
    seats: int
    leaves: int
    classes: int
    committee: bool = False

    @property
    def tree_numbers(self) -> int:
        """Numbers of one tree."""
        return NUMBERS * tree_nodes(self.leaves)


class BoostedTrees(nn.Module):
    """The module of a boosted ensemble.

    Attributes:
        classes: C, the number of classes.
        committee: Whether the learners of a round have one vote together.
        alpha: Weight of each round's vote, `[T]`; 0 for a round that added nothing.
        scale: Logarithm of the sum of all weights of rows before round t's are normalized, `[T]`.
        trees: Learners of each round, `[T, S, n, 3]` (`fedray.features.boosting`).
    """

    alpha: Tensor
    scale: Tensor
    trees: Tensor

    def __init__(self, size: Ensemble) -> None:
        nn.Module.__init__(self)
        self.classes, self.committee = size.classes, size.committee
        self.register_buffer("alpha", torch.zeros(size.rounds))
        self.register_buffer("scale", torch.zeros(size.rounds))
        self.register_buffer("trees", torch.zeros(size.rounds, size.seats, tree_nodes(size.leaves), NUMBERS))

    def forward(self, x: Tensor) -> Tensor:
        """Logarithms of the shares of the votes, `[B, C]`, for inputs `[B, *input]`; all alike before round 1."""
        inputs, votes = x.flatten(1), torch.zeros(len(x), self.classes, dtype=torch.float64)
        filled = torch.nonzero(self.alpha)[:, 0]
        for some in torch.split(filled, max(1, CHUNK // self.trees.shape[1])):
            trees, alpha = self.trees[some], self.alpha[some].double()
            chosen = classify_rows(trees.flatten(0, 1), inputs).view(len(x), *trees.shape[:2])  # [B, t, S]
            if self.committee:
                chosen = vote(chosen, self.classes)[..., None]
            for c in range(self.classes):
                votes[:, c] += ((chosen == c).sum(-1) * alpha).sum(-1)
        total = votes.sum(1, keepdim=True)
        shares = torch.where(total > 0, votes / total, 1 / self.classes)
        return shares.float().clamp(min=NO_VOTE).log()


def boosted_net(size: Ensemble) -> Net:
    """Returns the network of a boosted ensemble; at first it is empty.

    Example:
        >>> net = boosted_net(Ensemble(rounds=2, seats=1, leaves=2, classes=3))
        >>> net.layout.names, net.layout.shapes, net.layout.trainable
        (('alpha', 'scale', 'trees'), ((2,), (2,), (2, 1, 3, 3)), 0)
    """
    module = BoostedTrees(size)
    named = dict(module.named_buffers())
    layout = Layout(tuple(named), tuple(tuple(value.shape) for value in named.values()), 0)
    return Net("trees", module, layout, "cross_entropy", size.classes, lambda _key: torch.zeros(layout.d))


# ---------------------------------------------------------------------------------------------------------------------
# Boosting's server: which learners of a round are asked about, which one joins the ensemble, and with what weight.

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
        worlds: R, the number of worlds.
        seats: S, the most learners that a round adds.
        classes: C, the number of classes.
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
        worlds: R, the number of worlds.
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
        worlds: R, the number of worlds.
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
        worlds: R, the number of worlds.
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
        worlds: R, the number of worlds.
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
        worlds: R, the number of worlds.
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


# ---------------------------------------------------------------------------------------------------------------------
# The weights of a client's rows follow from the ensemble and the rows. A process keeps them from round to round, as
# long as the ensemble that it is sent is the one it knows; otherwise it computes them again, to the same bits.

Draw = Literal["rows", "weights", "bootstrap"]


class ClientRows(NamedTuple):
    """The training rows of a client.

    Attributes:
        x: Inputs as a network would get them, `[n, f]` float32.
        y: Classes, `[n]`.
    """

    x: Tensor
    y: Tensor


class KnownWeights(NamedTuple):
    """The weights of a client's rows after some rounds.

    Attributes:
        rounds: How many rounds they are of.
        log: Logarithms of the factors by which they have changed, `[n]`.
    """

    rounds: int
    log: Tensor


@dataclass
class Known:
    """What a process knows of its clients between rounds.

    Attributes:
        row: The ensemble of each world, as it was sent last.
        weights: Of each client's rows, by (world, client).
        classes: What the learners of a pool say of a client's rows.
        pool: That pool.
        rows: Training rows of all clients of a world.
    """

    row: dict[int, Tensor] = field(default_factory=dict)
    weights: dict[tuple[int, int], KnownWeights] = field(default_factory=dict)
    classes: dict[tuple[int, int], IntArray] = field(default_factory=dict)
    pool: Tensor | None = None
    rows: dict[int, int] = field(default_factory=dict)


class OneJob(NamedTuple):
    """A client's job: where it is, what the process knows, the round, the state, and the client's rows."""

    site: Site
    known: Known
    t: int
    state: State
    client: int
    world: int
    rows: ClientRows


@dataclass(frozen=True)
class FitTrees(Work):
    """What clients fit where they do not descend: learners of scikit-learn that travel as plain numbers.

    Attributes:
        options: Of the decision tree, by scikit-learn's names.
        leaves: L, the most leaves of a tree.
        classes: C, the number of classes.
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

    def kept_numbers(self, d: int) -> int:
        return self.numbers * self.series

    def describe(self) -> tuple[str, str]:
        return "sklearn", f"every client fits decision trees of at most {self.leaves} leaves"

    def begin(self, site: Site, kept: dict[Any, Any], t: int, state: State) -> None:
        """Drops what was computed from ensembles that are not the beginning of those that are sent now."""
        known = _known(kept)
        pool = state.extra.get(CANDIDATES)
        if pool is not None and (known.pool is None or not torch.equal(pool, known.pool)):
            known.pool, known.classes = pool.clone(), {}
        layout = site.net.layout
        for world, row in enumerate(state.models):
            last = known.row.get(world)
            passed = max((one.rounds for key, one in known.weights.items() if key[0] == world), default=0)
            if last is not None and passed:
                both = zip(layout.views(row).values(), layout.views(last).values(), strict=True)
                if passed > t or not all(torch.equal(new[:passed], old[:passed]) for new, old in both):
                    known.weights = {key: one for key, one in known.weights.items() if key[0] != world}
            known.row[world] = row.clone()

    def do(self, site: Site, kept: dict[Any, Any], t: int, job: SizedPlan, state: State) -> tuple[Stats, Tensor]:
        """Fits the learners of round t, or counts the errors of those that the state asks about.

        Returns:
            Learners, or sums of weights. The loss is the learner's own weighted error on the client's rows, or the
            least of the candidates' errors there.
        """
        (client,), (world,) = job.plan.client.tolist(), job.plan.world.tolist()
        work = self._fit if CANDIDATES not in state.extra else self._count_errors
        stats, error = work(OneJob(site, _known(kept), t, state, client, world, read_rows(site, world, client)))
        return stats, torch.tensor([error])

    def _fit(self, job: OneJob) -> tuple[Stats, float]:
        """The learners of a client, `[F, n, 3]`: by the ensemble's weights, later ones by its own (local AdaBoost)."""
        rows, weight = job.rows, self._weigh(job)[0]
        learners = torch.zeros(self.series, self.numbers // 3, 3)  # nodes, and the numbers of each
        classes, first = len(np.unique(rows.y)), 0.0
        for number in range(self.series):
            learners[number] = self._fit_one(job, weight, number)
            wrong = (classify_rows(learners[number][None], rows.x)[:, 0] != rows.y).numpy()
            error = float(weight[wrong].sum() / weight.sum())
            first = error if number == 0 else first
            if number and is_chance(error, classes):
                learners[number] = 0.0
            if classes == 1 or is_chance(error, classes):
                break
            weight = weight * np.exp(samme(error, classes) * wrong)
            weight /= weight.sum()
        return keep_learners(learners, job.client, job.world), first

    def _fit_one(self, job: OneJob, weight: FloatArray, number: int) -> Tensor:
        """One learner, `[n, 3]`, on rows that are drawn at an address, or with weights."""
        seed, address = int(job.site.seeds[job.world]), (job.t, job.client, number)
        x, y = job.rows.x.numpy(), job.rows.y.numpy()
        random_state = int(rng.keys(seed, "learner", *address) % np.uint64(2**32))
        tree = make_classifier("sklearn/decision_tree", self.options, random_state)
        if self.draw == "weights":
            return write_tree(tree.fit(x, y, sample_weight=weight / weight.sum()), self.leaves)
        odds = np.ones_like(weight) if self.draw == "bootstrap" else weight
        drawn = draw_rows(odds, rng.uniform(rng.keys(seed, "drawn rows", *address), len(odds)))
        return write_tree(tree.fit(x[drawn], y[drawn]), self.leaves)

    def _count_errors(self, job: OneJob) -> tuple[Stats, float]:
        """Sums of a client's weights: of all its rows, then of those on which each candidate is wrong."""
        rows, asked, known, world = job.rows, job.state.extra[CANDIDATES], job.known, job.world
        weight, shift = self._weigh(job)
        key = (world, job.client)
        if self.series == 1 or key not in known.classes:  # a pool stays the same
            flat = classify_rows(asked[world].flatten(0, 1), rows.x).view(len(rows.y), *asked.shape[1:3])
            known.classes[key] = vote(flat, self.classes).numpy().astype(np.int16)  # [n, M]
        wrong = known.classes[key] != rows.y.numpy()[:, None]
        sums = np.concatenate([[weight.sum()], (weight[:, None] * wrong).sum(axis=0)])
        stats = sum_errors(torch.from_numpy(sums)[None], np.array([world]), len(job.site.seeds), shift)
        return stats, float(sums[1:].min() / sums[0])

    def _weigh(self, job: OneJob) -> tuple[FloatArray, int]:
        """The weights of a client's rows before round t, as `bound_weights` has them.

        Those of all clients add up to 1 where all have taken part.
        """
        site, known, t, state, client, world, rows = job
        equal = KnownWeights(0, torch.zeros(len(rows.y), dtype=torch.float64))
        found = known.weights.get((world, client), equal)
        found = equal if found.rounds > t else found
        if found.rounds < t:
            named = site.net.layout.views(state.models[world])
            alpha, scale, trees = (named[name][found.rounds : t] for name in ("alpha", "scale", "trees"))
            chosen = classify_rows(trees.flatten(0, 1), rows.x).view(len(rows.y), *trees.shape[:2])
            wrong = vote(chosen, self.classes) != rows.y[:, None]
            found = KnownWeights(t, found.log + weigh_rows(wrong, alpha, scale))
            known.weights[world, client] = found
        if world not in known.rows:
            everybody = np.arange(site.clients.number)
            known.rows[world] = int(site.shards.sizes(np.full_like(everybody, world), everybody).sum())
        return bound_weights(found.log, known.rows[world])


def _known(kept: dict[Any, Any]) -> Known:
    """What this process knows."""
    found: Known = kept.setdefault("boosting", Known())
    return found


def read_rows(site: Site, world: int, client: int) -> ClientRows:
    """The training rows of a client."""
    fetched = site.shards.fetch(np.array([world]), np.array([client]))
    rows = fetched.rows[0, : int(fetched.size[0])]
    x = site.shards.normalize(fetched.x[rows][None], torch.tensor([world]))[0].flatten(1).float()
    return ClientRows(x, fetched.labels(rows, 0))


def draw_rows(odds: FloatArray, numbers: FloatArray) -> IntArray:
    """Rows that are drawn with replacement.

    Args:
        odds: Of each row, `[n]`, at least 0; their sum does not matter.
        numbers: Uniform in [0, 1), one for each draw.

    Example:
        >>> draw_rows(np.array([1.0, 0.0, 3.0]), np.array([0.0, 0.2, 0.3, 0.99])).tolist()
        [0, 0, 2, 2]
    """
    ends = np.cumsum(odds)
    drawn: IntArray = np.minimum(np.searchsorted(ends, numbers * ends[-1], side="right"), len(odds) - 1)
    return drawn
