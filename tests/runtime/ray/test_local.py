"""A real local Ray gives the bits of the inline runtime, whatever the packing and whoever is killed."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faulty import NATURAL, marked_images, model_of
from on_ray import CNN, IDLE, PRIVATE, TIERS, WALK, hashes, inline, run
from small import rows
from small_data import pictures
from torch import Tensor, nn

import fedray
from fedray.bench.rows import list_tree
from fedray.core import sums as native
from fedray.core.errors import BadInput, FedrayError, FedrayWarning

pytestmark = pytest.mark.usefixtures("cluster")


def test_two_actors_change_no_bit_and_no_row(tmp_path: Path) -> None:
    """In a directory whose name is not ASCII; a watcher sees every evaluated round; the manifest is the actors' own."""
    scored: dict[str, Any] = {
        "evaluate": {"clients": "all", "ood": "noise", "personal": True, "metrics": ["roc_auc_ovr", "neg_log_loss"]},
        "predict": {"gamma": 0.1, "conformal": {"alpha": 0.5, "score": "aps"}},
        "data": {"hold_out": 0.25},
    }
    out, watched = tmp_path / "\xfcber Ray", list[int]()  # every run of such a name died at its first round
    ray = run(scored, {"clients": {"actors": 2}}, out=out, watch=lambda shown: watched.append(shown["round"]))
    inline = run(scored, runtime="inline", out=tmp_path / "inline")
    assert hashes(ray) == hashes(inline)
    assert rows(ray.rounds) == rows(inline.rounds) and rows(ray.clients) == rows(inline.clients)
    assert ray.client_scores.equals(inline.client_scores)
    assert ray.path == out and watched == [0, 1, 2, 3, 4]
    here, there = (json.loads((one.path / "manifest.json").read_text()) for one in (inline, ray))
    assert here["engine"] == there["engine"]
    assert there["engine"]["name"] == ("mlp-c" if native.is_available() else "mlp")
    assert (there["runtime"], there["actors"], there["lanes_independent"]) == ("ray", 2, True)


TORCH: dict[str, Any] = {"lanes": "torch"}
DEPTH: dict[str, Any] = {  # DepthFL: two depths whose heads teach each other
    "method": {"name": "depthfl", "models": 1}, "model": {"name": "mlp", "hidden": [8, 6]}, **TORCH,
    "clients": {"tiers": {"strong": {"number": 4}, "weak": {"width": 0.5}}},
}  # fmt: skip
PACKINGS = {  # how clients are packed into actors, how the scenario is changed, what trains where kernels were built
    "an actor a client": pytest.param({"per_actor": 1}, {}, "mlp-c", marks=pytest.mark.slow),  # ten processes start
    "cnn": pytest.param({"actors": 3}, CNN, "conv-c", marks=pytest.mark.slow),
    "tiers": pytest.param(
        {"per_actor": 6, "tiers": TIERS}, {"clients": {"tiers": TIERS}, **CNN, **TORCH}, "conv", marks=pytest.mark.slow
    ),
    "heads of depths": pytest.param({"actors": 2}, DEPTH, "vmap", marks=pytest.mark.slow),
    "walkers": pytest.param({"per_actor": 1}, WALK, "mlp-c", marks=pytest.mark.slow),
    "idle holders": pytest.param({"actors": 2}, {**IDLE, **TORCH}, "mlp", marks=pytest.mark.slow),
}


@pytest.mark.parametrize(("packing", "change", "engine"), PACKINGS.values(), ids=PACKINGS)
def test_the_packing_never_changes_a_bit(
    packing: dict[str, Any], change: dict[str, Any], engine: str, tmp_path: Path
) -> None:
    """Inline, any number of actors, one actor a client, tiers of other sizes, compiled or not: one hash."""
    done = run(change, {"clients": packing}, out=tmp_path / "run")
    assert hashes(done) == inline(change)
    trained = json.loads((tmp_path / "run" / "manifest.json").read_text())["engine"]["name"]
    assert trained == (engine if native.is_available() else engine.removesuffix("-c"))


@pytest.mark.slow
def test_a_coordinator_ends_when_its_driver_is_gone(tmp_path: Path) -> None:
    """An exception in the watcher ends the run; what it left goes on, under the same Ray, at once."""

    def stop(_snapshot: dict[str, Any]) -> None:
        raise KeyError("enough")

    long = {"rounds": 40, "local": {"epochs": 20}, "clients": {"actors": 1}}
    with pytest.raises(KeyError):
        run(long, watch=stop, out=tmp_path / "run")
    assert fedray.resume(tmp_path / "run", data=pictures()).summary["rounds"] == 40


SCALE = 1.0


def scale_loss(outputs: Tensor, targets: Tensor, _context: Any) -> Tensor:
    return SCALE * nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_a_value_that_the_script_has_changed_was_another_one_in_the_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody said so: they import the module again, and the results were those of its file."""
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 0.5)
    with pytest.warns(FedrayWarning, match="see another SCALE of loss scale_loss: "):
        run({"clients": {"actors": 1}}, loss=scale_loss, rounds=1)


REFUSED: list[Any] = [
    ("--address 127.0.0.1:1", {"actors": 1}, "127.0.0.1:1"),
    pytest.param(
        "100 CPU, but the cluster has 12", {"actors": 1, "tiers": {"all": {"num_cpus": 100}}}, None,
        marks=pytest.mark.slow,  # it starts a coordinator
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "clients", "address"), REFUSED)
def test_what_the_cluster_does_not_have_or_is_not_is_refused_before_anything_is_written(
    line: str, clients: dict[str, Any], address: str | None, tmp_path: Path
) -> None:
    """No hang, and no directory is left in the way of the next try; so it is where own code fails before round 1."""
    with pytest.raises(BadInput, match=line):
        run({"clients": clients}, address=address, out=tmp_path / "run")
    with pytest.raises(FedrayError, match=r"loss .* raised ZeroDivisionError: [^(]*\(\S*\)$"):
        run({"clients": {"actors": 1}}, address="auto", out=tmp_path / "run", loss=lambda *_: 1 // 0)
    assert not (tmp_path / "run").exists()


LOOPBACK = {  # as the kernel writes it
    "0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000",
}  # fmt: skip


def find_sockets(pid: int) -> set[str]:
    """The sockets of a process; one that it closes meanwhile is none."""
    links = set()
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                links.add(str(file.readlink()))
    return links


def test_a_ray_started_here_listens_on_loopback_only() -> None:
    """Nobody on the network can reach its scheduler, store or workers; there is no dashboard."""
    tables = [Path(f"/proc/net/{kind}").read_text().splitlines()[1:] for kind in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    listening = {f"socket:[{row[9]}]": row[1].split(":")[0] for row in rows if row[3] == "0A"}
    found = [(one.command, listening.keys() & find_sockets(one.id)) for one in list_tree()]
    assert {listening[socket] for _, each in found for socket in each} <= LOOPBACK
    for part in ("gcs_server", "raylet"):  # which listen for certain
        assert any(each for command, each in found if f"/{part} " in command)


def test_workers_have_the_priority_of_the_run() -> None:
    """At Ray's niceness of 15 a run beside two busy cores took three minutes for ten seconds of work."""
    import ray

    assert ray.get(ray.remote(num_cpus=0)(lambda: os.nice(0)).remote()) == os.nice(0)


def kill_when_begun(name: str, out: Path) -> Callable[[], list[int]]:
    """Kills one actor of a class as soon as the run has a checkpoint; the result waits for it, and returns its id."""
    found: list[int] = []

    def work() -> None:
        deadline = time.monotonic() + 120
        while not list((out / "checkpoints").glob("round-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in [one.id for one in list_tree() if one.command.startswith(f"ray::{name}")][-1:]:
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


@pytest.mark.slow
@pytest.mark.parametrize("place", ["build", "train"])
def test_an_error_in_a_client_is_one_line_with_its_cause(place: str) -> None:
    """No hang and no page of frames; the report of Ray hangs on the exception for whoever wants it."""
    with pytest.raises(FedrayError, match=r"model\.name = .*ValueError: the layer is broken \(.*\.py:\d+\)") as caught:
        run({"clients": {"actors": 1}}, model=lambda: Broken(place))
    assert "\n" not in str(caught.value)
    assert "Traceback" in str(caught.value.__cause__) or "broken" in str(caught.value.__cause__)


@pytest.mark.slow
def test_a_coordinator_that_cannot_start_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: a class whose module the workers cannot find, as their import path is not the driver's."""
    from fedray.runtime import environment

    empty = {"env_vars": environment.WORKER | {"PYTHONPATH": ""}}
    monkeypatch.setattr("fedray.runtime.ray.coordinator.worker_environment", lambda *_: empty)
    with pytest.raises(FedrayError, match="the coordinator could not start: .*No module named '(tests|faulty)'"):
        run(model=lambda: Broken("train"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_client_that_fails_is_left_out_on_both_runtimes(how: str) -> None:
    """A hanging one is stopped in the actor, which goes on with the others."""
    data, found = marked_images(), []
    keys = {**NATURAL, "on_client_error": "skip", "client_timeout": 3.0, "clients": {"actors": 2}}
    for runtime in ("inline", "ray"):
        with pytest.warns(FedrayWarning):
            found.append(fedray.run(keys, runtime=runtime, data=data, model=model_of(how, data)))
    here, there = found
    assert hashes(here) == hashes(there)
    assert rows(here.clients, "error") == rows(there.clients, "error")
    errors = [row["error"] for row in rows(there.clients) if row["status"] == "failed"]
    assert len(errors) == 1
    assert ("TimeoutError" if how == "hangs" else "ValueError: a pixel of 255") in errors[0]
