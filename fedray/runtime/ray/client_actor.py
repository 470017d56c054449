"""The clients that live in one process: a plain class, which `cluster.make_actors` makes an actor of Ray."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects, explaining_own_objects
from fedray.core import native
from fedray.core.errors import Lost
from fedray.core.exact_sum import merge_stats
from fedray.core.totals import Totals, thin
from fedray.core.types import FloatArray, IntArray, Stats
from fedray.own_code.user_modules import import_modules
from fedray.runtime import environment, evaluation, messages
from fedray.runtime.client_state import keep_vectors
from fedray.runtime.conformal import score_own_sets
from fedray.runtime.environment import device_of, limit_gpu_memory
from fedray.runtime.messages import Piece
from fedray.runtime.ray.model_holder import ModelHolder, ModelKey, Orders, Parcel, Report
from fedray.runtime.stacking import make_worker
from fedray.runtime.worker import Worker
from fedray.runtime.worker_info import worker_facts
from fedray.scenario.schema import Scenario


class Unsent(NamedTuple):
    """The sums of the chunks of an exchange that an actor has trained and not sent yet.

    Attributes:
        exchange: Number of the exchange.
        chunks: How many chunks they are of.
        stats: The sums; None of no chunk.
    """

    exchange: int
    chunks: int = 0
    stats: Stats | None = None


class ClientActor:
    """The clients that live in one process, and the worker that trains them.

    Attributes:
        scenario: What is run.
        own: The user's own objects.
        index: The number of the actor.
        gpus: GPUs that it reserves.
        cpus: CPUs that it reserves.
        name: What Ray's tools call it.
        restored: Whether the private vectors of its clients were restored since the process started.
        sums: What it has trained and not sent yet.
    """

    def __init__(
        self, scenario: Scenario, own: UserObjects, index: int, gpus: float, cpus: float, *, name: str = "clients"
    ) -> None:
        environment.use_one_thread()
        self.scenario, self.own = scenario, own
        self.index, self.gpus, self.cpus, self.name = index, gpus, cpus, name
        self.restored, self.sums = False, Unsent(-1)

    def __repr__(self) -> str:
        return self.name  # Ray writes it before each line that is printed here

    @cached_property
    def worker(self) -> Worker:
        """The worker. The first call builds it, so that an error on the way reaches the caller as every other does."""
        import_modules(self.own.modules)
        study = build_study(self.scenario, self.own)
        with explaining_own_objects(self.scenario, self.own):
            device = device_of(self.gpus, self.scenario.clients.device, tf32=self.scenario.clients.tf32)
            if device == "cuda":
                limit_gpu_memory(self.gpus)
            return make_worker(study, device, max(1, int(self.cpus)))

    def ready(self) -> int:
        """Answers with the process id as soon as the actor can work."""
        _ = self.worker
        return os.getpid()

    def hash_kernels(self) -> str | None:
        """A digest of the compiled kernels of this process; None where there are none."""
        return native.hash_library()

    def facts(self) -> dict[str, Any]:
        """Facts on this actor for the manifest."""
        with explaining_own_objects(self.scenario, self.own):
            return worker_facts(self.worker)

    def train(self, order: messages.Order, *pages: messages.Page) -> messages.Reply | None:
        """Trains a chunk of a round and adds its sums to those of this actor; None where these were lost."""
        self._check_restored()
        if order.kept == 0:
            self.sums = Unsent(order.exchange)
        if self.sums[:2] != (order.exchange, order.kept):
            return None
        rows = None
        if order.jobs is not None:
            phase, state = self.worker.study.method.phase, messages.to_state(*pages)
            stats, rows = self.worker.train(order.t, order.jobs, state, phase, order.held)
            self.sums = Unsent(order.exchange, order.kept + 1, merge_stats([self.sums.stats or {}, stats]))
        if not order.sends:
            return messages.Reply(None, rows)
        reply, self.sums = messages.Reply(thin(self.sums.stats or {}), rows), Unsent(order.exchange)
        return reply

    def train_apart(self, order: messages.Order, *pages: messages.Page) -> tuple[messages.Reply | None, Stats | None]:
        """As `train`, but what it sends is an object of its own, which stays on its node until somebody asks for it."""
        reply = self.train(order, *pages)
        return (None, None) if reply is None else (reply._replace(stats=None), reply.stats)

    def add(self, *sums: Stats) -> messages.Reply:
        """Adds up what the actors of this node have stored."""
        totals = Totals()
        for one in sums:
            totals.add(one)
        return messages.Reply(thin(totals.stats), None)

    @cached_property
    def holder(self) -> ModelHolder:
        """The models of a random walk that are here."""
        return ModelHolder(self.worker)

    def receive(self, parcels: dict[ModelKey, Parcel]) -> bool:
        """Takes models from another actor, or from the coordinator at the start."""
        return self.holder.receive(parcels)

    def step(self, orders: Orders, peers: dict[int, Any]) -> Report:
        """Trains models of a random walk and hands them on."""
        return self.holder.step(orders, peers)

    def move(self, wanted: dict[ModelKey, int], peer: Any) -> list[ModelKey] | None:
        """Hands models on that were not trained here."""
        return self.holder.move(wanted, peer)

    def resend(self, wanted: dict[ModelKey, int], peer: Any) -> bool:
        """Sends copies of models again."""
        return self.holder.resend(wanted, peer)

    def show(self, wanted: dict[ModelKey, int]) -> dict[ModelKey, Parcel] | list[ModelKey]:
        """Copies of the models that are here."""
        return self.holder.show(wanted)

    def private(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """The private vectors of the clients that live here; all, or those of some names."""
        self._check_restored()
        return {name: value.numpy() for name, value in keep_vectors(self.worker.store.state(), names).items()}

    def restore(self, private: dict[str, Any]) -> None:
        """Replaces the private vectors of the clients that live here."""
        self.worker.store.restore({name: torch.from_numpy(np.array(value)) for name, value in private.items()})
        self.restored = True

    def _check_restored(self) -> None:
        """Raises `Lost` in an actor that died and was restarted between two calls: nobody else would notice."""
        if not self.restored and self.worker.study.method.phase.own:
            raise Lost("private client state was lost with an actor")

    def score_known_clients(self, message: messages.Page, keys: list[tuple[int, int]]) -> dict[tuple[int, int], Any]:
        """Scores clients that live here and answer with models of their own."""
        self._check_restored()
        scores = evaluation.score_known_clients(self.worker, messages.to_state(message), keys)
        return {key: value.numpy() for key, value in scores.items()}

    def score_own_sets(
        self, message: messages.Page, keys: list[tuple[int, int]], thresholds: FloatArray | None, split: str
    ) -> dict[tuple[int, int], Any]:
        """Conformal scores, or sets, of clients that live here and answer with models of their own."""
        self._check_restored()
        found = score_own_sets(self.worker, messages.to_state(message), keys, thresholds, split)
        return {key: value.numpy() for key, value in found.items()}

    def evaluate(
        self,
        message: messages.Page,
        kind: str,
        pieces: list[Piece],
        models: int,
        clients: list[IntArray] | None = None,
    ) -> dict[Piece, Any]:
        """Evaluates models on some pieces.

        Args:
            message: Holds the models.
            kind: `losses`, `uncertainty`, `mixtures`, or the name of a split.
            pieces: What is evaluated here.
            models: Models of each world, K.
            clients: Those of each world, where not the known ones are asked.
        """
        state = messages.to_state(message)
        found = evaluation.evaluate_pieces(self.worker, state, kind, pieces, models, clients=clients)
        return {piece: values.numpy() for piece, values in found.items()}
