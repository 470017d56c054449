"""The worker of a method whose clients fit learners: it fits them, and says on which rows which of them are wrong.

The weights of a client's rows follow from the ensemble and the rows. A process keeps them from round to round, as
long as the ensemble that it is sent is the one it knows; otherwise it computes them again, to the same bits.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.scenario.loader import read_scenario
    >>> study = build_study(read_scenario({"method": {"name": "adaboost_f"}, "rounds": 2, "clients": {"number": 3}}))
    >>> empty, counters = torch.zeros(1, study.net.layout.d), torch.zeros(1, 0)
    >>> LearnerWorker(study).forward(empty, counters, 0, torch.zeros(5, 64)).shape
    torch.Size([1, 5, 10])
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.components.boosting import bound_weights, is_chance, keep_learners, samme, sum_errors, weigh_rows
from fedray.core import rng
from fedray.core.fitting import CANDIDATES
from fedray.core.method import JobRows
from fedray.core.sums import merge_stats
from fedray.core.types import FloatArray, IntArray, SizedPlan, State, Stats
from fedray.models.boosting import classify_rows, vote, write_tree
from fedray.runtime import failures
from fedray.runtime.classifiers import make_classifier
from fedray.runtime.worker import Worker
from fedray.simulation.study import Study
from fedray.training.choice import Engine


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


class LearnerWorker:
    """Fits learners and counts their errors; `forward` is that of any network.

    Attributes:
        study: What runs.
        plain: The worker that evaluates the ensembles.
        workers: Nothing: no worker trains by descent.
    """

    workers: tuple[Worker, ...] = ()

    def __init__(self, study: Study) -> None:
        self.study, self.plain = study, Worker(study)
        self._row: dict[int, Tensor] = {}  # the ensemble of each world, as it was sent last
        self._weights: dict[tuple[int, int], KnownWeights] = {}
        self._classes: dict[tuple[int, int], IntArray] = {}  # what the learners of a pool say of a client's rows
        self._pool: Tensor | None = None
        self._rows: dict[int, int] = {}  # training rows of all clients of a world

    @property
    def engine(self) -> Engine:
        """The engine that evaluates."""
        return self.plain.engine

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Raw outputs `[M, n, C]` of ensembles `[M, d]` on raw inputs of a world."""
        return self.plain.forward(rows, counters, world, x)

    def state(self) -> dict[str, Tensor]:
        """Nothing: clients keep nothing that they could not compute again."""
        return {}

    def restore(self, _state: dict[str, Tensor]) -> None:
        """Does nothing."""

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Fits the learners of round t, or counts the errors of those that the state asks about.

        Args:
            t: The round, from 0.
            jobs: The clients, `[J]`.
            state: The ensembles; with `CANDIDATES` it is a question.

        Returns:
            Learners, or sums of weights. The loss of a job is its own learner's weighted error on its own rows, or the
            least of the candidates' errors there.
        """
        failures.check_limit(self.study.client_timeout)
        plan = jobs.plan
        work = self._fit if CANDIDATES not in state.extra else self._count_errors

        def attempt(index: IntArray) -> tuple[Stats, Tensor]:
            (client,), (world,) = plan.client[index].tolist(), plan.world[index].tolist()
            with failures.limit_seconds(self.study.client_timeout):
                stats, error = work(t, state, client, world)
            return stats, torch.tensor([error])

        def name(job: int) -> str:
            return f"round {t + 1}: client {plan.client[job]}"

        self._forget_other_ensembles(t, state)
        stats, loss, errors = Stats(), np.full(len(jobs.size), np.nan), failures.Tracebacks()
        for job in range(len(jobs.size)):
            done, failed = failures.try_jobs(attempt, name, self.study.skip, np.array([job]))
            for block in done:
                stats, loss[job] = merge_stats([stats, block.stats]), float(block.loss[0])
            errors |= failed
        return stats, JobRows(loss, failures.shorten_tracebacks(errors))

    def _fit(self, t: int, state: State, client: int, world: int) -> tuple[Stats, float]:
        """The learners of a client, `[F, n, 3]`: by the ensemble's weights, later ones by its own (local AdaBoost)."""
        fitting, rows = self.study.method.phase.fitting, self._read(world, client)
        assert fitting is not None
        weight, _ = self._weigh(t, state, client, world, rows)
        learners = torch.zeros(fitting.series, *_tree_shape(fitting.numbers))
        classes, first = len(np.unique(rows.y)), 0.0
        for number in range(fitting.series):
            learners[number] = self._fit_one(rows, weight, (t, client, number), world)
            wrong = (classify_rows(learners[number][None], rows.x)[:, 0] != rows.y).numpy()
            error = float(weight[wrong].sum() / weight.sum())
            first = error if number == 0 else first
            if number and is_chance(error, classes):
                learners[number] = 0.0
            if classes == 1 or is_chance(error, classes):
                break
            weight = weight * np.exp(samme(error, classes) * wrong)
            weight /= weight.sum()
        return keep_learners(learners, client, world), first

    def _fit_one(self, rows: ClientRows, weight: FloatArray, address: tuple[int, int, int], world: int) -> Tensor:
        """One learner, `[n, 3]`, on rows that are drawn at an address, or with weights."""
        fitting, seed = self.study.method.phase.fitting, self.study.seeds[world]
        assert fitting is not None
        x, y = rows.x.numpy(), rows.y.numpy()
        random_state = int(rng.keys(seed, "learner", *address) % np.uint64(2**32))
        tree = make_classifier("sklearn/decision_tree", fitting.options, random_state)
        if fitting.draw == "weights":
            return write_tree(tree.fit(x, y, sample_weight=weight / weight.sum()), fitting.leaves)
        odds = np.ones_like(weight) if fitting.draw == "bootstrap" else weight
        drawn = draw_rows(odds, rng.uniform(rng.keys(seed, "drawn rows", *address), len(odds)))
        return write_tree(tree.fit(x[drawn], y[drawn]), fitting.leaves)

    def _count_errors(self, t: int, state: State, client: int, world: int) -> tuple[Stats, float]:
        """Sums of a client's weights: of all its rows, then of those on which each candidate is wrong."""
        rows, asked = self._read(world, client), state.extra[CANDIDATES]
        weight, shift = self._weigh(t, state, client, world, rows)
        fitting = self.study.method.phase.fitting
        assert fitting is not None
        key = (world, client)
        if fitting.series == 1 or key not in self._classes:  # a pool stays the same
            flat = classify_rows(asked[world].flatten(0, 1), rows.x).view(len(rows.y), *asked.shape[1:3])
            self._classes[key] = vote(flat, fitting.classes).numpy().astype(np.int16)  # [n, M]
        wrong = self._classes[key] != rows.y.numpy()[:, None]
        sums = np.concatenate([[weight.sum()], (weight[:, None] * wrong).sum(axis=0)])
        stats = sum_errors(torch.from_numpy(sums)[None], np.array([world]), self.study.worlds, shift)
        return stats, float(sums[1:].min() / sums[0])

    def _weigh(self, t: int, state: State, client: int, world: int, rows: ClientRows) -> tuple[FloatArray, int]:
        """The weights of a client's rows before round t, as `bound_weights` has them.

        Those of all clients add up to 1 where all have taken part.
        """
        equal = KnownWeights(0, torch.zeros(len(rows.y), dtype=torch.float64))
        known = self._weights.get((world, client), equal)
        known = equal if known.rounds > t else known
        if known.rounds < t:
            named = self.study.net.layout.views(state.models[world])
            alpha, scale, trees = (named[name][known.rounds : t] for name in ("alpha", "scale", "trees"))
            chosen = classify_rows(trees.flatten(0, 1), rows.x).view(len(rows.y), *trees.shape[:2])
            wrong = vote(chosen, self.study.classes) != rows.y[:, None]
            known = KnownWeights(t, known.log + weigh_rows(wrong, alpha, scale))
            self._weights[world, client] = known
        return bound_weights(known.log, self._count_rows(world))

    def _forget_other_ensembles(self, t: int, state: State) -> None:
        """Drops what was computed from ensembles that are not the beginning of those that are sent now."""
        pool = state.extra.get(CANDIDATES)
        if pool is not None and (self._pool is None or not torch.equal(pool, self._pool)):
            self._pool, self._classes = pool.clone(), {}
        layout = self.study.net.layout
        for world, row in enumerate(state.models):
            last = self._row.get(world)
            known = max((one.rounds for key, one in self._weights.items() if key[0] == world), default=0)
            if last is not None and known:
                both = zip(layout.views(row).values(), layout.views(last).values(), strict=True)
                if known > t or not all(torch.equal(new[:known], old[:known]) for new, old in both):
                    self._weights = {key: one for key, one in self._weights.items() if key[0] != world}
            self._row[world] = row.clone()

    def _read(self, world: int, client: int) -> ClientRows:
        """The training rows of a client."""
        shards = self.study.shards
        fetched = shards.fetch(np.array([world]), np.array([client]))
        rows = fetched.rows[0, : int(fetched.size[0])]
        x = shards.normalize(fetched.x[rows][None], torch.tensor([world]))[0].flatten(1).float()
        return ClientRows(x, fetched.labels(rows, 0))

    def _count_rows(self, world: int) -> int:
        """Training rows of all clients of a world."""
        if world not in self._rows:
            client = np.arange(self.study.clients.number)
            self._rows[world] = int(self.study.shards.sizes(np.full_like(client, world), client).sum())
        return self._rows[world]


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


def _tree_shape(numbers: int) -> tuple[int, int]:
    """Nodes of a tree of so many numbers, and numbers of a node."""
    return numbers // 3, 3
