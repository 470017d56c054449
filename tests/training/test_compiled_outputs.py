"""The compiled kernels answer as torch's engines do, to the same bits whatever is asked beside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from blocks import perceptron
from torch import Tensor, nn

import fedray
from fedray.core import native
from fedray.core.types import Net
from fedray.data.types import Dataset, Split, classification
from fedray.models.net import net_of
from fedray.training.choice import choose_engine
from fedray.training.compiled import BATCH, CONV_KERNEL, run_kernel
from fedray.training.loop import loop_outputs

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the compiled kernels were not built here")


def padded() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, (3, 2), padding=(1, 2)), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(5, 9, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(72, 7), nn.Tanh(), nn.Linear(7, 3),
    )  # fmt: skip


def case(dtype: torch.dtype, models: int = 3, n: int = 2 * BATCH + 5) -> tuple[Net, Tensor, Tensor]:
    """A network, its models, and inputs of each."""
    net = net_of(padded, "own", "cross_entropy", 3)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(models, n, 2, 6, 8, generator=draw, dtype=torch.float64).to(dtype)
    return net, torch.stack([net.init(k) for k in range(models)]).to(dtype), x


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_answers_are_those_of_the_module(dtype: torch.dtype, bound: float) -> None:
    net, rows, x = case(dtype)
    net.module.to(dtype)
    right = loop_outputs(net, rows, torch.zeros(3, 0), x)
    torch.testing.assert_close(run_kernel(CONV_KERNEL, net, rows, x), right, rtol=0, atol=bound)
    shared = x[:1].expand(3, *x.shape[1:])
    right = loop_outputs(net, rows, torch.zeros(3, 0), shared)
    torch.testing.assert_close(run_kernel(CONV_KERNEL, net, rows, shared), right, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_answer_depends_on_no_other_one(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any models and rows together, any build, calls of any length: the same bits."""
    net, rows, x = case(dtype)
    whole = run_kernel(CONV_KERNEL, net, rows, x)
    for models, first, end in (([0], 0, 1), ([2], 7, 30), ([1, 2], 3, 3 + BATCH), ([2, 0], 0, 37)):
        part = run_kernel(CONV_KERNEL, net, rows[models], x[models, first:end])
        assert torch.equal(part, whole[models, first:end])
    monkeypatch.setattr("fedray.training.compiled.MOST_OPERATIONS", 1)
    assert torch.equal(run_kernel(CONV_KERNEL, net, rows, x), whole)
    library = native.load_library()
    assert isinstance(library, native.Library)
    if library.instructions == "avx512":
        monkeypatch.setattr(native, "load_library", lambda: library._replace(instructions="avx2"))
        assert torch.equal(run_kernel(CONV_KERNEL, net, rows, x), whole)


def pictures() -> Dataset:
    x = np.random.default_rng(0).integers(0, 255, size=(60, 2, 6, 8)).astype(np.uint8)
    y = np.arange(60) % 3
    return classification("mine", Split(x[:40], y[:40]), Split(x[40:], y[40:]), tuple("abc"))


@pytest.mark.parametrize("lanes", ["auto", "torch"])
def test_the_manifest_says_what_evaluates(lanes: str, tmp_path: Path) -> None:
    keys = {"rounds": 1, "clients": {"number": 4}, "runtime": "inline", "report": False, "lanes": lanes}
    fedray.run(keys, data=pictures(), model=padded, out=tmp_path / "run")
    engine = json.loads((tmp_path / "run" / "manifest.json").read_text())["engine"]
    assert (engine["name"], engine["evaluates"]) == (("conv-c", "compiled") if lanes == "auto" else ("conv", "torch"))


def test_perceptrons_are_evaluated_by_torch() -> None:
    assert choose_engine(perceptron(), lanes="auto").evaluates == "torch"


FUZZ = """
import torch
import test_compiled_outputs as cases
for dtype in (torch.float32, torch.float64):
    for models, n in ((1, 1), (2, 16), (3, 33)):
        cases.run_kernel(cases.CONV_KERNEL, *cases.case(dtype, models, n))
print("fine")
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("instructions", ["avx2", "avx512"])
def test_answers_are_written_nowhere_outside_their_memory(
    instructions: str, run_checked: Callable[[str, str], None]
) -> None:
    """Under the address and undefined-behavior sanitizers of the system's compiler."""
    run_checked(FUZZ, instructions)
