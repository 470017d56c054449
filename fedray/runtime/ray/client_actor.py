"""A client actor: the clients that live in one process. Plain Python: `ray.py` makes it an actor."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedray.assembly.study import build_study
from fedray.assembly.user_objects import UserObjects
from fedray.core.errors import Lost
from fedray.core.user_modules import import_modules
from fedray.runtime import environment, messages
from fedray.runtime.environment import device_of
from fedray.runtime.messages import Piece
from fedray.runtime.ray.random_walk import Holder, Key, Orders, Parcel, Report
from fedray.runtime.stacking import make_worker
from fedray.runtime.worker import Worker
from fedray.runtime.worker_info import worker_facts
from fedray.scenario.schema import Scenario


class ClientActor:
    """One `Host` for all the clients that live here."""

    def __init__(self, scenario: Scenario, own: UserObjects, index: int, gpus: float, cpus: float) -> None:
        environment.use_one_thread()
        self.scenario, self.own = scenario, own
        self.index, self.gpus, self.cpus = index, gpus, cpus
        self.restored = False  # what the clients that live here kept to themselves, since this process began

    @cached_property
    def host(self) -> Worker:
        """Built by the first call, so that an error on the way reaches the caller as every other does."""
        import_modules(self.own.modules)
        return make_worker(build_study(self.scenario, self.own), device_of(self.gpus), max(1, int(self.cpus)))

    def ready(self) -> int:
        """Answers when the actor can work; its process id."""
        _ = self.host
        return os.getpid()

    def facts(self) -> dict[str, Any]:
        """What the manifest says of this actor."""
        return worker_facts(self.host)

    def train(self, message: messages.Round) -> messages.Reply:
        """Trains this actor's share of a round."""
        jobs, phase = message.jobs[self.index], self.host.study.method.phase
        self._complete()
        return messages.to_reply(*self.host.train(message.t, jobs, messages.to_state(message), phase))

    @cached_property
    def holder(self) -> Holder:
        """The models of a random walk that are here."""
        return Holder(self.host)

    def receive(self, parcels: dict[Key, Parcel]) -> bool:
        """Takes models from another actor, or from the coordinator at the start."""
        return self.holder.receive(parcels)

    def step(self, orders: Orders, peers: dict[int, Any]) -> Report:
        """Trains the models that are here and hands them on."""
        return self.holder.step(orders, peers)

    def move(self, wanted: dict[Key, int], peer: Any) -> list[Key] | None:
        """Hands models on that were not trained here."""
        return self.holder.move(wanted, peer)

    def resend(self, wanted: dict[Key, int], peer: Any) -> bool:
        """Sends copies of models again."""
        return self.holder.resend(wanted, peer)

    def show(self, wanted: dict[Key, int]) -> dict[Key, Parcel] | list[Key]:
        """Copies of the models that are here."""
        return self.holder.show(wanted)

    def private(self) -> dict[str, Any]:
        """The private vectors of the clients that live here."""
        self._complete()
        return {name: value.numpy() for name, value in self.host.store.state().items()}

    def restore(self, private: dict[str, Any]) -> None:
        """Forgets the private vectors and takes these."""
        self.host.store.restore({name: torch.from_numpy(np.array(value)) for name, value in private.items()})
        self.restored = True

    def _complete(self) -> None:
        """An actor that died and came back between two calls says so: nobody else would have noticed."""
        if not self.restored and self.host.study.method.phase.own:
            raise Lost("private client state was lost with an actor")

    def known(self, message: messages.Round, keys: list[Piece]) -> dict[Piece, Any]:
        """Accuracy of clients that live here with models of their own."""
        self._complete()
        return {key: value.numpy() for key, value in self.host.known(messages.to_state(message), keys).items()}

    def evaluate(self, message: messages.Round, kind: str, keys: list[Piece], models: int) -> dict[Any, Any]:
        """Evaluation pieces: "losses", "uncertainty", or raw outputs on a split."""
        state = messages.to_state(message)
        if kind in ("losses", "uncertainty"):
            return {key: getattr(self.host, kind)(state, *key, models).numpy() for key in keys}
        return {key: self.host.evaluate(state, kind, *key, models).numpy() for key in keys}
