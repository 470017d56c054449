"""Sums that are added on their nodes by real actors on three nodes beside the coordinator's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from small import scenario

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.runtime.exchange import share_nodes
from fedray.runtime.inline import Inline
from fedray.runtime.ray import actors
from fedray.runtime.ray.runtime import RayRuntime
from fedray.scenario.loader import read_scenario
from fedray.simulation.rounds import begin_progress, run_round

pytestmark = pytest.mark.timeout(600)
LARGE = {"model": {"hidden": [700]}}  # a sum is more than Ray sends to the coordinator unasked
KEYS = read_scenario(scenario({"method": {"models": 1}, "clients": {"number": 16, "actors": 4}, **LARGE}))


@pytest.fixture(scope="module")
def runtime() -> Iterator[RayRuntime]:
    """Two actors on one node, and one on each of two; this process is the coordinator, on a fourth one."""
    import ray
    from on_ray import open_nodes

    study = build_study(KEYS)
    with open_nodes([2, 1, 1], head=0):
        made = RayRuntime(KEYS, UserObjects().with_rows(KEYS, study), study, "exchange")
        here = ray.get_runtime_context().get_node_id()
        assert sorted(map(len, share_nodes(made.clients.specs, here))) == [1, 1, 2]
        yield made
        made.close()


def hash_rounds(made: Any, rounds: int = 2) -> list[bytes]:
    """The bits of the models after each round."""
    study = build_study(KEYS)
    phase, out = study.method.phase, []
    progress = begin_progress(study, phase)
    for _ in range(rounds):
        progress.state = run_round(study, made, phase, progress)[2]
        progress.round += 1
        out.append(progress.state.models.numpy().tobytes())
    return out


def test_three_nodes_send_one_sum_each_instead_of_four(runtime: RayRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = hash_rounds(Inline(build_study(KEYS)))
    assert hash_rounds(runtime) == alone
    dealt = runtime.clients.traffic[1]
    monkeypatch.setattr(actors, "ADD_BYTES", 0)
    assert hash_rounds(runtime) == alone
    assert runtime.clients.traffic[1] == dealt * 3 // 4


def test_an_adder_that_is_killed_changes_no_bit(runtime: RayRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    killed, honest = list[int](), actors.Calls.post

    def post(calls: Any, a: int, task: Any) -> None:
        if task.sums and len(killed) < 2:
            killed.append(ray.get(calls.actors[a].ready.remote()))
            os.kill(killed[-1], signal.SIGKILL)
        honest(calls, a, task)

    monkeypatch.setattr(actors, "ADD_BYTES", 0)
    monkeypatch.setattr(actors.Calls, "post", post)
    assert hash_rounds(runtime) == hash_rounds(Inline(build_study(KEYS)))
    assert len(set(killed)) == 2
