"""Bases that vote: each client fits a scikit-learn classifier on its own rows, and a fold's sub model is their vote.

A classifier is a pure function of a client's rows (without the part that its world leaves out) and of its address, so
nobody sends or stores one: whoever needs it fits it again, and keeps it in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core import rng
from fedray.core.types import FloatArray, IntArray
from fedray.data.stacking import LeaveOut
from fedray.models.stacking import Voter
from fedray.simulation.study import Part

Classify = Callable[[Any], IntArray]  # inputs `[n, f]` -> classes `[n]`


class FittedVotes:
    """The classifiers of a stack's bases that were fitted in this process."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._fitted: dict[tuple[int, int, int], Classify] = {}
        self._turn = Lock()  # threads fit nothing twice, and the limit on BLAS is one for all of them

    @cached_property
    def _blas(self) -> Any:
        """The matrix libraries of this process."""
        import sklearn.linear_model  # noqa: F401  (brings its own)
        from threadpoolctl import ThreadpoolController

        return ThreadpoolController()

    def shares(self, i: int, world: int, folds: Sequence[int], x: Tensor) -> FloatArray:
        """How base i votes without each of the folds on raw inputs `[n, ...]` of a world: shares `[len(folds), n, C]`.

        Clients without rows do not vote; where nobody does, all classes have the same share.
        """
        part = self.parts[i]
        shards, place = _shards(part), np.arange(len(x))
        worlds = world * part.folds + np.array(folds)
        inputs = _flat(part, x, int(worlds[0]))
        counts = np.zeros((len(worlds), len(x), part.study.classes))
        # the order in which BLAS adds, and so the bits, would depend on its threads
        with self._turn, self._blas.limit(limits=1, user_api="blas"):
            for client in range(shards.number):
                said: dict[int, IntArray] = {}  # by the fold that was left out, if that makes a difference
                for at in np.flatnonzero(shards.sizes(worlds, np.full_like(worlds, client))).tolist():
                    fold = folds[at] if shards.within else 0
                    if fold not in said:
                        said[fold] = self._rule(i, int(worlds[at]), client, fold)(inputs)
                    counts[at, place, said[fold]] += 1
        voters = counts.sum(axis=-1, keepdims=True)
        return np.where(voters > 0, counts / np.maximum(voters, 1), 1 / part.study.classes)

    def _rule(self, i: int, world: int, client: int, fold: int) -> Classify:
        """What a client has learnt for base i in a world that leaves a fold out.

        fold: 0 where clients are left out: a client that is there has all of its rows in every such world.
        """
        part = self.parts[i]
        key = (i, world if _shards(part).within else world // part.folds, client)
        if key not in self._fitted:
            fetched = part.study.shards.fetch(np.array([world]), np.array([client]))
            rows = fetched.rows[0, : int(fetched.size[0])]
            seed = rng.keys(int(part.study.seeds[world]), "votes", i, client, fold)
            inputs, y = _flat(part, fetched.x[rows], world), fetched.labels(rows, 0).numpy()
            assert part.voter is not None
            self._fitted[key] = fit_classifiers(part.voter, inputs, y, int(seed % np.uint64(2**32)))
        return self._fitted[key]


def fit_classifiers(voter: Voter, x: Any, y: IntArray, seed: int) -> Classify:
    """A classifier of one client, from inputs `[n, f]` and classes `[n]`; who knows one class answers with it.

    Example:
        >>> fit_classifiers(Voter("sklearn/decision_tree", {}), [[0.0], [1.0]], np.array([3, 5]), 0)([[0.1], [0.9]]).tolist()
        [3, 5]
    """
    if (y == y[0]).all():
        return lambda x: np.full(len(x), y[0])
    from sklearn import ensemble, linear_model, naive_bayes, tree

    kinds: dict[str, Any] = {
        "sklearn/decision_tree": tree.DecisionTreeClassifier,
        "sklearn/gaussian_nb": naive_bayes.GaussianNB,
        "sklearn/logistic_regression": linear_model.LogisticRegression,
        "sklearn/random_forest": ensemble.RandomForestClassifier,
    }
    drawn = {} if voter.name == "sklearn/gaussian_nb" else {"random_state": seed}
    rule: Classify = kinds[voter.name](**voter.options, **drawn).fit(x, y).predict
    return rule


def _shards(part: Part) -> LeaveOut:
    assert isinstance(part.study.shards, LeaveOut)
    return part.study.shards


def _flat(part: Part, x: Tensor, world: int) -> Any:
    """Raw inputs `[n, ...]` as a classifier takes them: standardised as a network's are, `[n, f]` float64."""
    return _shards(part).normalise(x[None], torch.tensor([world]))[0].flatten(1).double().numpy()
