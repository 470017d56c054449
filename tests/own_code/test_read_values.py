"""Own code that was changed between a run and its resumption, where the source alone does not tell."""

from __future__ import annotations

import heapq
import importlib.util
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small import scenario
from torch import nn

import fedray
from fedray.core.errors import BadInput
from fedray.files.bounded import write_sealed
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


@dataclass
class Config:
    """As scripts have it beside their functions."""

    scale: float
    inner: Any = None


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale


class Mode(Enum):
    LOW, HIGH = 1.0, 3.0


class Private:
    __slots__ = ("__scale", "__weakref__")

    def __init__(self, scale: float) -> None:
        self.__scale = scale


def network(value: float) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    for parameter in net.parameters():
        parameter.data.fill_(value)
    return net


MAKERS: list[Callable[[float], Any]] = [
    Config,
    Slotted,
    Private,
    lambda scale: SimpleNamespace(scale=scale),
    lambda scale: Namespace(scales=[scale]),
    lambda scale: Config(1.0, inner=SimpleNamespace(scale=torch.tensor(scale))),
    lambda scale: {"config": (scale,)},
    lambda scale: MappingProxyType({"scale": scale}),
    Fraction,
    np.float32,
    lambda scale: Mode.LOW if scale < 0.2 else Mode.HIGH,
    network,
    lambda scale: nn.CrossEntropyLoss(label_smoothing=scale),
    lambda scale: nn.Sequential(nn.Tanh() if scale < 0.2 else nn.ReLU()),
    lambda scale: nn.Sequential(nn.CrossEntropyLoss(weight=torch.full((2,), scale))),
]


@pytest.mark.parametrize("make", MAKERS)
def test_an_object_of_the_closure_or_of_the_module_is_known_by_its_attributes(
    make: Callable[[float], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hash_values(close_over(make(0.1))) == hash_values(close_over(make(0.1)))
    assert hash_values(close_over(make(0.1))) != hash_values(close_over(make(0.2)))
    found = []
    for scale in (0.1, 0.1, 0.2):
        monkeypatch.setitem(globals(), "strength", make(scale))
        found.append(hash_values(read_globals))
    assert found[0] == found[1] != found[2]


def test_a_class_is_known_by_the_numbers_that_were_set_on_it() -> None:
    class Settings:
        scale, calls = 1.0, 0

    def lose(o: Any, t: Any, c: Any, settings: Any = None) -> Any:
        Settings.calls += 1
        return c.objective(o, t) * settings.scale

    before = hash_values(named := partial(lose, settings=Settings()))
    Settings.calls = 5
    assert hash_values(named) == before
    Settings.scale = 2.0
    assert hash_values(named) != before


def test_an_object_that_can_be_called_is_known_by_its_slots_and_tensors() -> None:
    class Weigh(Slotted):
        __slots__ = ()

        def __call__(self, outputs: Any, _targets: Any, _context: Any) -> Any:
            return outputs * self.scale

    assert hash_values(Weigh(0.1)) == hash_values(Weigh(0.1)) != hash_values(Weigh(0.2))
    one, same, other = (nn.CrossEntropyLoss(weight=torch.full((2,), scale)) for scale in (0.1, 0.1, 0.2))
    assert hash_values(one) == hash_values(same) != hash_values(other)


def test_attributes_that_code_sets_and_what_a_network_counts_are_not_compared() -> None:
    config, net = SimpleNamespace(calls=0, scale=0.5), network(0.1)

    def lose(o: Any, t: Any, c: Any) -> Any:
        config.calls += 1
        return c.objective(o, t) * config.scale + net(o).sum()

    before = hash_values(lose)
    config.calls, net[1].running_mean = 5, torch.ones(2)
    assert hash_values(lose) == before
    config.scale = 0.6
    assert hash_values(lose) != before


SCALER = """
class Base:
    limit = {limit}

class Scaler(Base):
    def __init__(self):
        self.calls = 0

    def scale(self, x):
        self.calls += 1
        return {scaled}
"""


@pytest.fixture
def make_scaler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes an object of a class whose code differs, and whose attributes are the same."""

    def make(name: str, limit: float = 1.0, scaled: str = "x * self.limit") -> Any:
        path = tmp_path / f"{name}.py"
        path.write_text(SCALER.format(limit=limit, scaled=scaled))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module.Scaler()

    return make


def test_an_object_is_known_by_the_code_of_its_class_too(
    make_scaler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(o: Any, t: Any, c: Any) -> Any:
        return scaler.scale(c.objective(o, t))

    found = []
    made = [make_scaler("a"), make_scaler("b"), make_scaler("c", scaled="x / self.limit"), make_scaler("d", limit=2.0)]
    for scaler in made:
        found.append(hash_values(lose))
        monkeypatch.setitem(globals(), "strength", scaler)
        found.append(hash_values(read_globals))
    assert found[:2] == found[2:4]
    assert all(one != other for later in (4, 6) for one, other in zip(found[:2], found[later : later + 2], strict=True))
    scaler = made[0]
    scaler.calls = 7
    assert hash_values(lose) == found[0]


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

    def push(o: Any, t: Any, c: Any) -> Any:
        heapq.heappush(heap, 1.0)
        return c.objective(o, t)

    center, remembering, heap = torch.ones(1), Remembering(), [0.0]
    for thing in (fill, scale, push, count_by_helper, remembering):
        before = hash_values(thing)
        monkeypatch.setitem(globals(), "array", array + 1)
        monkeypatch.setitem(globals(), "calls", calls + 1)
        center += 1
        heap.append(2.0)
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


def test_a_run_went_on_with_another_object_in_the_closure(tmp_path: Path) -> None:
    def scaled(config: Any) -> Callable[..., Any]:
        return lambda o, t, c: c.objective(o, t) * config.scale

    run = fedray.run(KEYS, loss=scaled(Config(0.5)), out=tmp_path / "run")
    with pytest.raises(BadInput, match=r"\(value config of loss .*\)"):
        fedray.resume(run.path, loss=scaled(Config(0.6)), rounds=2)
    assert fedray.resume(run.path, loss=scaled(Config(0.5)), rounds=2).metrics["round"] == 2


def test_a_run_went_on_with_other_code_in_the_class_of_an_object(
    make_scaler: Callable[..., Any], tmp_path: Path
) -> None:
    def scaled(scaler: Any) -> Callable[..., Any]:
        return lambda o, t, c: scaler.scale(c.objective(o, t))

    run = fedray.run(KEYS, loss=scaled(make_scaler("a")), out=tmp_path / "run")
    with pytest.raises(BadInput, match=r"\(value class Scaler of loss .*\)"):
        fedray.resume(run.path, loss=scaled(make_scaler("b", limit=3.0)), rounds=2)
    assert fedray.resume(run.path, loss=scaled(make_scaler("c")), rounds=2).metrics["round"] == 2


def test_a_run_went_on_with_another_lambda_of_its_line(tmp_path: Path) -> None:
    run = fedray.run(KEYS, loss=one, out=tmp_path / "run")
    with pytest.raises(BadInput, match=r"\(bytecode of loss .*\)"):
        fedray.resume(run.path, loss=other, rounds=2)
    assert fedray.resume(run.path, loss=one, rounds=2).metrics["round"] == 2
