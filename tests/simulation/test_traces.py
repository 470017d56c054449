"""Traces: windows that repeat, links that change, the files of FedScale and MobiPerf, and the profile of phones."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import scenario

import fedray
from fedray.core.errors import BadInput, FedrayWarning
from fedray.core.types import Clients, Tier
from fedray.scenario.loader import read_scenario
from fedray.simulation.devices import PROFILES, make_profile, read_trace, window_availability

FOUR = Clients((Tier("client", 4, uplink=7.0, latency=0.5),))
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "how-to"


def write(path: Path, **columns: Any) -> Path:
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


@given(st.floats(0, 1e6), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4))
def test_windows_that_repeat_are_met_after_the_waiting_time_and_a_period_later(
    now: float, rows: list[tuple[int, int]]
) -> None:
    start, length = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    wait = window_availability(np.zeros(len(rows), int), start, start + length, np.full(len(rows), 20.0))
    zero = np.zeros(1, int)
    seconds = wait(zero, zero, np.array([now]))
    assert 0 <= seconds[0] <= 20.001
    assert wait(zero, zero, now + seconds)[0] == 0
    at = now % 20.0
    inside = any(a <= at < a + n for a, n in rows)
    assert (seconds[0] == 0) == inside


def test_a_link_changes_over_time_and_begins_anew_after_its_period(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.csv",
        client=[0, 0, 1, 1, 2],
        link_from=[0, 60, 10, 20, None],
        period=[100, 100, None, None, None],
        uplink=[100, 10, 5, 6, 50],
        latency=[0.0, 0.2, None, 1.0, None],
    )
    devices, who = read_trace(FOUR, path), np.arange(4)

    def at(name: str, now: float) -> list[float]:
        return [float(x) for x in devices.figure(name, who, np.full(4, now))]

    assert at("uplink", 0) == [100, 5, 50, 7]
    assert at("uplink", 65) == [10, 6, 50, 7]
    assert at("uplink", 130) == [100, 6, 50, 7]
    assert at("latency", 0) == [0, 0.5, 0.5, 0.5]
    assert at("latency", 165) == [0.2, 1.0, 0.5, 0.5]


def test_a_round_takes_longer_when_the_link_is_slower(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", client=[0, 0], link_from=[0, 0.001], uplink=[1e6, 10.0])
    run = fedray.run(scenario({"rounds": 2, "report": False, "clients": {"trace": str(path)}}))
    seconds = {(job["round"], job["client"]): job["sim_seconds"] for job in run.clients.to_pylist()}
    assert seconds[2, 0] > 100 * seconds[1, 0]
    assert seconds[2, 1] == seconds[1, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"client": [0], "available_to": [9], "period": [5]}, "a window of client 0 ends after its period"),
        ({"client": [0], "uplink": [9], "link_from": [5], "period": [5]}, "a link of client 0 begins after its period"),
        ({"client": [0], "latency": [-1]}, "column latency has values that are negative"),
        ({"client": [0], "period": [0]}, "column period has values that are not above 0"),
        ({"client": [0], "uplnk": [1]}, "it has the unknown column uplnk"),
    ],
)
def test_what_a_trace_cannot_hold_is_one_line(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        read_trace(FOUR, write(tmp_path / "trace.csv", **columns))
    assert message in str(error.value) and "\n" not in str(error.value)


def convert(*words: object) -> subprocess.CompletedProcess[str]:
    """`python tools/traces.py`, without the package."""
    command = [sys.executable, "-I", str(ROOT / "tools" / "traces.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


CAPACITY = {9: {"computation": 100.0, "communication": 8000.0}, 4: {"computation": 50.0, "communication": 800.0}}
BEHAVIOUR = {
    1: {"duration": 30, "inactive": [20, 70], "finish_time": 100, "active": [10, 60], "model": "a"},
    2: {"duration": 5, "inactive": [5], "finish_time": 50, "active": [0, 40], "model": "b"},
}


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_files_of_fedscale_are_converted_from_command_line_to_run(protocol: int, tmp_path: Path) -> None:
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
    (tmp_path / "bomb").write_bytes(pickle.dumps({1: Bomb()}))
    found = convert("fedscale", tmp_path / "bomb", "--out", tmp_path / "trace.csv")
    assert found.returncode == 2 and "which is no plain data" in found.stderr and found.stderr.count("\n") == 1
    assert "boom" not in found.stdout


def test_measurements_of_mobiperf_become_links_that_change(tmp_path: Path) -> None:
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


def test_phones_have_the_published_medians_and_a_tenfold_spread_and_are_drawn_at_their_address() -> None:
    many = Clients((Tier("phone", 40_001, uplink=5.0),))
    one, two, other = (make_profile("phones", many, seed) for seed in (1, 1, 2))
    page = (DOCS / "traces.md").read_text()
    for name, law in PROFILES["phones"].items():
        values = one.figure(name, np.arange(40_001))
        assert np.isclose(np.median(values), law.median, rtol=0.03)
        low, high = np.percentile(values, (10, 90))
        assert np.isclose(high / low, 10.0 if name != "latency" else 10.0**0.5, rtol=0.05)
        assert np.array_equal(values, two.figure(name, np.arange(40_001)))
        assert not np.array_equal(values, other.figure(name, np.arange(40_001)))
        assert f"`{name}`" in page and f"| {law.median:,.9f}".rstrip("0").rstrip(".") in page


def test_phones_change_the_clock_alone_and_a_tier_whose_figures_they_replace_is_refused(tmp_path: Path) -> None:
    keys = scenario({"rounds": 2, "report": False})
    plain, phones = (fedray.run(keys, clients={"number": 6, **more}) for more in ({}, {"profile": "phones"}))
    assert plain.summary["model_hash"] == phones.summary["model_hash"]
    assert plain.summary["totals"]["sim_seconds"] < phones.summary["totals"]["sim_seconds"]
    with pytest.raises(BadInput, match=r"clients.tiers.a.uplink = .* cannot act, because clients.profile = phones"):
        read_scenario({"clients": {"number": 6, "profile": "phones", "tiers": {"a": {"uplink": 3.0}}}})
    with pytest.raises(BadInput, match=r"clients.profile = phones, but clients.trace says"):
        read_scenario({"clients": {"number": 6, "profile": "phones", "trace": str(tmp_path / "t.csv")}})
