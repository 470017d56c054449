"""Breaks single lines of fedray, and says which test notices: `python tools/mutate.py 70 --seed 1`.

Breaks are drawn by a seed from the syntax trees of the package: a sign, a comparison, an off-by-one, a constant, a
dropped term, swapped arguments, the address of a random draw, a condition. Each is tried in a copy of the repository:
first the test files of its own name, then those that name it, those of its room, all. What nobody notices is printed as
SURVIVED: it is equivalent, or a test is missing. What was shown to be equivalent is a row of `equivalent.yaml`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("bench", "cli", "report")  # rooms whose numbers are not results
ORDERS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
DRAWS = {"keys", "stream"}  # of `core/rng.py`: they take addresses
UNORDERED = {"isinstance", "issubclass", "getattr", "hasattr", "zip", "max", "min", "set", "add"}  # or another type


class Break(NamedTuple):
    """A line that says something else.

    Attributes:
        file: Of the package, relative to the repository.
        line: Its number, from 1.
        kind: What was changed.
        old: The expression.
        new: What stands there instead.
        text: The whole file with it.
    """

    file: str
    line: int
    kind: str
    old: str
    new: str
    text: str


def list_changes(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yields what an expression can be changed to, by kind."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in ORDERS:
        yield "comparison", ast.Compare(node.left, [ORDERS[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS and not _has_text(node):
        yield "sign", ast.BinOp(node.left, SIGNS[type(node.op)](), node.right)
        if isinstance(node.op, ast.Add | ast.Sub):
            yield "dropped term", node.left
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < 100:
        yield "off by one", ast.Constant(node.value + 1)
    if isinstance(node, ast.Constant) and type(node.value) is float:
        yield "constant", ast.Constant(node.value * 2 + (node.value == 0))
    if isinstance(node, ast.BoolOp):
        yield "condition", node.values[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in DRAWS and len(node.args) > 1:
            yield "address", ast.Call(node.func, node.args[:-1], node.keywords)
        elif name not in UNORDERED and len(node.args) == 2 and ast.dump(node.args[0]) != ast.dump(node.args[1]):
            yield "swapped arguments", ast.Call(node.func, node.args[::-1], node.keywords)


def _has_text(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def _read_code(path: Path) -> tuple[str, list[ast.expr]]:
    """Returns the text of a file, and the one-line expressions in its functions except those of raised errors."""
    text = path.read_text()
    skipped: set[int] = set()
    found: list[ast.expr] = []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Raise | ast.JoinedStr | ast.arg | ast.AnnAssign):
                    skipped |= {id(part) for part in ast.walk(node)}
                elif isinstance(node, ast.expr) and id(node) not in skipped and node.lineno == node.end_lineno:
                    found.append(node)
    return text, found


def draw_breaks(number: int, seed: int, rooms: list[str]) -> list[Break]:
    """Draws breaks: first a file by its number of expressions, then a kind, then a place."""
    draw = random.Random(seed)
    every: dict[str, list[tuple[Path, ast.expr, ast.expr]]] = {}
    for path in sorted((ROOT / "fedray").rglob("*.py")):
        room = path.relative_to(ROOT / "fedray").parts[0]
        if room in LEFT_OUT or (rooms and room not in rooms):
            continue
        for node in _read_code(path)[1]:
            for kind, new in list_changes(node):
                every.setdefault(kind, []).append((path, node, new))
    found: list[Break] = []
    for _ in range(100 * number):  # a small room has fewer breaks than are asked for
        if len(found) == number:
            break
        kind = draw.choice(sorted(every))
        path, node, new = draw.choice(every[kind])
        made = _change(path, node, copy.deepcopy(new), kind)
        if made is not None and made not in found:
            found.append(made)
    return found


def _change(path: Path, node: ast.expr, new: ast.expr, kind: str) -> Break | None:
    """Returns the file with another expression, or None if the code stays the same."""
    lines = path.read_text().splitlines(keepends=True)
    line = lines[node.lineno - 1].encode()
    old, said = line[node.col_offset : node.end_col_offset].decode(), f"({ast.unparse(ast.fix_missing_locations(new))})"
    written = line[: node.col_offset] + said.encode() + line[node.end_col_offset :]
    text = "".join([*lines[: node.lineno - 1], written.decode(), *lines[node.lineno :]])
    try:
        same = ast.dump(ast.parse(text)) == ast.dump(ast.parse("".join(lines)))
    except SyntaxError:
        return None
    return None if same else Break(str(path.relative_to(ROOT)), node.lineno, kind, old, said[1:-1], text)


def read_equivalent() -> dict[tuple[str, str], str]:
    """Reads why breaks are equivalent, by file and broken line. Ends the tool if such a line is no longer there."""
    rows = yaml.safe_load(Path(__file__).with_name("equivalent.yaml").read_text())
    gone = [row for row in rows if row["line"] not in map(str.strip, (ROOT / row["file"]).read_text().splitlines())]
    if gone:
        sys.exit(f"equivalent.yaml: {gone[0]['file']} has no such line any more, remove the row: {gone[0]['line']}")
    return {(row["file"], row["becomes"]): row["reason"] for row in rows}


def list_stages(file: str) -> list[tuple[str, list[str]]]:
    """Returns the tests to run, nearest first: cases of a method, same name, naming the file, same room, all."""
    path = Path(file)
    room, stem = path.parts[1] if len(path.parts) > 2 else "", path.stem
    tests = {one.relative_to(ROOT): one.read_text() for one in sorted((ROOT / "tests").rglob("test_*.py"))}
    called = [one for one in tests if re.fullmatch(f"test_.*{stem}.*", one.stem) and one.parts[1] == room]
    called += [one for one in tests if one.stem == f"test_{stem}"]
    naming = [one for one, text in tests.items() if re.search(rf"fedray\.\S*\b{stem}\b|import .*\b{stem}\b", text)]
    stages = {
        "same name": [path, *called],
        "naming it": naming,
        "room": [*(one for one in tests if one.parts[1] == room), *([Path("fedray", room)] if room else [])],
        "all": [*tests, Path("fedray")],
    }
    asked: set[Path] = set()
    found = [("its cases", ["-k", stem, "tests/methods"])] if room == "methods" else []
    for stage, paths in stages.items():
        left = [one for one in dict.fromkeys(paths) if one not in asked]
        asked |= set(left)
        found += [(stage, [str(one) for one in left])] if left else []
    return found


def find_notice(made: Break, home: Path, limit: float) -> str:
    """Returns what notices a break: the stage and the first test that fails, or an empty text."""
    target = home / made.file
    before = target.read_text()
    target.write_text(made.text)
    late = []
    try:
        for stage, paths in list_stages(made.file):
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *paths]
            try:
                done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=limit, check=False)
            except subprocess.TimeoutExpired:
                late.append(stage)
                continue
            if done.returncode not in (0, 5):  # 5: no test there
                failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return f"{stage}: {failed[0].split(' - ')[0] if failed else 'it does not import'}"
    finally:
        target.write_text(before)
    return f"UNDECIDED: longer than {limit:.0f} seconds: {', '.join(late)}" if late else ""


def main(say: Callable[[str], object] = print) -> int:
    """Draws breaks, tries them, and says what nobody noticed; the exit status is their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, help="how many breaks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", action="append", default=[], help="only breaks of this folder of fedray; again: more")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for one stage of tests")
    parser.add_argument("--first", type=int, default=1, help="start at this break: it goes on after an interruption")
    parser.add_argument("--list", action="store_true", help="only show them")
    given = parser.parse_args()
    breaks, survived, undecided = draw_breaks(given.number, given.seed, given.room), 0, 0
    known, same = read_equivalent(), 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "fedray"
        if not given.list:
            ignore = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "_build", "runs")
            shutil.copytree(ROOT, home, ignore=ignore)
            os.environ["PYTHONPATH"] = str(home)
        for number, made in list(enumerate(breaks, 1))[given.first - 1 :]:
            began = time.monotonic()
            say(f"{number} {made.file}:{made.line} {made.kind}: {made.old} -> {made.new}")
            if reason := known.get((made.file, made.text.splitlines()[made.line - 1].strip())):
                same += 1
                say(f"    equivalent: {reason}")
            elif not given.list:
                noticed = find_notice(made, home, given.limit)
                survived, undecided = survived + (not noticed), undecided + noticed.startswith("UNDECIDED")
                say(f"    {noticed or 'SURVIVED'} ({time.monotonic() - began:.0f} s)")
    if not given.list:
        tried = given.number - given.first + 1
        said = f"{same} are equivalent, {survived} survived, {undecided} are undecided"
        say(f"{tried - same - survived - undecided} of {tried} breaks were noticed, {said}")
    return survived


if __name__ == "__main__":
    sys.exit(main())
