"""Whole runs on a GPU, where there is one: every method computes what it computes on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from method_cases import CASES, make_case

import fedray
from fedray.assembly.registry import UserObjects
from fedray.experiments.run import run_scenario
from fedray.scenario.loader import read_scenario

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)


def run(name: str, out: Path, gpus: float) -> tuple[torch.Tensor, dict[str, Any]]:
    """The last models of a case, and its summary."""
    keys = make_case(name)
    if gpus:
        names = list(read_scenario(keys, explicit=False).clients.tiers)  # of SHEFL, say, which has tiers of its own
        given = keys.get("clients", {}).get("tiers", {} if names else {"all": {"share": 1.0}})
        tiers = {tier: {**given.get(tier, {}), "num_gpus": gpus} for tier in names or given}
        keys["clients"] = keys.get("clients", {}) | {"tiers": tiers}
    summary = run_scenario(read_scenario(keys, explicit=False), out, UserObjects(), lambda _snapshot: None)
    return fedray.load(out).progress.state.models, summary


@pytest.mark.parametrize("name", [name for name in CASES if "classifiers" not in name])
def test_a_method_computes_on_a_gpu_what_it_computes_on_the_cpu(name: str, tmp_path: Path) -> None:
    on_cpu, _ = run(name, tmp_path / "cpu", gpus=0)
    on_gpu, first = run(name, tmp_path / "gpu", gpus=1)
    _, second = run(name, tmp_path / "again", gpus=1)
    assert first["state_hash"] == second["state_hash"]
    chooses = "topk" in str(make_case(name)) or "shefl" in name or "failures" in name  # top-k may keep another entry
    assert (on_gpu - on_cpu).norm() < (0.05 if chooses else 1e-3) * on_cpu.norm()
