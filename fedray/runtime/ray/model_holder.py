"""The client actor's side of a random walk: holds models, trains them, and hands them to the next client's actor.

An actor that hands a model on keeps its copy until the next hand-over of that model is acknowledged too, so that it can
send the model again when the receiver dies. The coordinator's side is in `fedray.runtime.ray.random_walk`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayTaskError

from fedray.core.method import JobRows
from fedray.core.types import IntArray, SizedPlan
from fedray.runtime.ray.cluster import GONE, PATIENCE, PEER_CALLS
from fedray.runtime.worker import Worker
from fedray.simulation.rounds import draw_first_state

ModelKey = tuple[int, int]  # (world, model)


class Parcel(NamedTuple):
    """A model in one version.

    Attributes:
        version: The step in which it was last trained, plus 1.
        row: Its numbers, `[d]`.
        counters: Its counters, `[c]`.
    """

    version: int
    row: Any
    counters: Any


class Orders(NamedTuple):
    """What an actor does in one step of the walk.

    Attributes:
        t: The step, from 0.
        jobs: Its jobs, `[J]`.
        version: The version that each job's model must have before the step, `[J]`.
        to: The actor that holds each job's model after the step, `[J]`; its own number where the model stays.
    """

    t: int
    jobs: SizedPlan
    version: IntArray
    to: IntArray


class Report(NamedTuple):
    """What an actor answers to its orders.

    Attributes:
        missing: Models that it does not hold in the version it needs; if there are any, it has done nothing.
        rows: One row for each of its jobs; None where models are missing.
        unacknowledged: Actors that did not acknowledge the models they were sent.
    """

    missing: list[ModelKey]
    rows: JobRows | None
    unacknowledged: list[int]


class ModelHolder:
    """The models that a client actor holds, and copies of those it has handed on.

    Attributes:
        worker: Trains the models.
        phase: The training of the walk.
        state: A state of all models, into which the held ones are written for training.
        held: The models that are here.
        sent: Copies of models that were handed on.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.phase = worker.study.method.phase
        self.state = draw_first_state(worker.study, self.phase)
        self.held: dict[ModelKey, Parcel] = {}
        self.sent: dict[ModelKey, Parcel] = {}

    def receive(self, parcels: dict[ModelKey, Parcel]) -> bool:
        """Takes models; the answer acknowledges them."""
        self.held |= {
            key: Parcel(one.version, np.array(one.row), np.array(one.counters)) for key, one in parcels.items()
        }
        return True

    def step(self, orders: Orders, peers: dict[int, Any]) -> Report:
        """Trains models and hands them on; `peers` are the receiving actors by number."""
        plan = orders.jobs.plan
        keys = list(zip(plan.world.tolist(), plan.model.tolist(), strict=True))
        missing = self.find_missing(dict(zip(keys, orders.version.tolist(), strict=True)))
        if missing:
            return Report(missing, None, [])
        self.sent = {key: parcel for key, parcel in self.sent.items() if parcel.version >= orders.t}
        trained, rows = self._train(orders, keys)
        self.held |= trained
        routes = {b: [key for key, to in zip(keys, orders.to.tolist(), strict=True) if to == b] for b in peers}
        for key in (key for keys in routes.values() for key in keys):
            self.sent[key] = self.held.pop(key)
        return Report([], rows, [b for b, peer in peers.items() if not self._send(routes[b], peer)])

    def _train(self, orders: Orders, keys: list[ModelKey]) -> tuple[dict[ModelKey, Parcel], JobRows]:
        row = torch.tensor([world * self.phase.models + model for world, model in keys])
        self.state.models[row] = torch.stack([torch.from_numpy(self.held[key].row) for key in keys])
        self.state.counters[row] = torch.stack([torch.from_numpy(self.held[key].counters) for key in keys])
        stats, rows = self.worker.train(orders.t, orders.jobs, self.state, self.phase)
        after = self.phase.server.step(self.state, stats, orders.t)
        each = zip(keys, after.models[row].numpy(), after.counters[row].numpy(), strict=True)
        return {key: Parcel(orders.t + 1, model, counters) for key, model, counters in each}, rows

    def find_missing(self, wanted: dict[ModelKey, int]) -> list[ModelKey]:
        """Finds the models that are not here in the wanted version."""
        return [key for key, v in wanted.items() if key not in self.held or self.held[key].version != v]

    def _send(self, keys: list[ModelKey], peer: Any) -> bool:
        """Calls another actor with copies of models; tells whether it acknowledged them."""
        ref = peer.receive.options(concurrency_group=PEER_CALLS).remote({key: self.sent[key] for key in keys})
        try:
            return bool(ray.get(ref, timeout=PATIENCE))
        except (*GONE, RayTaskError, GetTimeoutError):
            return False

    def move(self, wanted: dict[ModelKey, int], peer: Any) -> list[ModelKey] | None:
        """Hands models to another actor that were not trained here.

        Args:
            wanted: The models, with the version they must have.
            peer: The receiving actor.

        Returns:
            The models that are missing; then none was sent. None if the receiver did not acknowledge them.
        """
        missing = self.find_missing(wanted)
        if missing:
            return missing
        self.sent |= {key: self.held[key] for key in wanted}
        if not self._send(list(wanted), peer):
            return None
        for key in wanted:
            del self.held[key]
        return []

    def resend(self, wanted: dict[ModelKey, int], peer: Any) -> bool:
        """Sends copies again; False if a copy is not here any more, or nobody acknowledged."""
        kept = all(key in self.sent and self.sent[key].version == version for key, version in wanted.items())
        return kept and self._send(list(wanted), peer)

    def show(self, wanted: dict[ModelKey, int]) -> dict[ModelKey, Parcel] | list[ModelKey]:
        """Copies of models for evaluation and checkpoints, or the list of those that are missing."""
        return self.find_missing(wanted) or {key: self.held[key] for key in wanted}
