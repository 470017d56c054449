"""What Prometheus is told of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedray.runtime.ray import gauges
from fedray.runtime.ray.cluster import ClusterChanged
from fedray.runtime.ray.gauges import RunCounts, set_gauges
from fedray.runtime.ray.runtime import RayRuntime


class FakeGauge:
    """Keeps what is set."""

    values: dict[str, list[tuple[float, Any]]] = {}  # noqa: RUF012

    def __init__(self, name: str, _text: str, tag_keys: tuple[str, ...]) -> None:
        assert tag_keys == ("run",)
        self.kept = self.values.setdefault(name, [])

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.kept.append((value, tags["run"]))


def test_gauges_follow_the_evaluated_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs a second are those since the round evaluated before, not since the beginning."""
    monkeypatch.setattr(gauges, "Gauge", FakeGauge)
    monkeypatch.setattr(FakeGauge, "values", {})
    shown: list[int] = []
    counted = iter([RunCounts(0, 0), RunCounts(100, 0), RunCounts(300, 2)])
    show = set_gauges(lambda snapshot: shown.append(snapshot["round"]), "mine", lambda: next(counted))
    for done, wall in ((0, 0.0), (5, 10.0), (10, 20.0)):
        show({"round": done, "wall_seconds": wall, "up_bytes": 7 * done, "down_bytes": 9 * done})
    assert shown == [0, 5, 10]
    found = {name: [value for value, run in kept if run == "mine"] for name, kept in FakeGauge.values.items()}
    assert found == {
        "fedray_round": [0, 5, 10],
        "fedray_jobs_per_second": [0, 10, 20],
        "fedray_up_bytes": [0, 35, 70],
        "fedray_down_bytes": [0, 45, 90],
        "fedray_recoveries": [0, 0, 2],
    }


def test_jobs_that_are_trained_again_after_a_change_of_the_cluster_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def train(t: int, *_given: Any) -> None:
        calls.append(t)
        if len(calls) == 1:
            raise ClusterChanged

    monkeypatch.setattr(RayRuntime, "__init__", lambda *_given: None)
    monkeypatch.setattr(RayRuntime, "restart_actors", lambda _runtime: None)
    given: Any = None
    runtime = RayRuntime(given, given, given, "run")
    named: Any = {"walks": SimpleNamespace(train=train), "clients": SimpleNamespace(recoveries=1), "_jobs": 0}
    vars(runtime).update(named)
    jobs: Any = SimpleNamespace(size=[20, 30, 10])
    runtime.train(4, jobs, given, given)
    assert calls == [4, 4]
    assert runtime.counts() == RunCounts(3, 1)
