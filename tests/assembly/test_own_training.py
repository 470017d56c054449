"""Losses, optimizers and schedules that a user names or passes: where they act, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_names import forgetting_names
from small import copy_run, rows, run_command, scenario
from torch import Tensor

import fedray
from fedray.assembly.registry import take_objects
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.core.local import RateSchedule
from fedray.methods import LocalLoss, LossContext, Method, Setting, StepContext, Transform, federated
from fedray.scenario.loader import read_scenario

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


fedray.register("loss", "smooth", smooth)
fedray.register("optimizer", "clipped", clipped)
fedray.register("optimizer", "adamw", torch.optim.AdamW)
"""
SCENARIO = scenario({"rounds": 2, "method": {"name": "fedavg"}, "data": {"limit": 90}, "clients": {"number": 3}})


@pytest.fixture
def mine(tmp_path: Path) -> Any:
    (tmp_path / "my_training.py").write_text(MINE)
    with forgetting_names("my_training"):
        yield tmp_path / "my_training.py"


def run(local: dict[str, Any], **options: Any) -> fedray.Run:
    keys = {**SCENARIO, "local": {**SCENARIO["local"], **local}}
    return fedray.run(keys, runtime=options.pop("runtime", "inline"), **options)


def models(run: fedray.Run) -> Tensor:
    return run.progress.state.models


def test_a_scenario_names_a_loss_and_an_optimizer_with_their_options(mine: Path, tmp_path: Path) -> None:
    named = run({"loss": "smooth", "smoothing": 0.3, "optimizer": "clipped", "norm": 0.1}, modules=[str(mine)])
    plain, without = run({}), run({"loss": "smooth", "smoothing": 0.0})
    torch.testing.assert_close(models(plain), models(without), rtol=1e-4, atol=1e-5)
    assert (models(named) - models(plain)).abs().max() > 1e-3
    assert not torch.equal(models(named), models(run({"loss": "smooth", "optimizer": "clipped"})))
    again = fedray.run(named.path / "scenario.yaml", out=tmp_path / "again")
    assert torch.equal(models(named), models(again))
    adamw = run({"optimizer": "adamw", "lr": 0.01})
    assert adamw.summary["metrics"]["accuracy"]["mean"] > 0.2


def test_two_metrics_of_one_name_were_one() -> None:
    def make(value: float) -> Any:
        def score(_scored: Any) -> float:
            return value

        return score

    one, two = make(1.0), make(2.0)
    with pytest.raises(BadInput, match=r"^metrics: two functions are called score: give a mapping \{name: function\}$"):
        take_objects({"metrics": [one, two]})
    assert take_objects({"metrics": {"one": one, "two": two}}).metrics == {"one": one, "two": two}


def test_what_no_module_registers_is_one_line(mine: Path) -> None:
    with pytest.raises(BadInput, match=r"local\.loss = 'smooth' is not known: --import the module that registers"):
        run({"loss": "smooth"})
    with pytest.raises(BadInput, match=r"local\.optimizer = 'adm' is not one of sgd, adam: did you mean adam\?"):
        run({"optimizer": "adm"})
    with pytest.raises(BadInput, match=r"local\.smothing is not a key of local"):
        run({"loss": "smooth", "smothing": 0.1}, modules=[str(mine)])
    with pytest.raises(BadInput, match="local.optimizer is clipped and only sgd reads it"):
        run({"optimizer": "clipped", "momentum": 0.5}, modules=[str(mine)])
    with pytest.raises(BadInput, match="a stack trains with losses"):
        fedray.run(scenario({"method": {"name": "stacking"}, "local": {"loss": "smooth"}}))


def test_own_training_is_part_of_what_a_run_is(mine: Path, tmp_path: Path) -> None:
    """Another code is refused on resume, and the same one ends with the same bits."""
    whole = run({"loss": "smooth", "optimizer": "clipped"}, modules=[str(mine)], checkpoint={"every": 1, "keep": 9})
    half = copy_run(whole, tmp_path / "half", 1)
    resumed = fedray.resume(half, modules=[str(mine)])
    assert resumed.summary["state_hash"] == whole.summary["state_hash"]
    mine.write_text(MINE.replace("FACTOR = 1.0", "FACTOR = 0.5"))
    os.utime(mine, (0, 0))  # Python takes a file of the same size and second for the one that it compiled before
    other = copy_run(whole, tmp_path / "other", 1)
    with forgetting_names("my_training"):
        import sys

        sys.modules.pop("my_training")
        told = run_command("resume", other, "--import", mine)
    assert told.status
    assert "the file of module my_training is not what the run began with" in told.err


def half(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
    return 0.5 * context.objective(outputs, targets)


def doubled(gradient: Tensor, state: Any, _parameters: Tensor, _context: StepContext) -> tuple[Tensor, Any]:
    return 2.0 * gradient, state


TWICE = Transform(lambda parameters: torch.zeros_like(parameters), doubled)


def test_objects_are_passed_as_they_are(tmp_path: Path) -> None:
    """Half the loss and twice the gradient are what there was before; both are asked for again on resume."""
    plain = run({}, lanes="torch")
    both = run({}, loss=half, optimizer=TWICE, out=tmp_path / "run", checkpoint={"every": 1, "keep": 9})
    torch.testing.assert_close(models(plain), models(both), rtol=1e-4, atol=1e-5)
    there = copy_run(both, tmp_path / "there", 1)
    with pytest.raises(BadInput, match=r"own\.loss = half: this run was started with a Python object as its loss"):
        fedray.resume(there)
    resumed = fedray.resume(there, loss=half, optimizer=TWICE)
    assert resumed.summary["state_hash"] == both.summary["state_hash"]
    with pytest.raises(BadInput, match="loss= was given, but the run was started without"):
        fedray.resume(run({}, out=tmp_path / "plain").path, loss=half)
    with pytest.raises(
        BadInput, match="it reads nonsense: choose among inputs, features, network, broadcast, previous, ensemble"
    ):
        run({}, loss=LocalLoss(half, reads=("nonsense",)))
    text: Any = "network"
    with pytest.raises(BadInput, match=r"^loss: its reads is text: give a tuple, reads=\('network',\)$"):
        run({}, loss=LocalLoss(half, reads=text))


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ray_trains_with_own_code_to_the_same_bits() -> None:
    def moved(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        far: Tensor = (outputs - context.previous.outputs).square().mean(-1)
        return context.objective(outputs, targets) + far

    loss = LocalLoss(moved, reads=("previous",))
    inline, ray = (run({}, loss=loss, optimizer=TWICE, runtime=where) for where in ("inline", "ray"))
    assert inline.summary["state_hash"] == ray.summary["state_hash"]


@pytest.mark.parametrize(
    ("keys", "factors"),
    [
        ({"kind": "cosine", "rounds": 2}, [1.0, 0.5, 0.0]),
        ({"kind": "linear", "rounds": 4, "floor": 0.2}, [1.0, 0.8, 0.6]),
        ({"kind": "step", "at": [1, 2], "gamma": 0.5}, [1.0, 0.5, 0.25]),
        ({"kind": "cosine", "rounds": 2, "restart": True}, [1.0, 0.5, 1.0]),
        ({"kind": "linear", "rounds": 1, "restart": True, "warmup": 2}, [0.5, 1.0, 1.0]),
        ({"warmup": 2}, [0.5, 1.0, 1.0]),
    ],
)
def test_a_schedule_is_a_factor_of_the_rate(keys: dict[str, Any], factors: list[float]) -> None:
    """To the bit what a rate of each round gives; with every engine, since it changes nothing but the rate."""
    study = build_study(read_scenario({"local": {"lr": 0.05, "schedule": keys}, "clients": {"number": 3}}))
    assert [round(study.method.phase.local.lr_at(t) / 0.05, 9) for t in range(3)] == factors


def test_a_constant_schedule_changes_no_bit() -> None:
    assert RateSchedule().factor(7) == 1.0
    one, other = run({"schedule": "constant"}), run({})
    assert rows(one.rounds) == rows(other.rounds)
    with pytest.raises(BadInput, match=r"local\.schedule\.at is missing"):
        run({"schedule": "step"})
    with pytest.raises(
        BadInput, match=r"^local\.schedule\.rounds is missing: give the rounds after which .* begins ag"
    ):
        run({"schedule": {"kind": "cosine", "restart": True}})
    with pytest.raises(BadInput, match=r"local\.schedule\.restart = true cannot act"):
        run({"schedule": {"kind": "step", "at": [1], "restart": True}})
    with pytest.raises(BadInput, match=r"local\.schedule\.gamma = 0\.5 cannot act"):
        run({"schedule": {"kind": "cosine", "gamma": 0.5}})


@pytest.mark.parametrize(
    ("course", "says"),
    [
        (RateSchedule(warmup=-1), "warmup = -1: give a whole number of at least 0"),  # its rates were negative
        (RateSchedule("step", at=(1,), gamma=-0.5), r"gamma = -0\.5: give a number of at least 0"),
        (RateSchedule("linear", rounds=2, floor=float("nan")), "floor = nan: give a number of at least 0"),
        (RateSchedule("step", at=(1, -2)), "at = -2: give a whole number of at least 0"),
        (RateSchedule("step", at=3), "at is an int: give a tuple"),  # type: ignore[arg-type]
    ],
)
def test_a_schedule_of_ones_own_method_turns_no_step_around(course: RateSchedule, says: str) -> None:
    def method(setting: Setting) -> Method:
        return Method("mine", federated(setting, local=replace(setting.local, schedule=course)))

    with pytest.raises(BadInput, match=rf"local\.schedule\.{says}$"):
        fedray.run({**SCENARIO, "method": None}, method=method)
