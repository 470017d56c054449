"""The manifest says which engine the workers ran, and whether a lane's bits depended on its neighbours there."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import yaml
from small import run_command, scenario

import fedray
from fedray.core.types import Net
from fedray.runtime.session import join_worker_facts, warn_if_dependent
from fedray.training import layers
from fedray.training.block import Block, Trained


def test_lanes_that_depend_on_other_lanes_are_detected_and_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test trains the same lanes in different company; here their number leaks into the weights."""
    honest = layers.train_mlp

    def leaking(net: Net, block: Block) -> Trained:
        done = honest(net, block)
        return done._replace(final=done.final + 1e-6 * len(block.start))

    keys = scenario({"rounds": 1, "lanes": "torch"})
    fedray.run(keys, out=tmp_path / "fine")  # warnings are errors here
    monkeypatch.setattr(layers, "train_mlp", leaking)
    with pytest.warns(UserWarning, match="results repeat for the same packing only"):
        fedray.run(keys, out=tmp_path / "leaking")
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("fine", "leaking")]
    assert [one["lanes_independent"] for one in manifests] == [True, False]


def test_actors_of_several_kinds_are_all_in_the_manifest() -> None:
    """A GPU tier beside a CPU tier: both engines; one actor in doubt is enough for a warning."""
    cpu = {"engine": {"name": "conv", "width": 8, "device": "cpu"}, "lanes_independent": True}
    gpu = {"engine": {"name": "conv", "width": 256, "device": "cuda"}, "lanes_independent": False}
    assert join_worker_facts([cpu, cpu]) == cpu
    mixed = join_worker_facts([gpu, cpu, gpu])
    assert (mixed["engine"], mixed["engines"]) == (gpu["engine"], [gpu["engine"], cpu["engine"]])
    with pytest.warns(UserWarning, match="self-test failed"):
        warn_if_dependent(mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_dependent(join_worker_facts([cpu, cpu]))


def test_check_names_the_engine_of_the_device_that_will_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cnn.yaml"
    cnn = {"name": "cnn", "channels": [64], "hidden": [8]}
    file.write_text(yaml.safe_dump(scenario({"runtime": "ray", "lanes": "torch", "model": cnn})))
    assert "conv on cpu, up to 1 lanes" in run_command("check", file).out
    tiers = "clients.tiers={gpu: {number: 2, num_gpus: 0.5}, cpu: {}}"
    monkeypatch.setattr("fedray.experiments.check.count_gpus", lambda: 1)
    mixed = run_command("check", file, tiers).out
    assert "conv on cpu, up to 1 lanes" in mixed
    assert "conv on cuda, up to 256 lanes" in mixed
    rounding = run_command("check", file, tiers, "clients.tf32=true").out
    assert "conv on cpu, up to 1 lanes" in rounding and "conv on cuda with TF32, up to 256 lanes" in rounding


def test_wide_networks_with_large_weights_pass(tmp_path: Path) -> None:
    """Weights of standard deviation 1 diverged at the self-test's former rate, and NaN is not equal to itself."""
    keys = {"method": {"name": "fedag"}, "data": {"name": "cubic"}, "model": {"hidden": [100], "weight_sd": 1.0}}
    run = fedray.run(scenario(keys, {"data": {"limit": None, "partition": None}, "rounds": 1}), out=tmp_path / "run")
    assert json.loads((run.path / "manifest.json").read_text())["lanes_independent"]
