"""The tutorials and the pages of recipes cannot lie: their cells and blocks run, and what they type is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from pages import ROOT, compile_cell, find_blocks, find_cells, run_blocks, run_notebook

from fedray.cli.commands import commands

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
NOTEBOOKS = [path for path in TUTORIALS if "{code-cell}" in path.read_text()]
TASKS = (
    "choose_k",
    "coming_from_other_simulators",
    "compare_at_equal_cost",
    "debug_a_client",
    "posteriors",
    "read_results",
    "reproduce_a_table",
    "resume_move_share",
    "run_elsewhere",
    "shell_completion",
    "track_runs",
    "uncertainty",
)  # the other pages have tests of their own
HOW_TO = [*(ROOT / "docs" / "how-to" / f"{name}.md" for name in TASKS), ROOT / "docs" / "scale.md"]
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
every_page = pytest.mark.parametrize("path", HOW_TO, ids=[path.stem for path in HOW_TO])


def typed_commands(text: str) -> list[list[str]]:
    """Every `fedray ...` that a page types, in its blocks and between backticks, as words."""
    blocks = "\n".join(body for kind, body in find_blocks(text) if kind in ("bash", "text")).replace("\\\n", " ")
    lines = [line.partition("#")[0] for line in blocks.splitlines()] + re.findall(r"`(fedray [^`]*)`", text)
    found = [re.search(r"(?:^|[/'\s])fedray ([a-z]+\b[^'&|]*(?:'[^']*')?[^'&|]*)", line) for line in lines]
    return [shlex.split(match[1].rstrip("'")) for match in found if match and match[1].count("'") % 2 == 0]


@every_notebook
def test_a_tutorial_is_a_notebook_of_the_usual_kernel(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("---\nfile_format: mystnb\nkernelspec:\n  name: python3\n")
    assert len([compile_cell(cell) for cell in find_cells(text)]) >= 4


@pytest.mark.parametrize("path", [*NOTEBOOKS, *HOW_TO], ids=lambda path: path.stem)
def test_the_commands_of_a_page_are_there(path: Path) -> None:
    """Each command with its options, also where it cannot be run here."""
    for words in typed_commands(path.read_text()):
        command: click.Command = commands
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not commands, words
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= known | {"--help"}, (command.name, given - known)


@pytest.mark.slow
@every_notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_tutorial_runs_in_a_real_kernel(path: Path, tmp_path: Path) -> None:
    outputs = run_notebook(path.read_text(), tmp_path)
    data = [output.get("data", {}) for output in outputs]
    assert path.stem == "laptop_to_cluster" or any(len(one.get("image/png", "")) > 5_000 for one in data)
    said = "".join(output.get("text", "") for output in outputs)
    assert "Traceback" not in said and not re.search("fedray: (command )?not found", said)


@pytest.mark.slow
@every_page
@pytest.mark.filterwarnings("ignore:by round 1 1 jobs failed:UserWarning")  # what the page on failing clients shows
def test_the_blocks_of_a_how_to_page_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    assert any(kind in ("python", "bash", "text") for kind, _ in find_blocks(text)), "nothing to run or to look up"
    run_blocks(text, path.stem, tmp_path)
