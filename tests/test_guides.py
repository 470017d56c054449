"""The tutorials and the pages of recipes cannot lie: their cells and blocks run, and what they type is there."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from pages import ROOT, compile_cell, find_blocks, find_cells, reader_environment, run_blocks, run_notebook

from fedray.cli.commands import commands
from fedray.scenario.sections import DATA_SPECS

DOCS = ROOT / "docs"
NOTEBOOKS = [path for path in sorted((DOCS / "tutorials").glob("*.md")) if "{code-cell}" in path.read_text()]
GUIDES = [path for path in sorted((DOCS / "how-to").glob("*.md")) if path.stem not in ("index", "ray_tune")]
RAY_TUNE = DOCS / "how-to" / "ray_tune.md"
OTHERS = [DOCS / f"{name}.md" for name in ("cluster", "scale", "explanation/determinism", "explanation/exact_sums")]
SLOW = (
    "baseline",
    "boosting",
    "choose_k",
    "cluster",
    "compare_at_equal_cost",
    "debug_a_client",
    "one_shot",
    "posteriors",
    "reproduce_a_table",
    "results_api",
    "resume_move_share",
    "scale",
    "serve",
    "uncertainty",
)  # pages of seconds, whose facts other tests hold
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


@every_notebook
def test_a_tutorial_is_a_notebook_of_the_usual_kernel(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("---\nfile_format: mystnb\nkernelspec:\n  name: python3\n")
    assert len([compile_cell(cell) for cell in find_cells(text)]) >= 4


@pytest.mark.parametrize("path", [*NOTEBOOKS, *GUIDES, *OTHERS, RAY_TUNE], ids=lambda path: path.stem)
def test_the_commands_of_a_page_are_there(path: Path) -> None:
    """Each command with its options, in blocks and between backticks, also where it cannot be run here."""
    text = path.read_text()
    blocks = "\n".join(body for kind, body in find_blocks(text) if kind in ("bash", "text")).replace("\\\n", " ")
    lines = [line.partition("#")[0] for line in blocks.splitlines()] + re.findall(r"`(fedray [^`]*)`", text)
    found = [re.search(r"(?:^|[/'\s])fedray ([a-z]+\b[^'&|]*(?:'[^']*')?[^'&|]*)", line) for line in lines]
    for words in [shlex.split(one[1].rstrip("'")) for one in found if one and one[1].count("'") % 2 == 0]:
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
    if path.stem == "first_ensemble":  # a bar, and a run that shows itself
        html = "".join(one.get("text/html", "") for one in data)
        assert "100%" in said and "still" not in said and "<table" in html and "<svg" in html


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else ()) for path in (*GUIDES, *OTHERS)],
    ids=lambda path: path.stem,
)
@pytest.mark.filterwarnings("ignore:by round 1 1 jobs failed:UserWarning")  # what the page on failing clients shows
@pytest.mark.filterwarnings("ignore:data. ")  # what the page on own data shows
def test_the_blocks_of_a_page_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    shutil.copy(DOCS / "how-to" / "trace.csv", tmp_path / "docs" / "how-to")
    shutil.copytree(ROOT / "scenarios", tmp_path / "scenarios")
    run_blocks(path.read_text(), path.stem, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("actors", [0, 2])
def test_the_example_of_the_page_on_ray_tune_runs(actors: int, tmp_path: Path) -> None:
    """Two rates learn nothing and are ended; the best of the others has its models."""
    pytest.importorskip("pydantic", reason="needs pip install 'fedray[tune]'")
    (code,) = (body for kind, body in find_blocks(RAY_TUNE.read_text()) if kind == "python")
    where = {**reader_environment(), "HOME": str(tmp_path)}
    code = code.replace("import fedray", "import fedray, ray\nray.init(num_cpus=3)")
    command = [sys.executable, "-c", code.replace("(scenario)", f"(scenario, actors={actors})")]
    done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    config, models = done.stdout.splitlines()[-2:]
    assert config.startswith("{'local.lr': 0.") and " 8 0.9" in config and int(models) > 0


def test_the_page_on_own_data_names_keys_that_there_are() -> None:
    for name, keys in re.findall(
        r"\{name: (table|hf|folder|leaf), ([^}]*)\}", (DOCS / "how-to" / "data.md").read_text()
    ):
        assert set(re.findall(r"(\w+):", keys)) <= set(DATA_SPECS[name].options), (name, keys)
