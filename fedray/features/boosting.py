"""Lets clients fit decision trees instead of training by gradients, and combines the trees by boosting.

A *learner* is one fitted tree. Each round adds learners to an ensemble. The server chooses them among *candidates*,
after clients have measured the errors of all candidates. A candidate is one learner, or all learners of the round as a
committee with one vote.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.components.schedule import last_round
from fedray.core import rng
from fedray.core.method import Schedule, Server, Traffic, Work
from fedray.core.sums import LIMIT, Kept, exact_sum
from fedray.core.types import FloatArray, IntArray, Layout, Net, Plan, SizedPlan, State, Stats
from fedray.data.shards import read_clients
from fedray.features.stacking import make_classifier
from fedray.training.update import Site

# ---------------------------------------------------------------------------------------------------------------------
# Decision trees as arrays of three float32 values for each node. They predict exactly as scikit-learn's trees do.
#
# A node is (kind, value, child):
#
# - An inner node has kind = feature + 1, value = threshold and child = the index of the left child. The right child is
# the node after the left child. A sample goes left if the feature is at most the threshold.
# - A leaf has kind = -1 and value = its class.
# - Three zeros mean that there is no node. A tree without a root is *absent*.
#
# A tree of L leaves has 2 L - 1 nodes. scikit-learn compares float32 features with float64 thresholds. Here the
# threshold is rounded down to float32, so every sample goes the same way as in scikit-learn's tree.

NUMBERS = 3  # values of a node
LEAF = -1.0


def tree_nodes(leaves: int) -> int:
    """Returns the number of nodes of a binary tree with `leaves` leaves."""
    return 2 * leaves - 1


def write_tree(tree: Any, leaves: int) -> Tensor:
    """Converts a fitted `sklearn.tree.DecisionTreeClassifier` to an array.

    The tree has at most L = `leaves` leaves. The array has three values for each node, `[2 L - 1, 3]` float32. A leaf
    predicts its most frequent class. In a tie it predicts the first of these classes.

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
    old = [0]  # scikit-learn's index of each node; the two children of a node become neighbors here
    for new in range(inner.node_count):
        at = old[new]
        left, right = int(inner.children_left[at]), int(inner.children_right[at])
        if left < 0:
            nodes[new] = LEAF, classes[inner.value[at, 0].argmax()], 0.0
            continue
        threshold, near = float(inner.threshold[at]), np.float32(inner.threshold[at])
        below = near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf))  # rounded down to float32
        nodes[new] = inner.feature[at] + 1, below, len(old)
        old += [left, right]
    return torch.from_numpy(nodes)


def has_root(trees: Tensor) -> Tensor:
    """Returns whether each of some arrays `[..., n, 3]` is a tree of n nodes, `[...]`. An array of zeros is no tree."""
    return trees[..., 0, 0] != 0


def classify_rows(trees: Tensor, x: Tensor) -> Tensor:
    """Returns the classes that M trees predict for B samples, `[B, M]` int64.

    `trees` holds trees of n nodes, `[M, n, 3]`, and `x` the inputs, `[B, f]`. An array of zeros predicts the class -1.
    """
    number, n = trees.shape[:2]
    kind, value, child = trees.reshape(-1, NUMBERS).unbind(-1)
    step, first = child.long().clamp(0, n - 1), torch.arange(number) * n
    at = first.expand(len(x), number)  # [B, M]
    for _ in range(n // 2):  # the largest depth of a tree with n nodes
        split = kind[at]
        is_inner = split > 0
        if not bool(is_inner.any()):
            break
        feature = (split - 1).long().clamp(0, x.shape[1] - 1)
        right = (x.gather(1, feature) > value[at]).long()
        at = torch.where(is_inner, first + (step[at] + right).clamp(max=n - 1), at)
    return torch.where(kind[at] == 0, -1, value[at].long())


def vote(classes: Tensor, number: int) -> Tensor:
    """Returns the class with the most votes of a committee. In a tie, the first class wins.

    `classes` holds the votes of S members, `[..., S]`. A member with -1 does not vote. If nobody votes, the result is
    -1. `number` is the number of classes.

    Example:
        >>> vote(torch.tensor([[2, 0, 2], [1, 0, -1], [-1, -1, -1]]), 3).tolist()
        [2, 0, -1]
    """
    if classes.shape[-1] == 1:
        return classes[..., 0]
    votes = torch.stack([(classes == c).sum(-1) for c in range(number)], dim=-1)  # [..., C]
    return torch.where(votes.sum(-1) > 0, votes.argmax(-1), -1)


# ---------------------------------------------------------------------------------------------------------------------
# A boosted ensemble as a network that predicts shares of votes.
#
# Instead of network parameters, the state holds the trees of a run and their weights. Checkpoints, hashes, exports,
# evaluation and `Run.predict` therefore treat them like any model, and nothing is ever unpickled.

CHUNK = 256  # trees that classify together: [500 samples, 256 trees] int64 are 1 MB
NO_VOTE = torch.finfo(torch.float32).eps  # replaces a vote share of 0 in the logarithm


class Ensemble(NamedTuple):
    """The dimensions of a boosted ensemble.

    Attributes:
        rounds: Number of rounds of boosting, T.
        seats: Largest number of learners that a round adds, S.
        leaves: Largest number of leaves of a tree, L.
        classes: Number of classes, C.
        committee: Whether the learners of a round have one vote together. False means that each learner has a vote.
    """

    rounds: int
    seats: int
    leaves: int
    classes: int
    committee: bool = False

    @property
    def tree_numbers(self) -> int:
        """Returns how many values represent one tree."""
        return NUMBERS * tree_nodes(self.leaves)


class BoostedTrees(nn.Module):
    """The module of a boosted ensemble.

    Attributes:
        classes: Number of classes, C.
        committee: Whether the learners of a round have one vote together.
        alpha: Weight of the vote of each of T rounds, `[T]`. A round that added nothing has the weight 0.
        scale: Logarithm of the sum of all samples' weights in each round, before they are normalized, `[T]`.
        trees: The S learners of each round, as trees of n nodes, `[T, S, n, 3]`.
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
        """Returns the logarithms of each class's share of the votes, `[B, C]`, for inputs `[B, *input]`.

        While the ensemble is empty, all classes have equal shares.
        """
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
    """Returns the network of a boosted ensemble. The initial ensemble is empty.

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
# The server of boosting makes the candidates of a round, chooses the candidate that joins the ensemble, and weighs it.
#
# The weights of a client's samples are not part of the state, because they follow from the ensemble and the samples
# (`FitTrees._weigh`).

CANDIDATES = "broadcast/candidates"  # name of the tensor in `State.extra` with the candidates that clients evaluate
SMOOTHING = 1e-10  # the paper's constant, which keeps the weight of a learner without errors finite
_ERRORS, _STEP = "errors/", 16  # prefix of the names of sums of sample weights in statistics; step of exponents of two
CHOICE, ERROR = 8, 8  # bytes of a chosen learner's index with its weight, and bytes of a sum of sample weights
Candidates = Callable[[Tensor], Tensor]  # learners of P clients `[P, F, n, 3]` -> candidates `[M, S, n, 3]`


def samme(error: float, classes: int) -> float:
    """Returns a learner's weight `log((1 - e) / (e + 1e-10)) + log(C - 1)`, rounded to float32 for sending.

    e is the learner's weighted error, in [0, 1 - 1 / C), and C is the number of classes.

    Example:
        >>> samme(error=0.2, classes=3)  # log(0.8 / 0.2) + log(2)
        2.0794415...
        >>> is_chance(0.6, 3), is_chance(0.7, 3)
        (False, True)
    """
    return float(np.float32(np.log((1.0 - error) / (error + SMOOTHING)) + np.log(classes - 1.0)))


def is_chance(error: float, classes: int) -> bool:
    """Returns whether a learner is no better than guessing: its error is at least 1 - 1 / C for C classes."""
    return error >= 1.0 - 1.0 / classes


def each_alone(learners: Tensor) -> Tensor:
    """Turns F learners of each of P clients, `[P, F, n, 3]`, into candidates of one learner each, `[P F, 1, n, 3]`."""
    return learners.flatten(0, 1)[:, None]


def as_committee(learners: Tensor) -> Tensor:
    """Joins F learners of each of P clients, `[P, F, n, 3]`, into one committee, `[1, P F, n, 3]`."""
    return learners.flatten(0, 1)[None]


def join_learners(worlds: int, stats: Stats, candidates: Candidates, known: Tensor | None = None) -> Tensor:
    """Returns the candidates of a round in each of R worlds, `[R, M, S, n, 3]`, in the order of clients.

    M is the largest number of candidates of a world, and S is the number of learners (trees) of a candidate. Unused
    entries are 0. A world that has candidates in `known` keeps them.

    Args:
        worlds: Number of worlds, R.
        stats: The learners of each client.
        candidates: A function that takes F learners of each of P clients, `[P, F, n, 3]`, and returns candidates, such
            as `each_alone`.
        known: The candidates of earlier rounds. None means that there are none.
    """
    if known is not None and "learners" not in stats:
        return known
    rows = stats["learners"].rows
    each = [[rows[key] for key in sorted(rows) if key[0] == world] for world in range(worlds)]
    empty = torch.zeros_like(next(iter(rows.values())))[None]
    found = [candidates(torch.stack(some) if some else empty) for some in each]
    if known is not None:
        found = [old if has_root(old).any() else one for old, one in zip(known, found, strict=True)]
    shape = [max(one.shape[axis] for one in found) for axis in (0, 1)]
    out = torch.zeros(worlds, *shape, *empty.shape[-2:])
    for world, one in enumerate(found):
        out[world, : one.shape[0], : one.shape[1]] = one
    return out


def ask_about(worlds: int, candidates: Candidates) -> Callable[[State, Stats], State | None]:
    """Returns a function for `Phase.ask`, by which clients measure the errors of a round's candidates.

    The function returns the state with the candidates, or None if the clients have already measured the errors.
    """

    def ask(state: State, stats: Stats) -> State | None:
        if "learners" not in stats:
            return None
        found = join_learners(worlds, stats, candidates, state.extra.get(CANDIDATES))
        return state._replace(extra={**state.extra, CANDIDATES: found})

    return ask


def bound_weights(log: Tensor, rows: int) -> tuple[FloatArray, int]:
    """Returns the weights of a client's samples. Weights too large for exact sums are divided by a power of two.

    Weights grow large if clients miss a round.

    Args:
        log: Logarithms of the multipliers by which the weights have changed, `[n]`.
        rows: Number of samples of all clients.

    Returns:
        The weights `[n]`, and the exponent of the power of two. The exponent is a multiple of 16. It is 0 if nothing is
            divided.

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


def join_errors(stats: Stats) -> Tensor:
    """Adds up the clients' sums of sample weights in each world, `[R, 1 + M]`.

    The first sum is over all samples. Each further sum is over the samples on which one of the M candidates is wrong.
    The sums in a statistic are divided by a power of two, whose exponent is the number in the statistic's name. Each
    world's result is divided by the largest power of two that one of its clients has used.

    Example:
        >>> world, one = torch.tensor([0]), torch.tensor([1])
        >>> both = exact_sum(torch.tensor([[0.5, 0.25]]), world, 1, one, limbs=2)
        >>> (join_errors({"errors/32": both, "errors/48": both}) * 2**16).tolist()
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


def boosting_server(
    worlds: int, classes: int, layout: Layout, candidates: Candidates, *, keeps_pool: bool = False
) -> Server:
    """Returns a server that adds the candidate with the smallest error to the ensemble.

    `samme` computes the candidate's weight. Boosting stops in a world when its best candidate is no better than
    guessing. If `keeps_pool` is true, all rounds have the candidates of a world's first round with a client. A world is
    one combination of a seed and a fold. `classes` is C, and `layout` is the order of a model's values.
    """

    def init(_models: Tensor) -> dict[str, Tensor]:
        return {"stopped": torch.zeros(worlds, dtype=torch.int64)}

    def step(state: State, stats: Stats, t: int) -> State:
        extra = dict(state.extra)
        found = join_learners(worlds, stats, candidates, extra.get(CANDIDATES))
        if keeps_pool:
            extra[CANDIDATES] = found
        parts, stopped = _copy_parts(state, layout), extra["stopped"].clone()
        for world, (total, *wrong) in enumerate(join_errors(stats).tolist()):
            if not total:  # no client took part
                continue
            here = has_root(found[world]).any(1).tolist()
            share = [e / total if is_there else np.inf for e, is_there in zip(wrong, here, strict=True)]
            best = int(np.argmin(share))  # the first candidate with the smallest error
            alpha = 0.0 if is_chance(share[best], classes) else samme(share[best], classes)
            if alpha <= 0:  # includes errors that differ from chance only by rounding
                stopped[world] = t + 1
                continue
            parts["alpha"][world, t] = alpha
            parts["scale"][world, t] = np.log1p(share[best] * np.expm1(alpha))
            parts["trees"][world, t, : found.shape[2]] = found[world, best]
        return State(_join_parts(parts), state.counters, {**extra, "stopped": stopped})

    return Server(init, lambda _uploads: {}, step)  # learners are no deltas


def bagging_server(worlds: int, layout: Layout) -> Server:
    """Returns a server that adds all learners of a round to the ensemble. Each learner has its own vote.

    A world is one combination of a seed and a fold. `layout` is the order of a model's values.
    """

    def step(state: State, stats: Stats, t: int) -> State:
        found, parts = join_learners(worlds, stats, as_committee), _copy_parts(state, layout)
        parts["trees"][:, t, : found.shape[2]] = found[:, 0]
        parts["alpha"][:, t] = has_root(found[:, 0]).any(1).float()
        return State(_join_parts(parts), state.counters, state.extra)

    return Server(lambda _models: {"stopped": torch.zeros(worlds, dtype=torch.int64)}, lambda _uploads: {}, step)


def until_chance(schedule: Schedule) -> Schedule:
    """Returns the schedule without the jobs of worlds in which boosting has stopped. A world is a seed and a fold."""

    def plan(t: int, state: State | None) -> Plan:
        jobs = schedule(t, state)
        return jobs if state is None else jobs.take(state.extra["stopped"].numpy()[jobs.world] == 0)

    return plan


def explain_stop(state: State) -> str:
    """Returns why boosting has stopped. The text is empty while boosting continues in any world (a seed and a fold)."""
    return "no learner is better than guessing" if bool((state.extra["stopped"] > 0).all()) else ""


def _copy_parts(state: State, layout: Layout) -> dict[str, Tensor]:
    """Returns copies of `BoostedTrees`' alpha, scale and trees in R worlds, `[R, ...]` each."""
    return {name: view.clone() for name, view in layout.views(state.models).items()}


def _join_parts(parts: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten(1) for part in parts.values()], dim=1)


# ---------------------------------------------------------------------------------------------------------------------
# Bytes of boosting: learners, errors and choices as they would be sent in a real federation.
#
# A learner takes 4 bytes per value, and a sum of sample weights takes 8 bytes. The server's choice takes 8 bytes: the
# index of a learner and its weight. A client that missed some rounds also downloads the learners that were chosen in
# these rounds, because the weights of the client's samples follow from them.


def boosting_traffic(
    schedule: Schedule, worlds: int, clients: int, *, learner: int, series: int, seats: int, asked: bool, pool: bool
) -> Traffic:
    """Returns a function that counts the bytes that each job of a round of boosting sends and receives.

    Args:
        schedule: The schedule of the clients. It needs no state.
        worlds: Number of worlds.
        clients: Number of clients.
        learner: Number of bytes of a learner.
        series: Number of learners that a client sends, F.
        seats: Number of learners that a round adds to the ensemble, S.
        asked: Whether a client reports one error for each learner. False means one error for the committee of all
            learners.
        pool: Whether clients fit and send learners in the first round only.
    """
    before = last_round(schedule, worlds, clients)

    def traffic(t: int, plan: Plan) -> tuple[IntArray, IntArray]:
        last = before(t)[plan.world * clients + plan.client]
        makers = plan if t == 0 or not pool else schedule(0, None)
        learners = series * np.bincount(makers.world, minlength=worlds)[plan.world]  # of this round, or of round 0
        fitted = 0 if pool and t > 0 else learner * series
        up = fitted + ERROR * (1 + (learners if asked else np.ones_like(learners)))
        if pool:
            return up, np.where(last < 0, learner * learners + CHOICE * t, CHOICE * (t - last))
        missed = t - 1 - last  # rounds whose learners the client has not received
        down = learner * learners + CHOICE * (last >= 0) + missed * (CHOICE + learner * seats)
        return up, down

    return traffic


def bagging_traffic(learner: int) -> Traffic:
    """Returns a function that counts the bytes of each job of bagging. A job sends one learner and receives nothing."""

    def traffic(_t: int, plan: Plan) -> tuple[IntArray, IntArray]:
        return np.full(len(plan.client), learner, dtype=np.int64), np.zeros(len(plan.client), dtype=np.int64)

    return traffic


# ---------------------------------------------------------------------------------------------------------------------
# The work of clients. A process keeps the weights of a client's samples from round to round as long as each new
# ensemble only adds learners to the ensemble from which the weights were computed. Otherwise the process computes the
# weights again; the results are the same bits.

Draw = Literal["rows", "weights", "bootstrap"]


class ClientRows(NamedTuple):
    """The training samples of a client.

    Attributes:
        x: Standardized inputs, `[n, f]` float32.
        y: Classes, `[n]`.
    """

    x: Tensor
    y: Tensor


class KnownWeights(NamedTuple):
    """The weights of a client's samples in boosting, after some rounds.

    Attributes:
        rounds: Number of these rounds.
        log: Logarithms of the multipliers by which the weights have changed, `[n]`.
    """

    rounds: int
    log: Tensor


@dataclass
class ClientCache:
    """Stores what a process knows about its clients, to save repeated work in later rounds.

    Attributes:
        row: The last ensemble that the process received, for each world (a seed and a fold).
        weights: The weights of each client's samples, for each world and client.
        classes: The classes that the candidates predict for each client's samples, for each world and client.
        pool: The candidates whose predictions are in `classes`. None means that there were no candidates yet.
        rows: Number of training samples of all clients together, for each world.
    """

    row: dict[int, Tensor] = field(default_factory=dict)
    weights: dict[tuple[int, int], KnownWeights] = field(default_factory=dict)
    classes: dict[tuple[int, int], IntArray] = field(default_factory=dict)
    pool: Tensor | None = None
    rows: dict[int, int] = field(default_factory=dict)


class OneJob(NamedTuple):
    """A client's job with its samples.

    Attributes:
        site: The worker.
        known: What this process has stored about its clients.
        t: The round, from 0.
        state: The state of the server.
        client: Id of the client.
        world: Index of the world.
        rows: The training samples of the client.
    """

    site: Site
    known: ClientCache
    t: int
    state: State
    client: int
    world: int
    rows: ClientRows


@dataclass(frozen=True)
class FitTrees(Work):
    """Lets clients fit decision trees of scikit-learn. The fitted trees (learners) are sent as arrays.

    Attributes:
        options: Options of the decision tree, by scikit-learn's names.
        leaves: Largest number of leaves of a tree, L.
        classes: Number of classes, C.
        draw: How a client uses the weights of its samples. `rows` draws samples in proportion to the weights. `weights`
            passes the weights to scikit-learn. `bootstrap` draws samples with equal probabilities.
        series: Number of learners that a client fits in a round, F. If F is above 1, the learners are boosted on the
            client's own samples.
    """

    options: Mapping[str, Any]
    leaves: int
    classes: int
    draw: Draw
    series: int

    def kept_numbers(self, d: int) -> int:
        return NUMBERS * tree_nodes(self.leaves) * self.series

    def describe(self) -> tuple[str, str]:
        return "sklearn", f"every client fits decision trees of at most {self.leaves} leaves"

    def begin(self, site: Site, kept: dict[Any, Any], t: int, state: State) -> None:
        """Deletes stored results that do not fit the ensembles and candidates of this round.

        Weights of samples stay valid if the ensemble has only grown since they were computed.
        """
        known: ClientCache = kept.setdefault("boosting", ClientCache())
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
        """Fits a client's learners of round t, or measures the errors of the candidates that the state holds.

        Returns:
            The statistics and the loss. The statistics hold the fitted learners, or sums of sample weights. The loss is
            the weighted error of the first learner on the client's samples, or the smallest such error of a candidate.
        """
        (client,), (world,) = job.plan.client.tolist(), job.plan.world.tolist()
        pool = state.extra.get(CANDIDATES)
        work = self._fit if pool is None or not has_root(pool[world]).any() else self._count_errors
        stats, error = work(OneJob(site, kept["boosting"], t, state, client, world, read_rows(site, world, client)))
        return stats, torch.tensor([error])

    def _fit(self, job: OneJob) -> tuple[Stats, float]:
        """Fits the F learners of a client. Returns the learners as statistics, and the loss.

        The first learner uses the samples' weights that follow from the ensemble. Then the samples on which this
        learner is wrong get larger weights, and the next learner is fitted (local AdaBoost).
        """
        rows, weight = job.rows, self._weigh(job)[0]
        learners = torch.zeros(self.series, tree_nodes(self.leaves), NUMBERS)
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
        return {"learners": Kept({(job.world, 0, job.client): learners})}, first

    def _fit_one(self, job: OneJob, weight: FloatArray, number: int) -> Tensor:
        """Fits one learner to weighted samples or to drawn samples. Returns it as a tree of n nodes, `[n, 3]`."""
        seed, address = int(job.site.seeds[job.world]), (job.t, job.client, number)
        x, y = job.rows.x.numpy(), job.rows.y.numpy()
        random_state = int(rng.keys(seed, "learner", *address) % np.uint64(2**32))
        tree = make_classifier("sklearn/decision_tree", self.options, random_state)
        if self.draw == "weights":
            return write_tree(tree.fit(x, y, sample_weight=weight / weight.sum()), self.leaves)
        odds = np.ones_like(weight) if self.draw == "bootstrap" else weight
        ends, numbers = np.cumsum(odds), rng.uniform(rng.keys(seed, "drawn rows", *address), len(odds))
        drawn = np.minimum(np.searchsorted(ends, numbers * ends[-1], side="right"), len(odds) - 1)
        return write_tree(tree.fit(x[drawn], y[drawn]), self.leaves)

    def _count_errors(self, job: OneJob) -> tuple[Stats, float]:
        """Returns sums of a client's sample weights, and the loss.

        The first sum is over all samples. Each further sum is over the samples on which one of the candidates is wrong.
        """
        rows, asked, known, world = job.rows, job.state.extra[CANDIDATES], job.known, job.world
        weight, shift = self._weigh(job)
        key = (world, job.client)
        if self.series == 1 or key not in known.classes:  # the candidates of a pool are the same in all rounds
            flat = classify_rows(asked[world].flatten(0, 1), rows.x).view(len(rows.y), *asked.shape[1:3])
            known.classes[key] = vote(flat, self.classes).numpy().astype(np.int16)  # [n, M]
        wrong = known.classes[key] != rows.y.numpy()[:, None]
        sums = np.concatenate([[weight.sum()], (weight[:, None] * wrong).sum(axis=0)])
        where, one = torch.tensor([world]), torch.ones(1, dtype=torch.int64)
        added = exact_sum(torch.from_numpy(sums)[None], where, len(job.site.seeds), one, limbs=2)
        return {f"{_ERRORS}{shift}": added}, float(sums[1:].min() / sums[0])

    def _weigh(self, job: OneJob) -> tuple[FloatArray, int]:
        """Returns the weights of a client's samples before round t, as `bound_weights` returns them.

        If all clients took part in every round, the weights of all their samples add up to 1.
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
            changes = wrong.double() * alpha.double() - scale.double()  # D <- D exp(alpha [wrong]) / Z, log Z is scale
            found = KnownWeights(t, found.log + changes.sum(1))
            known.weights[world, client] = found
        if world not in known.rows:
            everybody = np.arange(site.clients.number)
            known.rows[world] = int(site.shards.sizes(np.full_like(everybody, world), everybody).sum())
        return bound_weights(found.log, known.rows[world])


def read_rows(site: Site, world: int, client: int) -> ClientRows:
    """Returns the training samples of a client."""
    x, y = read_clients(site.shards, world, [client])
    return ClientRows(site.shards.scaling.normalize(x[None], torch.tensor([world]))[0].flatten(1).float(), y)
