"""A cluster that grows by demand, with Ray's fake provider: no worker at first, three at most, all on this machine.

Ray's own `AutoscalingCluster` ends every Ray of the machine when it starts, so the head is started here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from on_ray import hashes, inline, run

from fedray.bench.rows import list_tree
from fedray.core.errors import BadInput
from fedray.runtime.environment import answers

pytestmark = pytest.mark.timeout(1200)

RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
MOST = 3  # workers


def config(address: str) -> dict[str, Any]:
    """Returns what `ray start --autoscaling-config` reads."""
    empty = ("auth", "docker", "file_mounts")
    lists = ["initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"]
    lists += ["head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude"]
    return {
        "cluster_name": "fake",
        "max_workers": MOST,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {
                "resources": {"CPU": 1, "object_store_memory": 10**8},
                "node_config": {},
                "min_workers": 0,
                "max_workers": MOST,
            },
        },
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.5,
        "file_mounts_sync_continuously": False,
        "rsync_filter": [],
        **{name: {} for name in empty},
        **{name: [] for name in lists},
    }


def head_address() -> str:
    """Returns the address of this machine's network with a free port. The nodes use it."""
    import ray.util

    untyped: Any = ray.util  # it has no annotations
    with socket.socket() as one:
        one.bind(("", 0))
        return f"{untyped.get_node_ip_address()}:{one.getsockname()[1]}"


def find_below(pid: int) -> set[int]:
    """Returns a process and all its descendants."""
    found, tree = {pid}, list_tree()
    while new := {one.id for one in tree if one.parent in found} - found:
        found |= new
    return found


@pytest.fixture(scope="module")
def growing() -> Iterator[str]:
    """Yields the address of a cluster without a CPU, which starts nodes of one CPU each on demand."""
    from fedray.runtime import environment

    environment.prepare_process()
    address = head_address()
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "cluster.json"
        file.write_text(json.dumps(config(address)))
        variables = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "RAY_enable_autoscaler_v2": "0"}
        variables |= {"RAY_AUTH_MODE": "disabled"}
        options = [f"--port={address.split(':')[1]}", "--num-cpus=0", f"--temp-dir={folder}", "--disable-usage-stats"]
        options += ["--include-dashboard=false", f"--autoscaling-config={file}", "--object-store-memory=100000000"]
        with (Path(folder) / "log").open("wb") as log:
            head = subprocess.Popen(
                [*RAY, "start", "--head", "--block", *options], env=os.environ | variables, stdout=log, stderr=log
            )
        try:
            deadline = time.monotonic() + 120
            while not answers(address):
                assert head.poll() is None and time.monotonic() < deadline, (Path(folder) / "log").read_text()[-2000:]
                time.sleep(0.2)
            yield address
        finally:
            for pid in sorted(find_below(head.pid)):  # the provider's nodes are below the head's monitor
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            head.wait()


def test_what_a_run_waits_for_is_brought_by_an_autoscaler(growing: str) -> None:
    """Checks that no node starts without `wait_for`, and that one line then names it."""
    with pytest.raises(BadInput, match=f"{MOST} actors need {MOST} CPU, but the cluster has 0 CPU: .*--wait-for waits"):
        run({"clients": {"actors": MOST, "tiers": {"all": {"num_cpus": 1}}}}, address=growing)
    done = run({"clients": {"actors": MOST}}, address=growing, wait_for={"CPU": MOST})
    assert hashes(done) == inline()
    facts = json.loads((done.path / "manifest.json").read_text())
    assert facts["actors"] == MOST
