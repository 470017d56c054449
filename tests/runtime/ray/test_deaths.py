"""Deaths of actors of every kind are recovered, and what is full is one line; here Ray's answers are made up."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import (
    LocalRayletDiedError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayError,
    WorkerCrashedError,
)

from fedray.runtime.placement import ActorSpec, Cluster, Node
from fedray.runtime.ray import actors
from fedray.runtime.ray.actors import ClientActors
from fedray.runtime.ray.cluster import ClusterChanged, explain_error
from fedray.runtime.ray.connection import KeepsDying

FULL: RayError = OutOfMemoryError("killed")  # type: ignore[no-untyped-call]  # Ray has no types


class Answers:
    """What Ray says to one call after the other."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)

    def get(self, _ref: Any, timeout: float) -> Any:
        assert timeout > 0
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def clients_of(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> tuple[ClientActors, Any]:
    """One client actor, and a method of it."""
    clients = ClientActors.__new__(ClientActors)
    method = SimpleNamespace(remote=lambda *_arguments: None)
    clients.actors, clients.specs = [SimpleNamespace(ready=method)], []
    clients.on_death = lambda: None
    monkeypatch.setattr("ray.get", Answers(*answers).get)
    monkeypatch.setattr("fedray.runtime.ray.actors.time.sleep", lambda _seconds: None)
    return clients, method


@pytest.mark.parametrize("error", [FULL, WorkerCrashedError(), LocalRayletDiedError()])
def test_a_kill_by_the_memory_monitor_was_a_traceback(error: RayError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is made again once the actor is there again, and the runtime is told."""
    clients, method = clients_of(monkeypatch, error, error, "ready", "answer")
    told: list[bool] = []
    clients.on_death = lambda: told.append(True)
    assert clients.call_each([(0, method, ())]) == ["answer"]
    assert told == [True]


def test_an_actor_that_always_dies_while_it_starts_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was half an hour of silence."""
    clients, _ = clients_of(monkeypatch, FULL)
    monkeypatch.setattr(actors, "EARLY_SECONDS", 0.0)
    with pytest.raises(KeepsDying, match="client actor 0 dies before it can work: give the node more memory or fewer"):
        clients.wait_for([0])


def test_an_actor_of_a_node_that_is_gone_was_called_one_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls failed at once for five minutes, and nobody looked for its node."""
    clients, _ = clients_of(monkeypatch, WorkerCrashedError())
    clients.specs = [ActorSpec(0, 1.0, 0.0, {}, "gone")]
    monkeypatch.setattr(actors, "EARLY_SECONDS", 0.0)
    monkeypatch.setattr(actors, "read_cluster", lambda: Cluster([Node("left", {})], []))
    with pytest.raises(ClusterChanged):
        clients.wait_for([0])


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ObjectStoreFullError("full"), r"larger object store \(`ray start --object-store-memory`\)"),
        (OutOfDiskError("full"), "set RAY_TMPDIR to another disk"),
        (FULL, "give the node more memory"),
    ],
)
def test_what_is_full_is_one_line_with_the_remedy(error: RayError, remedy: str) -> None:
    line = str(explain_error(error, "the coordinator"))
    assert line.startswith(f"the coordinator failed: {type(error).__name__}: ") and len(line.splitlines()) == 1
    assert re.search(remedy, line)
