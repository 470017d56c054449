"""Where a run trains: `runtime: auto` takes Ray for what needs it or gains by it, and nothing else is ever replaced."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from fedray.assembly.study import build_study
from fedray.experiments.run import choose_runtime, estimate_seconds
from fedray.scenario.loader import read_scenario
from fedray.scenario.nested import merge_keys

SMALL: dict[str, Any] = {"clients": {"number": 10}, "rounds": 2}
GPUS: dict[str, Any] = {"clients": {"tiers": {"strong": {"share": 1.0, "num_gpus": 0.25}}}}
WORK: dict[str, Any] = {"rounds": 4000, "local": {"epochs": 200}}


def choose(keys: dict[str, Any], address: str | None = None) -> str:
    scenario = read_scenario(merge_keys(SMALL, keys))
    return choose_runtime(scenario, build_study(scenario), address).name


@pytest.mark.parametrize(
    ("keys", "address", "expected"),
    [
        ({}, None, "inline"),
        ({}, "10.0.0.1:6379", "ray"),
        (GPUS, None, "ray"),
        ({"clients": {"actors": 2}}, None, "ray"),
        ({"clients": {"per_actor": 5}}, None, "ray"),
        (WORK, None, "ray"),
        (WORK | {"client_timeout": 10.0}, None, "inline"),
        (WORK | {"runtime": "inline"}, None, "inline"),
        ({"runtime": "ray"}, None, "ray"),
        ({"rounds": 10**6, "local": {"steps": 1, "epochs": None}}, None, "inline"),  # of a millisecond each
    ],
)
def test_ray_where_it_is_needed_or_sooner_done(
    keys: dict[str, Any], address: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert choose(keys, address) == expected


def test_on_one_core_ray_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert choose(WORK) == "inline"


def test_the_estimate_grows_with_the_work() -> None:
    """Twice the epochs are twice the arithmetic; a job costs its overhead once."""
    seconds = [
        estimate_seconds(build_study(read_scenario(merge_keys(SMALL, {"local": {"epochs": n}})))) for n in (1, 2, 3)
    ]
    assert np.diff(seconds)[0] == pytest.approx(np.diff(seconds)[1], rel=1e-9)
    assert 0 < np.diff(seconds)[0] < seconds[0]
