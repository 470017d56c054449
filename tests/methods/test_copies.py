"""A copy of each paper's file outside of the package, registered as a user's own method, trains the same bits."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from method_cases import CASES, make_case
from reports import without_report

import fedray
from fedray import methods
from fedray.core.options import MethodSpec
from fedray.methods import METHODS

SEEDS = ("fed_ensemble", "fedavg", "shefl", "fedag", "random_walk", "stacking")  # what fedray began with
FRAME = ("__init__", "base", "kit", "setting")
FILES = sorted(path.stem for path in Path(methods.__file__).parent.glob("*.py") if path.stem not in (*SEEDS, *FRAME))
PUBLIC = ("fedray", "fedray.methods", "fedray.core.errors", "fedray.core.options", "fedray.core.options")
QUICK = ("fedavg", "feddyn", "heterofl", "depthfl", "pvi", "fedem", "beta_predbayes", "adaboost_f", "local_only")


def list_methods(file: str) -> list[str]:
    """The methods of a file of the package."""
    return [name for name, compose in METHODS.items() if compose.__module__ == f"fedray.methods.{file}"]


@pytest.mark.parametrize("file", FILES)
def test_a_papers_file_imports_what_a_user_may(file: str) -> None:
    """Of fedray: the kit, specs and their checks, errors, and other papers by names without an underscore."""
    tree = ast.parse((Path(methods.__file__).parent / f"{file}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(one.name.startswith("fedray") for one in node.names), ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedray"):
            assert node.module in PUBLIC or str(node.module).removeprefix("fedray.methods.") in (*FILES, *SEEDS)
            assert not any(one.name.startswith("_") for one in node.names), ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("kit.", "setting.")):
            assert not node.attr.startswith("_") or node.attr in ("_replace", "_fields"), ast.unparse(node)


def copy_file(file: str, folder: Path) -> Any:
    """The module of a copy."""
    path = folder / f"copy_of_{file}.py"
    path.write_text((Path(methods.__file__).parent / f"{file}.py").read_text(encoding="utf-8"), encoding="utf-8")
    spec = util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    sys.modules[path.stem] = module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow, id=name)
        for file in FILES
        for name in list_methods(file)
    ],
)
@pytest.mark.filterwarnings("ignore::fedray.core.errors.ScenarioWarning")
def test_a_copy_trains_the_same_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_report(monkeypatch)
    module = copy_file(METHODS[name].__module__.rpartition(".")[2], tmp_path)
    specs: dict[str, MethodSpec] = module.SPECS
    compose: Callable[..., Any] = getattr(module, name)
    fedray.register("method", f"my_{name}", compose, spec=specs[name])
    keys = make_case(next(case for case in CASES if case.split()[0] == name))
    keys["rounds"] = min(keys["rounds"], 2)
    mine = {**keys, "method": {**keys["method"], "name": f"my_{name}"}}
    wanted, found = fedray.run(keys), fedray.run(mine)
    assert found.summary["model_hash"] == wanted.summary["model_hash"]
    assert found.summary["metrics"] == wanted.summary["metrics"]
