"""Three nodes give the bits of one process: where files are missing, where one is killed and another joins.

The nodes are Ray's own, started here on one machine (`ray.cluster_utils.Cluster`).
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import scenario

import fedray

pytestmark = pytest.mark.timeout(600)
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
    """Starts a head and two nodes of one CPU each. None of them knows the folder of the data."""
    from fedray.runtime import environment

    environment.prepare_process()
    import ray
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("data") / "UCI" / "UCI_Datasets" / "mini" / "data"
    _write(folder)
    lacks = {"FEDRAY_DATA": "/nowhere"}
    head = {"num_cpus": 1, "_system_config": QUICK, "include_dashboard": False, "env_vars": lacks}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, env_vars=lacks)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    cluster.data = folder.parents[3]
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def _write(folder: Path) -> None:
    """Writes a small regression set in the standard split layout."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    table = rng.normal(size=(60, 4))
    np.savetxt(folder / "data.txt", table)
    for name, values in {"features": range(3), "target": [3], "train_0": range(48), "test_0": range(48, 60)}.items():
        np.savetxt(folder / f"index_{name}.txt", np.array(list(values)))
    np.savetxt(folder / "n_splits.txt", [1])


def hashes(done: fedray.Run) -> tuple[str, str]:
    return done.summary["model_hash"], done.summary["state_hash"]


MODULE = "import helping_hand\nimport fedray\n\nfedray.register('model', 'own_linear', helping_hand.make)\n"
HELP = "from torch import nn\n\n\ndef make(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n"


def test_three_nodes_without_the_files_and_modules_of_the_driver_give_the_bits_of_one_process(
    three: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each node fetches the data once, into its object store, and modules from Ray.

    Relative paths were read where Ray was started, and own modules had to be on every node.
    """
    monkeypatch.chdir(tmp_path)
    Path("data").symlink_to(three.data)
    Path("trace.csv").write_text("client,seconds_per_step\n0,1\n1,2\n2,3\n3,4\n")
    code = tmp_path / "code"
    code.mkdir()
    (code / "own_linear.py").write_text(MODULE)
    (code / "helping_hand.py").write_text(HELP)
    monkeypatch.setenv("FEDRAY_DATA", "data")
    monkeypatch.syspath_prepend(code)
    importlib.import_module("own_linear")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(code)])  # no worker finds it there
    wanted = {**TABLE, "clients": {"number": 4, "trace": "trace.csv"}, "model": "own_linear"}
    want = hashes(fedray.run(wanted, runtime="inline", modules=["own_linear"]))
    assert hashes(fedray.run(wanted, runtime="ray", modules=["own_linear"])) == want


LONG: dict[str, Any] = {"rounds": 300, "evaluate": {"every": 150}, "checkpoint": {"every": 10, "keep": 99}}


def test_three_nodes_of_which_one_is_killed_and_one_joins_give_the_bits_of_one_process(
    three: Any, tmp_path: Path
) -> None:
    """Checks also that private vectors of clients (FedDyn's corrections) move with them."""
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
