"""A user's code: its contract, its files, its values, and the options that it reads."""

import importlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from own_names import forgetting_names
from small import run_command, scenario
from torch import nn

import fedray
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput, FedrayWarning
from fedray.core.method import Method
from fedray.files.run_files import write_sealed
from fedray.methods import Setting, federated
from fedray.own_code.contract import hash_values, is_alike
from fedray.own_code.user_code import find_module_places, hash_source, import_modules
from fedray.scenario.loader import read_scenario
from fedray.scenario.names import known_names
from fedray.scenario.nested import write_yaml

KEYS: dict[str, Any] = scenario({"rounds": 2, "runtime": "inline", "report": False, "participation": {"per_round": 2}})


def serving(make: Callable[[Any, Any, int], Any]) -> Callable[[Setting], Method]:
    """A method whose server's step adds something to the models."""

    def compose(setting: Setting) -> Method:
        phase = federated(setting)

        def step(state: Any, stats: Any, t: int) -> Any:
            return make(phase.server.step(state, stats, t), state, t)

        return Method("mine", replace(phase, server=phase.server._replace(step=step)))

    return compose


def test_a_server_that_keeps_what_it_needs_in_its_state_is_left_in_peace() -> None:
    seen: list[int] = []

    def decay(after: Any, state: Any, t: int) -> Any:
        seen.append(t)  # a log decides nothing
        return after._replace(models=state.models + (after.models - state.models) / (1 + t))

    assert fedray.run(KEYS, method=serving(decay)).summary["rounds"] == 2
    assert seen == [0, 0, 1]


def test_results_are_alike_but_for_their_rounding() -> None:
    one = {"a": torch.ones(3), "b": (np.arange(3), [1.0, None, "x"])}
    assert is_alike(one, {"a": torch.ones(3) + 1e-7, "b": (np.arange(3), [1.0, None, "x"])})
    for other in (
        {"a": torch.ones(3) + 1e-3, "b": one["b"]},
        {"a": torch.ones(3), "b": (np.arange(1, 4), [1.0, None, "x"])},
        {"a": torch.ones(3), "b": (np.arange(3), [1.0, None, "y"])},
        {"a": torch.ones(3)},
        {"a": torch.ones(3).double(), "b": one["b"]},
        {"a": torch.ones(3), "b": None},  # a list and None had no common length, and a dict and None no common keys
        None,
    ):
        assert not is_alike(one, other)
    assert is_alike(np.array([np.nan, np.inf]), np.array([np.nan, np.inf]))


# -- Which files of the user another process needs to import what they pass


def test_a_module_takes_along_what_it_names_and_a_package_its_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "places_main.py": "import json, torch\nfrom places_other import f\nimport places_package.inner\n",
        "places_other.py": "import places_main\n\ndef f(): pass\n",  # a circle
        "places_package/__init__.py": "",
        "places_package/inner.py": "",
        "places_unused.py": "",
    }
    (tmp_path / "places_package").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    main = importlib.import_module("places_main")
    importlib.import_module("places_unused")
    want = [tmp_path / name for name in ("places_main.py", "places_other.py", "places_package")]
    assert find_module_places(["places_main"]) == want
    assert find_module_places(["code/places_main.py"], [main.f]) == want
    assert find_module_places([], [main.f]) == want
    assert find_module_places(["places_unknown", "torch"], [len, Path]) == []


def test_a_scenario_and_its_module_are_all_that_a_colleague_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run, checked, resumed and swept from another folder; the same bits and the same record of code as by --import."""
    (home := tmp_path / "study").mkdir()
    (home / "import_of_a_scenario.py").write_text(
        "import fedray\n"
        "from fedray.methods import federated\n"
        "from fedray.core.method import Method\n"
        "def compose(setting):\n"
        "    return Method('imported', federated(setting))\n"
        "fedray.register('method', 'imported', compose)\n"
    )
    plain = {**KEYS, "method": "imported", "checkpoint": {"every": 1}}
    (home / "mine.yaml").write_text(write_yaml({**plain, "import": "import_of_a_scenario.py"}))
    (home / "plain.yaml").write_text(write_yaml(plain))
    monkeypatch.chdir(tmp_path)
    with forgetting_names("import_of_a_scenario"):
        assert "is not a known method" in run_command("run", "study/plain.yaml", "--out", "none").err
        assert run_command("run", "study/mine.yaml", "--out", "run").status == 0
        assert run_command("check", "study/mine.yaml").status == 0
    named = "study/import_of_a_scenario.py"
    with forgetting_names("import_of_a_scenario"):
        assert run_command("run", "study/plain.yaml", "--import", named, "--out", "other").status == 0
        one, other = (json.loads((tmp_path / name / "identity.json").read_text()) for name in ("run", "other"))
        assert one == other and "import_of_a_scenario" in one["files"]
    with forgetting_names("import_of_a_scenario"):
        first = fedray.load("run", modules=[named]).summary["model_hash"]
        shutil.rmtree(tmp_path / "run" / "checkpoints" / "round-000002")
        (tmp_path / "run" / "summary.json").unlink()
    with forgetting_names("import_of_a_scenario"):
        assert fedray.resume("run").summary["model_hash"] == first
    keys = {"scenario": "mine.yaml", "space": {"local.lr": [0.1]}, "objectives": ["accuracy"], "trials": 1}
    (home / "sweep.yaml").write_text(write_yaml(keys))
    for _ in range(2):
        with forgetting_names("import_of_a_scenario"):
            assert run_command("tune", "study/sweep.yaml", "--out", "sweep", "--resume").status == 0
    with forgetting_names("import_of_a_scenario"):  # whoever reads the results of others runs no code of theirs
        for command in ("report", "sweep"), ("plot", "sweep"), ("export", "run"):
            assert f"of {named}: --import {named}, or" in run_command(*command).err
        assert run_command("report", "sweep", "--import", named).status == 0
    with pytest.raises(BadInput, match=r"import = .*nowhere.py: ModuleNotFoundError"):
        fedray.run({**KEYS, "import": "nowhere.py"})


def test_a_copy_of_a_module_elsewhere_is_the_same_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's copy is imported while objects are unpacked, before the file itself is asked for."""
    for folder in ("sent", "own"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "places_copied.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "sent")
    known = importlib.import_module("places_copied")
    import_modules([str(tmp_path / "own" / "places_copied.py")])
    assert sys.modules["places_copied"] is known
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    import_modules(())
    assert sys.path == before, "no file here hides a module of Python where none is named"


# -- Own code that was changed between a run and its resumption, where the source alone does not tell

FEW = scenario({"rounds": 1, "report": False, "data": {"limit": 90}, "clients": {"number": 3}})
strength, table, LIST = 0.1, {"strength": 0.1}, [0.1]
array = np.ones(3)
one, other = (lambda o, t, c: c.objective(o, t)), (lambda o, t, c: 5 * c.objective(o, t))  # fmt: skip


def read_globals(o: Any, t: Any, c: Any) -> Any:
    return c.objective(o, t) + (strength + table["strength"] + LIST[0] + array[0]) * o.square().sum(-1)


def close_over(value: Any) -> Callable[..., Any]:
    return lambda o, t, c: c.objective(o, t) * value[0]


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
    lambda scale: Config(1.0, inner=SimpleNamespace(scale=torch.tensor(scale))),
    lambda scale: MappingProxyType({"scale": scale}),
    Fraction,
    lambda scale: Mode.LOW if scale < 0.2 else Mode.HIGH,
    network,
    lambda scale: nn.Sequential(nn.Tanh() if scale < 0.2 else nn.ReLU()),
    lambda scale: torch.tensor([1.0, scale]),
    lambda scale: torch.full((2,), scale, dtype=torch.bfloat16),
    lambda scale: np.ones((2, 2) if scale < 0.2 else 4),
    lambda scale: [{"a": (1, {scale})}],
    float,
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
    keys = found[0].keys() | found[2].keys()
    assert all("strength" in key for key in keys if found[0].get(key) != found[2].get(key))


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
    run = fedray.run(FEW, loss=weigh(equal), out=tmp_path / "run")
    with pytest.warns(FedrayWarning):
        longer = fedray.resume(run.path, loss=weigh(unequal), rounds=2)
    assert longer.metrics["round"] == 2
    assert fedray.load(run.path, loss=weigh(unequal)).study.classes  # it trains no more: no warning
    same = fedray.run({**FEW, "rounds": 2}, loss=weigh(equal))
    assert longer.summary["model_hash"] != same.summary["model_hash"]


def test_a_changed_source_is_refused_also_where_a_closure_holds_it(tmp_path: Path) -> None:
    def scaled(scale: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda o, t, c: scale(c.objective(o, t))

    def double(x: Any) -> Any:
        return 2 * x

    def treble(x: Any) -> Any:
        return 3 * x

    run = fedray.run(FEW, loss=scaled(double), out=tmp_path / "run")
    with pytest.raises(BadInput):
        fedray.resume(run.path, loss=scaled(treble), rounds=2)
    assert fedray.resume(run.path, loss=scaled(double), rounds=2).metrics["round"] == 2


def test_code_without_a_source_of_its_own_goes_on(tmp_path: Path) -> None:
    """Two lambdas of a line, code typed into an interpreter; what is written again in another place is the same."""
    here = lambda x: x + 1  # noqa: E731
    there = lambda x: x + 1  # noqa: E731  # with another comment
    assert hash_source(here) == hash_source(there) != hash_source(lambda x: x + 2)
    assert hash_source(one) == hash_source(other) == {"<lambda>": ""}
    run = fedray.run(FEW, loss=one, out=tmp_path / "run")
    assert fedray.resume(run.path, loss=other, rounds=2).metrics["round"] == 2


def test_a_run_of_a_version_that_kept_other_digests_of_own_code_goes_on(tmp_path: Path) -> None:
    run = fedray.run(FEW, loss=weigh([1.0] * 10), out=tmp_path / "run")
    identity = json.loads((run.path / "identity.json").read_text())
    kept = {key: found for key, found in identity.items() if key not in ("source", "files", "values")}
    code = {"name": "make", "code": "12ab", "its file": "34cd", "value weights": "56ef", "bytecode": "3.11 78ab"}
    old = {"method": code, "partition": code, "modules": {"mine.py": "12ab"}, "training": {"loss <lambda>": "34cd"}}
    network = {**kept["network"], **code, "code of its modules": "12ab", "constants": "34cd"}
    write_sealed(run.path / "identity.json", {**kept, **old, "network": network})
    assert fedray.load(run.path, loss=weigh([1.0] * 10)).study.classes
    assert fedray.resume(run.path, loss=weigh([2.0] * 10), rounds=2).metrics["round"] == 2


# -- Options of own methods, partitions and selections: declared ones by name and kind, others by what is read


def compose(setting: Setting) -> Method:
    """An own method, whose proximal term is its option."""
    local = replace(setting.local, pull=setting.options.get("sigma", 0.05))
    return Method("mine", federated(setting, local=local))


@pytest.mark.parametrize("options", [{"sigma": 0.05}, None], ids=["declared", "read"])
def test_options_of_an_own_method_arrive(options: dict[str, Any] | None) -> None:
    fedray.register("method", "mine", compose, options=options)
    study = build_study(read_scenario(scenario({"method": {"name": "mine", "sigma": 0.5}})))
    assert study.method.phase.local.pull == 0.5


def test_a_registered_method_of_one_model_had_to_be_told_so_in_every_scenario() -> None:
    def single(setting: Setting) -> Method:
        return Method("single", federated(replace(setting, models=1)))

    fedray.register("method", "single", single)
    with pytest.raises(BadInput, match="method single trains one model"):
        build_study(read_scenario(scenario({"method": {"name": "single"}})))
    fedray.register("method", "single", single, models=1)
    assert build_study(read_scenario(scenario({"method": {"name": "single"}}))).method.phase.models == 1
    fedray.register("method", "several", compose, options={"sigma": 0.1}, models=3)
    assert read_scenario({"method": {"name": "several"}}).method.models == 3
    assert read_scenario({"method": {"name": "several", "models": 2}}).method.models == 2
    assert known_names("method")["several"].endswith("options: sigma")
