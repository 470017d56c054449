"""A user's functions: what they take, how they are registered and named, and where they act."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_names import forgetting_names
from small import copy_run, models, run_command, scenario
from torch import Tensor

import fedray
from fedray.assembly.study import build_study
from fedray.methods import LossContext, Method, Setting, Transform, federated
from fedray.scenario.loader import read_scenario

KEYS = scenario({"rounds": 1, "method": {"name": "fedavg"}, "data": {"limit": 90}, "report": False})
KEYS["participation"] = {"per_round": 2}


OWN: dict[str, Callable[..., Any]] = {
    "loss": lambda outputs, targets, context: 0.5 * context.objective(outputs, targets),
    "partition": lambda labels, clients, _generator, _options: np.array_split(np.arange(len(labels)), clients),
    "metrics": lambda _scored: 1.0,
}


class Wrapped:
    """An object that can be called."""

    def __init__(self, function: Any) -> None:
        self.__name__, self.function = "wrapped", function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@pytest.mark.parametrize("kind", OWN)
def test_whatever_can_be_called_as_the_function_is_takes_its_place(kind: str) -> None:
    """A partial, an object, and a function of any arguments and of further ones that have defaults."""

    def anything(*given: Any, more: int = 1) -> Any:
        return OWN[kind](*given) if more else None

    hashes = set()
    for thing in (OWN[kind], partial(anything, more=2), Wrapped(anything)):
        given: dict[str, Any] = {kind: {"own": thing} if kind == "metrics" else thing}
        hashes.add(fedray.run(KEYS, **given).summary["model_hash"])
    assert len(hashes) == 1 and (fedray.run(KEYS).summary["model_hash"] in hashes) == (kind == "metrics")


# -- Functions that a user registers: what is checked then, and the options that a scenario gives them


def test_an_option_without_a_value_is_there() -> None:
    seen: list[dict[str, Any]] = []

    def method(setting: Setting) -> Method:
        seen.append(dict(setting.options))
        return Method("own", federated(setting))

    fedray.register("method", "open", method, options={"a": None, "b": 3})
    for given in ({}, {"a": None}, {"a": 2}):
        fedray.run({**KEYS, "method": {"name": "open", **given}})
    assert [{one["a"] for one in seen if one["a"] == a} for a in (None, 2)] == [{None}, {2}]
    assert all(one["b"] == 3 for one in seen)


# -- Losses, optimizers, augmentations and schedules that a user names or passes: where they act, and what is refused

MINE = """
import fedray
import torch
from fedray.methods import LocalLoss, Transform, start_empty

FACTOR = 1.0


def smooth(outputs, targets, context, *, smoothing=0.1):
    uniform = -outputs.log_softmax(-1).mean(-1)
    return FACTOR * ((1 - smoothing) * context.objective(outputs, targets) + smoothing * uniform)


def clipped(norm=1.0):
    def update(gradient, state, parameters, context):
        return gradient * (norm / gradient.norm().clamp(min=norm)), state

    return Transform(start_empty, update)


def noisy(x, *, level=5.0):
    return x.float() + level * torch.randn(x.shape)


fedray.register("augmentation", "noisy", noisy)
fedray.register("loss", "smooth", smooth)
fedray.register("optimizer", "clipped", clipped)
fedray.register("optimizer", "nadam", torch.optim.NAdam)
"""
SCENARIO = scenario({"rounds": 2, "method": {"name": "fedavg"}, "data": {"limit": 90}, "clients": {"number": 3}})


@pytest.fixture
def mine(tmp_path: Path) -> Any:
    (tmp_path / "my_training.py").write_text(MINE)
    with forgetting_names("my_training"):
        yield tmp_path / "my_training.py"


def run_local(local: dict[str, Any], **options: Any) -> fedray.Run:
    keys = {**SCENARIO, "local": {**SCENARIO["local"], **local}}
    return fedray.run(keys, runtime=options.pop("runtime", "inline"), **options)


def test_a_scenario_names_a_users_functions_with_their_options(mine: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {"loss": "smooth", "optimizer": "clipped", "augment": ["noisy", "flip"]}
    options = {"smoothing": 0.3, "norm": 0.1, "level": 50.0}
    named = run_local({**names, **options}, modules=[str(mine)])
    plain, without = run_local({}), run_local({"loss": "smooth", "smoothing": 0.0})
    torch.testing.assert_close(models(plain), models(without), rtol=1e-4, atol=1e-5)
    assert (models(named) - models(plain)).abs().max() > 1e-3
    for key in options:
        assert not torch.equal(models(named), models(run_local({**names, **options | {key: 1.0}})))
    again = fedray.run(named.path / "scenario.yaml", out=tmp_path / "again")
    assert torch.equal(models(named), models(again))
    assert "augmented by noisy and flip" in run_command("check", named.path / "scenario.yaml", "--import", mine).out
    nadam = run_local({"lr": 0.01}, optimizer=torch.optim.NAdam)
    assert torch.equal(models(run_local({"optimizer": "nadam", "lr": 0.01})), models(nadam))
    clipped = {"optimizer": "clipped", "norm": "1e-1"}  # an option of the optimizer alone
    torch.testing.assert_close(models(run_local(clipped, loss=scaled)), models(run_local(clipped)))


def scaled(outputs: Tensor, targets: Tensor, context: LossContext, *, norm: float = 1.0) -> Tensor:
    return norm * context.objective(outputs, targets)


def half(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    return 0.5 * context.objective(outputs, targets)


def test_objects_are_passed_as_they_are(tmp_path: Path) -> None:
    """Half the loss and twice the gradient are what there was before, also in a run that goes on."""
    twice = Transform(torch.zeros_like, lambda gradient, state, _parameters, _context: (2.0 * gradient, state))
    plain = run_local({}, lanes="torch")
    both = run_local({}, loss=half, optimizer=twice, out=tmp_path / "run", checkpoint={"every": 1, "keep": 9})
    torch.testing.assert_close(models(plain), models(both), rtol=1e-4, atol=1e-5)
    there = copy_run(both, tmp_path / "there", 1)
    resumed = fedray.resume(there, loss=half, optimizer=twice)
    assert resumed.summary["state_hash"] == both.summary["state_hash"]


@pytest.mark.parametrize(
    ("keys", "factors"),
    [
        ({"kind": "cosine", "rounds": 2}, [1.0, 0.5, 0.0]),
        ({"kind": "linear", "rounds": 4, "floor": 0.2}, [1.0, 0.8, 0.6]),
        ({"kind": "step", "at": [1, 2], "gamma": 0.5}, [1.0, 0.5, 0.25]),
        ({"kind": "cosine", "rounds": 2, "restart": True}, [1.0, 0.5, 1.0]),
        ({"kind": "linear", "rounds": 1, "restart": True, "warmup": 2}, [0.5, 1.0, 1.0]),
        ({"warmup": 2}, [0.5, 1.0, 1.0]),
        ({"kind": "constant"}, [1.0, 1.0, 1.0]),
    ],
)
def test_a_schedule_is_a_factor_of_the_rate(keys: dict[str, Any], factors: list[float]) -> None:
    """To the bit what a rate of each round gives; with every engine, since it changes nothing but the rate."""
    study = build_study(read_scenario({"local": {"lr": 0.05, "schedule": keys}, "clients": {"number": 3}}))
    assert [round(study.method.phase.local.lr_at(t) / 0.05, 9) for t in range(3)] == factors
