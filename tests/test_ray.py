"""A real local Ray gives the bits of the inline runtime, whatever the packing, and survives killed actors.

One cluster serves the whole file. Images of 6 x 6 pixels, made here, travel to the actors as a Python object.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import no_report, rows
from test_faults import NATURAL, marked, model_of
from torch import Tensor, nn

import fedray
from fedray.bench.measure import tree
from fedray.core import BadInput, FedrayError
from fedray.data.split import Dataset, Split, classification
from fedray.scenario.nested import merge

__all__ = ["no_report"]

pytestmark = pytest.mark.usefixtures("no_report", "cluster")

BASE: dict[str, Any] = {
    "rounds": 4,
    "method": {"models": 3},
    "data": {"partition": {"name": "dirichlet", "alpha": 1.0}},
    "model": {"name": "mlp", "hidden": [6]},
    "clients": {"number": 10},
    "local": {"lr": 0.1, "batch_size": 8, "epochs": 1},
    "checkpoint": {"every": 2},
}
CNN: dict[str, Any] = {"model": {"name": "cnn", "channels": [3, 4], "hidden": [8], "kernel": 3, "padding": 1}}
PRIVATE: dict[str, Any] = {"compress": {"kind": "topk", "ratio": 0.2, "error_feedback": True}}
WALK: dict[str, Any] = {"method": {"name": "random_walk"}, "graph": {"node_failure": 0.1}}
TIERS: dict[str, Any] = {"strong": {"number": 4, "models_per_round": "all", "num_cpus": 2}, "weak": {"num_cpus": 0.5}}


def pictures(n: int = 240) -> Dataset:
    """Small images of three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = (rng.integers(0, 120, (n, 1, 6, 6)) + 60 * (y[:, None, None, None] == np.arange(6) // 2)).astype(np.uint8)
    half = 2 * n // 3
    return classification("pictures", Split(x[:half], y[:half]), Split(x[half:], y[half:]), ("a", "b", "c"))


def run(*changes: dict[str, Any], **options: Any) -> fedray.Run:
    scenario = BASE
    for change in changes:
        scenario = merge(scenario, change)
    return fedray.run(scenario, data=pictures(), **{"runtime": "ray", **options})


def hashes(done: fedray.Run) -> tuple[str, str]:
    return done.summary["model_hash"], done.summary["state_hash"]


KNOWN: dict[str, tuple[str, str]] = {}


def inline(*changes: dict[str, Any]) -> tuple[str, str]:
    """The hashes of the inline runtime, computed once a scenario."""
    key = repr(changes)
    if key not in KNOWN:
        KNOWN[key] = hashes(run(*changes, runtime="inline"))
    return KNOWN[key]


@pytest.mark.parametrize(
    ("packing", "change"),
    [
        ({"actors": 1}, {}),
        ({"actors": 2}, {}),
        ({"actors": 3}, {}),
        pytest.param({"per_actor": 1}, {}, marks=pytest.mark.slow),  # ten processes start
        ({"actors": 3}, CNN),
        ({"per_actor": 4, "tiers": TIERS}, {"clients": {"tiers": TIERS}}),
        ({"actors": 2}, PRIVATE),
        ({"actors": 3}, WALK),
        pytest.param({"per_actor": 1}, WALK, marks=pytest.mark.slow),
    ],
    ids=["1 actor", "2 actors", "3 actors", "an actor a client", "cnn", "tiers", "private state", "walk", "walkers"],
)
def test_the_packing_never_changes_a_bit(packing: dict[str, Any], change: dict[str, Any]) -> None:
    """Inline, any number of actors, one actor a client, tiers of other sizes: one hash."""
    assert hashes(run(change, {"clients": packing})) == inline(change)


def test_rows_are_the_same_on_both_runtimes() -> None:
    here, there = run(runtime="inline"), run({"clients": {"actors": 2}})
    assert rows(here.rounds) == rows(there.rounds)
    assert rows(here.clients) == rows(there.clients)


def mine(name: str) -> list[int]:
    """Process ids of an actor class of this file's own cluster: below this process, and no one else's."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)], names[int(entry.name)] = int(stat[1]), (entry / "cmdline").read_bytes()
            except OSError:
                continue
    below = {os.getpid()}
    while new := {child for child, parent in parents.items() if parent in below} - below:
        below |= new
    return sorted(pid for pid in below if names.get(pid, b"").startswith(f"ray::{name}".encode()))


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
    [("Client", {}), ("Client", PRIVATE), ("Client", WALK), ("Coordinator", {})],
    ids=["client", "client with private state", "holder of models", "coordinator"],
)
def test_a_killed_actor_changes_no_bit(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """kill -9 in the middle of a run: it goes on by itself and ends in the same models and state."""
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
        return self.linear(x.flatten(1))

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


def test_a_coordinator_that_cannot_start_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: a class whose module the workers cannot find, as their import path is not the driver's."""
    from fedray.runtime import environment

    monkeypatch.setattr(
        "fedray.runtime.coordinator.workplace", lambda: {"env_vars": environment.WORKER | {"PYTHONPATH": ""}}
    )
    with pytest.raises(FedrayError, match="the coordinator could not start: .*No module named 'test_ray'"):
        run(model=lambda: Broken("train"))


@pytest.mark.parametrize("how", ["raises", "hangs"])
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


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        ({"num_cpus": 100}, "1 actors need 100 CPU, but the cluster has 12: lower clients.tiers.NAME.num_cpus"),
        ({"num_gpus": 3}, "1 actors need 3 GPU, but the cluster has 0: lower clients.tiers.NAME.num_gpus"),
        ({"resources": {"moon": 1}}, "1 actors need 1 moon, but the cluster has 0: lower clients.tiers.NAME.resources"),
        ({"resources": {"lab": 2}}, "1 actors need 2 lab, but the cluster has 1"),
    ],
)
def test_more_than_the_cluster_has_is_one_line(tier: dict[str, Any], says: str, tmp_path: Path) -> None:
    """No hang, and no directory is left in the way of the next try."""
    began = time.monotonic()
    with pytest.raises(BadInput) as caught:
        run({"clients": {"actors": 1, "tiers": {"all": tier}}}, out=tmp_path / "run")
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert time.monotonic() - began < 120


def test_the_manifest_is_the_client_actors_own(tmp_path: Path) -> None:
    """What ran there: engine, width, self-test; not what the coordinator would have run."""
    told = []
    for runtime in ("inline", "ray"):
        run({"rounds": 1, "clients": {"actors": 2}}, runtime=runtime, out=tmp_path / runtime)
        told.append(json.loads((tmp_path / runtime / "manifest.json").read_text()))
    assert told[0]["engine"] == told[1]["engine"]
    assert told[1]["engine"]["name"] == "mlp"
    assert (told[1]["runtime"], told[1]["actors"], told[1]["lanes_independent"]) == ("ray", 2, True)


LOOPBACK = (
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
)  # as the kernel writes it


def test_a_ray_started_here_listens_on_loopback_only() -> None:
    """Nobody on the network can reach its scheduler, store or workers; there is no dashboard."""
    sockets = set()
    for one in tree():
        try:
            links = [os.readlink(file) for file in Path(f"/proc/{one.id}/fd").iterdir()]
        except OSError:  # it ended
            continue
        sockets |= {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    open_ = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets]
    assert len(open_) > 3
    assert set(open_) <= set(LOOPBACK)
