"""A real local Ray survives killed actors, and says what went wrong elsewhere. One cluster serves the whole file."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty import NATURAL, marked_images, model_of
from on_ray import PRIVATE, WALK, hashes, inline, run
from small import rows
from torch import Tensor, nn

import fedray
from fedray.bench.measure import list_tree
from fedray.core.errors import FedrayError

pytestmark = pytest.mark.usefixtures("cluster")


def find_actors(name: str) -> list[int]:
    """Process ids of an actor class in the cluster of this file, which is below this process."""
    return [one.id for one in list_tree() if one.command.startswith(f"ray::{name}")]


def kill_when_begun(name: str, out: Path) -> Callable[[], list[int]]:
    """Kills one actor of a class as soon as the run has a checkpoint; the result waits for it, and returns its id."""
    found: list[int] = []

    def work() -> None:
        deadline = time.monotonic() + 120
        while not list((out / "checkpoints").glob("round-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in find_actors(name)[-1:]:
            os.kill(pid, signal.SIGKILL)
            found.append(pid)

    thread = threading.Thread(target=work)
    thread.start()

    def wait_for_kill() -> list[int]:
        thread.join()
        return found

    return wait_for_kill


LONG: dict[str, Any] = {"rounds": 150, "evaluate": {"every": 50}, "checkpoint": {"every": 10}}


@pytest.mark.parametrize(
    ("name", "change", "actors"),
    [
        pytest.param("Client", {}, 2, marks=pytest.mark.slow),
        pytest.param("Client", PRIVATE, 2, marks=pytest.mark.slow),
        pytest.param("Client", WALK, 2, marks=pytest.mark.slow),
        ("Coordinator", {}, 1),
    ],
    ids=["client", "client with private state", "holder of models", "coordinator"],
)
def test_a_killed_actor_changes_no_bit(name: str, change: dict[str, Any], actors: int, tmp_path: Path) -> None:
    """After `kill -9` in its middle a run goes on by itself and ends in the same models and state."""
    want, wait_for_kill = inline(LONG, change), kill_when_begun(name, tmp_path / "run")
    done = run(LONG, change, {"clients": {"actors": actors}}, out=tmp_path / "run")
    assert wait_for_kill(), "nobody was killed"
    assert hashes(done) == want
    assert done.rounds["round"].to_pylist() == [0, 50, 100, 150]
    assert done.clients.num_rows == 150 * 10 or change == WALK


class Broken(nn.Module):
    """Works in the coordinator and fails in the client actors, where `place` says."""

    def __init__(self, place: str) -> None:
        nn.Module.__init__(self)
        self.linear, self.place = nn.Linear(36, 3), place
        self.fail("build")

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.fail("train")
        outputs: Tensor = self.linear(x.flatten(1))
        return outputs

    def fail(self, place: str) -> None:
        if place == self.place and b"Client" in Path("/proc/self/cmdline").read_bytes():
            raise ValueError("the layer\nis broken")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        pytest.param(
            "build",
            r"model\.name = .*broken: its .*ValueError: the layer is broken \(.*test_faults\.py:\d+\).*",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "train",
            r"model\.name = .*broken in training.*ValueError: the layer is broken \(.*test_faults\.py:\d+\).*",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_error_in_a_client_is_one_line_with_its_cause(place: str, message: str) -> None:
    """No hang and no page of frames; the report of Ray hangs on the exception for whoever wants it."""

    def broken() -> nn.Module:
        return Broken(place)

    with pytest.raises(FedrayError) as caught:
        run({"clients": {"actors": 1}}, model=broken)
    assert re.fullmatch(message, str(caught.value))
    assert "Traceback" in str(caught.value.__cause__) or "broken" in str(caught.value.__cause__)


@pytest.mark.slow
def test_a_coordinator_that_cannot_start_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: a class whose module the workers cannot find, as their import path is not the driver's."""
    from fedray.runtime import environment

    empty = {"env_vars": environment.WORKER | {"PYTHONPATH": ""}}
    monkeypatch.setattr("fedray.runtime.ray.coordinator.worker_environment", lambda *_: empty)
    with pytest.raises(FedrayError, match="the coordinator could not start: .*No module named '(tests|faulty)'"):
        run(model=lambda: Broken("train"))


@pytest.mark.parametrize("how", ["raises", pytest.param("hangs", marks=pytest.mark.slow)])
def test_a_client_that_fails_is_left_out_on_both_runtimes(how: str) -> None:
    """A hanging one is stopped in the actor, which goes on with the others."""
    data, found = marked_images(), []
    keys = {**NATURAL, "on_client_error": "skip", "client_timeout": 3.0, "clients": {"actors": 2}}
    for runtime in ("inline", "ray"):
        with pytest.warns(UserWarning, match="left out"):
            found.append(fedray.run(keys, runtime=runtime, data=data, model=model_of(how, data)))
    here, there = found
    assert hashes(here) == hashes(there)
    assert rows(here.clients, "error") == rows(there.clients, "error")
    errors = [row["error"] for row in rows(there.clients) if row["status"] == "failed"]
    assert len(errors) == 1
    assert ("TimeoutError" if how == "hangs" else "ValueError: a pixel of 255") in errors[0]


@pytest.mark.slow  # inline it is told in tests/runtime/test_failures.py
def test_divergence_in_a_client_names_it() -> None:
    with pytest.raises(FedrayError, match=r"training diverged .* at client \d+ .*: lower local.lr") as caught:
        run({"local": {"lr": 1e18, "epochs": 4}, "clients": {"actors": 1}})
    assert len(str(caught.value).splitlines()) == 1
