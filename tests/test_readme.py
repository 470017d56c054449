"""Blocks of the README and of the site's first page run as they stand; files that the design page names are there."""

import re
import shutil
from pathlib import Path

import pytest
from pages import find_blocks, run_blocks

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_first_blocks_are_the_run_and_the_test_command() -> None:
    run, test = [body for kind, body in find_blocks(TEXT) if kind == "sh"][:2]
    assert "fedray run scenarios/quickstart.yaml" in run
    assert "pytest" in test
    assert all("venv" in block and "pip install" in block for block in (run, test))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_blocks_of_a_front_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quickstart has fewer rounds and epochs here and draws no report, and the sweep uses a process less."""
    monkeypatch.chdir(tmp_path)
    for folder in ("scenarios", "tune"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shorten(tmp_path / "scenarios" / "quickstart.yaml", "rounds: 50", "rounds: 2\nreport: false")
    shorten(tmp_path / "scenarios" / "quickstart.yaml", "epochs: 10", "epochs: 1")
    shorten(tmp_path / "tune" / "quick.yaml", "rounds: 6, clients.number: 20", "rounds: 2, clients.number: 10")
    shorten(tmp_path / "tune" / "quick.yaml", "jobs: 2", "jobs: 1")
    text = (ROOT / page).read_text().replace("tune/quick ", "tune/quick.yaml ")
    text = text.replace('"quickstart"', '"scenarios/quickstart.yaml"').replace(
        " quickstart", " scenarios/quickstart.yaml"
    )
    run_blocks(text, page, tmp_path)


def shorten(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


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


def test_the_readme_and_the_design_page_are_short() -> None:
    """Readers of the design page have a quarter of an hour; drawings and tables are counted."""
    assert len(TEXT.split()) <= 1000
    assert len((ROOT / "docs" / "design.md").read_text().split()) <= 1500


def test_the_design_page_has_a_paragraph_for_each_folder_of_the_package() -> None:
    folders = {path.name for path in (ROOT / "fedray").iterdir() if path.is_dir() and path.name != "__pycache__"}
    described = set(re.findall(r"\*\*([\w.]+)\*\*", (ROOT / "docs" / "design.md").read_text().split("## Words")[0]))
    assert folders <= described
