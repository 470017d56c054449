"""Trials that span actors: as many at once as have room, none holding what another waits for, nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sweeps import list_outcomes, run, sweep

from fedray.bench.rows import list_tree

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("nodes")]
KEYS: dict[str, Any] = {"sampler": "grid", "trials": None, "overrides": {"runtime": "ray"}}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Starts two nodes of two CPUs each."""
    from on_ray import open_nodes

    with open_nodes([2, 2]) as cluster:
        yield cluster


def free_cpus() -> float:
    """Returns the number of free CPUs, once Ray knows which tasks have ended."""
    import ray

    untyped: Any = ray
    deadline = time.monotonic() + 20
    while untyped.available_resources().get("CPU", 0) < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    return float(untyped.available_resources().get("CPU", 0))


def count_workers() -> list[int]:
    return [one.id for one in list_tree() if one.command.startswith("ray::_work")]


def test_trials_share_a_cluster_that_holds_one_of_them_at_a_time(tmp_path: Path) -> None:
    """Asks for three trials of three CPUs each at once, on two nodes of two, and kills a process of one."""
    found = sweep({"local.lr": [0.1, 0.2, 0.3]}, jobs=3, **KEYS)
    want = run({**found, "overrides": {}, "jobs": 1}, tmp_path / "inline")[1]
    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(run, {**found, "trial": {"actors": 3}}, tmp_path / "ray")
        while not (workers := count_workers()) and not done.done():
            time.sleep(0.05)
        assert len(workers) == 1
        os.kill(workers[0], signal.SIGKILL)
        summary, trials = done.result()
    assert (summary["complete"], list_outcomes(trials)) == (3, list_outcomes(want))
    assert free_cpus() == 4
