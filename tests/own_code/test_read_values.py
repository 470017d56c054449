"""Own code that was changed between a run and its resumption, where the source alone does not tell."""

from __future__ import annotations

import importlib.util
import json
import re
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
from fedray.core.errors import BadInput, FedrayWarning
from fedray.files.bounded import write_sealed
from fedray.own_code.read_values import hash_values
from fedray.own_code.source_code import hash_source

KEYS = scenario({"rounds": 1, "report": False, "data": {"limit": 90}, "clients": {"number": 3}})
strength, table, LIST = 0.1, {"strength": 0.1}, [0.1]
array = np.ones(3)
one, other = (lambda o, t, c: c.objective(o, t)), (lambda o, t, c: 5 * c.objective(o, t))  # fmt: skip


def read_globals(o: Any, t: Any, c: Any) -> Any:
    return c.objective(o, t) + (strength + table["strength"] + LIST[0] + array[0]) * o.square().sum(-1)


def close_over(value: Any) -> Callable[..., Any]:
    return lambda o, t, c: c.objective(o, t) * value[0]


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


class Mode(Enum):
    LOW, HIGH = 1.0, 3.0


def network(value: float) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    for parameter in net.parameters():
        parameter.data.fill_(value)
    return net


MAKERS: list[Callable[[float], Any]] = [
    Config,
    lambda scale: SimpleNamespace(scale=scale),
    lambda scale: Namespace(scales=[scale]),
    lambda scale: Config(1.0, inner=SimpleNamespace(scale=torch.tensor(scale))),
    lambda scale: {"config": (scale,)},
    lambda scale: MappingProxyType({"scale": scale}),
    Fraction,
    np.float32,
    lambda scale: Mode.LOW if scale < 0.2 else Mode.HIGH,
    network,
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
        scale = 1.0

    def lose(o: Any, t: Any, c: Any, settings: Any = Settings) -> Any:
        return c.objective(o, t) * settings.scale

    before = hash_values(lose)
    Settings.scale = 2.0
    assert hash_values(lose) != before


def test_an_object_that_can_be_called_is_known_by_its_attributes_and_tensors() -> None:
    class Weigh(Config):
        def __call__(self, outputs: Any, _targets: Any, _context: Any) -> Any:
            return outputs * self.scale

    assert hash_values(Weigh(0.1)) == hash_values(Weigh(0.1)) != hash_values(Weigh(0.2))
    one, same, other = (nn.CrossEntropyLoss(weight=torch.full((2,), scale)) for scale in (0.1, 0.1, 0.2))
    assert hash_values(one) == hash_values(same) != hash_values(other)


SCALER = """
class Base:
    limit = {limit}

class Scaler(Base):
    def scale(self, x):
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


def weigh(value: list[float]) -> Callable[..., Any]:
    weights = torch.tensor(value)
    return lambda o, t, c: c.objective(o, t) * weights[t]


def test_a_changed_value_is_a_warning_and_the_run_goes_on_with_the_new_one(tmp_path: Path) -> None:
    equal, unequal = [1.0] * 10, [1.0] * 9 + [9.0]
    run = fedray.run(KEYS, loss=weigh(equal), out=tmp_path / "run")
    line = re.escape(f"{run.path}: value weights of loss <lambda> is not what the run began with: the new one counts")
    with pytest.warns(FedrayWarning, match=f"^{line}$"):
        longer = fedray.resume(run.path, loss=weigh(unequal), rounds=2)
    assert longer.metrics["round"] == 2
    assert fedray.load(run.path, loss=weigh(unequal)).study.classes  # it trains no more: no warning
    same = fedray.run({**KEYS, "rounds": 2}, loss=weigh(equal))
    assert longer.summary["model_hash"] != same.summary["model_hash"]


def test_values_that_the_code_itself_changes_refuse_nothing(tmp_path: Path) -> None:
    """A list that grows, and a counter, are other ones when the same process goes on."""
    seen: list[int] = []

    def lose(o: Any, t: Any, c: Any) -> Any:
        seen.append(len(t))
        return c.objective(o, t)

    run = fedray.run(KEYS, loss=lose, out=tmp_path / "run")
    with pytest.warns(FedrayWarning, match="value seen of loss lose is not what the run began with"):
        assert fedray.resume(run.path, loss=lose, rounds=2).metrics["round"] == 2


def test_a_network_that_holds_another_value_answers_with_a_warning(tmp_path: Path) -> None:
    def make(frozen: float) -> nn.Module:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        net.register_buffer("frozen", torch.tensor([frozen]), persistent=False)
        return net

    run = fedray.run(KEYS, model=partial(make, 1.0), out=tmp_path / "run")
    with pytest.warns(FedrayWarning, match="values argument 0 of model make, constants of model make are not what"):
        assert fedray.load(run.path, model=partial(make, 2.0)).study.classes


def test_a_changed_source_is_refused_also_where_a_closure_holds_it(tmp_path: Path) -> None:
    def scaled(scale: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda o, t, c: scale(c.objective(o, t))

    def double(x: Any) -> Any:
        return 2 * x

    def treble(x: Any) -> Any:
        return 3 * x

    run = fedray.run(KEYS, loss=scaled(double), out=tmp_path / "run")
    line = "run: the source of .*double of loss <lambda> is not what the run began with: restore it, or start a new run"
    with pytest.raises(BadInput, match=line):
        fedray.resume(run.path, loss=scaled(treble), rounds=2)
    assert fedray.resume(run.path, loss=scaled(double), rounds=2).metrics["round"] == 2


def test_another_class_of_an_object_that_code_reads_is_a_warning(
    make_scaler: Callable[..., Any], tmp_path: Path
) -> None:
    def scaled(scaler: Any) -> Callable[..., Any]:
        return lambda o, t, c: scaler.scale(c.objective(o, t))

    run = fedray.run(KEYS, loss=scaled(make_scaler("a")), out=tmp_path / "run")
    with pytest.warns(
        FedrayWarning, match="value class Base of scaler of loss <lambda> is not what the run began with"
    ):
        fedray.resume(run.path, loss=scaled(make_scaler("b", limit=3.0)), rounds=2)
    assert fedray.resume(run.path, loss=scaled(make_scaler("c")), rounds=3).metrics["round"] == 3


def test_code_without_a_source_of_its_own_goes_on(tmp_path: Path) -> None:
    """Two lambdas of a line, code typed into an interpreter."""
    assert hash_source(one) == hash_source(other) == {"<lambda>": ""}
    run = fedray.run(KEYS, loss=one, out=tmp_path / "run")
    assert fedray.resume(run.path, loss=other, rounds=2).metrics["round"] == 2


def test_a_run_of_a_version_that_kept_other_digests_of_own_code_goes_on(tmp_path: Path) -> None:
    run = fedray.run(KEYS, loss=weigh([1.0] * 10), out=tmp_path / "run")
    identity = json.loads((run.path / "identity.json").read_text())
    kept = {key: found for key, found in identity.items() if key not in ("source", "files", "values")}
    code = {"name": "make", "code": "12ab", "its file": "34cd", "value weights": "56ef", "bytecode": "3.11 78ab"}
    old = {"method": code, "partition": code, "modules": {"mine.py": "12ab"}, "training": {"loss <lambda>": "34cd"}}
    network = {**kept["network"], **code, "code of its modules": "12ab", "constants": "34cd"}
    write_sealed(run.path / "identity.json", {**kept, **old, "network": network})
    assert fedray.load(run.path, loss=weigh([1.0] * 10)).study.classes
    assert fedray.resume(run.path, loss=weigh([2.0] * 10), rounds=2).metrics["round"] == 2
