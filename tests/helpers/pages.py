"""Pages of the documentation as their readers use them: blocks that run one after another, and notebooks."""

import ast
import os
import re
import shlex
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from small import run_command

import fedray
from fedray.tuning.sweep import check_sweep, read_sweep

ROOT = Path(__file__).parents[2]
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$\n?", re.M | re.S)


def find_blocks(text: str) -> list[tuple[str, str]]:
    """Returns the fenced blocks of a page, as kind and body."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.M | re.S)


def find_cells(text: str) -> list[str]:
    """Returns the code cells of a text notebook, without their tags."""
    return [re.sub(r"^:.*\n", "", cell, flags=re.M) for cell in CELL.findall(text)]


def reader_environment() -> dict[str, str]:
    """Returns the environment variables of a reader who has installed fedray from this checkout."""
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **paths, "OMP_NUM_THREADS": "1"}


def run_shell(body: str, folder: Path) -> None:
    """Runs a block of the shell in the current folder: its lines `fedray ...` in this process, the others in bash.

    A new process would import torch first, which takes seconds. A line with the comment `refused` ends with status 2.
    """
    lines = body.replace("\\\n", " ").splitlines()
    for is_fedray, part in groupby(lines, key=lambda line: line.startswith("fedray ")):
        if not is_fedray:
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", "\n".join(part)], cwd=folder, env=reader_environment(), check=True,
                timeout=60,
            )  # fmt: skip
            continue
        for line in part:
            words = [name for word in shlex.split(line, comments=True)[1:] for name in find_names(word, folder)]
            done = run_command(*words)
            assert done.status == (2 if "# refused" in line else 0), (line, done.err)
            assert "Traceback" not in done.err


def find_names(word: str, folder: Path) -> list[str]:
    """Returns the files that match a word with a star, as in a shell, or else the word itself."""
    found = sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else []
    return found or [word]


def run_blocks(text: str, page: str, folder: Path) -> dict[str, Any]:
    """Runs the blocks of a page in the current folder: `bash`, `python`, and `yaml` as scenarios; sweeps are checked.

    Blocks of other kinds (`text`) cannot run here. Returns the names that the Python blocks have defined.
    """
    names: dict[str, Any] = {"__name__": page}
    for number, (kind, body) in enumerate(find_blocks(text)):
        if kind == "bash":
            run_shell(body, folder)
        elif kind == "python":
            exec(compile(body, f"{page}, block {number}", "exec"), names)
        elif kind == "yaml" and "\nspace:" in body:
            (folder / "sweeps").mkdir(exist_ok=True)
            (folder / "sweeps" / f"{number}.yaml").write_text(body)
            check_sweep(read_sweep(folder / "sweeps" / f"{number}.yaml"))
        elif kind == "yaml":
            fedray.run(body, out=folder / f"yaml-{number}", runtime="inline", rounds=1, report=False)
    return names


def run_notebook(text: str, folder: Path) -> list[dict[str, Any]]:
    """Runs the cells of a text notebook in a real kernel, in a folder, and returns what they showed."""
    import nbformat
    from nbclient import NotebookClient

    v4: Any = nbformat.v4
    book = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in find_cells(text)])
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=120, kernel_name="python3", resources=where).execute(env=reader_environment())
    return [output for cell in book.cells for output in cell.outputs]


def compile_cell(cell: str) -> ast.Module:
    """Parses a cell as Python, without its shell lines."""
    return ast.parse("\n".join("" if line.startswith("!") else line for line in cell.splitlines()))
