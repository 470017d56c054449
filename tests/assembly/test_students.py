"""Which engine computes the students of a server, and that a run keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fedray
from fedray.assembly.models import choose_students
from fedray.components.distillation import TORCH
from fedray.core import native
from fedray.models.nets import build_net

KEYS = {
    "rounds": 2, "runtime": "inline", "report": False, "evaluate": {"every": 2}, "clients": {"number": 4},
    "data": {"name": "digits", "limit": 200}, "model": {"name": "mlp", "hidden": [8]}, "local": {"lr": 0.05},
}  # fmt: skip
METHODS = {
    "fedbe": {"name": "fedbe", "samples": 2, "distil_epochs": 2, "server_data": 0.2},
    "feddf": {"name": "feddf", "distil_steps": 30, "server_data": 0.2, "validation": 0.0},
}
needs_kernels = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")


def half_log_loss(outputs: torch.Tensor, y: torch.Tensor, _context: object) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, y, reduction="none") / 2


def lanes_of(run: fedray.Run) -> str:
    return str(json.loads((run.path / "identity.json").read_text())["engine"]["lanes"])


@needs_kernels
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_compiled_students_learn_what_those_of_torch_learn(method: dict[str, object]) -> None:
    rows = []
    for lanes in ("auto", "torch"):
        rows.append(fedray.run({**KEYS, "method": method, "lanes": lanes}).progress.state.models)
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-4)
    assert not torch.equal(rows[0], rows[1])


@needs_kernels
def test_a_run_goes_on_with_the_students_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with a loss of their own train by torch, and the server's student by a kernel: that is kept too."""
    keys = {**KEYS, "method": METHODS["feddf"]}
    whole = fedray.run({**keys, "rounds": 4}, loss=half_log_loss, out=tmp_path / "whole")
    part = fedray.run(keys, loss=half_log_loss, out=tmp_path / "part")
    assert json.loads((part.path / "manifest.json").read_text())["engine"]["name"] == "vmap"
    assert lanes_of(part) == "compiled"
    again = fedray.resume(part.path, rounds=4, loss=half_log_loss)
    assert again.summary["state_hash"] == whole.summary["state_hash"]
    monkeypatch.setattr(native, "load_library", lambda: native.Missing("it was not built"))
    with pytest.raises(fedray.BadInput, match="the run began with compiled kernels, but it was not built"):
        fedray.resume(part.path, rounds=5, loss=half_log_loss)
    assert lanes_of(fedray.run(keys, loss=half_log_loss, out=tmp_path / "plain")) == "torch"


def test_torch_is_the_engine_where_no_kernel_may_or_can(monkeypatch: pytest.MonkeyPatch) -> None:
    net, norm = (build_net("mlp", (3,), 2, "cross_entropy", hidden=[4], norm=norm) for norm in (None, "batch"))
    assert choose_students("torch")(net) is TORCH
    assert choose_students("auto")(norm) is TORCH
    if native.is_available():
        assert choose_students("auto")(net) is not TORCH
    monkeypatch.setattr(native, "load_library", lambda: native.Missing("it was not built"))
    assert choose_students("auto")(net) is TORCH
