"""Pages of the documentation as their readers use them: blocks that run one after another, and notebooks."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fedray

ROOT = Path(__file__).parents[2]
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$\n?", re.M | re.S)


def find_blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page, as kind and body."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.M | re.S)


def find_cells(text: str) -> list[str]:
    """The code cells of a text notebook, without their tags."""
    return [re.sub(r"^:.*\n", "", cell, flags=re.M) for cell in CELL.findall(text)]


def reader_environment() -> dict[str, str]:
    """The variables of a reader who has installed fedray from this checkout."""
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **paths, "OMP_NUM_THREADS": "1"}


def run_blocks(text: str, page: str, folder: Path) -> None:
    """Runs the blocks of a page in a folder, which is the current one: `bash`, `python`, and `yaml` as scenarios.

    Blocks of other kinds (`text`) are what cannot run here, such as commands of a cluster.
    """
    names: dict[str, Any] = {"__name__": page}
    for number, (kind, body) in enumerate(find_blocks(text)):
        if kind == "bash":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", body], cwd=folder, env=reader_environment(), capture_output=True,
                text=True, check=False, timeout=200,
            )  # fmt: skip
            assert done.returncode == 0, (body, done.stderr[-2000:])
            assert "Traceback" not in done.stderr
        elif kind == "python":
            exec(compile(body, f"{page}, block {number}", "exec"), names)
        elif kind == "yaml":
            fedray.run(body, out=folder / f"yaml-{number}", runtime="inline", rounds=1, report=False)


def run_notebook(text: str, folder: Path) -> list[dict[str, Any]]:
    """Runs the cells of a text notebook in a real kernel, in a folder, and returns what they showed.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an error.
    """
    import nbformat
    from nbclient import NotebookClient

    v4: Any = nbformat.v4
    book = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in find_cells(text)])
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=120, kernel_name="python3", resources=where).execute(env=reader_environment())
    return [output for cell in book.cells for output in cell.outputs]


def compile_cell(cell: str) -> ast.Module:
    """The cell as Python; a line for the shell is none."""
    return ast.parse("\n".join("" if line.startswith("!") else line for line in cell.splitlines()))
