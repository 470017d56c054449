"""The shape of the code: layers without circles, one place for each concern, a quick command line."""

import ast
import re
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedray

PACKAGE = Path(fedray.__file__).parent
MODULES = {
    ".".join(("fedray", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# A folder imports only from folders on lines above its own: this list is the architecture, which docs/design.md draws.
ROOMS = """
core
files  own_code  process
data  models  metrics
components  training
features
methods
scenario
report  simulation
assembly  evaluation  storage
runtime
advice
experiments
api  tuning  bench
cli
"""
LEVEL = {room: level for level, line in enumerate(ROOMS.split("\n")) for room in line.split()}
TOP = {"", "__main__"}  # `fedray/__init__.py` loads the API when it is asked; `__main__` is the command line


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def names_of(node: ast.AST) -> list[str]:
    """What an import statement imports; for `from a import b` the module `a.b` if there is one, else `a`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in MODULES else str(node.module) for name in inner]
    return []


@cache
def imports(module: str, types: bool = True) -> frozenset[str]:
    """Modules that a module imports: at its top, in its functions, by the rows of its stub, and for types."""
    found: set[str] = set()
    stub = MODULES[module].with_suffix(".pyi")
    todo: list[ast.AST] = [tree_of(module), *([ast.parse(stub.read_text())] if stub.is_file() else [])]
    while todo:
        node = todo.pop()
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        found.update(names_of(node))
        todo += ast.iter_child_nodes(node)
    return frozenset(found - {module})


def room(module: str) -> str:
    """The folder of a module, or its own name at the top of the package."""
    return module.partition(".")[2].partition(".")[0]


def test_every_folder_and_file_of_the_package_is_in_the_list() -> None:
    assert {room(module) for module in MODULES} - TOP == LEVEL.keys()


def test_a_folder_imports_only_from_folders_on_lines_above_it() -> None:
    """Also inside functions, by the rows of a stub, and for types."""
    wrong = [
        f"{module} imports {other}"
        for module in MODULES
        for other in imports(module) & MODULES.keys()
        if room(module) not in TOP
        and room(other) not in {*TOP, room(module)}
        and LEVEL[room(other)] >= LEVEL[room(module)]
    ]
    assert not wrong


def test_there_are_no_import_circles() -> None:
    """Imports inside functions and the rows of a stub count; those for types alone do not."""
    open_: list[str] = []
    done: set[str] = set()

    def visit(module: str) -> None:
        assert module not in open_, " -> ".join([*open_[open_.index(module) :], module])
        if module in done:
            return
        open_.append(module)
        for other in sorted(imports(module, types=False) & MODULES.keys()):
            visit(other)
        done.add(open_.pop())

    for module in MODULES:
        visit(module)


def outsiders(allowed: set[str], wanted: set[str]) -> list[str]:
    """Modules beside `allowed` that import something of `wanted` anywhere."""
    return [
        module
        for module in MODULES
        if module not in allowed
        and any(name == w or name.startswith(f"{w}.") for name in imports(module) for w in wanted)
    ]


def test_one_place_each() -> None:
    """Ray, names that meet functions, batched clients and YAML: one folder for each."""
    assert [m for m in outsiders(set(), {"ray"}) if not m.startswith("fedray.runtime.ray")] == []
    compose = re.compile(r"^from fedray\.methods import .*\bMETHODS\b", re.MULTILINE)
    assert {room(m) for m, path in MODULES.items() if compose.search(path.read_text())} == {"assembly"}
    assert [m for m in outsiders(set(), {"yaml"}) if not m.startswith(("fedray.scenario", "fedray.report"))] == []
    engines = {f"fedray.training.{name}" for name in ("layers", "loop")}
    assert [m for m in outsiders(set(), engines) if not m.startswith("fedray.training")] == []


def test_only_rng_makes_random_numbers() -> None:
    """No generator, seed or draw outside `rng.py`, so that every random number has an address."""
    wrong = []
    for module in MODULES.keys() - {"fedray.core.rng"}:
        if not re.search(r"rand|normal|seed|Generator|bernoulli|multinomial", MODULES[module].read_text()):
            continue
        if "random" in imports(module) or "numpy.random" in imports(module):
            wrong.append(f"{module} imports a random module")
        for node in ast.walk(tree_of(module)):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            draws = name.startswith(
                ("torch.rand", "torch.normal", "torch.manual_seed", "torch.Generator", "torch.random")
            )
            numpy = name.startswith("np.random.") and name != "np.random.Generator"
            if draws or numpy or name in ("torch.cuda.manual_seed", "torch.bernoulli", "torch.multinomial"):
                wrong.append(f"{module}, line {node.lineno}: {name}")  # type: ignore[attr-defined]  # an expression has a line
    assert not wrong


def test_every_folder_is_a_package() -> None:
    """Without `__init__.py` a folder is missing from the wheel, and its `ray.py` can shadow Ray."""
    assert [str(p.parent) for p in MODULES.values() if not (p.parent / "__init__.py").is_file()] == []


HEAVY = {"torch", "ray", "pandas", "pyarrow", "matplotlib", "sklearn", "scipy", "torchvision", "optuna"}
CODE = """import sys
from fedray.cli.commands import main
sys.argv = ['fedray', *sys.argv[1:]]
try: main()
finally: print(*sys.modules)
"""


@pytest.mark.parametrize(("word", "said", "heavy", "most"), [
    ("--help", "Usage: fedray", HEAVY, 0.5), ("list", "fed_ensemble", {"torch", "ray", "pandas"}, 30.0),
])  # fmt: skip
def test_a_command_of_text_imports_nothing_heavy_and_answers_at_once(
    word: str, said: str, heavy: set[str], most: float
) -> None:
    """Help takes less than half a second of CPU time (the best of five); `fedray list` answers from names alone."""
    seconds: list[float] = []
    while len(seconds) < 5 and min(seconds, default=most) >= most:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", CODE, word], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert said in done.stdout and heavy & set(done.stdout.splitlines()[-1].split()) == set()
    assert min(seconds) < most
