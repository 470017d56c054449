"""The documentation cannot lie.

Blocks of the README and of the page on own code run as they stand, scenarios of the pages in `docs/` run, and files
that `docs/design.md` and the decisions name are there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


SCENARIO_PAGES = (
    "boosting",
    "client_clusters",
    "cluster",
    "conformal",
    "devices",
    "distillation",
    "one_shot",
    "random_walk",
    "stacking",
    "training",
)


def blocks(kind: str, text: str = TEXT) -> list[str]:
    """The fenced blocks of a kind."""
    return [body for name, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.M | re.S) if name == kind]


def page(name: str) -> str:
    """A page of the documentation: of all of fedray, of a task or of an idea."""
    (path,) = (
        found for place in (".", "how-to", "explanation") for found in (ROOT / "docs").glob(f"{place}/{name}.md")
    )
    return path.read_text()


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with the files that the blocks name; here the quickstart has fewer rounds, and draws no report."""
    for folder in ("scenarios", "tune"):
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, tmp_path / folder)
    quickstart = tmp_path / "scenarios" / "quickstart.yaml"
    shorter = quickstart.read_text().replace("rounds: 50", "rounds: 8\nreport: false")
    assert shorter != quickstart.read_text()
    quickstart.write_text(shorter)
    sweep = tmp_path / "tune" / "quick.yaml"
    sweep.write_text(sweep.read_text().replace("jobs: 2", "jobs: 1"))  # a process less
    return tmp_path


def environment() -> dict[str, str]:
    bin_ = str(Path(sys.executable).parent)
    paths = {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **paths, "OMP_NUM_THREADS": "1"}


def test_the_first_blocks_are_the_run_and_the_test_command() -> None:
    run, test = blocks("sh")[:2]
    assert "fedray run scenarios/quickstart.yaml" in run
    assert "pytest" in test
    assert all("venv" in block and "pip install" in block for block in (run, test))


def both(kind: str) -> list[str]:
    """The blocks of the README, and of the page on own code."""
    return [*blocks(kind), *blocks(kind, page("own_code"))]


@pytest.mark.parametrize("block", both("bash"), ids=lambda b: b.split("\n", 1)[0][:60])
def test_every_command_runs(block: str, workplace: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], cwd=workplace, env=environment(), capture_output=True, text=True,
        check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("block", both("python"), ids=lambda b: b.split("\n", 1)[0][:60])
def test_every_python_example_runs(block: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, because a new one imports torch first. Each ends with a run, and nothing warns."""
    monkeypatch.chdir(workplace)
    names: dict[str, Any] = {"__name__": "example"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec(compile(block, "example.md", "exec"), names)
    assert names["run"].error is None and names["run"].summary["rounds"] >= 1


def test_the_examples_of_the_page_on_results_run_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks("python", page("results_api")))
    names: dict[str, Any] = {"__name__": "results_api"}
    exec(compile(code, "results_api.md", "exec"), names)  # in this process: it saves seconds
    table, (_, targets) = pd.read_csv("test_rows.csv"), names["regression"].study.split("test", 0)
    assert len(table) == 60 and np.allclose(table["target"], targets[:, 0])
    assert np.allclose(table[[f"member{k}" for k in range(5)]].mean(axis=1), table["mean"])
    said = capsys.readouterr().out
    assert "'mean': " in said and "round-000006" in said and "[PosixPath" not in said and "2 ['complete'" in said


def test_the_examples_of_the_page_on_boosting_run(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile("\n".join(blocks("python", page("boosting"))), "boosting.md", "exec"), {"__name__": "boosting"})
    said = capsys.readouterr().out
    assert "accuracy 0.9" in said and "macro F1 0.9" in said and "[10, 1, 19, 3]" in said


def test_the_example_of_the_page_on_asynchronous_training_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python", page("asynchronous"))
    exec(compile(code, "asynchronous.md", "exec"), {"__name__": "asynchronous"})
    most_stale, seconds = capsys.readouterr().out.split()
    assert int(most_stale) > 0 and float(seconds) > 0


def test_the_examples_of_the_page_on_conformal_sets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks("python", page("conformal")))
    exec(compile(code, "conformal.md", "exec"), {"__name__": "conformal"})
    said = capsys.readouterr().out
    assert "(359, 10)" in said and "conformal_coverage_client_worst" in said and said.count("looked up") == 3


@pytest.mark.parametrize("name", ["determinism", "exact_sums"])
def test_the_examples_of_an_explanation_run(name: str) -> None:
    code = "\n".join(blocks("python", page(name)))
    assert "\nassert " in code  # the page states what it shows
    exec(compile(code, f"{name}.md", "exec"), {"__name__": name})


def test_the_python_blocks_of_the_page_on_training_are_one_script(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    names: dict[str, Any] = {"__name__": "training"}
    exec(compile("\n".join(blocks("python", page("training"))), "training.md", "exec"), names)
    assert names["run"].summary["rounds"] == 2 and "margin" in names["run"].rounds.column_names
    assert [run.error for run in names["runs"]] == [None, None]


PAGES = [TEXT, *(page(name) for name in SCENARIO_PAGES)]
SCENARIOS = [block for text in PAGES for block in blocks("yaml", text)]


@pytest.mark.parametrize("block", SCENARIOS, ids=lambda b: b.split("\n", 1)[0][:60])
def test_every_scenario_of_the_documentation_runs(block: str, tmp_path: Path) -> None:
    import fedray

    run = fedray.run(block, out=tmp_path / "run", runtime="inline", rounds=1, report=False)
    assert run.summary["rounds"] >= 1  # a stack trains its meta model after that


PAGES_OF_FILES = ["docs/design.md", *(f"docs/decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("*.md"))]


@pytest.mark.parametrize("name", PAGES_OF_FILES)
def test_files_that_the_design_and_the_decisions_name_are_there(name: str) -> None:
    named = {file for file in re.findall(r"`([\w/]+\.(?:py|h|c))`", (ROOT / name).read_text()) if "NAME" not in file}
    assert named or name != "docs/design.md"
    missing = [f for f in named if not ((ROOT / "fedray" / f).is_file() or (ROOT / f).is_file())]
    assert [f for f in missing if not list((ROOT / "fedray").glob(f"**/{f}"))] == []


def test_files_that_comments_of_the_package_name_are_there() -> None:
    """Those of others, and a user's, aside."""
    modules = list((ROOT / "fedray").rglob("*.py"))
    known = {str(path.relative_to(ROOT / "fedray")) for path in modules} | {path.name for path in modules}
    named = {file for path in modules for file in re.findall(r"`([\w/]+\.py)`", path.read_text())}
    missing = {file for file in named - known if not (ROOT / file).is_file()}
    assert missing == {"code/mine.py", "flamby/aggs.py", "main_FedBEns_diag.py"}


def test_the_design_page_is_short() -> None:
    """Its readers have a quarter of an hour: 1,500 words, drawings and tables counted."""
    assert len(page("design").split()) <= 1500


def test_the_design_page_has_a_paragraph_for_each_folder_of_the_package() -> None:
    folders = {path.name for path in (ROOT / "fedray").iterdir() if path.is_dir() and path.name != "__pycache__"}
    described = set(re.findall(r"\*\*([\w.]+)\*\*", page("design").split("## Words")[0]))
    assert folders <= described


@pytest.mark.slow
def test_the_example_of_the_page_on_ray_tune_runs(tmp_path: Path) -> None:
    """Two rates learn nothing and are ended; the best of the others has its models."""
    (code,) = blocks("python", page("ray_tune"))
    where = {**environment(), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    config, models = done.stdout.splitlines()[-2:]
    assert config.startswith("{'local.lr': 0.") and " 8 0.9" in config and int(models) > 0
