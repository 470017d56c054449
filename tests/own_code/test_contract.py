"""The contract of a user's functions: what decides results depends on their arguments alone, or is refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.methods import Method, Setting, federated
from fedray.own_code.contract import contract, is_alike

KEYS: dict[str, Any] = scenario({"rounds": 2, "runtime": "inline", "report": False, "participation": {"per_round": 2}})
STATE: dict[str, Any] = {"calls": 0, "seen": [], "by": {}}
calls = 0


class Kept:
    number = 0


def count_global() -> float:
    global calls
    calls += 1
    return calls


def count_in_list() -> float:
    STATE["seen"].append(1)
    return len(STATE["seen"])


def count_keys() -> float:
    STATE["by"][len(STATE["by"])] = 1
    return len(STATE["by"])


def count_attribute() -> float:
    Kept.number += 1
    return Kept.number


WAYS: dict[str, Callable[[], float]] = {
    "numpy": lambda: np.random.default_rng().random(),
    "the global generator of numpy": lambda: float(np.random.rand()),
    "random": random.random,
    "torch": lambda: float(torch.rand(())),
    "the clock": lambda: time.perf_counter_ns() % 1009,
    "a global": count_global,
    "a list": count_in_list,
    "a key": count_keys,
    "an attribute": count_attribute,
}


def serving(make: Callable[[Any, Any, int], Any]) -> Callable[[Setting], Method]:
    """A method whose server's step adds something to the models."""

    def compose(setting: Setting) -> Method:
        phase = federated(setting)

        def step(state: Any, stats: Any, t: int) -> Any:
            return make(phase.server.step(state, stats, t), state, t)

        return Method("mine", replace(phase, server=phase.server._replace(step=step)))

    return compose


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_draws_or_counts_outside_its_state_trained_other_models_in_each_run(way: str) -> None:
    def add(after: Any, _state: Any, _t: int) -> Any:
        return after._replace(models=after.models + WAYS[way]())

    with pytest.raises(BadInput, match=r"^method .*: server\.step, asked again, returns something else, so that"):
        fedray.run(KEYS, method=serving(add))


def test_a_server_that_keeps_what_it_needs_in_its_state_is_left_in_peace() -> None:
    seen: list[int] = []

    def decay(after: Any, state: Any, t: int) -> Any:
        seen.append(t)  # a log decides nothing
        return after._replace(models=state.models + (after.models - state.models) / (1 + t))

    assert fedray.run(KEYS, method=serving(decay)).summary["rounds"] == 2
    assert seen == [0, 0, 1]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "the clock"])
def test_an_assignment_that_draws_or_counts_outside_its_address_was_another_one_in_each_run(way: str) -> None:
    def kind(models: int, _rows: str) -> Any:
        def assign(_now: Any, drawn: Any, _m: Any, _state: Any) -> Any:
            number, shift = len(drawn.client), int(WAYS[way]() * 1000)
            return np.arange(number), (np.arange(number) + shift) % models

        return assign

    with pytest.raises(BadInput, match="its assignment, asked again, returns something else, so that no run could be"):
        fedray.run(KEYS, schedule=kind, method={"name": "fed_ensemble", "models": 1009})


def test_results_are_alike_but_for_their_rounding() -> None:
    one = {"a": torch.ones(3), "b": (np.arange(3), [1.0, None, "x"])}
    assert is_alike(one, {"a": torch.ones(3) + 1e-7, "b": (np.arange(3), [1.0, None, "x"])})
    for other in (
        {"a": torch.ones(3) + 1e-3, "b": one["b"]},
        {"a": torch.ones(3), "b": (np.arange(1, 4), [1.0, None, "x"])},
        {"a": torch.ones(3), "b": (np.arange(3), [1.0, None, "y"])},
        {"a": torch.ones(3)},
        {"a": torch.ones(3).double(), "b": one["b"]},
    ):
        assert not is_alike(one, other)
    assert is_alike(np.array([np.nan, np.inf]), np.array([np.nan, np.inf]))


def test_a_function_that_writes_to_its_arguments_is_asked_again_with_those_of_before() -> None:
    def add(values: Any) -> Any:
        values += 1
        return values.copy()

    given = np.zeros(2)
    assert contract("mine", add, again=True)(given).tolist() == [1, 1] and given.tolist() == [1, 1]
