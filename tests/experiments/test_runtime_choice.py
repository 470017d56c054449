"""Where a run trains: `runtime: auto` takes Ray and GPUs where they are needed or faster, and replaces nothing else.

CPUs and GPUs are counted by a fake.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from method_cases import make_case
from small import scenario

import fedray
from fedray.assembly.study import build_study
from fedray.core.types import Clients
from fedray.experiments import run
from fedray.experiments.run import choose_runtime, estimate_seconds, share_gpus
from fedray.files.run_files import read_sealed
from fedray.runtime import environment
from fedray.runtime.placement import Node, plan_actors
from fedray.scenario.loader import read_scenario, tier_table
from fedray.scenario.nested import merge_keys
from fedray.storage.summary import confirm_identity, recall_device

SMALL: dict[str, Any] = {"clients": {"number": 10}, "rounds": 2}
WORK: dict[str, Any] = {"rounds": 4000, "local": {"epochs": 200}}
WIDE: dict[str, Any] = {"clients": {"number": 100}, "rounds": 100, "model": {"name": "mlp", "hidden": [400]}}
WIDE |= {"local": {"epochs": 200}}
GPUS: dict[str, Any] = {"clients": {"tiers": {"strong": {"share": 1.0, "num_gpus": 0.25}}}}


def choose(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch, cpus: int, gpus: int = 0) -> tuple[str, int]:
    """The runtime of a scenario on a machine with these CPUs and GPUs, and how many of the GPUs train."""
    monkeypatch.setattr(environment, "count_gpus", lambda: gpus)
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    read = read_scenario({key: value for key, value in keys.items() if key != "address"})
    name, _, used = choose_runtime(read, build_study(read), keys.get("address"))
    return name, used


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "inline"),
        ({"address": "10.0.0.1:6379"}, "ray"),
        (GPUS, "ray"),
        ({"clients": {"actors": 2}}, "ray"),
        ({"clients": {"per_actor": 5}}, "ray"),
        (WORK, "ray"),
        (WORK | {"client_timeout": 10.0}, "inline"),
        (WORK | {"runtime": "inline"}, "inline"),
        ({"runtime": "ray"}, "ray"),
        ({"rounds": 10**6, "local": {"steps": 1, "epochs": None}}, "inline"),  # of a millisecond each
    ],
)
def test_ray_where_it_is_needed_or_sooner_done(
    keys: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(merge_keys(SMALL, keys), monkeypatch, cpus=8) == (expected, 0)


def test_on_one_core_ray_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(merge_keys(SMALL, WORK), monkeypatch, cpus=1) == ("inline", 0)


@pytest.mark.parametrize(
    ("keys", "gpus", "expected"),
    [
        ({}, 0, ("inline", 0)),
        ({}, 1, ("inline", 1)),
        ({}, 4, ("ray", 4)),
        ({"runtime": "ray"}, 1, ("ray", 1)),
        ({"runtime": "inline"}, 4, ("inline", 4)),
        ({"rounds": 1, "local": {"epochs": 50}}, 1, ("inline", 0)),  # a GPU's first use takes longer
        ({"local": {"batch_size": 1}, "model": {"hidden": [8]}}, 1, ("inline", 0)),  # many steps of little arithmetic
        ({"clients": {"device": "cpu"}}, 1, ("inline", 0)),
        ({"lanes": "compiled"}, 1, ("inline", 0)),  # kernels run on processors
        ({"clients": {"tiers": {"a": {"num_gpus": 0.5}, "b": {}}}}, 1, ("ray", 0)),  # the tiers say who has one
    ],
)
def test_a_gpu_is_used_where_it_saves_seconds_and_nobody_says_otherwise(
    keys: dict[str, Any], gpus: int, expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(merge_keys(WIDE, keys), monkeypatch, 1, gpus) == expected


def test_the_estimate_grows_with_the_work() -> None:
    """Twice the epochs are twice the arithmetic; a job costs its overhead once."""
    seconds = [
        estimate_seconds(build_study(read_scenario(merge_keys(SMALL, {"local": {"epochs": n}})))) for n in (1, 2, 3)
    ]
    assert np.diff(seconds)[0] == pytest.approx(np.diff(seconds)[1], rel=1e-9)
    assert seconds[0] - np.diff(seconds)[0] == pytest.approx(10 * run.JOB_SECONDS + run.ROUND_SECONDS)


def test_no_gpu_grows_trees() -> None:
    assert estimate_seconds(build_study(read_scenario({"method": "adaboost_f", "rounds": 1})), "cuda") == math.inf
    stack = build_study(read_scenario(make_case("stacking classifiers"), explicit=False))
    assert 0 < estimate_seconds(stack, "cuda") < math.inf, "of its networks; its trees vote"


@pytest.mark.parametrize(("tiers", "gpus"), [(1, 1), (1, 4), (2, 4), (3, 2), (5, 1)])
def test_the_actors_of_a_machine_share_all_its_gpus(tiers: int, gpus: int) -> None:
    keys = {"clients": {"number": 40, "tiers": {f"t{k}": {} for k in range(tiers)}}}
    shared = share_gpus(read_scenario(keys), gpus)
    node = Node("", {"CPU": 16.0, "GPU": float(gpus)})
    actors = plan_actors(Clients(tier_table(shared, 40)), [node], "auto", "auto")
    assert {actor.tier for actor in actors} == set(range(tiers))
    held = sum(actor.num_gpus for actor in actors)
    assert all(actor.num_gpus for actor in actors) and gpus / 2 < held <= gpus + 1e-9
    assert tiers > 1 or held == gpus


def test_a_run_keeps_the_device_with_which_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A GPU that appears later is left alone; without the GPU with which it began a run goes on, and says so."""
    out, told, asked = tmp_path / "run", list[str](), list[float]()
    fedray.run(given := scenario({"method": {"name": "fedavg"}, "rounds": 1, "runtime": "auto"}), out=out)
    with caplog.at_level("INFO", "fedray"):
        fedray.resume(out, rounds=2)
    assert "training in this process" in caplog.text
    assert read_sealed(out / "identity.json")["device"] == {"clients": "cpu"} and recall_device(out) == "cpu"
    study = build_study(read := read_scenario(given))
    monkeypatch.setattr(environment, "count_gpus", lambda: 1)
    monkeypatch.setattr(run, "estimate_seconds", lambda _study, device="cpu": 1e9 if device == "cpu" else 0.0)
    monkeypatch.setattr(environment, "device_of", lambda gpus, *_, **__: asked.append(gpus))
    for folder in (out, tmp_path / "new"):
        run.choose_device(read, study, folder)
    assert asked == [0, 1] and run.choose_runtime(read, study, None, "cpu").why != "a GPU is here"
    for device in ("cuda", "cpu"):
        confirm_identity(out, {"device": {"clients": device}}, told.append, rounds=2)
    assert len(told) == 1 and "clients train on cuda, but the run began on cpu" in told[0]
