"""A real local Ray survives killed actors, and says what went wrong elsewhere. One cluster serves the whole file."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty import NATURAL, marked, model_of
from on_ray import PRIVATE, WALK, hashes, inline, run
from small import rows
from torch import Tensor, nn

import fedray
from fedray.bench.measure import list_tree
from fedray.core.errors import FedrayError

pytestmark = pytest.mark.usefixtures("no_report", "cluster")


def mine(name: str) -> list[int]:
    """Process ids of an actor class of this file's own cluster: below this process, and no one else's."""
    return [one.id for one in list_tree() if one.command.startswith(f"ray::{name}")]


def killed(name: str, out: Path) -> Callable[[], list[int]]:
    """Kills one actor of a class as soon as the run has a checkpoint; returns a function that says whom."""
    found: list[int] = []

    def work() -> None:
        deadline = time.monotonic() + 120
        while not list((out / "checkpoints").glob("round-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in mine(name)[-1:]:
            os.kill(pid, signal.SIGKILL)
            found.append(pid)

    thread = threading.Thread(target=work)
    thread.start()

    def who() -> list[int]:
        thread.join()
        return found

    return who


LONG: dict[str, Any] = {"rounds": 150, "evaluate": {"every": 50}, "checkpoint": {"every": 10}}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("Client", {}, marks=pytest.mark.slow),
        pytest.param("Client", PRIVATE, marks=pytest.mark.slow),
        ("Client", WALK),
        ("Coordinator", {}),
    ],
    ids=["client", "client with private state", "holder of models", "coordinator"],
)
def test_a_killed_actor_changes_no_bit(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """Kill -9 in the middle of a run: it goes on by itself and ends in the same models and state."""
    want, who = inline(LONG, change), killed(name, tmp_path / "run")
    done = run(LONG, change, {"clients": {"actors": 2}}, out=tmp_path / "run")
    assert who(), "nobody was killed"
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
        self.fail("train")
        outputs: Tensor = self.linear(x.flatten(1))
        return outputs

    def fail(self, place: str) -> None:
        if place == self.place and b"Client" in Path("/proc/self/cmdline").read_bytes():
            raise ValueError("the layer\nis broken")


@pytest.mark.parametrize("place", ["build", "train"])
def test_an_error_in_a_client_is_one_line_with_its_cause(place: str) -> None:
    """No hang and no page of frames; the report of Ray hangs on the exception for whoever wants it."""

    def broken() -> nn.Module:
        return Broken(place)

    with pytest.raises(FedrayError) as caught:
        run({"clients": {"actors": 1}}, model=broken)
    assert str(caught.value) == "client actor 0 failed: ValueError: the layer is broken"
    assert "Traceback" in str(caught.value.__cause__) or "broken" in str(caught.value.__cause__)


@pytest.mark.slow
def test_a_coordinator_that_cannot_start_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: a class whose module the workers cannot find, as their import path is not the driver's."""
    from fedray.runtime import environment

    empty = {"env_vars": environment.WORKER | {"PYTHONPATH": ""}}
    monkeypatch.setattr("fedray.runtime.ray.coordinator.worker_environment", lambda: empty)
    with pytest.raises(FedrayError, match="the coordinator could not start: .*No module named 'faulty'"):
        run(model=lambda: Broken("train"))


@pytest.mark.parametrize("how", ["raises", pytest.param("hangs", marks=pytest.mark.slow)])
def test_a_client_that_fails_is_left_out_on_both_runtimes(how: str) -> None:
    """A hanging one is stopped in the actor, which goes on with the others."""
    data, found = marked(), []
    keys = {**NATURAL, "on_client_error": "skip", "client_timeout": 3.0, "clients": {"actors": 2}}
    for runtime in ("inline", "ray"):
        with pytest.warns(UserWarning, match="left out"):
            found.append(fedray.run(keys, runtime=runtime, data=data, model=model_of(how, data)))
    here, there = found
    assert hashes(here) == hashes(there)
    assert rows(here.clients, "error") == rows(there.clients, "error")
    told = [row["error"] for row in rows(there.clients) if row["status"] == "failed"]
    assert len(told) == 1
    assert ("TimeoutError" if how == "hangs" else "ValueError: a pixel of 255") in told[0]


def test_divergence_in_a_client_names_it() -> None:
    with pytest.raises(FedrayError, match=r"training diverged .* at client \d+ .*: lower local.lr") as caught:
        run({"local": {"lr": 1e18, "epochs": 4}, "clients": {"actors": 1}})
    assert len(str(caught.value).splitlines()) == 1
