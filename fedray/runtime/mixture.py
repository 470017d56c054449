"""Clients that weigh their samples by all models before they train (FedEM's E step), one by one, where they live.

A client's shares depend on its own rows, on the models of the round and on its private weights alone, so that no
packing of clients shows in them.

Example:
    >>> from fedray.assembly.study import build_study
    >>> from fedray.runtime.worker import Worker
    >>> from fedray.scenario.loader import read_scenario
    >>> from fedray.simulation.rounds import begin_progress
    >>> study = build_study(read_scenario({"method": {"name": "fedem", "models": 3}, "clients": {"number": 4}}))
    >>> worker, state = Worker(study), begin_progress(study, study.method.phase).state
    >>> shares = Shares(study, worker.private, worker.forward, state)
    >>> weights = shares.weights(Plan(np.array([2, 2, 2]), np.arange(3), np.array([0, 0, 0])))
    >>> weights.shape, round(float(weights.sum()), 6)
    (torch.Size([3, 1]), 1.0)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.components.mixture import share_samples
from fedray.core.method import MIXTURE
from fedray.core.types import FloatArray, Plan, State
from fedray.evaluation.mixture import Forward, sample_losses
from fedray.runtime.client_state import Private
from fedray.simulation.study import Study


class _Shared(NamedTuple):
    """The E step of a client: shares of its samples, `[K, n]` float32, and its weights after it, `[K]`."""

    share: Tensor
    weights: FloatArray


class Shares:
    """The shares of the samples of a round's clients, each computed when the first of its jobs asks."""

    def __init__(self, study: Study, private: Private, forward: Forward, state: State) -> None:
        """Remembers the round.

        Args:
            study: What is trained.
            private: Has the weights of the clients that took part before.
            forward: Computes outputs.
            state: The models of the round.
        """
        self.study, self._private, self._forward, self._state = study, private, forward, state
        self._known: dict[tuple[int, int], _Shared] = {}

    def of_places(self, plan: Plan, place: Tensor) -> Tensor:
        """The share of each lane's model in each sample of its batches, `[S, W, B]`.

        Args:
            plan: The lanes, `[W]`.
            place: Places of the samples among those of the lane's client, `[S, W, B]`.
        """
        lanes = [
            self._of(world, client).share[model][place[:, lane]]
            for lane, (client, model, world) in enumerate(zip(*(column.tolist() for column in plan), strict=True))
        ]
        return torch.stack(lanes, dim=1)

    def weights(self, plan: Plan) -> Tensor:
        """What each job's client gives to the job's model after the E step, `[J, 1]` float64."""
        rows = zip(*(column.tolist() for column in plan), strict=True)
        return torch.tensor([[self._of(world, client).weights[model]] for client, model, world in rows])

    def _of(self, world: int, client: int) -> _Shared:
        key = world, client
        if key not in self._known:
            k = self.study.method.phase.models
            plan = Plan(np.full(k, client), np.arange(k), np.full(k, world))
            known = all(self._private.has(MIXTURE, plan))
            before = self._private.read(MIXTURE, plan)[:, 0].numpy() if known else np.full(k, 1.0 / k)
            losses = sample_losses(self.study, self._forward, self._state, world, client)
            share = share_samples(losses.numpy(), before)
            self._known[key] = _Shared(torch.from_numpy(share.astype(np.float32)), share.mean(axis=1))
        return self._known[key]
