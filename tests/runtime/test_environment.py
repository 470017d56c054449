"""A process computes alike wherever it runs."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedray.core.errors import BadInput
from fedray.runtime.environment import WORKER, device_of, find_address, limit_gpu_memory


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU that can round to TF32, as torch shows it; the switches of torch are set back after the test."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    deterministic: Any = torch.utils.deterministic
    strict, fills = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(strict)
    deterministic.fill_uninitialized_memory = fills
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("everywhere", [None, "tf32", "ieee"])
def test_cuda_adds_in_one_order_and_computes_in_float32_unless_a_scenario_says_tf32(
    everywhere: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may train one after another, and a user's module may set all of torch's backends."""
    if everywhere and hasattr(torch.backends, "fp32_precision"):
        monkeypatch.setattr(torch.backends, "fp32_precision", everywhere)
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    scenarios: list[tuple[dict[str, Any], bool]] = [({}, False), ({"tf32": True}, True), ({"tf32": False}, False)]
    for more, wanted in scenarios:
        assert device_of(0.25, **more) == "cuda"
        assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == wanted
        assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
        assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert WORKER["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.usefixtures("gpu")
def test_tf32_is_refused_on_a_gpu_that_would_ignore_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(BadInput, match="clients.tf32 = true, but Tesla T4"):
        device_of(1.0, tf32=True)
    assert device_of(1.0) == "cuda"


def test_a_process_keeps_to_its_share_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of four actors on a GPU took all of its memory."""
    limits: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limits.append)
    for gpus in (0.25, 1.0, 0.0):
        limit_gpu_memory(gpus)
    assert limits == [0.25]


def test_a_gpu_that_is_not_there_may_be_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(0.25, "cpu") == "cpu"


# -- Which cluster is meant: what was typed, then RAY_ADDRESS, then one that is started here


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [
        (None, None, None),
        (None, "10.0.0.1:6379", "10.0.0.1:6379"),
        ("auto", "10.0.0.1:6379", "auto"),
        ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379"),
        ("local", "10.0.0.1:6379", None),
        ("[::1]:6379", None, "[::1]:6379"),
    ],
)
def test_what_is_typed_comes_before_rays_variable(
    given: str | None, variable: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert find_address("ray", given) == found


def test_what_runs_here_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """RAY_ADDRESS is there for whoever uses Ray, in a submitted job always."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert find_address("inline", None) is None
