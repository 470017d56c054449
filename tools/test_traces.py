"""Files of FedScale and MobiPerf become traces that fedray reads: `python -m pytest tools/test_traces.py`."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import scenario

import fedray
from fedray.core.errors import FedrayWarning
from fedray.core.types import Clients, Tier
from fedray.simulation.devices import read_trace

ROOT = Path(__file__).parents[1]
FOUR = Clients((Tier("client", 4, uplink=7.0, latency=0.5),))


def convert(*words: object) -> subprocess.CompletedProcess[str]:
    """Runs `python tools/traces.py` without the package."""
    command = [sys.executable, "-I", str(ROOT / "tools" / "traces.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


CAPACITY = {9: {"computation": 100.0, "communication": 8000.0}, 4: {"computation": 50.0, "communication": 800.0}}
BEHAVIOUR = {
    1: {"duration": 30, "inactive": [20, 70], "finish_time": 100, "active": [10, 60], "model": "a"},
    2: {"duration": 5, "inactive": [5], "finish_time": 50, "active": [0, 40], "model": "b"},
}


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_files_of_fedscale_are_converted_from_command_line_to_run(protocol: int, tmp_path: Path) -> None:
    """Clients in the order of their keys, with their speeds, links and windows."""
    for name, content in (("capacity", CAPACITY), ("behaviour", BEHAVIOUR)):
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=protocol))
    out = tmp_path / "trace.csv"
    found = convert("fedscale", tmp_path / "capacity", tmp_path / "behaviour", "--out", out)
    assert found.returncode == 0, found.stderr
    assert "2 clients, 4 rows" in found.stdout
    devices, who, zero = read_trace(FOUR, out), np.arange(2), np.zeros(2, int)
    assert devices.figure("seconds_per_sample", who).tolist() == [0.15, 0.3]  # in the order of the keys 4 and 9
    assert devices.figure("uplink", who).tolist() == devices.figure("downlink", who).tolist() == [1e5, 1e6]
    assert devices.available is not None
    there = [
        [wait == 0 for wait in devices.available(zero, who, np.full(2, now))] for now in (0.0, 15.0, 45.0, 115.0, 165.0)
    ]
    assert there == [[False, True], [True, False], [False, True], [True, False], [True, False]]
    if protocol == 2:
        with pytest.warns(FedrayWarning, match="models that took no upload"):
            run = fedray.run(scenario({"rounds": 1, "report": False, "clients": {"number": 2, "trace": str(out)}}))
        assert {job["status"] for job in run.clients.to_pylist() if job["client"] == 0} == {"unavailable"}


class Bomb:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("boom",)


def test_a_pickle_that_holds_code_is_refused_and_not_run(tmp_path: Path) -> None:
    """Checks that one line is said and nothing of the pickle runs."""
    (tmp_path / "bomb").write_bytes(pickle.dumps({1: Bomb()}))
    found = convert("fedscale", tmp_path / "bomb", "--out", tmp_path / "trace.csv")
    assert found.returncode == 2 and "which is no plain data" in found.stderr and found.stderr.count("\n") == 1
    assert "boom" not in found.stdout


def test_measurements_of_mobiperf_become_links_that_change(tmp_path: Path) -> None:
    """Checks links by device and second, from lines and from lists."""

    def record(device: str, seconds: float, kind: str, **values: Any) -> dict[str, Any]:
        known = {"dir_up": "true"} if kind == "up" else {}
        return {"device_id": device, "timestamp": seconds * 1e6, "parameters": known, "values": values}

    records = [
        record("b", 1000, "down", tcp_speed_results="[800, 900, 700]"),
        record("b", 1060, "up", tcp_speed_results=[80]),
        record("b", 1120, "down", tcp_speed_results=[1600.0]),
        record("b", 1120, "ping", mean_rtt_ms="40"),
        record("a", 5, "ping", mean_rtt_ms=10),
        record("c", 7, "down", tcp_speed_results="[]"),
    ]
    lines = tmp_path / "lines.json"
    lines.write_text("\n".join(map(json.dumps, records)))
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([{"tcp_speed_results": [8000, 8000], "guid": "z"}]))
    out = tmp_path / "trace.parquet"
    found = convert("mobiperf", lines, listed, "--out", out)
    assert found.returncode == 0, found.stderr
    devices, who = read_trace(FOUR, out), np.arange(3)
    down = [devices.figure("downlink", who, np.full(3, now)).tolist()[:2] for now in (0.0, 61.0, 121.0, 86_400.0)]
    assert down == [[1e5, 1e6], [1e5, 1e6], [2e5, 1e6], [1e5, 1e6]]
    assert devices.figure("uplink", who, np.zeros(3)).tolist() == [1e4, 7.0, 7.0]
    assert devices.figure("latency", who, np.zeros(3)).tolist() == [0.02, 0.5, 0.5]
    empty = tmp_path / "empty.json"
    empty.write_text("[1, {}]")
    found = convert("mobiperf", empty, "--out", out)
    assert found.returncode == 2 and "no record has tcp_speed_results" in found.stderr
