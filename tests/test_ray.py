"""A real local Ray gives the bits of the inline runtime, whatever the packing, and survives killed actors."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedray
from fedray.core import BadInput

SCENARIO: dict[str, Any] = {
    "rounds": 6,
    "method": {"models": 3},
    "clients": {"number": 10},
    "data": {"partition": {"name": "classes", "classes": 2}},
    "local": {"epochs": 2, "lr": 0.1},
    "checkpoint": {"every": 2},
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    from fedray.runtime import environment

    environment.prepare()
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def inline_hash(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = fedray.run(SCENARIO, out=tmp_path_factory.mktemp("inline") / "run", runtime="inline")
    return str(run.summary["model_hash"])


@pytest.mark.parametrize("packing", [{"actors": 1}, {"actors": 2}, {"actors": 3}, {"per_actor": 1}])
def test_the_packing_never_changes_a_bit(packing: dict[str, int], inline_hash: str, tmp_path: Path) -> None:
    scenario = {**SCENARIO, "clients": {"number": 10, **packing}}
    run = fedray.run(scenario, out=tmp_path / "run", runtime="ray")
    assert run.summary["model_hash"] == inline_hash


def test_private_state_is_the_same_on_both_runtimes(tmp_path: Path) -> None:
    keys = {**SCENARIO, "method": {"name": "shefl", "models": 3}, "compress": {"error_feedback": True}}
    a = fedray.run(keys, out=tmp_path / "a", runtime="inline").summary
    b = fedray.run({**keys, "clients": {"number": 10, "actors": 2}}, out=tmp_path / "b", runtime="ray").summary
    assert (a["model_hash"], a["state_hash"]) == (b["model_hash"], b["state_hash"])


def kill_when_running(name: str, out: Path) -> threading.Thread:
    """Kills one process of a Ray actor class once the run has its first checkpoint."""

    def work() -> None:
        deadline = time.monotonic() + 60
        while not list((out / "checkpoints").glob("round-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        found = subprocess.run(["pgrep", "-f", f"ray::{name}"], capture_output=True, text=True, check=False).stdout.split()
        if found:
            os.kill(int(found[-1]), signal.SIGKILL)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("name", ["Client", "Coordinator"])
def test_a_killed_actor_changes_no_bit(name: str, tmp_path: Path) -> None:
    keys = {**SCENARIO, "rounds": 60, "evaluate": {"every": 20}, "clients": {"number": 10, "actors": 2}}
    want = fedray.run(keys, out=tmp_path / "whole", runtime="inline").summary["model_hash"]
    thread = kill_when_running(name, tmp_path / "killed")
    got = fedray.run(keys, out=tmp_path / "killed", runtime="ray").summary["model_hash"]
    thread.join()
    assert got == want


def test_more_than_the_cluster_has_is_one_line(tmp_path: Path) -> None:
    scenario = {**SCENARIO, "clients": {"number": 10, "tiers": {"a": {"resources": {"moon": 1}}}}}
    with pytest.raises(BadInput, match="moon") as caught:
        fedray.run(scenario, out=tmp_path / "run", runtime="ray")
    assert len(str(caught.value).splitlines()) == 1
