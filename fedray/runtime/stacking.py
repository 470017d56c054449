"""Trains the parts of a stack in one process.

The *bases* of a stack are ensembles of networks (*sub models*) or of classifiers. A stack may also have a *meta model*.
The inputs of the meta model (*features*) are the predictions of the sub models. Each part of the stack has its own
worker. Features stay in the process that computes them. A *study* is everything that a run needs except a runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.method import JobRows
from fedray.core.types import EVALUATED_ROWS, FloatArray, IntArray, SizedPlan, State, Stats
from fedray.data.shards import count_held_labels, read_clients
from fedray.features import stacking
from fedray.features.stacking import FeatureShards, LeaveOutShards, Voter
from fedray.metrics import classification
from fedray.runtime.exchange import in_order
from fedray.runtime.worker import Worker
from fedray.simulation.stacking import find_bases, is_trained, read_part, split_plan
from fedray.simulation.study import Part, Study
from fedray.training.choice import SHAREABLE

# ---------------------------------------------------------------------------------------------------------------------
# Bases that vote. Each client fits a scikit-learn classifier on its own samples, and the classifiers vote.
#
# A classifier depends only on the key of its random numbers and on the client's samples outside the fold that is left
# out. So no classifier is sent or saved. A process that needs a classifier fits it again, and keeps it.

ClassifyRows = Callable[[Any], IntArray]  # inputs `[n, f]` -> classes `[n]`


class FittedVotes:
    """Fits and keeps the classifiers of this process, and counts their votes.

    Attributes:
        parts: The bases of the stack.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._fitted: dict[tuple[int, int, int], ClassifyRows] = {}
        self._lock = Lock()  # fits no classifier twice; also, the limit of BLAS threads is one for all threads

    def shares(self, i: int, world: int, folds: Sequence[int], x: Tensor) -> FloatArray:
        """Returns the share of votes that each class gets from the clients' classifiers of one base (part of a stack).

        Args:
            i: Index of the base.
            world: Index of the world (a seed and a fold of the data).
            folds: Folds of the stack. The vote for a fold counts only classifiers that were fitted without this fold.
            x: Raw inputs of the world, `[n, ...]`.

        Returns:
            The shares of the classes, `[len(folds), n, C]`. Clients without samples do not vote. If no client votes,
            all classes have the same share.
        """
        part = self.parts[i]
        shards, row = _shards(part), np.arange(len(x))
        worlds = world * part.folds + np.array(folds)
        inputs = _flatten(part, x, int(worlds[0]))
        counts = np.zeros((len(worlds), len(x), part.study.classes))
        import sklearn.linear_model  # noqa: F401  (loads the matrix library whose threads are limited below)
        from threadpoolctl import threadpool_limits

        # with several threads, BLAS adds in an order that is not fixed, so the bits would differ
        with self._lock, threadpool_limits(limits=1, user_api="blas"):
            for client in range(shards.number):
                votes: dict[int, IntArray] = {}  # key: the fold left out of the client's own samples, else 0
                for at in np.flatnonzero(shards.sizes(worlds, np.full_like(worlds, client))).tolist():
                    fold = folds[at] if shards.within else 0
                    if fold not in votes:
                        votes[fold] = self._classifier(i, int(worlds[at]), client, fold)(inputs)
                    counts[at, row, votes[fold]] += 1
        voters = counts.sum(axis=-1, keepdims=True)
        return np.where(voters > 0, counts / np.maximum(voters, 1), 1 / part.study.classes)

    def _classifier(self, i: int, world: int, client: int, fold: int) -> ClassifyRows:
        """Returns the classifier that a client fits for base i.

        A world of a base (`world`) is a world of the stack together with the fold that is left out. `fold` is the fold
        that is left out of the client's own samples. It is 0 if each fold leaves out one whole client, because the
        other clients have the same samples in every fold.
        """
        part = self.parts[i]
        key = (i, world if _shards(part).within else world // part.folds, client)
        if key not in self._fitted:
            x, y = read_clients(part.study.shards, world, [client])
            seed = rng.keys(int(part.study.seeds[world]), "votes", i, client, fold)
            assert part.voter is not None
            inputs = _flatten(part, x, world)
            self._fitted[key] = fit_classifier(part.voter, inputs, y.numpy(), int(seed % np.uint64(2**32)))
        return self._fitted[key]


def fit_classifier(voter: Voter, x: Any, y: IntArray, seed: int) -> ClassifyRows:
    """Fits the classifier of one client.

    If all samples have the same class, the classifier always predicts this class.

    Args:
        voter: The name and the options of the classifier.
        x: Inputs, `[n, f]`.
        y: Classes, `[n]`.
        seed: Seed of the classifier's random numbers, below 2^32.

    Returns:
        A function that takes inputs `[m, f]` and returns classes `[m]`.

    Example:
        >>> classify = fit_classifier(Voter("sklearn/decision_tree", {}), [[0.0], [1.0]], np.array([3, 5]), seed=0)
        >>> classify([[0.1], [0.9]]).tolist()
        [3, 5]
    """
    if (y == y[0]).all():
        return lambda x: np.full(len(x), y[0])
    classify: ClassifyRows = stacking.make_classifier(voter.name, voter.options, seed).fit(x, y).predict
    return classify


def _shards(part: Part) -> LeaveOutShards:
    assert isinstance(part.study.shards, LeaveOutShards)
    return part.study.shards


def _flatten(part: Part, x: Tensor, world: int) -> Any:
    """Standardizes raw inputs `[n, ...]` as for a network, and flattens them to `[n, f]` float64 for a classifier."""
    return _shards(part).scaling.normalize(x[None], torch.tensor([world]))[0].flatten(1).double().numpy()


# ---------------------------------------------------------------------------------------------------------------------
# The worker of a stack. A stack trains its bases, and then a meta model on their predictions. The features of a
# training sample are the predictions of the sub models that were trained without this sample. The process that trains
# the meta model at a client computes the client's features itself. Features are neither sent nor saved.


def make_worker(study: Study, device: str = "cpu", threads: int = 1) -> Worker:
    """Makes the worker of a study.

    The worker of a stack passes the jobs on to workers of the stack's parts.

    Args:
        study: The objects of the run.
        device: `cpu` or `cuda`.
        threads: Number of blocks of jobs that are trained at the same time, at least 1.

    Example:
        >>> from fedray.assembly.study import build_study
        >>> from fedray.scenario.loader import read_scenario
        >>> keys = {"data": {"name": "cubic"}, "model": {"name": "linear"}, "lanes": "torch"}
        >>> study = build_study(read_scenario(keys))
        >>> make_worker(study).engine.name
        'mlp'
    """
    if study.method.phase.work is not None:  # work other than gradient descent runs on CPUs only
        device, threads = "cpu", 1
    return Worker(study, device, threads, StackWorkers(study, device, threads) if study.parts else None)


class StackWorkers:
    """The workers of a stack's parts, and the features of the clients that this process trained.

    Attributes:
        study: The study of the whole stack.
        bases: The parts of the stack without the meta model.
        workers: The workers of the parts that train networks, in the order of the parts.
    """

    def __init__(self, study: Study, device: str, threads: int) -> None:
        self.study = study
        self.bases = find_bases(study)
        self._worker = {
            i: Worker(_with_features(part, self.features), device, threads)
            for i, part in enumerate(study.parts)
            if part.voter is None
        }
        self.workers = list(self._worker.values())
        for worker in self.workers:  # all parts read the same samples, so one copy on a GPU is enough
            worker.rows_on_device = self.workers[0].rows_on_device
        if not all(worker.engine.name in SHAREABLE for worker in self.workers):
            for worker in self.workers:  # the threads of one worker would use the networks of the others
                worker.threads = 1
        self._votes = FittedVotes(self.bases)
        self._state: State | None = None  # the state of the newest training
        self._features: dict[tuple[int, int], Tensor] = {}  # by (world, client)

    def train(self, t: int, jobs: SizedPlan, state: State) -> tuple[Stats, JobRows]:
        """Trains the jobs of round t, one part of the stack after the other.

        The names of part i's statistics begin with `i/`.
        """
        self._use_state(state)
        of_parts = list(split_plan(self.study.parts, jobs.plan))
        stats: Stats = {}
        rows: list[JobRows] = []
        for i, part, places, plan in of_parts:
            own = jobs.take(places)._replace(plan=plan)
            part_stats, part_rows = self._worker[i].train(t - part.begins, own, read_part(state, part))
            stats |= {f"{i}/{name}": value for name, value in part_stats.items()}
            rows.append(part_rows)
        return stats, in_order([one.jobs for one in of_parts], rows)

    def forward(self, rows: Tensor, counters: Tensor, world: int, x: Tensor) -> Tensor:
        """Computes the raw outputs of a stack and of its sub models.

        Args:
            rows: The parameters and float buffers of the whole stack, `[1, d]`.
            counters: The integer buffers of the whole stack, `[1, c]`.
            world: The world whose normalization is applied to the inputs.
            x: Raw inputs, `[n, ...]`.

        Returns:
            Raw outputs of the stack, followed by the raw outputs of its P sub models, `[1 + P, n, C]`.
        """
        whole = State(rows[:1].cpu(), counters[:1].cpu(), {})
        outputs = [self._base_outputs(whole, i, world, x) for i in range(len(self.bases))]
        combine = self.bases[0].combine
        if len(self.bases) < len(self.study.parts) and is_trained(whole.counters[0]):
            meta = read_part(whole, self.study.parts[-1])
            features = self._join(outputs) if combine is None else stacking.side_by_side(outputs[0])
            answer = self.workers[-1].forward(meta.models, meta.counters, world, features)[0].cpu()
        elif combine is not None:
            counts = count_held_labels(self.study.shards, world)
            total = counts.sum(axis=0)  # if no client has samples of a class, all clients have equal shares of it
            shares = np.where(total > 0, counts / np.maximum(total, 1), 1 / len(counts))
            answer = stacking.combine_outputs(combine, outputs[0], torch.from_numpy(shares))
        else:
            heard = [each for each, part in zip(outputs, self.bases, strict=True) if part.answers]
            mean = np.mean([self._predict(each).mean(axis=0) for each in heard], axis=0)
            answer = torch.from_numpy(np.log(np.maximum(mean, stacking.TINY)) if self.study.classes else mean)
        return torch.cat([answer[None].double(), *(each.double() for each in outputs)])

    def _predict(self, outputs: Tensor) -> FloatArray:
        """Turns raw outputs into probabilities. Outputs for real targets are returned unchanged, as float64."""
        raw = outputs.numpy()
        return classification.probabilities(raw) if self.study.classes else raw.astype(np.float64)

    def _join(self, outputs: list[Tensor]) -> Tensor:
        """Returns the features of n samples, which are the inputs of the meta model, `[n, f]` float32.

        Args:
            outputs: Raw outputs of each base, `[F * K, n, C]`, with K sub models for each of F folds.
        """
        if self.bases[0].features == stacking.SIDE_BY_SIDE:
            return torch.cat([stacking.side_by_side(torch.from_numpy(self._predict(each))) for each in outputs], dim=1)
        means = [self._predict(each).mean(axis=0) for each in outputs]
        return torch.from_numpy(np.concatenate(means, axis=1).astype(np.float32))

    def state(self) -> dict[str, Tensor]:
        """Returns the vectors that clients keep between rounds, for all parts of the stack.

        The names of part i's vectors begin with `i/`.
        """
        return {f"{i}/{name}": rows for i, part in self._worker.items() for name, rows in part.private.state().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Replaces the vectors that clients keep between rounds, for all parts of the stack."""
        for i, worker in self._worker.items():
            own = f"{i}/"
            worker.private.restore({name.removeprefix(own): v for name, v in state.items() if name.startswith(own)})

    def features(self, world: int, client: int) -> Tensor:
        """Returns the inputs (features) on which a client trains the meta model, `[n, f]` float32."""
        if (world, client) not in self._features:
            self._features[world, client] = self._compute_features(world, client)
        return self._features[world, client]

    def _compute_features(self, world: int, client: int) -> Tensor:
        assert self._state is not None
        meta = self.study.parts[-1].study.shards
        assert isinstance(meta, FeatureShards)
        x, _ = read_clients(meta.whole, world, [client])
        out = np.zeros((len(x), len(self.bases), self.study.net.outputs), np.float32)
        row = slice(world, world + 1)
        whole = State(self._state.models[row], self._state.counters[row], {})
        shards = self.bases[0].study.shards
        if not isinstance(shards, LeaveOutShards):  # one client trains each model, and none has seen these
            return stacking.side_by_side(self._base_outputs(whole, 0, world, x))
        if self.bases[0].features != "out_of_fold":
            return self._join([self._base_outputs(whole, i, world, x) for i in range(len(self.bases))])
        folds = shards.fold_of(world, client, len(x))
        for fold in np.unique(folds).tolist():
            rows = np.flatnonzero(folds == fold)
            for i in range(len(self.bases)):
                outputs = self._base_outputs(whole, i, world, x[torch.from_numpy(rows)], fold)
                out[rows, i] = self._predict(outputs).mean(axis=0)
        return torch.from_numpy(out.reshape(len(x), -1))

    def _base_outputs(self, whole: State, i: int, world: int, x: Tensor, fold: int | None = None) -> Tensor:
        """Returns the raw outputs of base i in a world, `[F * K, n, C]`, with K sub models for each of F folds.

        If `fold` is given, only the K sub models of this fold compute outputs, `[K, n, C]`.
        """
        part = self.bases[i]
        if part.voter is not None:
            folds = range(part.folds) if fold is None else [fold]
            shares = [self._votes.shares(i, world, folds, piece) for piece in torch.split(x, EVALUATED_ROWS)]
            return torch.from_numpy(np.log(np.maximum(np.concatenate(shares, axis=1), stacking.TINY)))
        worker, own, k = self._worker[i], read_part(whole, part), part.models
        models = slice(None) if fold is None else slice(fold * k, (fold + 1) * k)
        rows, counters, part_world = own.models[models], own.counters[models], world * part.folds
        pieces = [worker.forward(rows, counters, part_world, piece) for piece in torch.split(x, EVALUATED_ROWS)]
        return torch.cat(pieces, dim=1).cpu()

    def _use_state(self, state: State) -> None:
        """Stores the state with which a round begins, and deletes all features if sub models have changed."""
        if self._state is not None and self._features:
            same = all(
                torch.equal(new, old)
                for part in self.bases
                for new, old in zip(read_part(state, part)[:2], read_part(self._state, part)[:2], strict=True)
            )
            if not same:
                self._features = {}
        self._state = state


def _with_features(part: Part, compute: Callable[[int, int], Tensor]) -> Study:
    """Returns the study of a part. If the part is the meta model, its samples are the features from `compute`."""
    shards = part.study.shards
    if not isinstance(shards, FeatureShards):
        return part.study
    return replace(part.study, shards=FeatureShards(shards.whole, shards.width, compute, shards.pooled))
