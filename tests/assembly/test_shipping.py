"""What another process gets in place of the files that this one has read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle

from fedray.assembly.registry import UserObjects
from fedray.assembly.study import build_study
from fedray.scenario.loader import read_scenario

KEYS: dict[str, Any] = {
    "data": {"name": "digits", "limit": 60, "partition": "iid"},
    "method": {"name": "random_walk", "models": 2},
    "clients": {"number": 4, "trace": "trace.csv"},
    "graph": {"kind": "edges", "edges": "edges.csv", "failures": "failures.csv"},
}


def test_a_process_without_the_files_of_a_scenario_builds_the_same_study(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Client actors read the graph's edges and failures again, from paths that only the driver knew."""
    monkeypatch.chdir(tmp_path)
    Path("edges.csv").write_text("node,neighbour\n0,1\n1,2\n2,3\n")
    Path("failures.csv").write_text("first,last,node\n1,1,2\n")
    Path("trace.csv").write_text("client,seconds_per_step\n0,1\n1,2\n2,3\n3,4\n")
    scenario = read_scenario(KEYS)
    study = build_study(scenario, UserObjects())
    sent = cloudpickle.loads(cloudpickle.dumps(UserObjects().shipped(study)))  # type: ignore[no-untyped-call]  # cloudpickle has no types
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    there = build_study(scenario, sent)
    here_walk, there_walk = study.method.phase.walk, there.method.phase.walk
    assert here_walk is not None and there_walk is not None
    for t in range(8):
        np.testing.assert_array_equal(here_walk.at(t), there_walk.at(t))
        np.testing.assert_array_equal(here_walk.down(t), there_walk.down(t))
    client = np.arange(4)
    np.testing.assert_array_equal(study.shards.sizes(0 * client, client), there.shards.sizes(0 * client, client))
