"""Clients that fit decision trees in place of descending, and say on which rows which of them are wrong.

The weights of a client's rows follow from the ensemble and the rows. A process keeps them from round to round, as
long as the ensemble that it is sent is the one it knows; otherwise it computes them again, to the same bits.

Example:
    >>> draw_rows(np.array([1.0, 0.0, 3.0]), np.array([0.0, 0.2, 0.3, 0.99])).tolist()
    [0, 0, 2, 2]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.components.boosting import (
    CANDIDATES,
    bound_weights,
    is_chance,
    keep_learners,
    samme,
    sum_errors,
    weigh_rows,
)
from fedray.core import rng
from fedray.core.piece import Work
from fedray.core.types import FloatArray, IntArray, SizedPlan, State, Stats
from fedray.models.boosting import classify_rows, vote, write_tree
from fedray.models.stacking import make_classifier
from fedray.training.update import Site

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
    """
    ends = np.cumsum(odds)
    drawn: IntArray = np.minimum(np.searchsorted(ends, numbers * ends[-1], side="right"), len(odds) - 1)
    return drawn
