"""Prints what the tests say: for each its file, its name and the first sentence of its docstring.

    python tools/theorems.py                   # of the working tree
    python tools/theorems.py COMMIT            # of a commit, and what became of each test that is gone since
    python tools/theorems.py COMMIT OTHER      # what only the first says, then what only the second says

A test without a docstring is told by its name. What holds the theorem of a test that is gone is in
`tests/theorems.yaml`; with one commit, the program ends with status 1 where a test that is gone has no row there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import yaml

ROOT = Path(__file__).parents[1]


def list_tests(commit: str | None = None) -> dict[str, tuple[str, str]]:
    """Returns the file and the theorem of each test function, by its name, of a commit or of the working tree."""

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    if commit:
        names = re.findall(r"^(?:tests|tools)/(?:.*/)?test_\w+\.py$", ask("ls-tree", "-r", "--name-only", commit), re.M)
        texts = {name: ask("show", f"{commit}:{name}") for name in names}
    else:
        paths = [path for top in ("tests", "tools") for path in sorted((ROOT / top).rglob("test_*.py"))]
        texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    found = {}
    for file, text in texts.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                said = re.split(r"(?<=[.!?])\s", " ".join((ast.get_docstring(node) or "").split()))[0]
                found[node.name] = file, said or node.name.removeprefix("test_").replace("_", " ")
    return found


def read_verdicts() -> dict[str, str]:
    """Returns what holds the theorem of each test that is gone, by the name of this test."""
    groups: dict[str, str] = yaml.safe_load((ROOT / "tests" / "theorems.yaml").read_text())
    return {f"test_{name}": holder for holder, names in groups.items() for name in names.split()}


def find_missing() -> list[str]:
    """Returns what holds a theorem by `tests/theorems.yaml`, and is not there."""
    now, missing = list_tests(), []
    for holder in sorted({*read_verdicts().values()}):
        file, _, name = holder.partition("::")
        if name:
            there = now.get(name, ("", ""))[0] in (file, f"tests/{file}")
        elif file.startswith("doctest "):
            there = ">>>" in str(resolve_name(file.removeprefix("doctest ")).__doc__)
        else:
            there = " " in file or any((ROOT / top / file).is_file() for top in ("", "tests"))
        missing += [] if there else [holder]
    return missing


def show(tests: dict[str, tuple[str, str]], title: str) -> None:
    """Prints a line for each test."""
    print(f"# {title}: {len(tests)}", *(f"{file} | {name} | {said}" for name, (file, said) in tests.items()), sep="\n")


def main(first: str | None = None, second: str | None = None) -> None:
    """Prints the tests, and with two commits the differences."""
    before = list_tests(first)
    now = list_tests(second)
    if first is None:
        show(before, "tests")
        return
    gone, verdicts = {name: one for name, one in before.items() if name not in now}, read_verdicts()
    if second is None:
        gone = {name: (file, f"{said} -> {verdicts.get(name, 'NO ROW')}") for name, (file, said) in gone.items()}
        show({name: one for name, one in before.items() if name in now}, "at both")
    show(gone, f"only at {first}")
    if second is not None:
        show({name: one for name, one in now.items() if name not in before}, f"only at {second}")
    elif gone.keys() - verdicts.keys():
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
