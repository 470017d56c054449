"""Bases of a stack that vote: each client fits a scikit-learn classifier on its own rows; a sub model is their vote.

A classifier depends on nothing but a client's rows (without the fold that its world leaves out) and an address. So no
classifier is sent or saved: a process that needs one fits it again, and keeps it.
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
from fedray.data.stacking import LeaveOutShards
from fedray.models.stacking import Voter, make_classifier
from fedray.simulation.study import Part

ClassifyRows = Callable[[Any], IntArray]  # inputs `[n, f]` -> classes `[n]`


class FittedVotes:
    """The classifiers that were fitted in this process, and how they vote.

    Attributes:
        parts: The bases of the stack.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._fitted: dict[tuple[int, int, int], ClassifyRows] = {}
        self._lock = Lock()  # so that threads fit nothing twice, and because the limit of BLAS holds for all of them

    @cached_property
    def _blas(self) -> Any:
        """The controller of the matrix libraries of this process."""
        import sklearn.linear_model  # noqa: F401  (it loads a matrix library that the controller has to find)
        from threadpoolctl import ThreadpoolController

        return ThreadpoolController()

    def shares(self, i: int, world: int, folds: Sequence[int], x: Tensor) -> FloatArray:
        """Shares of the votes of a base's classifiers.

        Args:
            i: Number of the base.
            world: The world, 0 to R - 1.
            folds: The folds that are left out, one after the other.
            x: Raw inputs of the world, `[n, ...]`.

        Returns:
            The shares of the classes, `[len(folds), n, C]`. Clients without rows do not vote; where nobody votes, all
            classes have the same share.
        """
        part = self.parts[i]
        shards, row = _shards(part), np.arange(len(x))
        worlds = world * part.folds + np.array(folds)
        inputs = _flatten(part, x, int(worlds[0]))
        counts = np.zeros((len(worlds), len(x), part.study.classes))
        # the order in which BLAS adds, and so the bits, would depend on its threads
        with self._lock, self._blas.limit(limits=1, user_api="blas"):
            for client in range(shards.number):
                votes: dict[int, IntArray] = {}  # by the fold that was left out, if that makes a difference
                for at in np.flatnonzero(shards.sizes(worlds, np.full_like(worlds, client))).tolist():
                    fold = folds[at] if shards.within else 0
                    if fold not in votes:
                        votes[fold] = self._classifier(i, int(worlds[at]), client, fold)(inputs)
                    counts[at, row, votes[fold]] += 1
        voters = counts.sum(axis=-1, keepdims=True)
        return np.where(voters > 0, counts / np.maximum(voters, 1), 1 / part.study.classes)

    def _classifier(self, i: int, world: int, client: int, fold: int) -> ClassifyRows:
        """Returns the classifier of a client for base i in a world that leaves a fold out.

        The fold is 0 where whole clients are left out: a client that is present has all its rows in every such world.
        """
        part = self.parts[i]
        key = (i, world if _shards(part).within else world // part.folds, client)
        if key not in self._fitted:
            fetched = part.study.shards.fetch(np.array([world]), np.array([client]))
            rows = fetched.rows[0, : int(fetched.size[0])]
            seed = rng.keys(int(part.study.seeds[world]), "votes", i, client, fold)
            inputs, y = _flatten(part, fetched.x[rows], world), fetched.labels(rows, 0).numpy()
            assert part.voter is not None
            self._fitted[key] = fit_classifier(part.voter, inputs, y, int(seed % np.uint64(2**32)))
        return self._fitted[key]


def fit_classifier(voter: Voter, x: Any, y: IntArray, seed: int) -> ClassifyRows:
    """Fits the classifier of one client; a client with rows of one class gets the constant answer.

    Args:
        voter: The name of the classifier and its options.
        x: Inputs, `[n, f]`.
        y: Classes, `[n]`.
        seed: Seed of the classifier's random numbers, below 2^32.

    Returns:
        A function from inputs `[m, f]` to classes `[m]`.

    Example:
        >>> classify = fit_classifier(Voter("sklearn/decision_tree", {}), [[0.0], [1.0]], np.array([3, 5]), seed=0)
        >>> classify([[0.1], [0.9]]).tolist()
        [3, 5]
    """
    if (y == y[0]).all():
        return lambda x: np.full(len(x), y[0])
    classify: ClassifyRows = make_classifier(voter.name, voter.options, seed).fit(x, y).predict
    return classify


def _shards(part: Part) -> LeaveOutShards:
    assert isinstance(part.study.shards, LeaveOutShards)
    return part.study.shards


def _flatten(part: Part, x: Tensor, world: int) -> Any:
    """Raw inputs `[n, ...]` as a classifier takes them: standardized as for a network, `[n, f]` float64."""
    return _shards(part).normalize(x[None], torch.tensor([world]))[0].flatten(1).double().numpy()
