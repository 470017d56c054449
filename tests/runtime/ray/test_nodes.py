"""Three nodes give the bits of one process: where files are missing, where one is killed and another joins.

The nodes are Ray's own, started here on one machine (`ray.cluster_utils.Cluster`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import scenario

import fedray

pytestmark = [pytest.mark.usefixtures("no_report"), pytest.mark.timeout(600)]

QUICK = {"health_check_period_ms": 500, "health_check_timeout_ms": 20_000, "health_check_failure_threshold": 4}
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

    environment.prepare_process()
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


def test_three_nodes_give_the_bits_of_one_process_also_where_the_files_are_missing(
    three: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node fetches the data once, into its object store; its actors could not read them otherwise."""
    monkeypatch.setenv("FEDRAY_DATA", str(three.data))
    want = hashes(fedray.run(TABLE, runtime="inline"))
    assert hashes(fedray.run(TABLE, runtime="ray")) == want


LONG: dict[str, Any] = {"rounds": 300, "evaluate": {"every": 150}, "checkpoint": {"every": 10, "keep": 99}}


@pytest.mark.slow
def test_three_nodes_of_which_one_is_killed_and_one_joins_give_the_bits_of_one_process(
    three: Any, tmp_path: Path
) -> None:
    """What clients keep to themselves (FedDyn's corrections) moves with them; the new node's CPU is used."""
    want, out = hashes(fedray.run(scenario(PRIVATE, LONG))), tmp_path / "run"
    with ThreadPoolExecutor(1) as beside:  # nodes are started from the main thread only
        done = beside.submit(fedray.run, scenario(PRIVATE, LONG), runtime="ray", out=out)
        while not (out / "checkpoints" / "round-000020").exists() and not done.done():
            time.sleep(0.02)
        three.remove_node(next(iter(three.worker_nodes)), allow_graceful=False)
        three.add_node(num_cpus=2)
        assert not done.done(), "the run ended before its node was killed"
    assert hashes(done.result()) == want
    assert done.result().clients.num_rows == LONG["rounds"] * 6
