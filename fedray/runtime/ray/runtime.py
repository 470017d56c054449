"""The Ray runtime as the round loop sees it: it broadcasts the models of a round and gets reduced statistics back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import ray
import torch
from torch import Tensor

from fedray.assembly.registry import UserObjects
from fedray.core.client_state import deal_private, merge_private
from fedray.core.errors import Lost
from fedray.core.method import JobRows, Phase
from fedray.core.types import Lanes, SizedPlan, State, Stats
from fedray.runtime import exchange, placement
from fedray.runtime.exchange import choose_laps, cut_chunks
from fedray.runtime.inline import list_clients, list_pieces
from fedray.runtime.ray.actors import ClientActors
from fedray.runtime.ray.cluster import ClusterChanged, Reservation
from fedray.runtime.session import join_worker_facts
from fedray.scenario.schema import Scenario
from fedray.simulation.study import Pieces, Question, Study

# ---------------------------------------------------------------------------------------------------------------------
# The clients live in actors (`fedray.runtime.ray.actors`). Where a node is lost, the actors are replaced between two
# calls: how clients are packed into actors never changes a bit.

_P = ParamSpec("_P")
_T = TypeVar("_T")


def retry(method: Callable[Concatenate[RayRuntime, _P], _T]) -> Callable[Concatenate[RayRuntime, _P], _T]:
    """Makes a method start again after the runtime had to replace its actors, because a node was lost."""

    @wraps(method)
    def repeat(runtime: RayRuntime, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        while True:
            try:
                return method(runtime, *arguments, **named)
            except ClusterChanged:
                runtime.clients.start()
                runtime._check_private()

    return repeat


def to_tensors(arrays: dict[Any, Any]) -> dict[Any, Tensor]:
    """Copies the arrays of an answer into tensors."""
    return {key: torch.from_numpy(np.array(value)) for key, value in arrays.items()}


class RayRuntime:
    """The runtime on Ray; it lives in the coordinator actor. Its methods are those of `simulation.study.Runtime`.

    Attributes:
        study: What is trained.
        has_private: Whether clients keep private vectors between rounds.
        clients: The client actors.
    """

    def __init__(
        self, scenario: Scenario, own: UserObjects, study: Study, run: str, *, seats: Reservation | None = None
    ) -> None:
        self.study = study
        self.has_private = bool(study.method.phase.own)
        self.clients = ClientActors(scenario, own, study, self._check_private, run=run, given=seats)
        self.clients.start()

    @property
    def actors(self) -> list[Any]:
        """The client actors, by number."""
        return self.clients.actors

    @property
    def lanes(self) -> Lanes:
        """Whether compiled kernels may train: torch, where the scenario leaves it and the nodes do not agree."""
        return self.clients.scenario.lanes

    def _check_private(self) -> None:
        """After an actor's death its clients' private vectors are gone: the run goes back to a checkpoint."""
        if self.has_private:
            raise Lost("private client state was lost with an actor")

    @retry
    def facts(self) -> dict[str, Any]:
        """Facts on the client actors for the manifest."""
        return join_worker_facts(self.clients.call_each([(a, actor.facts, ()) for a, actor in enumerate(self.actors)]))

    @retry
    def train(self, t: int, jobs: SizedPlan, state: State, phase: Phase) -> tuple[Stats, JobRows]:
        """Trains the jobs of round t on the actors."""
        laps = choose_laps(self.clients.seconds, len(self.actors))
        specs, at_home = self.clients.specs, bool(phase.own)
        queues = cut_chunks(self.study.clients, specs, jobs, phase.models, at_home=at_home, laps=laps)
        return self.clients.train(queues, t, jobs, state)

    @retry
    def ask(self, question: Question, state: State) -> Pieces:
        """Answers a question, dealt to the actors; those who are asked at home answer where they live."""
        pieces, n = list_pieces(self.study, question), len(self.actors)
        parts = [pieces[a::n] for a in range(n)]
        if question.at_home:
            clients = list_clients(self.study, question)
            each = np.array([clients[world][place] for world, place in pieces], dtype=np.int64)
            home = placement.assign_homes(self.study.clients, self.clients.specs, each)
            parts = [[pieces[i] for i in np.flatnonzero(home == a)] for a in range(n)]
        shared, asked = ray.put(exchange.to_page(state)), ray.put(question)
        calls = [(a, self.actors[a].answer, (shared, asked, part)) for a, part in enumerate(parts)]
        return {key: tensor for answer in self.clients.call_each(calls) for key, tensor in to_tensors(answer).items()}

    @retry
    def private(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Private vectors of all clients, for a checkpoint; all, or those of some names."""
        if not self.has_private:
            return {}
        parts = self.clients.call_each([(a, actor.private, (names,)) for a, actor in enumerate(self.actors)])
        return merge_private([to_tensors(part) for part in parts])

    def restore(self, private: dict[str, Tensor]) -> None:
        """Replaces the private vectors of all clients by those of a checkpoint."""
        if not self.has_private:
            return
        self.has_private = False  # an actor that dies meanwhile has nothing to lose: it is called again
        try:
            self._send_private(private)
        finally:
            self.has_private = True

    @retry
    def _send_private(self, private: dict[str, Tensor]) -> None:
        parts = deal_private(
            private, partial(placement.assign_homes, self.study.clients, self.clients.specs), len(self.actors)
        )
        self.clients.call_each([(a, self.actors[a].restore, (part,)) for a, part in enumerate(parts)])

    def close(self) -> None:
        """Ends the actors."""
        self.clients.close()
