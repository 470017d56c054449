"""What Prometheus is told of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedray.runtime.ray import gauges
from fedray.runtime.ray.cluster import ClusterChanged
from fedray.runtime.ray.gauges import RunCounts, set_gauges
from fedray.runtime.ray.naming import name_options
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


@pytest.mark.parametrize("run", ["\xfcbung", "\u65e5\u672c", "a\nb", "\U0001f600", "plain"])
def test_a_run_whose_name_is_not_ascii_always_died_on_ray(monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    """Ray encodes the tags of gauges as ASCII; what names actors is plain too."""
    monkeypatch.setattr(gauges, "Gauge", FakeGauge)
    monkeypatch.setattr(FakeGauge, "values", {})
    show = set_gauges(lambda _snapshot: None, run, lambda: RunCounts(0, 0))
    show({"round": 1, "wall_seconds": 1.0, "up_bytes": 1, "down_bytes": 1})
    tags = {tag for kept in FakeGauge.values.values() for _, tag in kept}
    names = [text for one in name_options(run, ["coordinator"]) for text in one.values()]
    assert len(tags) == 1 and all(text.isascii() and text.isprintable() for text in [*tags, *names])
    assert run != "plain" or tags == {"plain"}


def test_gauges_that_fail_ended_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They only look on: the failure is told once."""
    monkeypatch.setattr(gauges, "Gauge", FakeGauge)
    monkeypatch.setattr(FakeGauge, "set", lambda *_given, **_more: 1 / 0)
    told: list[str] = []
    shown: list[int] = []
    show = set_gauges(lambda snapshot: shown.append(snapshot["round"]), "run", lambda: RunCounts(0, 0), told.append)
    for done in (0, 1):
        show({"round": done, "wall_seconds": 1.0, "up_bytes": 1, "down_bytes": 1})
    assert shown == [0, 1]
    assert told == ["gauges of Ray failed (ZeroDivisionError: division by zero): the run goes on without it"]
