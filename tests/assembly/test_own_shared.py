"""A method whose clients and server share a variable: in one process it acted, on Ray each process had a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.methods import LocalLoss, Method, Setting, federated

KEYS = scenario(
    {"rounds": 3, "report": False, "data": {"limit": 90}, "clients": {"number": 3}, "method": {"models": 1}}
)
Change = Callable[[dict[str, Any], torch.Tensor, np.ndarray], object]


def make(change: Change, by: str) -> Callable[[Setting], Method]:
    """FedAvg whose loss and server hold a table, a tensor and an array, which one of them changes."""
    table, tensor, array = {"a": 1.0}, torch.ones(2), np.ones(2)

    def compose(setting: Setting) -> Method:
        def loss(outputs: Any, targets: Any, context: Any) -> Any:
            if by == "loss":
                change(table, tensor, array)
            return context.objective(outputs, targets) * table["a"] * tensor[0] * array[0]

        phase = federated(setting, local=replace(setting.local, loss=LocalLoss(loss)))

        def step(state: Any, stats: Any, t: int) -> Any:
            if by == "step":
                change(table, tensor, array)
            return phase.server.step(state, stats, t)

        return Method("own", replace(phase, server=phase.server._replace(step=step)))

    return compose


@pytest.mark.parametrize("by", ["step", "loss"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("table", lambda table, _tensor, _array: table.update(a=2.0)),
        ("tensor", lambda _table, tensor, _array: tensor.mul_(2)),
        ("array", lambda _table, _tensor, array: np.copyto(array, 2)),
    ],
)
def test_what_server_and_clients_share_is_refused_once_it_is_changed(name: str, change: Change, by: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}' is changed in training, .* on Ray, .* keep it in state.extra"):
        fedray.run(KEYS, method=make(change, by))


@pytest.mark.parametrize("by", ["step", "loss"])
def test_what_is_added_to_a_table_or_only_read_is_left_in_peace(by: str) -> None:
    run = fedray.run(KEYS, method=make(lambda table, _tensor, _array: table.setdefault("memo", 3), by))
    assert run.summary["rounds"] == 3


def test_a_variable_that_a_step_sets_anew_is_refused() -> None:
    def compose(setting: Setting) -> Method:
        factor = 1.0

        def loss(outputs: Any, targets: Any, context: Any) -> Any:
            return factor * context.objective(outputs, targets)

        phase = federated(setting, local=replace(setting.local, loss=LocalLoss(loss)))

        def step(state: Any, stats: Any, t: int) -> Any:
            nonlocal factor
            factor = 0.5 * factor
            return phase.server.step(state, stats, t)

        return Method("own", replace(phase, server=phase.server._replace(step=step)))

    with pytest.raises(BadInput, match="'factor' is changed in training"):
        fedray.run(KEYS, method=compose)
