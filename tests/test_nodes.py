"""Three nodes give the bits of one process; one of them is killed, another joins; one lacks the data's files.

The nodes are Ray's own, started here on one machine (`ray.cluster_utils.Cluster`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import no_report, scenario

import fedray

__all__ = ["no_report"]

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.timeout(600)]

QUICK = {"health_check_period_ms": 300, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
PRIVATE: dict[str, Any] = {"method": {"name": "feddyn"}}
TABLE: dict[str, Any] = {
    "data": {"name": "uci/mini"},
    "clients": {"number": 4},
    "method": {"models": 2},
    "rounds": 2,
}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head and two nodes of one CPU each; only the head's node knows where the data are."""
    from fedray.runtime import environment

    environment.prepare()
    import ray
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("data") / "UCI" / "UCI_Datasets" / "mini" / "data"
    _write(folder)
    has, lacks = {"FEDRAY_DATA": str(folder.parents[3])}, {"FEDRAY_DATA": "/nowhere"}
    head = {"num_cpus": 1, "_system_config": QUICK, "include_dashboard": False, "env_vars": has}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, env_vars=lacks)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    cluster.data = folder.parents[3]
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def _write(folder: Path) -> None:
    """A small regression set in the standard split layout."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    table = rng.normal(size=(60, 4))
    np.savetxt(folder / "data.txt", table)
    for name, values in {"features": range(3), "target": [3], "train_0": range(48), "test_0": range(48, 60)}.items():
        np.savetxt(folder / f"index_{name}.txt", np.array(list(values)))
    np.savetxt(folder / "n_splits.txt", [1])


def hashes(done: fedray.Run) -> tuple[str, str]:
    return done.summary["model_hash"], done.summary["state_hash"]


def while_it_runs(out: Path, after: int, work: Callable[[], None]) -> threading.Thread:
    """Does something once a run has a checkpoint of round `after`."""

    def wait() -> None:
        deadline = time.monotonic() + 300
        while not (out / "checkpoints" / f"round-{after:06d}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        work()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_nodes_without_the_files_get_the_data_from_the_coordinator(three: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node fetches them once, into its object store; actors there could not read them otherwise."""
    monkeypatch.setenv("FEDRAY_DATA", str(three.data))
    want = hashes(fedray.run(scenario(TABLE)))
    assert hashes(fedray.run(scenario(TABLE), runtime="ray")) == want


LONG: dict[str, Any] = {"rounds": 600, "evaluate": {"every": 300}, "checkpoint": {"every": 10, "keep": 99}}


def test_three_nodes_of_which_one_is_killed_and_one_joins_give_the_bits_of_one_process(
    three: Any, tmp_path: Path
) -> None:
    """What clients keep to themselves (FedDyn's corrections) moves with them; the new node's CPU is used."""
    want = hashes(fedray.run(scenario(PRIVATE, LONG)))

    def change() -> None:
        three.remove_node(next(iter(three.worker_nodes)), allow_graceful=False)
        time.sleep(1.0)
        three.add_node(num_cpus=2)

    thread = while_it_runs(tmp_path / "run", 20, change)
    done = fedray.run(scenario(PRIVATE, LONG), runtime="ray", out=tmp_path / "run")
    thread.join()
    assert hashes(done) == want
    assert done.clients.num_rows == 600 * 6
