"""Functions that a user registers: what is checked then, and the options that a scenario gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from own_names import forgetting_names
from small import scenario
from torch import nn

import fedray
from fedray.core.errors import BadInput
from fedray.methods import Method, Setting, Transform, federated, start_empty
from fedray.tuning.tune import run_sweep

KEYS = scenario({"rounds": 1, "method": {"name": "fedavg"}, "data": {"limit": 90}, "report": False})


def loss(outputs: Any, targets: Any, context: Any) -> Any:
    return context.objective(outputs, targets)


def weigh(outputs: Any, targets: Any, context: Any, *, by: float) -> Any:
    return by * loss(outputs, targets, context)


def scale(to: float) -> Transform:
    return Transform(start_empty, lambda gradient, state, _parameters, _context: (to * gradient, state))


def test_registered_functions_are_checked_when_they_are_registered() -> None:
    """Options that a scenario gives are arguments, too; so are those that it must give."""
    with forgetting_names("no_module"):
        for kind in ("method", "data", "partition", "selection"):
            with pytest.raises(
                BadInput, match=rf"^{kind}\.name = 'mine': it does not take \((.*)\): give a function \(\1\)"
            ):
                fedray.register(kind, "mine", lambda: None)
        with pytest.raises(BadInput, match=r"it has a yield"):
            fedray.register("callback", "mine", (lambda: (yield)))
        fedray.register("model", "one_more", lambda _shape, outputs, width: nn.Linear(width, outputs))
        fedray.register("data", "two_more", lambda _root, path, *, target: (path, target))
        fedray.register("loss", "weighed", weigh, options={"by": 2.0})
        fedray.register("optimizer", "scaled", scale, options={"to": 0.5})
        both = {**KEYS["local"], "loss": "weighed", "optimizer": "scaled"}
        plain = fedray.run(KEYS, lanes="torch").progress.state.models
        torch.testing.assert_close(
            fedray.run({**KEYS, "local": both}).progress.state.models, plain, rtol=1e-4, atol=1e-5
        )


def test_an_option_that_a_network_needs_was_missed_in_a_bare_type_error() -> None:
    with forgetting_names("no_module"):
        fedray.register(
            "model", "wide", lambda _shape, outputs, width: nn.Sequential(nn.Flatten(), nn.Linear(width, outputs))
        )
        with pytest.raises(BadInput, match=r"^model\.width is missing: wide needs it: give it a value$"):
            fedray.run({**KEYS, "model": "wide"})
        fedray.run({**KEYS, "model": {"name": "wide", "width": 64}})


def test_a_metric_of_ones_own_that_a_sweep_does_not_measure_was_said_not_to_exist(tmp_path: Path) -> None:
    with forgetting_names("no_module"):
        fedray.register("metric", "gap", lambda scored: scored.prediction.max())
        sweep = {"scenario": KEYS, "space": {"local.lr": [0.1, 0.2]}, "objectives": "gap"}
        with pytest.raises(
            BadInput, match=r"^objectives: gap is your own metric, .*: add it to its evaluate\.metrics$"
        ):
            run_sweep(sweep, tmp_path / "sweep")


def test_an_option_of_both_a_loss_and_an_optimizer_had_the_value_of_the_second_in_both() -> None:
    with forgetting_names("no_module"):
        fedray.register("loss", "weighed", weigh, options={"by": 2.0})
        fedray.register("optimizer", "scaled", lambda by=0.5: scale(by))
        both = {**KEYS["local"], "loss": "weighed", "optimizer": "scaled"}
        with pytest.raises(
            BadInput, match=r"^local\.by is an option of loss weighed and of optimizer scaled: give it an"
        ):
            fedray.run({**KEYS, "local": both})


def test_an_option_without_a_value_is_there() -> None:
    """One whose default is None was missing, and so was one that a scenario sets to null."""
    seen: list[dict[str, Any]] = []

    def method(setting: Setting) -> Method:
        seen.append(dict(setting.options))
        return Method("own", federated(setting))

    with forgetting_names():
        fedray.register("method", "open", method, options={"a": None, "b": 3})
        for given in ({}, {"a": None}, {"a": 2}):
            fedray.run({**KEYS, "method": {"name": "open", **given}})
    assert [{one["a"] for one in seen if one["a"] == a} for a in (None, 2)] == [{None}, {2}]
    assert all(one["b"] == 3 for one in seen)


@pytest.mark.parametrize("option", ["models", "name"])
def test_an_option_cannot_have_the_name_of_a_key(option: str) -> None:
    with pytest.raises(BadInput, match=f"^method 'taken': options has {option}, which is a key of every method"):
        fedray.register("method", "taken", lambda _setting: None, options={option: 3})
