"""Models that start from given weights: those of a run, or of a file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import of_method, run_command, scenario

import fedray
from fedray.core.errors import BadInput

METHODS = ("fed_ensemble", "ditto", "fedag", "dsvgd", "local_only", "random_walk", "centralized", "heterofl")
NOTHING: dict[str, Any] = {"rounds": 0, "report": False}


def run(method: str, *changes: dict[str, Any], **options: Any) -> fedray.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fedray.run(of_method(method, {"rounds": 1, "report": False}, *changes), **options)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_starts_where_another_one_ended(method: str, tmp_path: Path) -> None:
    """Every member of every replicate, whatever the seed: to the bit."""
    one = run(method, {"replicates": 2}, out=tmp_path / "one")
    more = {"replicates": 2, "seed": 7, "model": {"weights": str(tmp_path / "one")}}
    other = run(method, NOTHING, more)
    assert torch.equal(other.progress.state.models, one.progress.state.models)
    assert not torch.equal(run(method, NOTHING, {"replicates": 2}).progress.state.models, one.progress.state.models)
    moved = run(method, more)
    assert not torch.equal(moved.progress.state.models, one.progress.state.models)


@pytest.fixture
def member(tmp_path: Path) -> Path:
    """The third member of an ensemble, as `fedray export` writes it."""
    run("fed_ensemble", out=tmp_path / "run")
    assert run_command("export", tmp_path / "run").status == 0
    return tmp_path / "run" / "export" / "replicate-0-fold-0-model-2.safetensors"


def test_all_members_start_from_a_file_and_a_run_knows_which_numbers_it_held(member: Path, tmp_path: Path) -> None:
    keys = scenario({"rounds": 2, "checkpoint": {"every": 1}, "report": False, "model": {"weights": str(member)}})
    wanted = load_file(member)
    for model in fedray.run({**keys, "rounds": 0}).models:
        assert all(torch.equal(model[name], value) for name, value in wanted.items())
    done = fedray.run(keys, out=tmp_path / "done")
    (done.path / "summary.json").unlink()
    assert fedray.resume(done.path).summary["model_hash"] == done.summary["model_hash"]
    save_file({name: value + 1 for name, value in wanted.items()}, member)
    with pytest.raises(BadInput, match="first weights"):
        fedray.resume(done.path)
