"""What goes together, as specifications, the page on combinations and the README say it."""

import ast
import re
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from method_cases import CASES, make_case
from reference_methods import write_readme
from reports import without_report
from small import NEEDS, of_method, scenario

import fedray
from fedray import methods
from fedray.assembly.study import build_study
from fedray.core.errors import BadInput
from fedray.core.options import MethodSpec
from fedray.methods import METHOD_SPECS, METHODS
from fedray.scenario.loader import read_scenario

OPTIONS: dict[str, dict[str, Any]] = {"ditto": {"lambda": [0.1, 1.0]}, "lg_fedavg": {"shared_layers": 1}}
README = (Path(__file__).parents[2] / "README.md").read_text()
CHANGES: dict[str, dict[str, Any]] = {
    "several models": {"method": {"models": 3}},
    "robust": {"server": {"robust": "median", "coefficients": "fedavg"}},
    "optimizer": {"server": {"optimizer": "yogi"}},
}
EVERYTHING: dict[str, Any] = {
    "participation": {"per_round": 2, "selection": "oort", "overcommit": 2, "dropout": 0.1, "deadline": 9.0},
    "compress": {"kind": "topk", "ratio": 0.5, "error_feedback": True},
    "clients": {"number": 6, "tiers": {"fast": {"share": 0.5}, "slow": {"share": 0.5, "seconds_per_step": 1.0}}},
}


@pytest.mark.parametrize("method", sorted(METHOD_SPECS.keys() - {"scaffold"}))  # which has all of this, with plain SGD
def test_the_page_on_what_combines_names_every_exception(method: str) -> None:
    """All ways to draw, to compress and to schedule at once are what a method combines with, or the page names it."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "combine_methods.md").read_text()
    table = page.partition("## Exceptions")[2].partition("\n## ")[0]
    exceptions = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.rpartition(" | ")[0])}
    random: dict[str, Any] = {"schedule": {"kind": "random"}}
    changes = {"any": {**random, "method": {"models": 2}}, "clients": random, "one": {}}[METHOD_SPECS[method].models]
    keys = scenario({"method": {"name": method}}, NEEDS.get(method, {}), changes, EVERYTHING)
    try:
        build_study(read_scenario(keys))
        assert method not in exceptions
    except BadInput as refused:
        assert method in exceptions, refused


def test_the_readme_names_all_methods() -> None:
    """`python docs/_ext/reference_methods.py` writes it."""
    assert write_readme(README) == README


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("method", METHOD_SPECS)
def test_a_method_combines_with_what_its_specification_says(method: str, change: str) -> None:
    """What is allowed builds, what is not is one line."""
    spec = METHOD_SPECS[method]
    allowed = {"several models": spec.models == "any"} | {key: key not in spec.fixed for key in ("robust", "optimizer")}
    tree = of_method(method, CHANGES[change])
    if allowed[change]:
        assert build_study(read_scenario(tree)).method.name == method
        return
    with pytest.raises(BadInput, match=r"one model|server") as wrong:
        build_study(read_scenario(tree))
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("method", METHOD_SPECS)
def test_a_method_keeps_private_state_where_its_specification_says_so(method: str) -> None:
    phase = build_study(
        read_scenario(of_method(method, {"method": OPTIONS.get(method, {}), "data": {"hold_out": 0.2}}))
    ).method.phase
    private = METHOD_SPECS[method].private
    assert bool(phase.own) == bool(private and ", if " not in private)


# A copy of each paper's file outside of the package, registered as a user's own method, trains the same bits


SEEDS = ("fed_ensemble", "fedavg", "shefl", "fedag", "random_walk", "stacking")  # what fedray began with
FRAME = ("__init__", "base", "kit", "setting")
FILES = sorted(path.stem for path in Path(methods.__file__).parent.glob("*.py") if path.stem not in (*SEEDS, *FRAME))
PUBLIC = ("fedray", "fedray.methods", "fedray.core.errors", "fedray.core.options")
QUICK = ("fedavg", "feddyn", "heterofl", "depthfl", "pvi", "fedem", "beta_predbayes", "adaboost_f", "local_only")


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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow, id=name)
        for name, compose in METHODS.items()
        if compose.__module__.removeprefix("fedray.methods.") in FILES
    ],
)
@pytest.mark.filterwarnings("ignore::fedray.core.errors.ScenarioWarning")
def test_a_copy_trains_the_same_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_report(monkeypatch)
    file = METHODS[name].__module__.rpartition(".")[2]
    path = tmp_path / f"copy_of_{file}.py"
    path.write_text((Path(methods.__file__).parent / f"{file}.py").read_text(encoding="utf-8"), encoding="utf-8")
    spec = util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    sys.modules[path.stem] = module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    specs: dict[str, MethodSpec] = module.SPECS
    compose: Callable[..., Any] = getattr(module, name)
    fedray.register("method", f"my_{name}", compose, spec=specs[name])
    keys = make_case(next(case for case in CASES if case.split()[0] == name))
    keys["rounds"] = min(keys["rounds"], 2)
    mine = {**keys, "method": {**keys["method"], "name": f"my_{name}"}}
    wanted, found = fedray.run(keys), fedray.run(mine)
    assert found.summary["model_hash"] == wanted.summary["model_hash"]
    assert found.summary["metrics"] == wanted.summary["metrics"]
