"""Own code that was changed between a run and its resumption, where the source alone does not tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario

import fedray
from fedray.core.errors import BadInput
from fedray.files.sealed import write_sealed
from fedray.own_code.read_values import hash_bytecode, hash_values

KEYS = scenario({"rounds": 1, "report": False, "data": {"limit": 90}, "clients": {"number": 3}})
strength, table, LIST = 0.1, {"strength": 0.1}, [0.1]
counts, calls = {"calls": 0}, 0
array = np.ones(3)
one, other = (lambda o, t, c: c.objective(o, t)), (lambda o, t, c: 5 * c.objective(o, t))  # fmt: skip


def read_globals(o: Any, t: Any, c: Any) -> Any:
    return c.objective(o, t) + (strength + table["strength"] + LIST[0] + array[0]) * o.square().sum(-1)


def close_over(value: Any) -> Callable[..., Any]:
    return lambda o, t, c: c.objective(o, t) * value[0]


def count(o: Any, t: Any, c: Any) -> Any:
    counts["calls"] += 1
    return c.objective(o, t)


@pytest.mark.parametrize(
    ("name", "value"), [("strength", 5.0), ("table", {"strength": 5.0}), ("LIST", [5.0]), ("array", np.zeros(3))]
)
def test_a_global_is_one_of_the_values(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_values(read_globals)
    monkeypatch.setitem(globals(), name, value)
    after = hash_values(read_globals)
    assert [key for key in before if before[key] != after[key]] == [name]


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        (torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 9.0])),
        (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (np.ones((2, 2)), np.ones(4)),
        ([{"a": (1, 2)}], [{"a": (1, 3)}]),
        ({0: {1, 2}}, {0: {1, 3}}),
    ],
)
def test_a_value_of_the_closure_is_known_by_what_it_holds(value: Any, changed: Any) -> None:
    assert hash_values(close_over(value)) == hash_values(close_over(value))
    assert hash_values(close_over(value)) != hash_values(close_over(changed))


def test_what_code_fills_or_changes_is_not_compared() -> None:
    assert hash_values(count) == {}
    assert hash_values(close_over([])) == {"value": ""}
    assert hash_values(close_over([object()])) == hash_values(close_over([object()]))


def add_call() -> None:
    global calls
    calls += 1


def count_by_helper(o: Any, t: Any, c: Any) -> Any:
    add_call()
    return c.objective(o, t) * (1 + 0 * calls)


class Remembering:
    """A metric that grows a list, and a number in a table."""

    def __init__(self) -> None:
        self.history, self.cache = [0.0], {"n": 1}

    def __call__(self, _scored: Any) -> float:
        self.history.append(1.0)
        self.cache["n"] += 1
        return 0.0


def test_a_run_could_not_be_opened_where_its_code_had_changed_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(o: Any, t: Any, c: Any) -> Any:
        array[0] += 1
        return c.objective(o, t)

    def scale(o: Any, t: Any, c: Any) -> Any:
        return c.objective(o, t) * center.mul_(0.9)

    center, remembering = torch.ones(1), Remembering()
    for thing in (fill, scale, count_by_helper, remembering):
        before = hash_values(thing)
        monkeypatch.setitem(globals(), "array", array + 1)
        monkeypatch.setitem(globals(), "calls", calls + 1)
        center += 1
        remembering.history.append(2.0)
        assert hash_values(thing) == before


def test_lambdas_of_one_line_are_told_apart_by_their_bytecode() -> None:
    assert hash_bytecode(one) != hash_bytecode(other)
    assert hash_bytecode(one).split()[0].startswith("3.")
    assert hash_bytecode(read_globals) == ""


def weigh(value: list[float]) -> Callable[..., Any]:
    weights = torch.tensor(value)
    return lambda o, t, c: c.objective(o, t) * weights[t]


def test_a_run_went_on_with_other_class_weights(tmp_path: Path) -> None:
    equal, unequal = [1.0] * 10, [1.0] * 9 + [9.0]
    run = fedray.run(KEYS, loss=weigh(equal), out=tmp_path / "run")
    line = r"metric or callback is not the one the run began with \(value weights of loss .*\)"
    with pytest.raises(BadInput, match=line):
        fedray.resume(run.path, loss=weigh(unequal), rounds=2)
    assert fedray.load(run.path, loss=weigh(unequal)).study.classes  # it trains no more
    identity = json.loads((run.path / "identity.json").read_text())
    old = {key: value for key, value in identity["training"].items() if not key.startswith("value ")}
    write_sealed(run.path / "identity.json", {**identity, "training": old})  # as an earlier version wrote it
    assert fedray.resume(run.path, loss=weigh(unequal), rounds=2).metrics["round"] == 2


def test_a_run_went_on_with_another_lambda_of_its_line(tmp_path: Path) -> None:
    run = fedray.run(KEYS, loss=one, out=tmp_path / "run")
    with pytest.raises(BadInput, match=r"\(bytecode of loss .*\)"):
        fedray.resume(run.path, loss=other, rounds=2)
    assert fedray.resume(run.path, loss=one, rounds=2).metrics["round"] == 2
